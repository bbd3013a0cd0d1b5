# SPDX-License-Identifier: MIT
"""The debugger as a Python object: stops at lines, conditions, accesses and reports; steps; what can be seen there."""

from __future__ import annotations

import signal
import struct
from importlib import util
from pathlib import Path

import pytest
import torch
from hip_program import PRELUDE, code_object

from aiter_like import sim
from aiter_like.errors import DebuggerError, SimulatorError
from aiter_like.sim.debugging import places
from aiter_like.sim.debugging.debugger import Controller

GROUPS, LANES, COUNT = 2, 128, 8
SOURCE = """
struct Pair { float a; int b; };
__device__ float half_of(float x) {
  float h = x * 0.5f;
  return h;                                                    // the half
}
extern "C" __global__ void weigh(const float* x, float* out, int n) {
  __shared__ float tile[128];
  const int i = thread_index();
  const int at = workgroup_index().x * 128 + i;
  Pair p = {1.5f, i};
  float sum = 0;                                               // the sum begins
  for (int k = 0; k < n; ++k) {
    sum += half_of(x[k]) * p.b;                                // a product
  }
  tile[i] = sum + p.a;
  workgroup_barrier();
  out[at] = tile[127 - i];                                     // the store
}
"""
FILE = "program.hip"


def line_of(phrase: str) -> int:
    text = PRELUDE + SOURCE
    return next(number for number, line in enumerate(text.splitlines(), 1) if phrase in line)


def elf(*flags: str) -> bytes:
    return code_object(SOURCE, "--no-gpu-bundle-output", *flags)


class Launch:
    """A launch of `weigh`, to be called; its tensors."""

    def __init__(self, *flags: str, out_count: int = GROUPS * LANES):
        self.x, self.out = torch.arange(1.0, COUNT + 1), torch.zeros(out_count)
        self._elf = elf(*(flags or ("-g",)))

    def __call__(self) -> str:
        arguments = struct.pack("<QQi", self.x.data_ptr(), self.out.data_ptr(), COUNT)
        sim.checked_call("weigh", lambda *_: sim.launch(self._elf, "weigh", (GROUPS, 1, 1), (LANES, 1, 1), 0,
                                                        arguments), (self.x, self.out), writes=(1,))
        return "done"

    def expected(self) -> torch.Tensor:
        own = torch.arange(LANES) * (self.x.sum() / 2) + 1.5
        return own.flip(0).repeat(GROUPS)


@pytest.fixture
def launch():
    return Launch()


def test_a_line_stops_each_wave_and_the_results_stay(launch):
    with sim.debug(launch) as debugger:
        debugger.control.break_at(f"{FILE}:{line_of('// the store')}")
        met, stop = [], debugger.run()
        while stop:
            assert (stop.reason, stop.line, stop.kernel) == ("breakpoint", line_of("// the store"), "weigh")
            assert stop.source[0].endswith(FILE) and stop.view.exec == 2**64 - 1 and not stop.executed
            met.append((stop.view.workgroup[0], stop.view.wave))
            stop = debugger.proceed()
    assert {(group, wave) for group in range(GROUPS) for wave in (0, 1)} == set(met)
    assert debugger.result == "done" and torch.equal(launch.out, launch.expected())


@pytest.mark.parametrize("flags", [("-g", "-O0"), ("-g", "-O1")], ids=lambda flags: flags[1])
def test_variables_have_their_names(flags):
    """At -O0 they are in scratch, later in registers."""
    launch = Launch(*flags)
    with sim.debug(launch) as debugger:
        debugger.control.break_at(f"{FILE}:{line_of('// a product')}", workgroup=1, wave=1, ignore=3)
        stop = debugger.run()
        assert stop.view.variable("n")[0] == COUNT and stop.view.variable("n").is_uniform == ("-O0" not in flags)
        assert stop.view.variable("out")[63] == launch.out.data_ptr()
        k = 3 if "-O0" in flags else None
        if k is not None:
            assert stop.view.variable("k").numbers == [k] * 64
            assert stop.view.variable("i").numbers == list(range(64, 128))
            pair = stop.view.variable("p")
            assert struct.unpack("<fi", pair[5]) == (1.5, 69) and "lane 5: {a = 1.5, b = 69}" in pair.lines()[6]
            assert stop.view.variable("sum").numbers == [3 * lane for lane in range(64, 128)]   # (1 + 2 + 3) / 2
        else:
            assert debugger.next(2).view.variable("sum")[1] % (65 / 2) == 0
        with pytest.raises(DebuggerError, match=r"no variable summ here \(did you mean sum\?\)"):
            stop.view.variable("summ")


