# SPDX-License-Identifier: MIT
"""The tuner with planted candidates in real worker processes: choice, faults, kill and resume, tables, budget."""

import json
import os
import select
import signal
import stat
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import planted
import pytest

from aiter_like.dispatch import table
from aiter_like.errors import TuningError
from aiter_like.tuning import journal, pool, tuner, writer
from aiter_like.tuning.tuner import Options, Run, tune

HERE = Path(__file__).parent
FAILS = 600  # seconds after which an event that does not come is a failure
HEADER = ",".join(table.columns(planted.PlantedKey._fields))


pytestmark = pytest.mark.usefixtures("toy")


def options(tmp_path, **more):
    settings = {"harness": planted.HARNESS, "output": tmp_path / "out", "progress": False, "timeout": 1000.0}
    return Options(**{**settings, **more})


def key(plant, rows=4):
    return {"rows": rows, "plant": plant, "dtype": "fp32"}


def statuses(result):
    return {trial.params.get("mode", trial.backend): found["status"]
            for trial, found in zip(result.plan.trials, result.results)}


def rows_of(tmp_path):
    return (tmp_path / "out" / "planted.csv").read_text().splitlines()


@pytest.fixture
def time_ends(monkeypatch, tmp_path):
    """The time that a candidate has ends as soon as one says that it hangs."""
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    told = os.open(pipe, os.O_RDWR)

    def wait(reads, *_):
        ready, _, _ = select.select([*reads, told], [], [])
        if told in ready:
            os.read(told, 100)
        return [handle for handle in ready if handle != told], [], []

    monkeypatch.setenv(planted.TOLD, str(pipe))
    monkeypatch.setattr(pool, "select", types.SimpleNamespace(select=wait))
    yield
    os.close(told)


def test_planted_faults_never_win_and_never_stop_the_run(tmp_path, time_ends):
    outcome = tune("planted", [key(1), key(3)], options(tmp_path))
    first, second = outcome.results
    assert statuses(first) == {"hip": "ok", "torch": "ok", "good": "ok", "wrong": "wrong", "unwritten": "wrong",
                               "raise": "failed", "crash": "crashed", "hang": "hung"}
    detail = {trial.params.get("mode"): found.get("detail") for trial, found in
              zip(first.plan.trials, first.results)}
    assert detail["crash"] == "signal SIGSEGV" and detail["raise"] == "launch failed"
    assert detail["hang"] == "no answer within 1000 s" and detail["unwritten"] == "NaN or Inf differ"
    assert first.plan.trials[first.best].params == {"mode": "good", "us": 4.0}
    assert statuses(second) == {"hip": "ok", "torch": "ok", "nan": "wrong", "rots": "wrong", "exit": "crashed"}
    assert second.best == 0 and second.value == planted.DEFAULT_US
    assert outcome.is_complete and not list((tmp_path / "cache" / "tuning").iterdir()), "a journal is left"
    lines = rows_of(tmp_path)
    torch = planted.op().backends[0].toolchain("hip")
    assert lines == [HEADER, f"gfx942,304,4,1,fp32,hip,hip,mode=good;us=4.0,4.00,0,{torch},,measured:Toy 0",
                     f"gfx942,304,4,3,fp32,hip,hip,,10.00,0,{torch},,measured:Toy 0"]


