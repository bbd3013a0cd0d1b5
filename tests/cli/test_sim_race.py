# SPDX-License-Identifier: MIT
"""`aiter-like sim race`: rows of data files, arithmetic, both sides, results, verdicts, the page; a small kernel of our
own stands for somebody's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from aiter_like import cli, device
from aiter_like.cli.sim.race import arithmetic, clocks, outcome, rows, tensors
from aiter_like.cli.sim.race.outcome import Outcome
from aiter_like.sim import modelling

SOURCE = """#include <hip/hip_runtime.h>
extern "C" __global__ void square(float* out, const float* x, unsigned count, float factor, unsigned passes) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float y = 0;
  for (unsigned pass = 0; pass < passes; ++pass) {
    y = x[i] > 0 ? x[i] * x[i] * factor : 0;
    asm volatile("" : "+v"(y));
  }
  out[i] = y;
}
"""
FAMILY = """
family = "squares"
error = "elementwise"
operands = ""
peer = "AITER"
source = "tests/cli/test_sim_race.py"
compare = { out = "y" }
ours = { call = "relu_squared", arguments = { input = "x" }, results = ["out"] }

[tensors]
x = { dtype = "fp32", shape = ["rows", "columns"], seed = 1 }
y = { dtype = "fp32", shape = ["rows", "columns"], fill = "zeros" }

[[launches]]
file = "{file}.co"
kernel = "square"
grid = ["ceil(rows * columns / 256)"]
block = 256
arguments = [[0, "y"], [8, "x"], [16, "u32", "rows * columns"], [20, "fp32", "factor"], [24, "u32", "passes"]]

[sizes]
columns = 64
factor = 1.0
passes = 1
file = "square"
"""
ROW = '[[rows]]\nname = "{}"\nrows = 4\n{}\n'


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("objects")
    (folder / "square.hip").write_text(SOURCE)
    assert cli.main(["sim", "compile", f"{folder / 'square.hip'}", "-o", f"{folder / 'square.co'}"]) == 0
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder of data files in place of configs/race."""
    (tmp_path / "race").mkdir()
    monkeypatch.setattr(rows, "folder", lambda: tmp_path / "race")
    return tmp_path / "race"


def families(place: Path, *entries: str, text: str = FAMILY) -> None:
    (place / "squares.toml").write_text(text + "".join(entries))


def race(*arguments: str | Path) -> int:
    return cli.main(["sim", "race", *map(str, arguments)])


def test_committed_rows_are_sound():
    every = rows.read()
    assert len({row.family.name for row in every}) == 9
    assert {row.family.peer for row in every} <= set(rows.PEERS)
    for row in every:
        assert all(arithmetic.integer(size, row.sizes, row.name) > 0 for step in row.family.launches if "grid" in step
                   for size in step["grid"])
        assert row.check or row.sizes  # large ones are compared at sizes that a processor does soon
        assert not row.is_large or row.check
    names = [row.name for row in every]
    assert {"attention backward 1x32/8x8192x128 AITER", "attention backward causal 1x32/8x8192x128 AITER"} <= set(names)


def test_arithmetic():
    sizes = {"m": 300, "tile": 128, "causal": 1, "name": "x"}
    for text, expected in (("ceil(m / tile)", 3), ("2 * m - -1", 601), ("m // tile % 2", 0), ("min(m, 7, tile)", 7),
                           ("3 if causal * (m > 256) else 5", 3), ("1 / sqrt(4)", 0.5), (7, 7), ("m == 300", 1)):
        assert arithmetic.number(text, sizes, "here") == expected
    for text, message in (("n + 1", "no size is called n"), ("name", "no size is called name"), ("m / 0", "division"),
                          ("__import__('os')", "no such arithmetic"), ("m.real", "no such arithmetic"),
                          ("m ** 999999", "no such arithmetic"), ("(", "never closed"), ([1], "must be a number")):
        with pytest.raises(ValueError, match=f"here.*{message}"):
            arithmetic.number(text, sizes, "here")
    with pytest.raises(ValueError, match="here must be whole, got 2.34"):
        arithmetic.integer("m / tile", sizes, "here")


def test_both_sides_are_timed_and_compared(place, objects, tmp_path, capsys):
    families(place, ROW.format("plain", ""), ROW.format("slow", "passes = 3000"),
             ROW.format("large", "is_large = true\ncheck = { rows = 2 }"))
    file = tmp_path / "figures.json"
    assert race(objects, "--json", file) == 0
    plain, slow = json.loads(file.read_text())
    assert plain["verdict"] == "tie" and slow["verdict"] == "win" and plain["difference"] == 0
    assert slow["ratio"] == pytest.approx(slow["peer_us"] / slow["ours_us"]) and slow["ratio"] > 2
    assert plain["clock_mhz"] == slow["clock_mhz"] and plain["is_modelled"]
    assert plain["ours_us"] == slow["ours_us"]  # the same call, wherever its tensors are
    printed = capsys.readouterr().out
    assert "squares: geometric mean" in printed and "a ratio within the model's own error is a tie" in printed
    assert "hip relu_squared[fp32]" in printed and "large" not in printed
    assert race(objects, "--only", "large", "--clock", "1500", "--budget", "1000") == 0
    assert "1500  hip relu_squared" in capsys.readouterr().out


