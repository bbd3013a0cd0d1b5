# SPDX-License-Identifier: MIT
"""Tuned tables: what a valid row is, what happens to a bad one, layers, rounding; the shape recorder."""

import os
import re

import pytest

from aiter_like.dispatch import record, table
from aiter_like.errors import TuningError

FIELDS = ("rows", "hidden", "dtype")
HEADER = "arch,cu_num,rows,hidden,dtype,backend,kernel,params,us,err,toolchain,kernel_rev,origin"
KERNELS = {"hip": None, "triton": frozenset({"rms_norm"}), "torch": frozenset({"torch"})}


@pytest.fixture(autouse=True)
def packaged(monkeypatch, tmp_path):
    """An empty folder of packaged tables."""
    folder = tmp_path / "packaged"
    (folder / "modelled").mkdir(parents=True)
    monkeypatch.setattr(table.paths, "tuned_csv", lambda: folder)
    monkeypatch.delenv("AITER_LIKE_TUNED", raising=False)
    return folder


@pytest.fixture
def user(monkeypatch, tmp_path):
    """Writes a user's file, names it in the environment, and returns its path."""

    def write(*rows, name="rms_norm.csv", header=HEADER):
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n")
        known = os.environ.get("AITER_LIKE_TUNED")
        monkeypatch.setenv("AITER_LIKE_TUNED", f"{known}{os.pathsep}{path}" if known else str(path))
        return path

    return write


def load(round_field=None):
    return table.load("rms_norm", FIELDS, KERNELS, round_field)


def row(rows=1, hidden=4096, backend="hip", kernel="rms_norm", us="1.5", origin="measured:mi300x", **other):
    cell = {"arch": "gfx942", "cu_num": 304, "dtype": "bf16", "params": "", "err": "0", "toolchain": "clang 22",
            "kernel_rev": ""} | other
    return (f"{cell['arch']},{cell['cu_num']},{rows},{hidden},{cell['dtype']},{backend},{kernel},{cell['params']},{us},"
            f"{cell['err']},{cell['toolchain']},{cell['kernel_rev']},{origin}")


def find(tuned, rows=1, hidden=4096, usable=lambda row: True, arch="gfx942", cu_num=304):
    return tuned.find(arch, cu_num, {"rows": rows, "hidden": hidden, "dtype": "bf16"}, usable)


