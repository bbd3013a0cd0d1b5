# SPDX-License-Identifier: MIT
"""Times of calls, on the device and on the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch


def time_us(function: Callable[..., Any], argument_sets: Sequence[tuple], *, repeats: int = 5,
            warmup: int = 3) -> float:
    """Median time of one call on the GPU in µs.

    Args:
        function: called with each of `argument_sets` in turn; together they must be larger than the last-level cache.
        repeats: timed rounds over all sets; the median round counts.
        warmup: rounds before.
    """
    rounds = []
    for index in range(warmup + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for args in argument_sets:
            function(*args)
        end.record()
        end.synchronize()
        if index >= warmup:
            rounds.append(start.elapsed_time(end) * 1e3 / len(argument_sets))
    return statistics.median(rounds)


def host_time_us(function: Callable[[], Any], *, calls: int = 2_000, repeats: int = 50) -> float:
    """Host time of `function()` in µs: the fastest of `repeats` loops of `calls`, since other load only ever adds."""
    loops = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        loops.append((time.perf_counter() - start) * 1e6 / calls)
    return min(loops)