def test_a_loss_falls_below_the_bar_and_a_tie_does_not(place, objects, capsys, monkeypatch):
    families(place, ROW.format("plain", ""))
    assert race(objects, "--bar", "0.97") == 0
    monkeypatch.setattr(modelling, "class_error", lambda kind: 0.0)
    monkeypatch.setattr(outcome.Outcome, "ratio", property(lambda one: 0.9))
    assert race(objects, "--bar", "0.97") == 1
    assert "below 0.97: squares plain AITER, the mean of squares" in capsys.readouterr().out


def test_other_results_are_an_error_and_no_time(place, objects, tmp_path, capsys):
    families(place, ROW.format("wrong", "factor = 1.01"),
             ROW.format("wrong too", 'factor = 1.01\nis_large = true\ncheck = { rows = 2 }'))
    for only in ([], ["--only", "wrong too"]):
        assert race(objects, *only, "--page", tmp_path / "page.md") == 1
        printed = capsys.readouterr().out
        assert "out and y differ: relative L2 difference 0.0099, limit 2e-06" in printed and " us " not in printed[99:]
    assert not (tmp_path / "page.md").exists()


def test_what_is_not_there_is_told_and_ours_runs(place, objects, capsys):
    families(place, ROW.format("absent", 'file = "absent"'))
    assert race(objects) == 0
    printed = capsys.readouterr().out
    assert f"not there: {objects / 'absent.co'}" in printed and "hip relu_squared[fp32]" in printed


def test_damaged_objects_fail_their_row_alone(place, objects, capsys):
    (objects / "text.co").write_text("no object")
    families(place, ROW.format("damaged", 'file = "text"'), ROW.format("plain", ""))
    assert race(objects) == 1
    printed = capsys.readouterr().out
    assert "failed: " in printed and "tie" in printed


def test_page_has_ours_alone(place, tmp_path):
    families(place, ROW.format("plain", ""))
    page = tmp_path / "page.md"
    page.write_text("# A page\n\nKept.\n")
    assert race("--page", page) == 0
    text = page.read_text()
    assert "Kept." in text and "| squares plain | " in text and "AITER" not in text.replace("aiter-like", "")
    assert f"model version {modelling.version()}" in text.replace("\n", " ")