class TestRows:
    def test_a_row(self, user):
        path = user(row(params="num_warps=4;BLOCK=128;fast=true;scale=0.5;mode=a", kernel_rev="0a1b"))
        found = find(load())
        assert dict(found.params) == {"BLOCK": 128, "fast": True, "mode": "a", "num_warps": 4, "scale": 0.5}
        assert list(found.params) == sorted(found.params)
        assert (found.backend, found.kernel, found.us, found.err) == ("hip", "rms_norm", 1.5, 0.0)
        assert (found.kernel_rev, found.origin, found.source) == ("0a1b", "measured:mi300x", f"{path}:2")

    def test_another_device_or_key_has_no_row(self, user):
        user(row())
        tuned = load()
        assert find(tuned, rows=2) is None
        assert find(tuned, arch="gfx950") is None
        assert find(tuned, cu_num=80) is None

    @pytest.mark.parametrize(("bad", "text"), [
        (row(rows="x"), "rows must be an integer, got 'x'"),
        (row(rows="1.0"), "rows must be an integer, got '1.0'"),
        (row(cu_num=""), "cu_num must be an integer, got ''"),
        (row(arch=" gfx942"), "arch must be a text without outer blanks, got ' gfx942'"),
        (row(dtype=""), "dtype must be a text without outer blanks, got ''"),
        (row(backend="cuda"), "backend must be one of hip, triton, torch, got 'cuda'"),
        (row(backend="triton", kernel="other"), "kernel of triton must be one of rms_norm, got 'other'"),
        (row(kernel=""), "kernel must be a text without outer blanks, got ''"),
        (row(us="fast"), "us must be a finite number, at least 0, got 'fast'"),
        (row(us="nan"), "us must be a finite number, at least 0, got 'nan'"),
        (row(us="inf"), "us must be a finite number, at least 0, got 'inf'"),
        (row(us="0"), "us must be greater than 0, got '0'"),
        (row(err="-1"), "err must be a finite number, at least 0, got '-1'"),
        (row(params="BLOCK"), "params must be name=value;…, got 'BLOCK'"),
        (row(params="1x=2"), "params must be name=value;…, got '1x=2'"),
        (row(params="a=1;a=2"), "params must name a once, got 'a=1;a=2'"),
        (row(origin="guessed"), "origin must start with measured: or modelled: here, got 'guessed'"),
        (row(origin="measured:"), "origin must start with measured: or modelled: here, got 'measured:'"),
        (row() + ",more", "must have 13 cells, got 14"),
        ("", "must have 13 cells, got 0"),
    ])
    def test_bad_row_is_dropped_and_named(self, user, caplog, bad, text):
        path = user(row(rows=7), bad, row(rows=8))
        tuned = load()
        assert [str(problem) for problem in tuned.problems] == [f"{path}:3: {text}"]
        assert all(isinstance(problem, TuningError) for problem in tuned.problems)
        assert find(tuned, rows=7) and find(tuned, rows=8)
        assert len(caplog.records) == 1 and f"{path}:3: {text}" in caplog.text

    @pytest.mark.parametrize(("damage", "text"), [
        (b"\xff", "must be cells in UTF-8"), (b'"', "must be cells in UTF-8"),
        (b"9" * 200_000, "must be cells in UTF-8"),
        (b"9" * 5000, "rows must have at most 18 digits"), ("٣".encode(), "rows must be an integer")],
        ids=["not UTF-8", "open quote", "longer than a cell", "5000 digits", "other digits"])
    def test_damaged_line_takes_no_other_with_it(self, user, damage, text):
        path = user(row(rows=7), row(rows="DAMAGE"), row(rows=8))
        path.write_bytes(path.read_bytes().replace(b"DAMAGE", damage))
        tuned = load()
        assert [str(problem).partition(": ")[0] for problem in tuned.problems] == [f"{path}:3"]
        assert text in str(tuned.problems[0]) and len(str(tuned.problems[0])) < 400
        assert find(tuned, rows=7) and find(tuned, rows=8)

    @pytest.mark.parametrize("number", ["9" * 19, "-" + "9" * 5000, "1e999", "9" * 5000 + ".0"])
    def test_params_are_numbers_that_a_kernel_can_take(self, user, number):
        path = user(row(params=f"lanes={number}"))
        problem, = load().problems
        assert str(problem).startswith(f"{path}:2: lanes in params must be a finite number, an integer of at most 18 ")

    def test_duplicate_names_both_lines(self, user):
        path = user(row(us="2"), row(rows=2), row(us="1"))
        tuned = load()
        assert [str(p) for p in tuned.problems] == [f"{path}:4: same key, backend, kernel and params as line 2"]
        assert find(tuned).us == 2

    def test_wrong_header_refuses_the_file(self, user):
        path = user(row(), header=HEADER.replace("hidden", "hiden"))
        tuned = load()
        assert str(tuned.problems[0]).startswith(f"{path}:1: columns must be {HEADER}, got arch,cu_num,rows,hiden,")
        assert not list(tuned.rows())

    def test_empty_and_unreadable_files(self, user, tmp_path):
        empty = user(header="")
        binary = user(name="rms_norm.other.csv")
        binary.write_bytes(b"\xff\xfe\x00")
        problems = [str(problem) for problem in load().problems]
        assert problems[0].startswith(f"{empty}:1: columns must be")
        assert problems[1].startswith(f"{binary}:1: must be cells in UTF-8, got what cannot be read: ")


