# SPDX-License-Identifier: MIT
"""csrc/sim/run/observer.h: what an observer in a library of its own sees of a launch, alone and beside the checkers."""

import collections
import contextlib
import ctypes
import struct
from collections.abc import Iterator

import pytest
import torch
from hip_program import code_object
from trace_library import library

from aiter_like import sim

GROUPS, LANES, ALL = 3, 128, 2**64 - 1
SOURCE = """
extern "C" __global__ void reverse(const float* x, float* out) {
  __shared__ float tile[128];
  const int lane = thread_index(), at = workgroup_index().x * 128 + lane;
  tile[lane] = x[at];
  workgroup_barrier();
  out[at] = tile[127 - lane];
}
"""
Event = collections.namedtuple("Event", "group wave name values")


@contextlib.contextmanager
def traced(every: int = 1, lanes: int = ALL) -> Iterator[list[Event]]:
    """Fills the list that it yields when the block ends."""
    trace, simulator, events = library(), sim.load(), []
    trace.trace_begin(ctypes.c_uint32(every), ctypes.c_uint64(lanes))
    simulator.aiter_like_sim_observe(trace.trace_launch, 1)
    try:
        yield events
    finally:
        simulator.aiter_like_sim_observe(trace.trace_launch, 0)
    for line in trace.trace_text().decode().splitlines():
        group, wave, name, *values = line.split()
        events.append(Event(int(group), int(wave), name, tuple(map(int, values))))


def launch(x: torch.Tensor, out: torch.Tensor, known: slice = slice(None)) -> None:
    """The kernel on all of `out`, of which the checkers are told of `known`."""
    kernargs = struct.pack("<QQ", x.data_ptr(), out.data_ptr())
    sim.checked_call("reverse", lambda *_: sim.launch(code_object(SOURCE), "reverse", (GROUPS, 1, 1), (LANES, 1, 1), 0,
                                                      kernargs), (x, out[known]), writes=(1,))


@pytest.fixture
def tensors():
    return torch.arange(float(GROUPS * LANES)), torch.zeros(GROUPS * LANES)


def of(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event.name == name]


@pytest.mark.parametrize("settings", [{}, {"threads": 2}, {"fuzz": 3}, {"checks": True}], ids=str)
def test_an_observer_sees_every_instruction_and_access(tensors, settings):
    x, out = tensors
    with sim.enabled(**{"checks": False, "threads": 1, **settings}) as session, traced() as events:
        launch(x, out)
    assert torch.equal(out, x.reshape(GROUPS, LANES).flip(1).flatten())
    counts = session.counters["reverse"]
    instructions = [event for event in events if event.name.startswith(("s_", "v_", "ds_read", "ds_write", "global_"))]
    assert len(instructions) == counts["wave_instructions"]
    assert {event.values[1] for event in instructions} == {ALL}                     # EXEC
    assert collections.Counter(event.name for event in instructions if event.name in counts["accesses"]) == \
        counts["accesses"]
    waves = [(group, wave) for group in range(GROUPS) for wave in (0, 1)]
    assert sorted((event.group, event.wave) for event in of(events, "ended")) == waves
    assert len(of(events, "s_barrier")) == 2 * len(of(events, "barrier")) == 2 * GROUPS
    for name, base in (("load", x), ("store", out)):
        touched = sorted(event.values for event in of(events, name))
        assert touched == [(base.data_ptr() + 4 * k, 4) for k in range(GROUPS * LANES)]
    for name in ("ds_load", "ds_store"):
        assert sorted(event.values[0] for event in of(events, name)) == sorted(list(range(0, 4 * LANES, 4)) * GROUPS)
    assert len(of(events, "scalar")) == sum(event.name.startswith("s_load") for event in instructions) > 0


def test_waves_have_a_place_on_the_device(tensors):
    with sim.enabled(checks=False), traced() as events:
        launch(*tensors)
    places = {(event.group, event.wave): event.values for event in of(events, "wave")}
    assert places == {(group, wave): (group, 0, wave, 0) for group in range(GROUPS) for wave in (0, 1)}


def test_a_workgroup_that_nobody_chose_runs_unobserved(tensors):
    x, out = tensors
    with sim.enabled(checks=False) as session, traced(every=2) as events:
        launch(x, out)
    assert {event.group for event in events} == {0, 2}
    assert torch.equal(out, x.reshape(GROUPS, LANES).flip(1).flatten())
    assert session.counters["reverse"]["workgroups"] == GROUPS


def test_accesses_of_lanes_that_an_observer_stops_do_nothing(tensors):
    x, out = tensors
    with sim.enabled(checks=False), traced(lanes=1):
        launch(x + 1, out)
    firsts = torch.arange(0, GROUPS * LANES, 64)
    assert out.nonzero().flatten().tolist() == []                    # the first lane's value comes from a stopped one
    with sim.enabled(checks=False), traced(lanes=ALL - 1):
        launch(x + 1, out)
    assert set((out == 0).nonzero().flatten().tolist()) == {*firsts.tolist(), *(firsts + 63).tolist()}


def test_checkers_report_beside_another_observer(tensors):
    x, out = tensors
    with sim.enabled(on_report="collect") as session, traced() as events:
        launch(x, out, slice(LANES))
    assert {report["check"] for report in session.reports} == {"bounds"}
    assert len(of(events, "store")) == LANES                         # the checker stops the others
    assert not out[LANES:].any()


def test_an_observer_that_was_removed_sees_nothing(tensors):
    with sim.enabled(checks=False), traced() as events:
        pass
    launch(*tensors)
    assert library().trace_text() == b"" and not events