def test_options(place, objects, capsys, monkeypatch):
    families(place, ROW.format("plain", ""))
    assert race("--list") == 0
    assert capsys.readouterr().out == "squares plain AITER: relu_squared beside square.co\n"
    monkeypatch.setattr(clocks, "aiters_folder", lambda: None)
    for arguments, message in (((), "DIR must be given"), ((objects / "none",), "none: no folder"),
                               ((objects, "--only", "x9"), "no row has x9"), ((objects, "--clock", "1"), "--clock"),
                               ((objects, "--budget", "-1"), "--budget must be")):
        assert race(*arguments) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new", "message"), [
    ('family = "squares"', "", "family is missing"),
    ('error = "elementwise"', 'error = "none"', "error must be one of"),
    ('operands = ""', 'operands = "fp3"', "operands must be one of"),
    ('peer = "AITER"', 'peer = "nobody"', "peer must be one of"),
    ('{ out = "y" }', '{ out = "z" }', "compare: no tensor 'z'"),
    ("block = 256", "", "block is missing"),
    ("block = 256", "blocks = 256", "has no key blocks"),
    ("passes = 1\n", "passes = [1]\n", "passes must be a number or a text"),
    ("[tensors]", "tensors = 3\n[tensors_]", "squares.toml"),
    ("seed = 1", "seed = ", "squares.toml"),
    ("rows = 4", "rows = 4\ncheck = { lines = 2 }", "the row has no size lines"),
    ("rows = 4", "rows = 4\nis_large = 1", "is_large true or false"),
])
def test_damaged_data_files_are_refused(place, old, new, message):
    families(place, text=(FAMILY + ROW.format("plain", "")).replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        rows.read()


@pytest.mark.parametrize(("old", "new", "message"), [
    ('"relu_squared"', '"relu_cubed"', "no public function 'relu_cubed'"),
    ('shape = ["rows"', 'shape = ["lines"', "tensors.x.shape: 'lines': no size is called lines"),
    ('dtype = "fp32"', 'dtype = "fp33"', "tensors.x.dtype must be one of"),
    ('[8, "x"]', '[8, "w"]', "no buffer 'w'"),
    ('[8, "x"]', '[300, "x"]', "end beyond the"),
    ('[8, "x"]', '["x"]', r"must be \[place, tensor\]"),
    ('"square"\ngrid', '"cube"\ngrid', "has no kernel cube"),
])
def test_damaged_rows_say_where(place, objects, capsys, old, new, message):
    families(place, text=(FAMILY + ROW.format("plain", "")).replace(old, new, 1))
    found = clocks.run(rows.read()[0], objects, clocks.here(2100))
    assert found.failed
    with pytest.raises(ValueError, match=message):
        raise ValueError(found.why)


def test_a_file_is_like_another(place):
    families(place, ROW.format("plain", ""))
    (place / "other.toml").write_text('like = "squares.toml"\npeer = "MoonMath"\nsource = "s"\nsizes = { passes = 2 }\n'
                                      + ROW.format("plain", ""))
    other, first = rows.read()
    assert (other.family.peer, other.sizes["passes"], other.sizes["columns"]) == ("MoonMath", 2, 64)
    assert other.family.tensors == first.family.tensors and first.sizes["passes"] == 1


def test_verdicts_and_means():
    family = rows.Family("f", "A", "product", "bf16", "AITER", "s", {}, {}, (), {})
    row = rows.Row("A r", family, {})
    win, tie, loss, none = (Outcome(row, 1, us, error=0.1) for us in (2.0, 0.95, 0.5, None))
    assert [one.verdict for one in (win, tie, loss, none)] == ["win", "tie", "loss", ""]
    assert outcome.mean([win, tie, loss], True) == pytest.approx(1) and outcome.mean([win, loss]) == pytest.approx(1)
    assert outcome.below([win, tie, none], 1.0) == [] and outcome.below([loss], 1.0) == ["A r", "the mean of A"]


class Events:
    """Stands for tuning.clock.GpuClock: makes each call, and says how long it took."""

    least_gain = 3.0

    def __init__(self, target: device.Target):
        self.made = 0

    def rounds(self, contenders, count):
        for one in contenders:
            one.calls[0]()
        return [[10.0, 11.0, 90.0], [22.0, 22.0, 22.0]]


@pytest.mark.parametrize(("options", "verdict", "why"), [("", "win", ""), ("factor = 2", "", "out and y differ")])
def test_the_way_of_a_real_device(place, objects, monkeypatch, options, verdict, why):
    """Modules and launches are the HIP runtime's, here the simulator's; times are medians of events, here made up."""
    families(place, ROW.format("plain", options))
    device.use_simulator(True)
    monkeypatch.setattr("aiter_like.tuning.clock.GpuClock", Events)
    clock = clocks.DeviceClock(device.target_of(torch.device("cpu")))
    clock._place = torch.device("cpu")
    found = clocks.run(rows.read()[0], objects, clock)
    assert (found.verdict, found.failed, found.clock_mhz) == (verdict, bool(why), None) and why in found.why
    assert found.difference == 0 and (found.ours_us, found.peer_us, found.error) == (11, 22, 0.03) if not why else True


def test_objects_of_an_installed_aiter_are_found(tmp_path, monkeypatch):
    """A wheel has them beside the package, as aiter_meta; this package's stand-in `aiter` has none."""
    objects = tmp_path / "aiter_meta" / "hsa" / "gfx942"
    (objects / "fmha_v3_fwd").mkdir(parents=True)
    assert clocks.aiters_folder() is None
    monkeypatch.syspath_prepend(tmp_path)
    assert clocks.aiters_folder() == objects


def test_tensors_of_rows():
    family = rows.Family("f", "A", "product", "bf16", "AITER", "s", {
        "ids": {"dtype": "i32", "shape": ["n", 4], "fill": "distinct", "times": 9},
        "order": {"dtype": "i32", "shape": ["n"], "fill": "permutation"},
        "starts": {"dtype": "i32", "shape": ["n"], "fill": "range", "times": 3},
        "shares": {"dtype": "fp32", "shape": ["n", 4], "fill": "shares"},
        "small": {"dtype": "bf16", "shape": ["n", 64], "times": 0.125},
        "turned": {"from": "small", "view": ["n", 8, 8], "permute": [2, 0, 1]},
        "weights": {"dtype": "bf16", "shape": [32, 64]},
        "shuffled": {"from": "weights", "by": "shuffle_weight"}}, {}, (), {})
    made = tensors.of(family, {"n": 16}, False)
    assert all(len(set(ids)) == 4 and max(ids) < 9 for ids in made["ids"].tolist())
    assert sorted(made["order"].tolist()) == list(range(16)) and made["starts"][5] == 15
    assert made["shares"].sum(-1) == pytest.approx(torch.ones(16)) and made["small"].float().abs().max() < 1
    assert torch.equal(made["turned"], made["small"].view(16, 8, 8).permute(2, 0, 1)) and made["shuffled"].is_shuffled
    assert all(tensor.data_ptr() % 4096 == 0 and tensor.is_contiguous() for tensor in made.values())
