# SPDX-License-Identifier: MIT
"""`aiter-like sim validate --hardware` and `--answers`, on the simulated MI300X; what only silicon can say is made up
here and is read back."""

import copy
import dataclasses
import gzip
import json

import pytest
import torch

from aiter_like import cli, device, sim
from aiter_like.cli.sim.hardware import answers, commands, comparison, measure
from aiter_like.cli.sim.hardware import device as devices
from aiter_like.cli.sim.hardware.costs import costs
from aiter_like.cli.sim.hardware.items import CASE, COST, QUESTION, VERIFY, Item, items
from aiter_like.cli.sim.hardware.lds_phases import SIMULATED, lds_phases
from aiter_like.cli.sim.hardware.worker import Service
from aiter_like.device import Target
from aiter_like.sim import library
from aiter_like.sim.validation import page
from aiter_like.sim.validation.questions import questions
from aiter_like.sim.validation.unpublished import all_cases
from aiter_like.tuning.harness import Harness
from aiter_like.tuning.pool import Lost

_STRICT = ("wait", "waitstate", "lds_race", "sanity", "strict")


@pytest.fixture(scope="module")
def simulated():
    return devices.Device(device.simulated_target())


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """The command itself, with its worker process; the answers."""
    path = tmp_path_factory.mktemp("hardware") / "answers.json.gz"
    only = ("d16 loads", "plain VALU", "loads in a row", "flag, round trip in an XCD", "rms_norm")
    arguments = [word for text in only for word in ("--only", text)]
    status = cli.main(["sim", "validate", "--hardware", "--device", "sim", "--kinds", "question,cost,case",
                       "--output", str(path), *arguments])
    return status, path


# ---- questions and costs on the simulator

@pytest.mark.parametrize("question", questions(), ids=lambda question: question.name)
def test_the_simulator_answers_as_it_is_said_to_and_the_kernel_is_right(simulated, question):
    with sim.enabled(checks=_STRICT):
        record = measure.run_question(simulated, question)
    assert record["answer"] == question.simulated and record["agrees"] and record["status"] == "simulated"
    assert len(record["rows"]) == question.rows


def test_questions_tell_answers_apart():
    """Other results than the simulator's give other answers, not errors."""
    other = [[0x11111111] * 64, [0] * 64, [0xFFFFFFFF] * 64]
    for question in questions():
        said = {question.decide([row] * question.rows) for row in other}
        assert question.simulated not in said or len(said) > 1, question.name


@pytest.mark.parametrize("name", [name for name in costs() if name != "LDS phases"])
def test_costs_run_and_report_no_time(simulated, name):
    with sim.enabled(checks=_STRICT):
        assert costs()[name](simulated) == {}


def test_lds_phases_are_those_of_the_simulator(simulated):
    found = lds_phases(simulated)
    assert {name: value for name, value in found.items() if name != "raw"} == SIMULATED
    assert set(found["raw"]) == set(SIMULATED)


@pytest.mark.parametrize("name", ["what an L1 miss adds", "latency of a load after a store to its place", "ds_read_b64",
                                  "triad", "pk_add_bf16", "loads in a row", "MFMA of one wave and exp"])
def test_cases_run(simulated, name):
    case = next(case for case in all_cases() if case.name.startswith(name))
    assert measure.run_case(simulated, case) == {"status": "simulated", "raw": []}


@pytest.mark.exhaustive
def test_all_cases_run(simulated):
    for case in all_cases():
        assert measure.run_case(simulated, case) == {"status": "simulated", "raw": []}, case.name


# ---- measuring: the simulator's s_memtime counts four cycles for an instruction

class _Timed(devices.Device):
    """Says that it is no simulation, and what a launch takes: `microseconds` each."""

    def __init__(self, microseconds: float = 50.0):
        super().__init__(device.simulated_target())
        self.target = Target("hip", "gfx942", 304, 64)
        self.microseconds, self.flushes, self.launches = microseconds, 0, 0

    def sample(self, launch):
        self.launches += 1
        launch()
        return self.microseconds

    def wait(self):
        pass

    def flush(self):
        self.flushes += 1


def _case(name):
    return next(case for case in all_cases() if case.name == name)