def test_what_compiles_at_its_first_call_is_called_in_other_processes_before_it_is_tried(tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    monkeypatch.setenv(planted.NOTES, str(notes))
    outcome = tune("planted", [key(9)], options(tmp_path))
    (result,) = outcome.results
    assert result.plan.trials[result.best].params == {"mode": "note", "us": 4.0}
    assert statuses(result)["crash"] == "crashed", "it ended a process of either phase"
    lines = [line.split() for line in notes.read_text().splitlines()]
    (*_, trying) = [process for process, _ in lines]
    warmed = [us for process, us in lines if process != trying]
    assert sorted(warmed) == sorted(str(us) for mode, us in planted.COMPILED[9] if mode == "note"), "each once"
    assert [process == trying for process, _ in lines] == sorted(process == trying for process, _ in lines)


def test_a_budget_leaves_time_for_trials_of_what_did_not_compile_before(tmp_path, monkeypatch):
    monkeypatch.setenv(planted.NOTES, str(tmp_path / "notes"))
    monkeypatch.setattr(Run, "is_over", lambda self, part=1.0: part < 1)
    (result,) = tune("planted", [key(9)], options(tmp_path, budget=1.0)).results
    assert result.plan.trials[result.best].params == {"mode": "note", "us": 4.0}
    processes = {line.split()[0] for line in (tmp_path / "notes").read_text().splitlines()}
    assert len(processes) == 1, "those of the trials alone"


def test_of_one_backend_alone_and_the_present_choice(tmp_path):
    outcome = tune("planted", [key(9), key(0)], options(tmp_path, backends=("torch",)))
    for result in outcome.results:
        assert [trial.backend for trial in result.plan.trials] == ["hip", "torch"] and result.best == 0
    compiled, plain = (result.plan.left_out for result in outcome.results[::-1])
    assert compiled == {"triton": "not asked for"} and plain == {"hip": "not asked for", "triton": "never"}
    with pytest.raises(ValueError, match="planted has no backend 'cutlass'; there are: hip, triton, torch"):
        tune("planted", [key(0)], options(tmp_path, backends=("cutlass",)))


def test_the_best_row_is_found_used_and_kept_and_a_budget_ends_the_run(tmp_path, monkeypatch):
    tune("planted", [key(0), key(2), key(0, rows=3)], options(tmp_path))
    lines = rows_of(tmp_path)
    assert [line.split(",")[2:4] for line in lines[1:]] == [["3", "0"], ["4", "0"], ["4", "2"]], "sorted"
    assert "mode=good;us=5.0" in lines[2] and lines[3].split(",")[7] == "", "9.9 µs is no 3 % better than 10"
    monkeypatch.setenv("AITER_LIKE_TUNED", str(tmp_path / "out"))
    planted.op().reset()
    selection = planted.op().select(planted.op().tuning.case(key(0), planted.torch.device("cpu"), 0))
    assert selection.candidates[0].params == {"mode": "good", "us": 5.0}
    again = tune(planted.op(), [key(0), key(2), key(4)], options(tmp_path, budget=0.0))
    assert again.skipped == [key(0), key(2)] and rows_of(tmp_path) == lines
    assert not again.is_complete and again.results[0].note == "no time left"
    assert list((tmp_path / "cache" / "tuning").iterdir()), "the journal waits for the next run"
    retuned = tune(planted.op(), [key(2)], options(tmp_path, retune=True, min_improvement=0.5))
    assert retuned.results[0].plan.trials[retuned.results[0].best].params == {"mode": "good", "us": 9.9}
    assert rows_of(tmp_path)[:3] == lines[:3], "other rows stay byte for byte"
    changed = rows_of(tmp_path)
    outcome = tune("planted", [key(0)], options(tmp_path, compare=True))
    result = outcome.results[0]
    assert result.plan.trials[0].params["us"] == 5.0 and not result.plan.trials[result.plan.default].params
    assert (result.before, result.best) == (5.0, 0) and result.results[result.plan.default]["value"] == 10.0
    assert outcome.table is None and rows_of(tmp_path) == changed, "--compare writes nothing"


def run_elsewhere(tmp_path, plants, **more):
    """A tuner in a process of its own."""
    code = (f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
            "from pathlib import Path\nimport planted\nfrom aiter_like import dispatch, paths\n"
            "from aiter_like.tuning import Options, tune\nplanted.harness(0)\n"
            f"paths.tuned_csv = lambda: Path({str(tmp_path / 'packaged')!r})\n"
            f"tune('planted', [dict(rows=rows, plant=plant, dtype='fp32') for rows, plant in {plants!r}],\n"
            f"     Options(harness=planted.HARNESS, output=Path({str(tmp_path / 'out')!r}), **{more!r}))\n")
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


@pytest.fixture
def told(monkeypatch, tmp_path):
    """A tuner in another process, which is in the middle of its fourth candidate; its worker."""
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    with monkeypatch.context() as there:
        there.setenv(planted.TOLD, str(pipe))
        run = run_elsewhere(tmp_path, [(4, 4)])
    with run, open(os.open(pipe, os.O_RDWR)) as lines:
        worker = os.pidfd_open(int(lines.readline()))
        yield run, worker
        run.kill()
    os.close(worker)


def resumed(tmp_path, monkeypatch):
    """Ends the run that the journal tells of; how many candidates that took."""
    asked = []
    original = tuner.Run.ask
    monkeypatch.setattr(tuner.Run, "ask", lambda self, worker, what, *rest, **more: asked.append(what) or original(
        self, worker, what, *rest, **more))
    outcome = tune("planted", [key(4)], options(tmp_path))
    assert outcome.results[0].value == 6.0 and "us=6.0" in rows_of(tmp_path)[1]
    assert not list((tmp_path / "cache" / "tuning").iterdir())
    return asked.count("try")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_run_that_was_ended_goes_on_with_the_candidate_under_way(told, tmp_path, monkeypatch, how):
    run, worker = told
    run.send_signal(how)
    _, errors = run.communicate(timeout=FAILS)
    assert run.returncode == -how and select.select([worker], [], [], FAILS)[0]
    (path,) = (tmp_path / "cache" / "tuning").glob("*.jsonl")
    events = [next(name for name in ("start", "result", "stop") if name in json.loads(line))
              for line in path.read_text().splitlines()]
    assert events == ["start", "result"] * 3 + ["start"] + ["stop"] * (how == signal.SIGINT), errors
    last = path.read_text().splitlines()[-1]
    path.write_text(path.read_text() + f"{last}\n" * (how == signal.SIGINT) + '{"id": "half a li')
    assert resumed(tmp_path, monkeypatch) == 3


@pytest.mark.parametrize("damage", [b"\xff\xfe\x00", b"[" * 100_000, b'{"id": 7}', b"null", b'{"id": "x", "result": 3}',
                                    b'{"id": "x", "result": {"status": "ok"}}', b'{"id": "x"}'],
                         ids=lambda value: repr(value[:20]))
def test_what_is_no_entry_of_a_journal_is_ignored_with_a_line(tmp_path, caplog, damage):
    path = tmp_path / "runs.jsonl"
    good = b'{"id": "y", "result": {"status": "wrong", "detail": "d"}}'
    path.write_bytes(b"\n".join([good, damage, good.replace(b'"y"', b'"z"'), b""]))
    found = journal.Journal(path)
    assert list(found.results) == ["y", "z"] and not found.starts
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 1 of 3 lines ignored, which are no entries of a journal; the first is line 2"]
    found.close(is_complete=True)


def test_a_candidate_that_takes_the_tuner_down_is_left_out_the_third_time(tmp_path):
    run = run_elsewhere(tmp_path, [(4, 5)])
    run.communicate()
    assert run.returncode == -signal.SIGKILL
    (path,) = (tmp_path / "cache" / "tuning").iterdir()
    with path.open("a") as file:
        file.write(path.read_text().splitlines()[-1] + "\n")  # what the second run leaves, without waiting for it
    outcome = tune("planted", [key(5)], options(tmp_path))
    assert statuses(outcome.results[0])["quit"] == "crashed" and "us=4.0" in rows_of(tmp_path)[1]


def test_two_tuners_at_once(tmp_path):
    """Here with two devices, in another process with one."""
    run = run_elsewhere(tmp_path, [(rows, 0) for rows in (1, 3, 5, 7)])
    outcome = tune("planted", [key(0, rows) for rows in (2, 4, 6, 8)], options(tmp_path, gpus=(0, 1)))
    _, errors = run.communicate()
    assert run.returncode == 0 and outcome.is_complete, errors
    assert [int(line.split(",")[2]) for line in rows_of(tmp_path)[1:]] == list(range(1, 9))


def row(rows, backend="hip", us=1.0, **params):
    return table.Row(("gfx942", 304, rows, 0, "fp32"), backend, backend, params, us, 0.0, "", "", "measured:x", "")


def test_rows_of_an_installed_package_go_to_the_user_and_are_read_there(tmp_path, monkeypatch):
    checkout = writer.default_folder()
    assert checkout == table.paths.tuned_csv() != tmp_path / "user"
    monkeypatch.setattr(table.paths, "tuned_csv", lambda: Path(writer.__file__).parent.parent / "_data" / "tuned_csv")
    folder = writer.default_folder()
    assert folder == tmp_path / "user"
    writer.prepare(folder)
    writer.update(folder / "planted.csv", planted.op(), [row(4, us=2.5)])
    planted.op().reset()
    (found,) = planted.op().table.rows()
    assert (found.us, found.source) == (2.5, f"{folder / 'planted.csv'}:2") and not planted.op().table.problems


def test_one_row_changes_one_line(tmp_path):
    path = tmp_path / "planted.csv"
    writer.update(path, planted.op(), [row(rows, us=1.234, flag=True, b=0.5, a="x") for rows in (100, 9, 20)])
    lines = path.read_text().splitlines()
    assert lines[1] == "gfx942,304,9,0,fp32,hip,hip,a=x;b=0.5;flag=true,1.23,0,,,measured:x", "numbers in their order"
    by_hand = lines[2].replace("1.23", "9.99").replace("a=x", "a=y")  # a second choice for a key, as tables may have
    path.write_text("\n".join([*lines[:3], by_hand, lines[3]]) + "\n")
    writer.update(path, planted.op(), [row(9, "torch", us=0.001)])
    changed = path.read_text().splitlines()
    assert changed[2:] == [lines[2], by_hand, lines[3]] and "torch,torch,,0.01," in changed[1]


def test_many_writers_lose_no_row(tmp_path):
    op, path = planted.op(), tmp_path / "planted.csv"

    def write(start):
        for rows in range(start, start + 10):
            writer.update(path, op, [row(rows)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 40, 10)))
    assert [int(line.split(",")[2]) for line in path.read_text().splitlines()[1:]] == list(range(40))
    assert list(tmp_path.glob(".tuned-*")) == []


