# SPDX-License-Identifier: MIT
"""Times contenders against each other: cold caches, medians of interleaved rounds. Used by worker.py and bench.py.

A contender is a list of calls, one for each set of arguments. On a GPU they become one graph, so that the host is not
timed; each round first overwrites the caches. The simulated device has no time: there a round counts instructions.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from aiter_like import device
from aiter_like.device import Target
from aiter_like.tuning.counted import totals

_log = logging.getLogger("aiter_like")

Contender = Sequence[Callable[[], Any]]
_MIN_SETS, _MAX_SETS = 4, 64
_WARM_SECONDS = 0.02
_LONG_US = 2000.0  # a call that takes longer is timed alone: its start no longer shows, and no cache outlasts it
_HOPELESS = 1.5  # a contender that is so much slower than the first after two rounds gets no further ones


class Clock(Protocol):
    """What measures.

    Attributes:
        unit: of what `rounds` returns: "us", or what else it counts.
        is_time: whether that is time, which alone may enter a tuned row.
        counted: what else was counted of each contender in the last `rounds` (counted.py); empty where there is time.
    """

    unit: str
    is_time: bool
    counted: Sequence[Mapping[str, int]]

    def sets(self, size: int) -> int:
        """How many sets of arguments of `size` bytes to rotate over."""

    def rounds(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """For each contender, its value per call in each round. The first is the one that the others are against."""


def interleaved(once: Sequence[Callable[[], float]], count: int) -> list[list[float]]:
    """`count` rounds in the orders A B, B A, A B, …; ends after two where all others are hopeless against the first."""
    times: list[list[float]] = [[] for _ in once]
    for index in range(count):
        order = range(len(once)) if index % 2 == 0 else reversed(range(len(once)))
        for which in order:
            times[which].append(once[which]())
        if index == 1 and len(once) > 1 and min(map(min, times[1:])) > _HOPELESS * min(times[0]):
            break
    return times


class GpuClock:
    """µs on a GPU."""

    unit, is_time, counted = "us", True, ()

    def __init__(self, target: Target):
        self.target, self.place = target, f"cuda:{target.index}"
        properties = torch.cuda.get_device_properties(target.index)
        try:
            known = device.arch_facts(target.arch).get("cache_bytes", 0)
        except ValueError:
            known = 0
        self.cache_bytes = max(getattr(properties, "L2_cache_size", 0), known, 1 << 25)
        self._flush: torch.Tensor | None = None

    def sets(self, size: int) -> int:
        """Enough to exceed the last-level cache twice, within bounds."""
        return min(max(math.ceil(2 * self.cache_bytes / max(size, 1)), _MIN_SETS), _MAX_SETS)

    def rounds(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """See Clock."""
        replays = [self._replay(calls) for calls in contenders]
        self._warm([replay for replay, _ in replays])
        return interleaved([lambda replay=replay, calls=calls: self._once(replay) / calls for replay, calls in replays],
                           count)

    def _replay(self, calls: Contender) -> tuple[Callable[[], Any], int]:
        """(all calls as one graph, or just one if it is long; how many). What cannot be captured is a loop, which the
        host may limit.

        The bare capture calls: torch.cuda.graph also collects garbage and empties the allocator's cache, each time.
        """
        torch.cuda.synchronize()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for call in calls[:2]:
                call()
            if self._us(calls[0]) > _LONG_US:
                calls = calls[:1]
            stream.synchronize()
            try:
                graph.capture_begin()
                try:
                    for call in calls:
                        call()
                finally:
                    graph.capture_end()
            except RuntimeError as error:
                _log.warning("timed without a graph: %s", str(error).partition("\n")[0])

                def loop() -> None:
                    for call in calls:
                        call()

                return loop, len(calls)
        return graph.replay, len(calls)

    def _warm(self, replays: Sequence[Callable[[], Any]]) -> None:
        end = time.monotonic() + _WARM_SECONDS
        while time.monotonic() < end:
            for replay in replays:
                replay()
            torch.cuda.synchronize()

    def _once(self, replay: Callable[[], Any]) -> float:
        if self._flush is None:
            self._flush = torch.empty(2 * self.cache_bytes, dtype=torch.uint8, device=self.place)
        self._flush.zero_()
        return self._us(replay)

    def _us(self, call: Callable[[], Any]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3


class SimClock:
    """Wave instructions on the simulated device: a count, no time."""

    unit, is_time = "wave instructions", False

    def __init__(self) -> None:
        self.counted: list[Mapping[str, int]] = []

    def sets(self, size: int) -> int:
        """One: nothing is timed."""
        return 1

    def rounds(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """See Clock; a contender that launches nothing on the device counts as infinite."""
        from aiter_like import sim

        counts, self.counted = [], []
        for calls in contenders:
            with sim.enabled(checks=False) as session:
                calls[0]()
            total = sum(counters["wave_instructions"] for counters in session.counters.values())
            counts.append([float(total) if total else math.inf])
            self.counted.append(totals(session.counters))
        return counts


def copies(size: int, place: str, sets: int = 1) -> list[Callable[[], Any]]:
    """Calls that read and write `size` bytes together and do nothing else: what memory gives to any call of that size.

    They negate integers: a graph makes torch's own copy a transfer of the copy engines, which are slower than a kernel
    (2.7 against 4.2 TB/s on an H200).
    """
    pairs = [torch.zeros(2, size // 8, dtype=torch.int32, device=place) for _ in range(sets)]
    return [lambda pair=pair: torch.neg(pair[0], out=pair[1]) for pair in pairs]


def ceilings(target: Target) -> tuple[float, float]:
    """(bytes per second of a device copy, flop/s of a bf16 matrix product), measured now on this GPU."""
    clock, copied = GpuClock(target), 1 << 30
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device=clock.place)
    product = torch.empty_like(a)
    calls = (copies(copied, clock.place) * 4, [lambda: torch.mm(a, a, out=product)] * 2)
    seconds = [min(clock.rounds([contender], 5)[0]) * 1e-6 for contender in calls]
    return copied / seconds[0], 2 * 8192**3 / seconds[1]
