# SPDX-License-Identifier: MIT
"""`aiter-like tune`: sources of shapes, what is printed and written, mistakes in one line."""

import pytest

from aiter_like import cli
from aiter_like.cli import tune
from aiter_like.tuning import tuner

pytestmark = pytest.mark.usefixtures("toy")


@pytest.fixture
def gpu(monkeypatch):
    """The planted device as the machine's GPU."""
    monkeypatch.setitem(tuner.HARNESSES, "gpu", "planted:harness")
    monkeypatch.setattr(tune, "_all_gpus", lambda device: (0,))


def run(capsys, *argv):
    return cli.main(["tune", *argv]), *capsys.readouterr()


def test_rows_and_report(gpu, capsys, tmp_path):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("rows,plant,dtype\n4,3,fp32\n")
    status, out, err = run(capsys, "planted", "--shape", "rows=4,plant=0,dtype=fp32", "--shapes", str(shapes),
                           "--output", str(tmp_path / "out"), "--report", str(tmp_path / "report"))
    assert status == 0, out
    assert "rows=4 plant=0 dtype=fp32: hip hip mode=good us=5.0: 5.00, was 10.00 (+100.0 %)" in out
    assert "WRONG hip hip mode=nan" in out and "CRASHED hip hip mode=exit us=1.0: exit status 7" in out
    assert f"rows: {tmp_path / 'out' / 'planted.csv'}" in out and "9/9 trials, 2/2 shapes, 00:00 left" in err
    assert (tmp_path / "report" / "planted.gfx942.md").is_file()
    assert "<svg" in (tmp_path / "report" / "planted.gfx942.html").read_text()


def test_a_report_that_cannot_be_written_is_told_before_anything_is_measured(gpu, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tuner, "tune", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "file").touch()
    status, out, err = run(capsys, "planted", "--shape", "rows=4,plant=0,dtype=fp32",
                           "--report", str(tmp_path / "file" / "report"))
    assert (status, out) == (1, "")
    assert err == (f"aiter-like tune: {tmp_path}/file/report:0: the report cannot be written there: Not a directory; "
                   "--report names another directory\n")


@pytest.mark.parametrize(("argv", "text"), [
    (["planted"], "no shapes: --shapes, --shape, --recorded, --model or --hot-list; the key of planted is "),
    (["planted", "--shape", "rows=1"], "--shape: shapes of planted must have the columns rows, plant, dtype; missing"),
    (["planted", "--model", "llama-3-8b"], "planted declares no shapes of models"),
    (["planted", "--hot-list"], "planted has no shapes in configs/hot_list.toml"),
    (["no_such", "--shape", "a=1"], "no_such is no operator"),
    (["planted", "--model", "llama"], "there are: deepseek-v3"),
    (["planted", "--shape", "rows=1,plant=0,dtype=fp32"], "torch sees no GPU; --device sim"),
])
def test_mistakes_are_one_line(capsys, argv, text):
    status, out, err = run(capsys, *argv)
    assert status == 1 and not out and err.startswith("aiter-like tune: ") and text in err and err.count("\n") == 1
