# SPDX-License-Identifier: MIT
"""What `--bench` of the op_tests prints: µs, TB/s of useful bytes, share of the device's own copy speed, error/limit.

A case is checked before it is timed. Needs a GPU; read by the op_tests' `bench` functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.testing

from aiter_like.errors import AiterLikeError

_COPY_BYTES = 2 << 30  # read and write together: far beyond any cache
_WARMUP_MS, _REPEAT_MS = 20, 80  # per timed call; a table of 8 shapes × 4 columns then takes about 10 s


@dataclass(frozen=True)
class Case:
    """One shape.

    Attributes:
        name: first column, as "8192×8192".
        useful_bytes: what the algorithm must read and write, each byte once.
        calls: column name → the call to time; what it returns goes to `check`.
        check: raises when a result is wrong; returns its largest error as a fraction of the limit.
    """

    name: str
    useful_bytes: int
    calls: dict[str, Callable[[], Any]]
    check: Callable[[Any], float]


def time_us(call: Callable[[], Any]) -> float:
    """Median time of one call in µs, the last-level cache flushed before each."""
    return triton.testing.do_bench(call, warmup=_WARMUP_MS, rep=_REPEAT_MS, return_mode="median") * 1e3


def copy_tbps() -> float:
    """TB/s, read and written, of the device's own copy of 1 GiB."""
    source = torch.empty(_COPY_BYTES // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return _COPY_BYTES / time_us(lambda: target.copy_(source)) * 1e-6


def table(title: str, cases: Iterable[Case]) -> None:
    """Checks and times every case; prints a line per case and call. A backend that refuses says why."""
    copy = copy_tbps()
    print(f"{title}: {torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
          f"copy {copy:.2f} TB/s")
    print(f"{'shape':>24} {'by':>14} {'us':>9} {'TB/s':>6} {'of copy':>8} {'error/limit':>12}")
    for case in cases:
        for name, call in case.calls.items():
            try:
                error = case.check(call())
            except AiterLikeError as refused:
                print(f"{case.name:>24} {name:>14} {str(refused).partition(chr(10))[0]}")
                continue
            us = time_us(call)
            tbps = case.useful_bytes / us * 1e-6
            print(f"{case.name:>24} {name:>14} {us:9.2f} {tbps:6.2f} {tbps / copy:8.1%} {error:12.2f}", flush=True)


def by_backend(function: Callable, *args: Any, backends: Iterable[str] = ("hip", "triton"),
               **kwargs: Any) -> dict[str, Callable[[], Any]]:
    """`calls` of a case: the public function on each backend, arguments fixed."""
    return {name: lambda name=name: function(*args, backend=name, **kwargs) for name in backends}


def compiled(function: Callable) -> Callable:
    """torch.compile's best for fixed shapes, without its CUDA graphs: those would hide the launch that others pay."""
    return torch.compile(function, dynamic=False, options={"max_autotune": True, "coordinate_descent_tuning": True})