@pytest.mark.parametrize("when, lanes", [
    ("$v0 == 70", 1 << 6), ("$v0 >= 126 and $lane != 63", 1 << 62), ("$v0[3] == 67", 2**64 - 1),
    ("$wave == 1 && $workgroup.x == 1", 2**64 - 1), ("$exec:u64 == 0xffffffffffffffff and $v0:i32 < 65", 1),
    ("$v0:f32 > 0 and $lane == 1", 1 << 1)])
def test_conditions_of_registers(when, lanes):
    """The work-item is v0 at the kernel's beginning."""
    with sim.debug(Launch("-g", "-O1")) as debugger:
        debugger.control.break_at("weigh", when=when, wave=1)
        stop = debugger.run()
        assert (stop.view.wave, stop.lanes, stop.index) == (1, lanes, stop.view.index)


@pytest.mark.parametrize("flags", [("-g", "-O0"), ("-g", "-O1")], ids=lambda flags: flags[1])
def test_conditions_of_variables(flags):
    """In scratch, where Python looks at them, and in registers, where the library does."""
    with sim.debug(Launch(*flags)) as debugger:
        debugger.control.break_at(f"{FILE}:{line_of('// a product')}", when="sum > 32 and $lane != 40", temporary=True)
        stop = debugger.run()
        found = [number > 32 and lane != 40 for lane, number in enumerate(stop.view.variable("sum").numbers)]
        assert stop.lanes == sum(1 << lane for lane, holds in enumerate(found) if holds) != 0
        assert not debugger.control.breakpoints and debugger.proceed() is None


def test_a_condition_that_cannot_be(launch):
    with sim.debug(launch) as debugger:
        for when, message in [("$v0", "is no comparison"), ("$v0 = 3", "is no comparison"),
                              ("$v0:f33 < 1", "is no type"), ("x[64] == 1", "lanes 0 to 63")]:
            with pytest.raises(DebuggerError, match=message):
                debugger.control.break_at("weigh", when=when)
        debugger.control.break_at("weigh", when="$v0:i32 < 65.5")
        debugger.control.break_at("weigh", when="$v400 == 1")
        with pytest.raises(DebuggerError, match=r"65.5 is none.*\$v400: the kernel weigh has \d+ v registers"):
            debugger.run()


def test_steps_by_line_follow_one_wave(launch):
    product, half, begins = line_of("// a product"), line_of("// the half"), line_of("the sum begins")
    with sim.debug(Launch("-g", "-O0")) as debugger:
        debugger.control.break_at(f"{FILE}:{begins}", workgroup=1, wave=1)
        lines = [debugger.run().line]
        while lines[-1] != half:
            stop = debugger.step()
            lines.append(stop.line)
            assert (stop.reason, stop.view.workgroup, stop.view.wave) == ("step", (1, 0, 0), 1)
        assert lines[:3] == [begins, begins + 1, product] and half - 1 in lines
        frames = stop.view.frames()
        assert [(frame.function, frame.is_inlined) for frame in frames] == [("half_of", False), ("weigh", False)]
        assert [frame.source[1] for frame in frames] == [half, product]
        assert stop.view.variable("h").numbers == [0.5] * 64          # x[0] / 2
        after = debugger.finish()
        assert after.line == product and [frame.function for frame in after.view.frames()] == ["weigh"]
        lines = [debugger.next().line for _ in range(4)]
        assert half not in lines and set(lines) <= {begins + 1, product, product + 1}
        with pytest.raises(DebuggerError, match="outermost function"):
            debugger.finish()
        with pytest.raises(DebuggerError, match="outermost function"):
            debugger.control.finish(debugger.stop.view)


def test_steps_over_what_is_inlined(launch):
    with sim.debug(launch) as debugger:
        debugger.control.break_at("half_of", wave=0)
        stop = debugger.run()
        assert [(frame.function, frame.is_inlined) for frame in stop.view.frames()] == [("half_of", True),
                                                                                       ("weigh", False)]
        assert stop.view.frames()[1].source[1] == line_of("// a product")
        assert [frame.function for frame in debugger.finish().view.frames()] == ["weigh"]
        debugger.control.delete(1)
        for _ in range(6):
            assert debugger.next().view.frames()[0].function != "half_of"