def test_a_slope_is_measured_by_the_clock_in_the_kernel():
    record = measure.run_case(_Timed(), _case("plain VALU"))
    assert record["status"] == "measured" and record["figure"] == pytest.approx(4)
    assert record["clock_mhz"] > 0
    for launch in record["raw"]:
        assert len(launch["event_us"]) == len(launch["memtime_clk"]) == len(launch["realtime_ticks"]) == 7
    assert [launch["loops"] for launch in record["raw"]] == [64, 320, 64, 320] and len(record["raw"]) == 4


def test_a_long_launch_is_sampled_less():
    record = measure.run_case(_Timed(5e5), _case("s_nop 0"))
    assert all(len(launch["event_us"]) == 3 for launch in record["raw"])


def test_a_chase_through_memory_begins_with_cold_caches_each_time():
    timed = _Timed()
    measure.run_case(timed, _case("latency of HBM, the first touch of a page"))
    assert timed.flushes == timed.launches == 4 * 9


def test_a_rate_is_measured_by_events():
    case = dataclasses.replace(_case("read, 64 lanes in a row"), groups=2, number=8192)
    record = measure.run_case(_Timed(1e3), case)
    moved = case.groups * 8 * case.loops * case.bytes_per_loop
    assert record["figure"] == pytest.approx(moved / 1e-3 / 1e12) and "memtime_clk" not in record["raw"][0]


def test_a_stall_is_where_issue_takes_longer():
    record = measure.run_case(_Timed(), _case("loads in a row before issue stalls"))
    assert record["figure"] == 56  # the simulator's clock counts instructions: none takes longer
    times = [launch["memtime_clk"][0] for launch in record["raw"]]
    assert times == sorted(times) and len(set(times)) == len(times)


# ---- the command

