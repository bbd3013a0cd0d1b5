# SPDX-License-Identifier: MIT
"""Shape files and recorded shapes: what is read, and what is said of a bad one."""

import re

import pytest

from aiter_like.errors import TuningError
from aiter_like.tuning import shapes

FIELDS = ("rows", "hidden", "dtype", "has_residual")
KEY = {"rows": 1, "hidden": 4096, "dtype": "bf16", "has_residual": 0}


def write(tmp_path, text, name="shapes.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_columns_in_any_order_and_tuned_tables(tmp_path):
    path = write(tmp_path, "dtype,hidden, rows,has_residual\nbf16,4096,1,False\n\nfp16, 8192 ,2,true\n")
    second = {"rows": 2, "hidden": 8192, "dtype": "fp16", "has_residual": 1}
    assert shapes.read(path, "rms_norm", FIELDS) == [KEY, second]
    path = write(tmp_path, "arch,cu_num,rows,hidden,dtype,has_residual,backend,us\nsm_90,132,1,4096,bf16,0,hip,3.1\n")
    assert shapes.read(path, "rms_norm", FIELDS) == [KEY]


@pytest.mark.parametrize(("text", "message"), [
    ("", "1: shapes of rms_norm must have the columns rows, hidden, dtype, has_residual; missing: rows, hidden"),
    ("rows,hidden,dtype\n1,2,bf16\n", "1: .*; missing: has_residual"),
    ("rows,hidden,dtype,has_residual,colour\n", "1: .*; unknown: colour"),
    ("rows,hidden,dtype,has_residual,rows\n", "1: .*; twice: rows"),
    ("rows,hidden,dtype,has_residual\n1,2,bf16,0\n1,x,bf16,0\n", "3: hidden must be a number, at least 0, got 'x'"),
    ("rows,hidden,dtype,has_residual\n1,2,bf16,0\n1,-2,bf16,0\n", "3: hidden must be a number, at least 0, got '-2'"),
    ("rows,hidden,dtype,has_residual\n1,2,,0\n", "2: dtype must be a text, got ''"),
    ("rows,hidden,dtype,has_residual\n1,2,bf16,0,5\n", "2: 1 cells too many"),
    ("rows,hidden,dtype,has_residual\n1,2\n", "2: 2 cells too few"),
    ("rows,hidden,dtype,has_residual\n", "1: no shape in it"),
    ('rows,hidden,dtype,has_residual\n1,2,"bf16,0\n', "2: no CSV: "),
])
def test_a_mistake_has_file_and_line(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(TuningError, match=f"^{re.escape(str(path))}:{message}"):
        shapes.read(path, "rms_norm", FIELDS)


def test_unreadable_files(tmp_path):
    path = tmp_path / "shapes.csv"
    with pytest.raises(TuningError, match="shapes.csv:0: cannot be read"):
        shapes.read(path, "rms_norm", FIELDS)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TuningError, match="shapes.csv:0: cannot be read"):
        shapes.read(path, "rms_norm", FIELDS)


def test_recorded_shapes_of_all_processes(tmp_path):
    header = "arch,cu_num,rows,hidden,dtype,has_residual\n"
    write(tmp_path, header + "gfx942,304,2,4096,bf16,0\ngfx942,304,1,4096,bf16,0\n", "rms_norm.host.1.csv")
    write(tmp_path, header + "sm_90,132,1,4096,bf16,0\n", "rms_norm.host.2.csv")
    write(tmp_path, "not read\n", "rms_norm_quant.host.1.csv")
    assert shapes.recorded(tmp_path, "rms_norm", FIELDS) == [KEY, {**KEY, "rows": 2}]
    with pytest.raises(TuningError, match="no recorded shapes of layer_norm: run a program with AITER_LIKE_RECORD"):
        shapes.recorded(tmp_path, "layer_norm", FIELDS)
    write(tmp_path, header + "sm_90,132,1,4096,bf", "rms_norm.host.3.csv")
    with pytest.raises(TuningError, match=r"rms_norm.host.3.csv:2: 1 cells too few"):
        shapes.recorded(tmp_path, "rms_norm", FIELDS)


def test_shapes_on_the_command_line():
    assert shapes.parse("rows=1,hidden=4096,dtype=bf16,has_residual=false", "rms_norm", FIELDS) == KEY
    for text, message in (("rows=1", "--shape: .*missing: hidden"), ("rows=a,hidden=1,dtype=x,has_residual=0", "rows")):
        with pytest.raises(TuningError, match=message):
            shapes.parse(text, "rms_norm", FIELDS)
