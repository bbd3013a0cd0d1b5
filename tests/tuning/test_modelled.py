# SPDX-License-Identifier: MIT
"""Tuning by a clock that models: which candidate wins, when there is no row, where rows go, what is judged."""

from __future__ import annotations

import planted
import pytest

from aiter_like import cli, paths
from aiter_like.dispatch import table
from aiter_like.sim import modelling
from aiter_like.tuning import report, tuner
from aiter_like.tuning.tuner import Options, tune

pytestmark = pytest.mark.usefixtures("toy")

HEADER = ",".join(table.columns(planted.PlantedKey._fields))


@pytest.fixture(autouse=True)
def version(monkeypatch):
    """The model that the planted clock says it is."""
    monkeypatch.setattr(modelling, "version", lambda: "7")


def options(tmp_path, **more):
    settings = {"harness": "planted:modelling", "output": tmp_path / "out", "progress": False, "timeout": 1000.0}
    return Options(**{**settings, **more})


def key(plant, rows=4):
    return {"rows": rows, "plant": plant, "dtype": "fp32"}


def rows_of(tmp_path):
    path = tmp_path / "out" / "modelled" / "planted.csv"
    return path.read_text().splitlines() if path.exists() else []


def test_the_best_three_and_the_own_choice_are_modelled(tmp_path):
    """The fastest makes two launches for one, and cannot win; what the screening thinks least of is not modelled."""
    (result,) = tune("planted", [key(6)], options(tmp_path)).results
    trials = result.plan.trials
    modelled = {trials[index].params.get("us"): found.get("value") for index, found in result.finals.items()}
    assert modelled == {None: 10.0, 6.0: 1.0, 7.0: 12.0, 8.0: 8.8}
    assert (trials[result.best].params["us"], result.value, result.before) == (8.0, 8.8, 10.0)
    toolchain = planted.op().backends[0].toolchain("hip")
    assert rows_of(tmp_path) == [HEADER, "gfx942,304,4,6,fp32,hip,hip,mode=good;modelled=8.8;us=8.0,8.80,0,"
                                         f"{toolchain},,modelled:7 at 900 MHz"]


def test_a_gain_that_the_model_cannot_tell_is_no_row_and_takes_an_old_one_away(tmp_path):
    outcome = tune("planted", [key(7), key(8)], options(tmp_path))
    first, second = outcome.results
    assert first.best == first.plan.default and first.row is None and outcome.is_complete
    assert first.note == "no row: nothing is 7.9 % better than the operator's own choice"
    assert second.plan.trials[second.best].params["us"] == 8.0, "9.3 of 10 is no gain, 9.0 is one and as good as 8.8"
    lines = rows_of(tmp_path)
    assert len(lines) == 2 and lines[1].startswith("gfx942,304,4,8,")
    path = tmp_path / "out" / "modelled" / "planted.csv"
    path.write_text("\n".join([*lines, lines[1].replace(",4,8,", ",4,7,")]) + "\n")
    again = tune("planted", [key(7), key(8)], options(tmp_path))
    assert again.skipped == [key(7), key(8)] and len(rows_of(tmp_path)) == 3
    tune("planted", [key(7)], options(tmp_path, retune=True))
    assert rows_of(tmp_path) == lines
    path.write_text("\n".join([HEADER, lines[1].replace(",4,8,", ",4,7,")]) + "\n")
    tune("planted", [key(7)], options(tmp_path, retune=True))
    assert not path.exists(), "no row is left"


def test_what_is_wrong_never_wins_and_nothing_is_written_to_compare(tmp_path):
    (result,) = tune("planted", [key(8)], options(tmp_path, compare=True)).results
    assert [found["status"] for found in result.results][1:] == ["skipped"] * 4 + ["refused"] and not rows_of(tmp_path)
    (result,) = tune("planted", [key(8)], options(tmp_path)).results
    modes = {trial.params.get("mode", trial.backend): found["status"]
             for trial, found in zip(result.plan.trials, result.results)}
    assert modes["wrong"] == "wrong" and modes["torch"] == "refused"
    assert result.plan.trials[result.best].params["mode"] == "good"