def test_instructions_one_by_one(launch):
    with sim.debug(launch) as debugger:
        debugger.control.break_at("*0x0", workgroup=0, wave=1)
        stop = debugger.run()
        first = stop.index
        assert (stop.pc, stop.view.pc, stop.view.executed) == (0, 0, 0)
        assert debugger.step_instruction().index == first + 1
        stop = debugger.step_instruction(3)
        assert stop.index == first + 4 and stop.view.executed == 4
        other = debugger.wave(0, 0)
        assert debugger.step_instruction(view=other).view.wave == 0
        assert debugger.step_instruction(10**6).reason == "ended" and debugger.stop.instruction == "s_endpgm"
        assert [view.state for view in debugger.waves()].count("ended") >= 1
        with pytest.raises(DebuggerError, match="workgroup 7 does not run; running: 0"):
            debugger.wave(7, 0)


def test_who_wrote_this(launch):
    """A place in memory, and one in LDS."""
    place = launch.out[LANES + 5:]
    with sim.debug(launch) as debugger:
        memory = debugger.control.watch_memory(place.data_ptr(), 4)
        tile = debugger.control.watch_lds(4 * 120, 4, stops=False, reads=True)
        stop = debugger.run()
        access = stop.access
        assert (stop.reason, stop.number, stop.executed, access.is_write) == ("watch", memory.number, True, True)
        assert (access.workgroup, access.wave, access.lanes, access.address) == (1, 0, 1 << 5, place.data_ptr())
        assert access.source[1] == line_of("// the store") and access.text.startswith("global_store")
        assert struct.unpack("<f", access.before) == (0,)
        assert struct.unpack("<f", access.after) == (launch.expected()[LANES + 5].item(),)
        assert debugger.proceed() is None
    assert [(one.workgroup, one.wave, one.is_write, one.lanes) for one in tile.history] == [
        (0, 1, True, 1 << 56), (0, 0, False, 1 << 7), (1, 1, True, 1 << 56), (1, 0, False, 1 << 7)]
    assert tile.history[0].source[1] < tile.history[1].source[1] and tile.history[0].clock < tile.history[1].clock


def test_a_register_is_watched(launch):
    with sim.debug(launch) as debugger:
        debugger.control.break_at("weigh", workgroup=1, wave=1)
        view = debugger.run().view
        debugger.control.watch_register(view, "s3")
        stop = debugger.proceed()
        assert (stop.reason, stop.view.group, stop.view.wave) == ("watch", 1, 1) and stop.executed
        assert stop.access.before != stop.access.after == struct.pack("<I", stop.view.register("s3")[0])
        assert "s3" in stop.instruction or "s[" in stop.instruction
        with pytest.raises(DebuggerError, match="cannot be watched"):
            debugger.control.watch_register(view, "exec")


def test_writing_changes_what_follows():
    launch = Launch("-g", "-O0")
    with sim.debug(launch) as debugger:
        last = debugger.control.watch_lds(4 * 127, 4, workgroup=1)
        view = debugger.run().view
        debugger.control.delete(last.number)
        view.machine.lds(1, 4 * 127, 4, struct.pack("<f", -1))
        view.machine.memory(launch.out.data_ptr(), 4, struct.pack("<f", -2))
        before = view.register("v0").numbers
        view.set_register("v0", 77, lane=3)
        assert view.register("v0").numbers == [*before[:3], 77, *before[4:]]
        view.set_register("s15", 5)
        assert view.register("s15")[0] == 5 and view.register("s[14:15]")[0] >> 32 == 5
        assert view.register("v0", "i16")[3] == 77
        view.set_register("v0", before[3], lane=3)
        assert view.register("lane")[9] == 9
        for action, message in [(lambda: view.machine.memory(8, 4), "memory at 0x8 cannot be read"),
                                (lambda: view.machine.lds(1, 65000, 4), "no LDS bytes"),
                                (lambda: view.register("v999"), "has .* v registers"),
                                (lambda: view.register("q1"), "no register .q1"),
                                (lambda: view.register("v1", "f31"), "is no type"),
                                (lambda: view.machine.scratch(1, 0, 0, 1 << 20, 4), "no scratch")]:
            with pytest.raises(DebuggerError, match=message):
                action()
        assert debugger.proceed() is None
    assert (launch.out[0], launch.out[LANES]) == (-2, -1)


