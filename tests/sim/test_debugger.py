# SPDX-License-Identifier: MIT
"""The debugger as a Python object: stops at lines, conditions and accesses; steps; what can be seen there."""

import struct
from importlib import util
from pathlib import Path

import pytest
import torch
from debugged import COUNT, FILE, GROUPS, LANES, Launch, line_of

from aiter_like import sim
from aiter_like.errors import DebuggerError


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


def test_triton_kernels_stop_on_their_python_lines(simulated_triton, monkeypatch, tmp_path):
    """Of a copy, because what this process has compiled already has no variables."""
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
    assert torch.equal(out, 2 * x)
