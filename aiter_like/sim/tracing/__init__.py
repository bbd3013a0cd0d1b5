# SPDX-License-Identifier: MIT
"""Traces: which lane of a workgroup touches what, in memory and in the banks of LDS; page.py draws them.

Counts of banks and segments are exact for what ran, by the phases that csrc/sim/timing/access_shape.cpp assumes.
"""

import contextlib
from collections.abc import Iterator

from aiter_like.errors import DebuggerError
from aiter_like.sim import library, session
from aiter_like.sim.profiling import sources
from aiter_like.sim.state import current

MOST_ACCESSES, MOST_LAUNCHES = 600, 16
"""The most accesses of one workgroup, and the most launches, that are recorded."""


@contextlib.contextmanager
def traced(found: list[dict], workgroup: int = 0, executions: int = 1) -> Iterator[None]:
    """Adds to `found`, at the block's end, what one workgroup of each of its launches touches.

    Args:
        workgroup: its place in the grid.
        executions: of a memory instruction by a wave, so many are recorded, the first ones.
    Yields:
        Nothing. `found` gets dicts: `kernel`, `grid`, `block`, `group`, `lds_bytes`, `accesses` (how many there were),
        `arguments` (of 8 bytes; 0 for others), `barriers` (their clocks), `lines` ("file:line" → text) and `recorded`,
        accesses in the order of their execution: `clock` (instructions of the workgroup before it), `wave`, `pc`,
        `text`, `source`, `caller` (the call of an inlined function), `space` ("global", "LDS", "scratch"), `access`,
        `bytes` of a lane, `dma`, `lanes` that take part, `at` their addresses or offsets, `writers` (of LDS that is
        read: wave * 64 + lane of who wrote it, -1: nobody), `clk` and `conflict_clk` of the LDS, `phases` of its lanes,
        `segments_64` and `segments_128` of memory.
    Raises:
        ValueError: a count is out of range.
        DebuggerError: another trace is being recorded.
    """
    if workgroup < 0 or not 1 <= executions <= 1024:
        raise ValueError(f"sim trace: workgroup must be 0 or more and executions 1 to 1024, got {workgroup} and "
                         f"{executions}")
    debug = library.load_debug()
    if not current.trace.acquire(blocking=False):
        raise DebuggerError("another trace is being recorded: end it first")
    try:
        with session.enabled(checks=False, on_report="collect", threads=1):
            debug.aiter_like_sim_trace_begin(workgroup, executions, MOST_ACCESSES, MOST_LAUNCHES)
            try:
                yield
            finally:
                found += [_completed(launch) for launch in library.json_of(debug.aiter_like_sim_trace_end())]
    finally:
        current.trace.release()


def phases(size: int, is_load: bool) -> list[int]:
    """The phase of the banks that each lane is in when `size` bytes of a lane are read or written."""
    return library.json_of(library.load_debug().aiter_like_sim_trace_phases(size, is_load))


def _completed(launch: dict) -> dict:
    for one in launch["recorded"]:
        if one["space"] == "LDS":
            lanes = phases(one["bytes"], one["access"] == "load")
            one["phases"] = [lanes[lane] for lane in one["lanes"]]
    return {**launch, "lines": sources.texts(launch["recorded"])}