def test_a_large_call_is_judged_by_a_smaller_one_and_the_report_says_so(tmp_path):
    outcome = tune("planted", [key(8, rows=64)], options(tmp_path))
    (result,) = outcome.results
    assert result.plan.judged == {"rows": 4} and result.note == "judged at rows=4"
    assert rows_of(tmp_path)[1].startswith("gfx942,304,64,8,")
    text = report.markdown(outcome)
    assert "All of it is planted." in text and "| judged at rows=4 |" in text and "a guess; a model" in text


@pytest.mark.parametrize(("rows", "status"), [(100, "ok"), (101, "refused")])
def test_what_is_judged_runs_every_kernel(tmp_path, rows, status):
    """Of calls that are small enough one more is judged for a kernel that the first does not run."""
    (result,) = tune("planted", [key(7, rows=rows)], options(tmp_path)).results
    assert [found["status"] for found in result.results] == [*[status] * 3, "refused"]
    assert status == "ok" or "runs all of its kernels" in result.results[0]["detail"]
    assert result.plan.judged == {"rows": 4}


def test_a_shape_takes_no_longer_than_it_may(tmp_path):
    """The own choice is tried and modelled in any case, what is not tried is told."""
    (result,) = tune("planted", [key(6)], options(tmp_path, harness="planted:in_a_hurry")).results
    assert [found["status"] for found in result.results] == ["ok"] + ["skipped"] * 5 + ["refused"]
    assert result.note.startswith("5 candidates skipped: the time for one shape is spent; no row:")
    assert list(result.finals) == [0] and not rows_of(tmp_path)


def test_an_own_choice_without_a_figure_leaves_no_row(tmp_path, monkeypatch):
    asked = tuner.Run.ask

    def ask(self, worker, what, result, trials=(), **more):
        if what == "final" and not trials[0].params:
            return {"error": "launches nothing on gfx942"}
        return asked(self, worker, what, result, trials, **more)

    monkeypatch.setattr(tuner.Run, "ask", ask)
    (result,) = tune("planted", [key(6)], options(tmp_path)).results
    assert result.best is None and not rows_of(tmp_path)
    assert result.note == "the operator's own choice, hip hip, has no modelled time: launches nothing on gfx942"


def test_a_row_is_used_after_measured_ones_and_dies_with_the_model(tmp_path, monkeypatch):
    tune("planted", [key(6)], options(tmp_path))
    monkeypatch.setattr(paths, "tuned_csv", lambda: tmp_path / "out")

    def chosen():
        planted.op().reset()
        return planted.op().select(planted.op().tuning.case(key(6), planted.torch.device("cpu"), 0)).candidates[0]

    assert chosen().params["us"] == 8.0
    assert chosen().source == f"tuned, modelled: {tmp_path / 'out' / 'modelled' / 'planted.csv'}:2"
    monkeypatch.setattr(modelling, "version", lambda: "8")
    assert chosen().params == {}
    monkeypatch.setattr(modelling, "version", lambda: "7")
    (tmp_path / "out" / "planted.csv").write_text(f"{HEADER}\ngfx942,304,4,6,fp32,torch,torch,,99,0,,,measured:x\n")
    assert chosen().backend.name == "torch", "a slower one, but measured"


def test_less_than_the_model_can_tell_cannot_be_asked_for(capsys, tmp_path):
    least = 100 * modelling.class_error("elementwise")
    status = cli.main(["tune", "planted", "--device", "sim", "--min-improvement", "5", "--shape",
                       "rows=4,plant=0,dtype=fp32", "--report", str(tmp_path)])
    assert status == 1 and capsys.readouterr().err == (
        f"aiter-like tune: min_improvement must be at least {least:.1f} per cent for modelled "
        "times, which cannot tell less apart (csrc/sim/timing/VALIDATION.md), got 5\n")


def test_what_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(tuner.HARNESSES, "sim", "planted:modelling")
    status = cli.main(["tune", "planted", "--device", "sim", "--quiet", "--shape", "rows=4,plant=8,dtype=fp32",
                       "--output", str(tmp_path / "out"), "--report", str(tmp_path)])
    out = capsys.readouterr().out
    assert status == 0 and "planted on Toy model (gfx942, 304 CUs), modelled us" in out
    assert "was 10.00 (+11.1 %)" in out
    assert f"modelled rows, which come after every measured one: {tmp_path}/out/modelled/planted.csv" in out
