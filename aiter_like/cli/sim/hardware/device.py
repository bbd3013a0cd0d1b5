# SPDX-License-Identifier: MIT
"""A device that runs the kernels of aiter_like/sim/validation, through the runtime of the JIT; real or simulated."""

import ctypes
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like.device import Target
from aiter_like.jit.hip_runtime import ModuleRuntime
from aiter_like.sim.validation.kernels import TIMES, Kernel, arguments, code_object, name_of
from aiter_like.tuning.clock import event_us

REALTIME_MHZ = 100.0
"""The rate at which s_memrealtime is taken to count; the cost "s_memrealtime" measures it."""

_SPIN = Kernel("v_add_u32 v20, v1, v1", unroll=256)
_SPIN_CLK = 4 * 256  # a pass of the spinning loop takes so long
_FLUSHED = 1 << 30  # bytes that no cache holds


class Device:
    """Launches and times kernels.

    Attributes:
        target: which device it is.
    """

    def __init__(self, target: Target):
        self.target = target
        self._runtime = ModuleRuntime(target)
        self._place = torch.device("cpu") if target.simulated else torch.device("cuda", target.index)
        self._spin: ctypes.c_void_p | None = None
        self._flushed: Tensor | None = None

    def load(self, kernels: Sequence[tuple[Kernel, int]], timed: bool = False) -> list[ctypes.c_void_p]:
        """Assembles kernels, each with how often its body is repeated, and loads them."""
        code = code_object(kernels, timed)
        return [self._runtime.function(code, name_of(index)) for index in range(len(kernels))]

    def memory(self, size: int) -> Tensor:
        """So many bytes, undefined."""
        return torch.empty(size, dtype=torch.uint8, device=self._place)

    def tensor(self, values: Sequence[int], size: int = 0, fill: int = 0) -> Tensor:
        """Dwords, filled up to `size` of them."""
        words = torch.tensor([*values, *[fill] * max(size - len(values), 0)], dtype=torch.int64)
        return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).to(self._place)

    def launch(self, function: ctypes.c_void_p, groups: int, waves: int, loops: int, *buffers: Tensor | int,
               number: int = 0, times: Tensor | None = None) -> None:
        """One launch; `buffers`: the first and the second, or their addresses."""
        places = [one if isinstance(one, int) else one.data_ptr() for one in (*buffers, 0, 0)]
        self._runtime.launch(function, (groups, 1, 1), (64 * waves, 1, 1),
                             arguments(places[0], places[1], loops, number, 0 if times is None else times.data_ptr()))

    def wait(self) -> None:
        """Until everything launched has run; a fault of a kernel shows here."""
        if not self.target.simulated:
            torch.cuda.synchronize(self.target.index)

    def times(self, waves: int) -> Tensor:
        """Room for what so many waves of a timed kernel store."""
        return torch.zeros(waves, TIMES, dtype=torch.int64, device=self._place)

    def sample(self, launch: Any) -> float:
        """Event time of one call that launches, in µs."""
        return event_us(launch)

    def flush(self) -> None:
        """Overwrites what the caches hold."""
        if self._flushed is None:
            self._flushed = torch.zeros(_FLUSHED, dtype=torch.uint8, device=self._place)
        self._flushed.add_(1)

    def spin(self, clk: int) -> float:
        """Keeps one wave busy for so many cycles; the clock meanwhile, in MHz."""
        if self._spin is None:
            (self._spin,) = self.load([(_SPIN, _SPIN.unroll)], timed=True)
        times = self.times(1)
        self.launch(self._spin, 1, 1, max(clk // _SPIN_CLK, 1), times=times)
        self.wait()
        return clock_mhz(*spans(times))

    def versions(self) -> dict[str, int]:
        """Versions of the runtime and the driver."""
        return self._runtime.versions()


def spans(times: Tensor) -> tuple[int, int]:
    """Cycles and ticks of s_memrealtime of the slowest wave. Each XCD counts from a number of its own, so only
    differences within a wave mean anything."""
    passed = times[:, 2:] - times[:, :2]
    return int(passed[:, 0].max()), int(passed[:, 1].max())


def clock_mhz(clk: int, ticks: int) -> float:
    """The clock in a span; 0 where it was too short to tell."""
    return clk / ticks * REALTIME_MHZ if ticks else 0.0


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median, extremes, and how many."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "count": len(samples)}
