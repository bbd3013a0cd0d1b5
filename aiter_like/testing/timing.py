# SPDX-License-Identifier: MIT
"""Times of calls, on the device and on the host."""

import time
from collections.abc import Callable
from typing import Any


def host_time_us(function: Callable[[], Any], *, calls: int = 2_000, repeats: int = 50) -> float:
    """Host time of `function()` in µs: the fastest of `repeats` loops of `calls`, since other load only ever adds."""
    loops = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        loops.append((time.perf_counter() - start) * 1e6 / calls)
    return min(loops)
