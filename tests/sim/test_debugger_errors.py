# SPDX-License-Identifier: MIT
"""The debugger where something is wrong: reports, failures, asserts, Ctrl-C; places and conditions that are none."""

import signal
import sys

import pytest
import torch
from debugged import COUNT, FILE, LANES, Launch, line_of

from aiter_like import sim
from aiter_like.errors import DebuggerError, SimulatorError
from aiter_like.sim.debugging import places
from aiter_like.sim.debugging.debugger import Controller


@pytest.fixture
def launch():
    return Launch()


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


def test_without_pyelftools(launch, monkeypatch):
    for name in ("elftools", "elftools.common.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with sim.debug(launch) as debugger:
        debugger.control.break_at(f"{FILE}:{line_of('// the store')}")
        view = debugger.run().view
        assert [frame.function for frame in view.frames()] == ["weigh"]
        with pytest.raises(DebuggerError, match="n: .*pip install pyelftools"):
            view.variable("n")


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


def test_registers_of_the_debug_information():
    launch = {"one_file": False, "accum_offset": 8, "kernel": "k"}
    assert places.register_of(launch, 2563) == ("vector", 3) and places.register_of(launch, 32) == ("scalar", 0)
    assert places.register_of(launch, 1088) == ("scalar", 64) and places.register_of(launch, 3073) == ("vector", 257)
    assert places.register_of({**launch, "one_file": True}, 3073) == ("vector", 9)
    with pytest.raises(DebuggerError, match="names register 9999"):
        places.register_of(launch, 9999)