def test_a_report_and_a_failure_stop():
    short = Launch("-g", out_count=LANES)
    with sim.enabled(on_report="collect") as session, sim.debug(short, reports=True) as debugger:
        stop = debugger.run()
        assert stop.reason == "report" and "[sim:bounds] weigh wg(1,0,0)" in stop.text and "past the end" in stop.text
        assert stop.line == line_of("// the store") and stop.instruction.startswith("global_store")
        while stop:
            stop = debugger.proceed()
    assert {report["check"] for report in session.reports} == {"bounds"}
    wild = Launch("-g")
    wild.x = torch.empty(0)
    with sim.debug(wild) as debugger, pytest.raises(SimulatorError, match="wild memory access"):
        stop = debugger.run()
        assert stop.reason == "failure" and "wild memory access" in stop.text
        assert stop.line == line_of("// the half") or stop.line == line_of("// a product")
        assert stop.view.variable("n")[0] == COUNT
        debugger.proceed()


def test_an_assert_stops_before_its_launch_fails():
    """With every lane's registers still there."""
    from talking import compiled
    from talking import launch as talk

    image = compiled('extern "C" __global__ void talk(const int* x, int limit) { assert(x[lane()] < limit); }', "-g")
    x = torch.arange(64, dtype=torch.int32)
    with sim.debug(lambda: talk(image, x, 60, grid=1, block=64)) as debugger:
        stop = debugger.run()
        assert (stop.reason, stop.instruction.split()[0]) == ("failure", "s_trap")
        assert "stopped itself in lanes 60-63" in stop.text and "x[lane()] < limit" in stop.text
        assert "talk" in [frame.function for frame in stop.view.frames()]
        with pytest.raises(SimulatorError, match="stopped itself in lanes 60-63"):
            debugger.proceed()


def test_ctrl_c_stops(launch):
    reasons = []

    def on_stop(stop) -> None:
        reasons.append((stop.reason, stop.view.executed))
        if len(reasons) == 1:
            signal.raise_signal(signal.SIGINT)

    control = Controller(on_stop)
    control.break_at("weigh", workgroup=0, wave=0)
    control.attach(signals=True)
    try:
        launch()
    finally:
        control.detach()
    assert reasons == [("breakpoint", 0), ("interrupt", 1)] and signal.getsignal(signal.SIGINT) is not None
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)                         # outside of launches it is Python's
    assert torch.equal(launch.out, launch.expected())


def test_sessions_repeat(launch):
    def clocks() -> list[tuple]:
        found = []
        with sim.enabled(checks=False, threads=2), sim.debug(Launch()) as debugger:
            debugger.control.break_at(f"{FILE}:{line_of('// a product')}")
            stop = debugger.run()
            while stop:
                found.append((stop.clock, stop.view.group, stop.view.wave, stop.index))
                stop = debugger.proceed()
        return found

    first = clocks()
    assert len(first) > 2 * GROUPS * COUNT and first == clocks()


def test_code_without_debug_information():
    lines_only = Launch("-gline-tables-only", "-O1")
    with sim.debug(lines_only) as debugger:
        debugger.control.break_at(f"{FILE}:{line_of('// the store')}")
        view = debugger.run().view
        with pytest.raises(DebuggerError, match="no variable n here; there are: none"):
            view.variable("n")
    with sim.debug(Launch("--no-gpu-bundle-output")) as debugger:
        debugger.control.break_at("weigh")
        debugger.control.break_at(f"{FILE}:12")
        stop = debugger.run()
        assert (stop.source, stop.pc, [frame.function for frame in stop.view.frames()]) == (("", 0), 0, ["weigh"])
        assert "compile it with -g" in debugger.control.breakpoints[2].problem
        for action, message in [(debugger.step, "no source lines .compile it with -g"),
                                (debugger.next, "no source lines"), (debugger.finish, "no source lines"),
                                (lambda: stop.view.variable("n"), "n: the code object has no debug information"),
                                (lambda: debugger.control.break_at("x.hip:3"), "no source lines"),
                                (lambda: debugger.control.break_at("half_of"), "no kernel or function half_of .the co"),
                                (lambda: debugger.control.break_at("*0x3"), "no instruction is at")]:
            with pytest.raises(DebuggerError, match=message):
                action()
        assert debugger.step_instruction().view.executed == 1


