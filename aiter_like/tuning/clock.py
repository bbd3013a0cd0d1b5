# SPDX-License-Identifier: MIT
"""Times contenders against each other on a GPU: cold caches, medians of interleaved rounds.

The calls of a contender become one graph, so that the host is not timed; each round first overwrites the caches. Used
by worker.py and bench.py. The clock of the simulated device is in sim_clock.py.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from aiter_like import device
from aiter_like.device import Target

_log = logging.getLogger("aiter_like")

_MIN_SETS, _MAX_SETS = 4, 64
_WARM_SECONDS = 0.02
_LONG_US = 2000.0  # a call that takes longer is timed alone: its start no longer shows, and no cache outlasts it
_HOPELESS = 1.5  # a contender that is so much slower than the first after two rounds gets no further ones


@dataclass(frozen=True)
class Contender:
    """A call that a clock times.

    Attributes:
        calls: the same call, for each set of arguments.
        judged: a call as the judge makes them, of new and poisoned outputs; a clock that need not run all of a call
            finds out with it whether it may.
        useful_bytes: that one of `calls` has to move.
    """

    calls: Sequence[Callable[[], Any]]
    judged: Callable[[], Any] | None = None
    useful_bytes: int = 0


class Clock(Protocol):
    """Says how long calls take.

    Attributes:
        unit: of what `finals` returns: "us", or which us.
        trial_unit: of what `rounds` returns.
        is_measured: values are measured on a device and differ from time to time; else a model says them, always the
            same ones.
        origin: of the rows that come of it (dispatch/table.py); "": measured on the device that the harness names.
        least_gain: per cent by which a choice must be better for the clock to tell the two apart; of a model for each
            class of its operators (sim/modelling.py).
        shape_seconds: that a shape may take; None: as long as it takes.
        about: what a reader of its values has to know.
        found: what else it has found of each contender of the last `rounds` or `finals`; empty where there is nothing.
    """

    unit: str
    trial_unit: str
    is_measured: bool
    origin: str
    least_gain: float | Mapping[str, float]
    shape_seconds: float | None
    about: Sequence[str]
    found: Sequence[Mapping[str, Any]]

    def sets(self, size: int) -> int:
        """How many sets of arguments of `size` bytes to rotate over."""

    def rounds(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """For each contender, its value per call in each round, infinite for one that there is nothing to say of. The
        first is the one that the others are against.
        """

    def finals(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """Like `rounds`, for the few contenders that are left."""


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

    unit, trial_unit, is_measured, origin, least_gain, shape_seconds = "us", "us", True, "", 3.0, None
    about, found = (), ()

    def __init__(self, target: Target):
        self.target, self.place = target, f"cuda:{target.index}"
        properties = torch.cuda.get_device_properties(target.index)
        try:
            known = device.arch_facts(target.arch).cache_bytes
        except ValueError:
            known = 0
        self.cache_bytes = max(getattr(properties, "L2_cache_size", 0), known, 1 << 25)
        self._flush: torch.Tensor | None = None

    def sets(self, size: int) -> int:
        """Enough to exceed the last-level cache twice, within bounds."""
        return min(max(math.ceil(2 * self.cache_bytes / max(size, 1)), _MIN_SETS), _MAX_SETS)

    def rounds(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """See Clock."""
        replays = [self._replay(contender.calls) for contender in contenders]
        self._warm([replay for replay, _ in replays])
        return interleaved([lambda replay=replay, calls=calls: self._once(replay) / calls for replay, calls in replays],
                           count)

    def finals(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """See Clock."""
        return self.rounds(contenders, count)

    def _replay(self, calls: Sequence[Callable[[], Any]]) -> tuple[Callable[[], Any], int]:
        """(all calls as one graph, or just one if it is long; how many). What cannot be captured is a loop, which the
        host may limit.

        The bare capture calls: torch.cuda.graph also collects garbage and empties the allocator's cache, each time.
        """
        torch.cuda.synchronize()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for call in calls[:2]:
                call()
            if event_us(calls[0]) > _LONG_US:
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
        return event_us(replay)


def event_us(call: Callable[[], Any]) -> float:
    """Time in µs, by events of the current stream, of what one call of `call` launches there."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


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
    contenders = (copies(copied, clock.place) * 4, [lambda: torch.mm(a, a, out=product)] * 2)
    seconds = [min(clock.rounds([Contender(calls)], 5)[0]) * 1e-6 for calls in contenders]
    return copied / seconds[0], 2 * 8192**3 / seconds[1]