class TestLayers:
    def test_the_smaller_time_wins_inside_a_layer(self, user):
        user(row(us="3"), row(us="1", backend="triton"), row(us="2", backend="torch", kernel="torch"))
        tuned = load()
        assert find(tuned).backend == "triton"
        assert find(tuned, usable=lambda row: row.backend != "triton").backend == "torch"
        assert find(tuned, usable=lambda row: False) is None

    def test_order_of_layers(self, user, packaged, tmp_path):
        (packaged / "modelled" / "rms_norm.csv").write_text(f"{HEADER}\n{row(us='0.1', origin='modelled:1')}\n"
                                                            f"{row(rows=2, origin='modelled:1')}\n")
        (packaged / "rms_norm.csv").write_text(f"{HEADER}\n{row(us='5')}\n")
        assert find(load()).us == 5
        assert find(load(), rows=2).origin == "modelled:1"
        user(row(us="9"))
        user(row(us="8"), name="rms_norm.second.csv")
        tuned = load()
        assert find(tuned).us == 9
        assert [layer.title.split()[0] for layer in tuned.layers] == ["AITER_LIKE_TUNED"] * 2 + ["packaged,"] * 2

    def test_a_measured_row_goes_before_every_modelled_one(self, user, packaged, monkeypatch, tmp_path):
        """Whichever file they are in, and also where it only rounds; among modelled ones the files' order counts."""
        own = tmp_path / "own"
        (own / "modelled").mkdir(parents=True)
        monkeypatch.setattr(table.paths, "user_tuned", lambda: own)
        (packaged / "rms_norm.csv").write_text(f"{HEADER}\n{row(rows=112, us='9')}\n")
        (packaged / "modelled" / "rms_norm.csv").write_text(f"{HEADER}\n{row(rows=2, us='1', origin='modelled:1')}\n")
        (own / "modelled" / "rms_norm.csv").write_text(f"{HEADER}\n{row(rows=2, us='2', origin='modelled:1')}\n")
        path = user(row(rows=101, us="1", origin="modelled:1"), row(rows=3, us="1", origin="modelled:1"),
                    row(rows=3, us="4", backend="torch", kernel="torch"))
        tuned = load("rows")
        assert (find(tuned, rows=101).us, find(tuned, rows=3).us, find(tuned, rows=2).us) == (9, 4, 2)
        assert find(tuned, rows=3, usable=lambda row: row.backend != "torch").us == 1
        assert [layer.title for layer in tuned.layers] == [
            f"AITER_LIKE_TUNED {path}, measured", "packaged, measured", f"AITER_LIKE_TUNED {path}, modelled",
            f"user's {own / 'modelled' / 'rms_norm.csv'}, modelled", "packaged, modelled"]

    def test_a_modelled_row_says_so(self, user):
        user(row(origin=table.modelled_origin("3", 2100.0)), row(rows=2), row(rows=3, origin="modelled:3"))
        first, second, third = load().rows()
        assert (second.is_modelled, second.model_version) == (True, "3")
        assert second.figure == "1.5 us, modelled, not measured (version 3 of the cycle model, at 2100 MHz)"
        assert (first.is_modelled, first.model_version, first.figure) == (False, "", "1.5 us, measured on mi300x")
        assert third.model_version == "3" and "at a clock that the row does not name" in third.figure

    def test_packaged_layers_hold_their_own_origin(self, packaged):
        (packaged / "rms_norm.csv").write_text(f"{HEADER}\n{row(origin='modelled:1')}\n")
        assert "origin must start with measured: here" in str(load().problems[0])

    def test_directory(self, monkeypatch, tmp_path):
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "rms_norm.csv").write_text(f"{HEADER}\n{row(us='4')}\n")
        (folder / "layer_norm.csv").write_text("not read\n")
        monkeypatch.setenv("AITER_LIKE_TUNED", str(folder))
        tuned = load()
        assert find(tuned).us == 4 and not tuned.problems

    def test_missing_path_is_a_problem_told_once(self, monkeypatch, tmp_path, caplog):
        monkeypatch.setenv("AITER_LIKE_TUNED", str(tmp_path / "absent"))
        for _ in range(2):
            assert "no such file or directory (AITER_LIKE_TUNED)" in str(load().problems[0])
        assert len(caplog.records) == 1

    def test_nothing_is_written(self, user, packaged):
        user(row())
        before = sorted(packaged.rglob("*"))
        find(load())
        assert sorted(packaged.rglob("*")) == before