def test_a_rehearsal_is_labelled_and_complete(rehearsed, capsys):
    status, path = rehearsed
    found = answers.read(path)
    assert status == 0 and found["label"] == "simulated" and found["device"]["simulated"]
    assert found["driver"]["hipRuntimeGetVersion"] and found["software"]["torch"] == torch.__version__
    kinds = [(one["kind"], one["name"], one["status"]) for one in found["records"]]
    assert kinds == [(QUESTION, "d16 loads", "simulated"), (COST, "flag, round trip in an XCD", "simulated"),
                     (CASE, "plain VALU", "simulated"), (CASE, "loads in a row before issue stalls", "simulated")]
    plain = found["records"][2]
    _, figures = page.figures(page.kept())
    assert plain["published"] == 4.01 and plain["modelled"] == figures["plain VALU"] and "figure" not in plain
    assert cli.main(["sim", "validate", "--answers", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "it decides nothing" in printed and "as the simulator d16 loads: keeps it" in printed


def test_every_kind_is_asked_for():
    chosen = items((), (QUESTION, COST, CASE, VERIFY))
    assert {QUESTION, COST, CASE, VERIFY} == {item.kind for item in chosen}
    assert Item(VERIFY, "rms_norm") in chosen and len(set(chosen)) == len(chosen) > 200
    with pytest.raises(ValueError, match="--only: nothing has nonsense in its name"):
        items(["nonsense"], (CASE,))


def _service(monkeypatch, error):
    def run(*_):
        raise error

    monkeypatch.setattr("aiter_like.cli.sim.hardware.worker.run_case", run)
    return Service(Harness(torch.device("cpu"), device.simulated_target(), None, "simulated"))


def test_an_item_that_fails_is_recorded(monkeypatch):
    service = _service(monkeypatch, RuntimeError("hipErrorIllegalAddress"))
    record = service.answer({"kind": CASE, "name": "plain VALU"})
    assert (record["status"], record["error"], record["name"]) == ("failed", "hipErrorIllegalAddress", "plain VALU")
    verified = service.answer({"kind": VERIFY, "name": "no such operator"})
    assert verified["results"] == []


class _Crashing:
    """A worker of which every second request costs the process."""

    def __init__(self, *_):
        self.count = 0

    def ask(self, request, timeout):
        self.count += 1
        if self.count % 2:
            return {**request, "status": "measured", "seconds": 0.1}
        raise Lost("crashed: signal SIGABRT: Memory access fault by GPU node-1")

    def close(self):
        self.count = -1


def test_a_crash_costs_its_item_only(monkeypatch):
    monkeypatch.setattr(answers, "Worker", _Crashing)
    told = []
    chosen = [Item(CASE, "plain VALU"), Item(CASE, "exp"), Item(CASE, "rcp")]
    found = list(answers.records("harness", chosen, told.append))
    assert [one["status"] for one in found] == ["measured", "failed", "measured", "failed"]
    assert "Memory access fault" in found[1]["error"] and found[1]["published"] == 4.01
    assert [item.name for item in told] == ["device", "plain VALU", "exp", "rcp"]


def test_a_process_with_the_real_runtime_does_without_the_simulator(monkeypatch, tmp_path, capsys):
    """Torch for ROCm has loaded a libamdhip64.so, beside which the simulator's does not go."""
    def refuse():
        raise AssertionError("the simulator was loaded")

    monkeypatch.setattr(library, "load", refuse)
    monkeypatch.setattr(library, "load_timing", refuse)
    monkeypatch.setattr(answers, "Worker", _Crashing)
    monkeypatch.setattr(commands, "_require_mi300x", lambda: None)
    output = tmp_path / "answers.json"
    words = ["--hardware", "--only", "plain VALU", "--only", "d16 loads", "--only", "rcp", "--output", str(output)]
    assert cli.main(["sim", "validate", *words]) == 1
    found = answers.read(output)
    assert [one["status"] for one in found["records"]] == ["failed", "measured", "failed"]
    assert "2 of 4 answered" in capsys.readouterr().out
    assert cli.main(["sim", "validate", "--answers", str(output)]) == 0
    assert "2 without an answer" in capsys.readouterr().out


@pytest.mark.parametrize("target, name, message", [
    (None, "", "torch sees no GPU"), (Target("cuda", "sm_90", 132, 32), "NVIDIA H100", "got sm_90: NVIDIA H100"),
    (Target("hip", "gfx90a", 104, 64), "AMD Instinct MI250X", "got gfx90a: AMD Instinct MI250X")])
def test_other_machines_are_refused(monkeypatch, capsys, tmp_path, target, name, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: target is not None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    monkeypatch.setattr(device, "target_of", lambda _: target)
    output = tmp_path / "answers.json"
    assert cli.main(["sim", "validate", "--hardware", "--output", str(output)]) == 1
    said = capsys.readouterr().err
    assert message in said and "--device sim" in said and not output.exists()


def test_an_mi300x_is_not_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "target_of", lambda _: Target("hip", "gfx942", 304, 64))
    commands._require_mi300x()


@pytest.mark.parametrize("words, message", [
    (["--hardware", "--answers", "x"], "give one of them"),
    (["--hardware", "--mca"], "--mca is of no use with --hardware"),
    (["--answers", "x", "--only", "y"], "--only is of no use with --answers"),
    (["--device", "sim"], "needs --hardware"),
    (["--hardware", "--output", "answers.txt"], "must end with .json or .json.gz"),
    (["--hardware", "--device", "sim", "--only", "nonsense"], "nothing has nonsense in its name")])
def test_options_that_make_no_sense(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sim", "validate", *words]) == 1
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["sim", "validate", "--hardware", "--kinds", "case,nonsense"])
    assert "'nonsense' is none of question, cost, case, verify" in capsys.readouterr().err


# ---- reading and comparing

_MEASURED = {
    "schema": 1, "label": "measured", "date": "2030-01-01T00:00:00+00:00", "model": "0",
    "device": {"name": "AMD Instinct MI300X", "cu_num": 304, "gcnArchName": "gfx942:sramecc+:xnack-"}, "driver": {},
    "clocks": {}, "software": {"aiter_like": "0.1.0"}, "records": [
        {"kind": "question", "name": "d16 loads", "status": "measured", "answer": "clears it", "rows": []},
        {"kind": "question", "name": "XCDs of workgroups", "status": "measured",
         "answer": "workgroup i on XCD i mod 8", "rows": []},
        {"kind": "question", "name": "of a later version", "status": "measured", "answer": "x", "rows": []},
        {"kind": "cost", "name": "flag, round trip in an XCD", "status": "measured", "seconds": 1.0, "us_p95": 1.4,
         "us": {"median": 1.32, "min": 1, "max": 2, "count": 64}},
        {"kind": "cost", "name": "LDS phases", "status": "measured", **SIMULATED, "ds_read_b64": "0-31; 32-63"},
        {"kind": "case", "name": "latency of L1", "status": "measured", "figure": 116.4, "unit": "clk",
         "published": 116, "clock_mhz": 2050.0, "parameters": ["l1_latency_clk"], "raw": []},
        {"kind": "case", "name": "s_barrier, 4 waves", "status": "measured", "figure": 41.0, "unit": "clk",
         "published": None, "clock_mhz": 2050.0, "parameters": ["barrier_clk"], "raw": []},
        {"kind": "case", "name": "exp", "status": "failed", "error": "crashed: signal SIGABRT"},
        {"kind": "verify", "name": "rms_norm", "status": "failed", "results": [
            {"op": "rms_norm", "backend": "hip", "kernel": "v4x8", "status": "failed", "detail": "error 3"},
            {"op": "rms_norm", "backend": "asm", "kernel": "", "status": "passed", "detail": ""}]}]}


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_what_differs_is_named(tmp_path, suffix):
    path = tmp_path / f"answers{suffix}"
    answers.write(path, _MEASURED)
    text = "\n".join(comparison.lines(answers.read(path)))
    assert "the model of this checkout has version" in text and "it decides nothing" not in text
    assert "2 answered, 1 otherwise than by the simulator" in text
    assert "DIFFERS          d16 loads: clears it" in text and "csrc/sim/isa/access.h" in text
    assert "flag, round trip in an XCD: us 1.32   fleet: 1.2 (+10.0%)" in text
    assert "ds_read_b64: phases 0-31; 32-63, DIFFERS" in text and "ds_read_b32: phases 0-31; 32-63, as" in text
    assert "the model is within 5% of 1 of 2 measured figures" in text
    disputed = text[text.index("parameters of csrc/sim/timing/parameters.h"):]
    assert "barrier_clk = 20\n    s_barrier, 4 waves: measured 41.00, modelled 20.00 clk" in disputed
    assert "l1_latency_clk" not in disputed
    assert "1 passed, 1 failed" in text and "FAILED rms_norm hip v4x8: error 3" in text
    assert "case exp: crashed: signal SIGABRT" in text


def test_the_case_s_names_above_exist():
    _, figures = page.figures(page.kept())
    assert {"latency of L1", "s_barrier, 4 waves"} <= set(figures)


def test_files_that_are_no_answers(tmp_path):
    path = tmp_path / "answers.json.gz"
    whole = gzip.compress(json.dumps(_MEASURED).encode())
    other = copy.deepcopy(_MEASURED)
    other["records"][0]["name"] = 3
    for data, message in ((b"{", "is no JSON"), (whole[:40], "is no JSON"), (b"\x1f\x8bxx", "is no JSON"),
                          (b"\xff\xfe", "is no JSON"), (b"[]", "must have schema 1, got None"),
                          (json.dumps({**_MEASURED, "schema": 9}).encode(), "must have schema 1, got 9"),
                          (json.dumps({**_MEASURED, "device": 1}).encode(), "device must be a dict, got int"),
                          (json.dumps(other).encode(), "every record must have kind, name and status")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="--answers: ") as error:
            answers.read(path)
        assert message in str(error.value)
    with pytest.raises(ValueError, match="cannot read .*: No such file"):
        answers.read(tmp_path / "missing")


def test_strange_values_in_a_record_do_not_stop_the_comparison():
    strange = copy.deepcopy(_MEASURED)
    strange["records"] = [
        {"kind": "case", "name": "exp", "status": "measured", "figure": 16.0, "clock_mhz": "fast", "parameters": 3},
        {"kind": "case", "name": "rcp", "status": "measured", "figure": "16", "clock_mhz": 1},
        {"kind": "case", "name": "plain VALU", "status": "measured", "figure": 9.0, "parameters": None},
        {"kind": "cost", "name": "s_memrealtime", "status": "measured", "MHz": {"median": None}},
        {"kind": "verify", "name": "rms_norm", "status": "failed", "results": "none"},
        {"kind": "question", "name": "d16 loads", "status": "measured", "answer": {"a": 1}}]
    text = "\n".join(comparison.lines(strange))
    assert "1 of 2 measured figures" in text and "no single one" in text