class TestRefusals:
    def test_read_only_target(self, tmp_path, monkeypatch):
        folder = tmp_path / "out"
        folder.mkdir()
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        if os.access(folder, os.W_OK):  # root writes everywhere: what open() says elsewhere
            def refuse(*args, **kwargs):
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr(writer.tempfile, "TemporaryFile", refuse)
        with pytest.raises(TuningError, match="out:0: tuned rows cannot be written there: Permission denied; --output"):
            writer.prepare(folder)
        folder.chmod(0o755)

    def test_table_with_a_bad_row_is_not_rewritten(self, tmp_path):
        path = tmp_path / "planted.csv"
        path.write_text(f"{HEADER}\nby hand\n")
        with pytest.raises(TuningError, match=r"planted.csv:2: must have 13 cells, got 1"):
            writer.update(path, planted.op(), [])
        assert path.read_text() == f"{HEADER}\nby hand\n"

    def test_worker_that_does_not_start(self, tmp_path):
        with pytest.raises(TuningError, match="worker for device 0 does not start: crashed: exit status 1: ValueError: "
                                              "no such device"):
            tune("planted", [key(0)], Options(harness="planted:broken", output=tmp_path, progress=False))

    def test_operator_without_a_case(self, monkeypatch, tmp_path):
        monkeypatch.setattr(planted.op(), "tuning", None)
        with pytest.raises(TuningError, match="planted declares nothing to be tuned by"):
            tune("planted", [key(0)], options(tmp_path))

    def test_other_fields(self, tmp_path):
        with pytest.raises(ValueError, match="tune key must have the fields rows, plant, dtype, got rows"):
            tune("planted", [{"rows": 1}], options(tmp_path))