class TestRounding:
    @pytest.mark.parametrize(("size", "stand_ins"), [
        (1, [16]), (16, []), (17, [32]), (100, [112, 128]), (256, []), (257, [288, 512]), (1000, [1024]),
        (1025, [1088, 2048]), (4096, []), (4097, [4224, 8192]), (0, [1])])
    def test_stand_ins(self, size, stand_ins):
        expected = stand_ins if size else [0, 1]
        assert [value for value in table.rounded(size)] == [value for value in expected if value != size]

    def test_exact_then_fine_then_coarse(self, user):
        user(row(rows=100, us="9"), row(rows=112, us="8"), row(rows=128, us="7"), row(rows=512, us="6"))
        tuned = load("rows")
        assert find(tuned, rows=100).us == 9
        assert find(tuned, rows=101).us == 8
        assert find(tuned, rows=113).us == 7
        assert find(tuned, rows=300).us == 6
        assert find(load(), rows=101) is None

    def test_a_higher_layer_answers_rounded_before_a_lower_one_exactly(self, user, packaged):
        (packaged / "rms_norm.csv").write_text(f"{HEADER}\n{row(rows=101, us='1')}\n")
        user(row(rows=112, us="8"))
        assert find(load("rows"), rows=101).us == 8


class TestKey:
    def test_flags_are_numbers(self):
        assert table.normalised("op", ("causal", "dtype"), {"dtype": "bf16", "causal": True}) == (1, "bf16")

    def test_wrong_fields_or_types(self):
        with pytest.raises(ValueError, match="op: tune key must have the fields rows, got hidden"):
            table.normalised("op", ("rows",), {"hidden": 1})
        with pytest.raises(TypeError, match="op: tune key field rows must be int, got '1'"):
            table.normalised("op", ("rows",), {"rows": "1"})


class TestRecord:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch):
        monkeypatch.setattr(record, "_seen", set())
        monkeypatch.setattr(record, "_failed", set())

    def test_appends_each_shape_once(self, monkeypatch, tmp_path):
        monkeypatch.setenv("AITER_LIKE_RECORD", str(tmp_path / "new" / "folder"))
        for rows in (1, 2, 1):
            record.record("rms_norm", FIELDS, "gfx942", 304, (rows, 4096, "bf16"))
        (path,) = (tmp_path / "new" / "folder").iterdir()
        assert re.fullmatch(rf"rms_norm\..+\.{os.getpid()}\.csv", path.name)
        assert path.read_text().splitlines() == ["arch,cu_num,rows,hidden,dtype", "gfx942,304,1,4096,bf16",
                                                 "gfx942,304,2,4096,bf16"]

    def test_off_by_default(self, monkeypatch, tmp_path):
        monkeypatch.delenv("AITER_LIKE_RECORD", raising=False)
        monkeypatch.chdir(tmp_path)
        record.record("rms_norm", FIELDS, "gfx942", 304, (1, 2, "bf16"))
        assert not list(tmp_path.glob("*.csv"))

    def test_unwritable_directory_is_told_once(self, monkeypatch, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("AITER_LIKE_RECORD", str(tmp_path / "file"))
        for rows in (1, 2):
            record.record("rms_norm", FIELDS, "gfx942", 304, (rows, 2, "bf16"))
        assert len(caplog.records) == 1 and "cannot write" in caplog.text
