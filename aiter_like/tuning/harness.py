# SPDX-License-Identifier: MIT
"""The place where trials run: the device, its clock, and how a bound function is called. One per worker process."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aiter_like import device
from aiter_like.device import Target
from aiter_like.dispatch import self_check
from aiter_like.tuning import clock
from aiter_like.tuning.clock import Clock

_MOST_JUDGED = (1 << 20, 1 << 28)
"""Bytes and flops of a call that the simulator runs with its checkers in about a second."""


@dataclass(frozen=True)
class Harness:
    """A place for trials.

    Attributes:
        guarded: of (op, function): the function to call in the operator's place while it is checked.
        placed: of (op, function): the function to call in the operator's place while it is timed.
        ceilings: measures (bytes/s, flop/s) of the device; None where nothing is measured.
        most_judged: (bytes, flops) that a call may need which is judged; None: any. Else a call of a smaller key is
            judged in its place (Tuning.smaller).
        kernels: of (call): what identifies the kernels that it launches; asked where a smaller key is judged.
    """

    device: torch.device
    target: Target
    clock: Clock
    name: str
    guarded: Callable[[Any, Callable], Callable] = lambda op, function: function
    placed: Callable[[Any, Callable], Callable] = lambda op, function: function
    ceilings: Callable[[Target], tuple[float, float]] | None = None
    most_judged: tuple[int, int] | None = None
    kernels: Callable[[Callable[[], Any]], list[Any]] | None = None

    def is_healthy(self) -> bool:
        """Whether the device still answers; a fault in a kernel leaves its process without one."""
        if self.device.type != "cuda":
            return True
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize(self.device)
            return True
        return False

    def memory_bytes(self) -> int:
        """The device's memory; 0 where it has none of its own."""
        return torch.cuda.get_device_properties(self.device).total_memory if self.device.type == "cuda" else 0

    def wait(self) -> None:
        """Until everything launched has run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def gpu(index: int) -> Harness:
    """GPU `index` of this machine.

    Raises:
        ValueError: torch sees no such GPU.
    """
    if index >= torch.cuda.device_count():
        raise ValueError(f"torch sees {torch.cuda.device_count()} GPUs, none with number {index}; --device sim checks "
                         "the candidates on the simulated MI300X")
    torch.cuda.set_device(index)
    place = torch.device("cuda", index)
    target = device.target_of(place)
    return Harness(place, target, clock.GpuClock(target), self_check.device_name(target), ceilings=clock.ceilings)


def sim(index: int) -> Harness:
    """The simulated MI300X, with its checkers on while a candidate is judged."""
    from aiter_like import sim as simulator
    from aiter_like.sim import library
    from aiter_like.tuning import sim_clock

    device.use_simulator(True)
    library.load_timing()
    place = torch.device("cpu")
    target = device.target_of(place)

    def placed(op: Any, function: Callable) -> Callable:
        return lambda *args: simulator.checked_call(op.name, function, args, op.write_indices)

    def guarded(op: Any, function: Callable) -> Callable:
        def call(*args: Any) -> None:
            with simulator.enabled(checks="strict"):
                placed(op, function)(*args)

        return call

    return Harness(place, target, sim_clock.SimClock(), self_check.device_name(target), guarded, placed,
                   most_judged=_MOST_JUDGED, kernels=sim_clock.kernels)