def test_places_that_are_not_there(launch):
    with sim.debug(launch) as debugger:
        debugger.control.break_at("weigh")
        debugger.control.break_at("other.hip:3")
        debugger.run()
        store = line_of("// the store")
        for place, message in [(f"{FILE}:{store + 40}", rf"no code for .*{FILE}:{store + 40}; lines near it.*{store}"),
                               ("wiegh", r"no kernel or function wiegh \(did you mean weigh\?\)"),
                               ("other.hip:3", "no code of a file other.hip; there is code of .*program.hip")]:
            with pytest.raises(DebuggerError, match=message):
                debugger.control.break_at(place)
        for options, message in [({"workgroup": 2}, "workgroup 2: the grid is 2 x 1 x 1"),
                                 ({"lane": 64}, "lanes 0 to 63"), ({"workgroup": (0, 1, 0)}, "the grid is")]:
            with pytest.raises(DebuggerError, match=message):
                debugger.control.break_at("weigh", **options)
        with pytest.raises(DebuggerError, match="no breakpoint or watch 9; there are: 1, 2"):
            debugger.control.delete(9)
        debugger.control.delete(1)
        with pytest.raises(DebuggerError, match="no launch had a place for: breakpoint 2: other.hip:3, 0 hits, not pl"):
            debugger.proceed()


def test_one_debugger_at_a_time_and_its_end(launch):
    with sim.debug(launch) as debugger:
        with pytest.raises(DebuggerError, match="another debugger is attached"), sim.debug(launch):
            pass
        for action in (debugger.proceed, debugger.step, debugger.waves):
            with pytest.raises(DebuggerError, match="start it with run"):
                action()
        debugger.control.break_at("weigh")
        debugger.run()
        with pytest.raises(DebuggerError, match="runs already"):
            debugger.run()
    assert not launch.out.any()                                    # the launch was stopped where it waited
    launch()
    assert torch.equal(launch.out, launch.expected())

    def fails() -> None:
        raise KeyError("the program's own")

    with sim.debug(fails) as debugger, pytest.raises(KeyError, match="the program's own"):
        debugger.run()


def test_triton_kernels_stop_on_their_python_lines(monkeypatch, tmp_path):
    """Of a copy, because what this process has compiled already has no variables."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LLVM_EXTRACT_DI_LOCAL_VARIABLES", "1")
    file = tmp_path / "line_kernels.py"
    file.write_text(Path(__file__).with_name("line_kernels.py").read_text())
    spec = util.spec_from_file_location("copied_line_kernels", file)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    double = module.double
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if "tl.store" in text)
    x, out = torch.arange(128.0), torch.zeros(128)
    sim.enable_triton()
    try:
        with sim.debug(lambda: double[(1,)](x, out, BLOCK=128)) as debugger:
            debugger.control.break_at(f"line_kernels.py:{line}", temporary=True)
            watch = debugger.control.watch_memory(out.data_ptr() + 4 * 7, 4)
            stop = debugger.run()
            assert (stop.source, stop.kernel) == ((str(file), line), "double")
            assert stop.view.variable("x")[0] == x.data_ptr() and stop.view.variable("out")[9] == out.data_ptr()
            assert {"offsets", "value"} <= {one.name for one in stop.view.variables()}
            assert [frame.function for frame in stop.view.frames()] == ["double"]
            stop = debugger.proceed()
            assert (stop.number, stop.line) == (watch.number, line)
            assert struct.unpack("<f", stop.access.after) == (14,)
            assert debugger.proceed() is None
    finally:
        sim.disable_triton()
    assert torch.equal(out, 2 * x)


def test_registers_of_the_debug_information():
    launch = {"one_file": False, "accum_offset": 8, "kernel": "k"}
    assert places.register_of(launch, 2563) == ("vector", 3) and places.register_of(launch, 32) == ("scalar", 0)
    assert places.register_of(launch, 1088) == ("scalar", 64) and places.register_of(launch, 3073) == ("vector", 257)
    assert places.register_of({**launch, "one_file": True}, 3073) == ("vector", 9)
    with pytest.raises(DebuggerError, match="names register 9999"):
        places.register_of(launch, 9999)
