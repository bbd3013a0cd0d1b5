# SPDX-License-Identifier: MIT
"""Measures what only a device can say: launches, dispatch, flags between XCDs, clocks under load, phases of the LDS.

Each is a function of the device: on hardware the samples and figures, on the simulated MI300X nothing but that its
kernels run, except that the simulator counts what its LDS would take.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

from aiter_like.cli.sim.hardware.clocks import clocks
from aiter_like.cli.sim.hardware.device import Device, spans, summary
from aiter_like.cli.sim.hardware.lds_phases import lds_phases
from aiter_like.sim.validation.flags import ROUNDS, round_trip
from aiter_like.sim.validation.kernels import Kernel

_EMPTY = Kernel("s_nop 0", unroll=1)
_COUNT = 200


def costs() -> dict[str, Callable[[Device], dict[str, Any]]]:
    """Name → what measures it."""
    return {"s_memrealtime": _realtime, "launch": _launch, "dispatch of workgroups": _dispatch,
            **{f"flag, round trip {name}": functools.partial(_flag, consumer=consumer, is_loaded=is_loaded)
               for name, consumer, is_loaded in (("to another XCD", 1, False), ("in an XCD", 8, False),
                                                 ("to another XCD under load", 1, True))},
            "clocks under load": clocks, "LDS phases": lds_phases}


def _realtime(device: Device) -> dict[str, Any]:
    """Its frequency, by the event time that more loops add."""
    if device.target.simulated:
        device.spin(1 << 16)
        return {}
    spin = Kernel("v_add_u32 v20, v1, v1", unroll=256)
    (function,) = device.load([(spin, spin.unroll)], timed=True)
    times, found = device.times(1), []
    for _ in range(7):
        event, ticks = [], []
        for loops in (2_000, 200_000):
            event.append(device.sample(functools.partial(device.launch, function, 1, 1, loops, times=times)))
            ticks.append(spans(times)[1])
        found.append((ticks[1] - ticks[0]) / (event[1] - event[0]))
    return {"MHz": summary(found), "raw": found}


def _launch(device: Device) -> dict[str, Any]:
    """Times an empty kernel: its share of a row of launches, and one alone, from the host's call to its end."""
    (function,) = device.load([(_EMPTY, 1)])
    launch = functools.partial(device.launch, function, 1, 1, 1)
    if device.target.simulated:
        launch()
        return {}

    def row() -> None:
        for _ in range(_COUNT):
            launch()

    for _ in range(3):
        row()
    device.wait()
    in_a_row = [device.sample(row) / _COUNT for _ in range(9)]
    alone, calls = [], []
    for _ in range(_COUNT):
        start = time.perf_counter()
        launch()
        calls.append((time.perf_counter() - start) * 1e6)
        device.wait()
        alone.append((time.perf_counter() - start) * 1e6)
    return {"us_in_a_row": summary(in_a_row), "us_alone": summary(alone), "us_of_the_call": summary(calls),
            "raw": {"in_a_row": in_a_row, "alone": alone, "calls": calls}}


def _dispatch(device: Device) -> dict[str, Any]:
    """Times each further workgroup of an empty kernel, by its number of waves."""
    found: dict[str, Any] = {"raw": {}}
    for waves in (1, 4, 16):
        (function,) = device.load([(Kernel("s_nop 0", unroll=1, waves=waves), 1)])
        if device.target.simulated:
            device.launch(function, 8, waves, 1)
            continue
        medians = {}
        for groups in (304, 304 * 32, 304 * 128):
            launch = functools.partial(device.launch, function, groups, waves, 1)
            samples = [device.sample(launch) for _ in range(12)][3:]
            medians[groups] = statistics.median(samples)
            found["raw"][f"{waves} waves, {groups} workgroups, us"] = samples
        (few, least), *_, (many, most) = medians.items()
        found[f"ns_per_workgroup_of_{waves}_waves"] = (most - least) * 1e3 / (many - few)
    return {} if device.target.simulated else found


def _flag(device: Device, consumer: int, is_loaded: bool) -> dict[str, Any]:
    """Ticks of s_memrealtime for each round between workgroup 0 and another one."""
    kernel = round_trip(is_loaded)
    (function,) = device.load([(kernel, 1)])
    flags, out = device.tensor([], 4096), device.tensor([], ROUNDS)
    load = device.memory((1 << 30) + (1 << 24) if is_loaded else 1 << 12)
    groups = (4 if device.target.simulated else 304) if is_loaded else consumer + 1
    rounds = 2 if device.target.simulated else ROUNDS
    for _ in range(1 if device.target.simulated else 3):
        flags.zero_()
        device.launch(function, groups, kernel.waves, rounds, flags, out, number=consumer, times=load)
        device.wait()
    ticks = out.tolist()[:rounds]
    if not all(ticks):
        raise RuntimeError("a round did not end: the other workgroup did not answer")
    if device.target.simulated:
        return {}
    taken = sorted(tick / 100 for tick in ticks)
    return {"us": summary(taken), "us_p95": taken[int(0.95 * len(taken))], "raw": ticks}
