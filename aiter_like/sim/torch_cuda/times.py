# SPDX-License-Identifier: MIT
"""Events of torch.cuda on the simulated MI300X: what is launched has ended when the launch returns.

Times between events are the cycle model's, where `sim.enabled(model=…)` is open at both, else this machine's: the first
one of either kind is a warning that says so. Read by the mode's table of names, and by Triton's driver for benchmarks.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

import torch

from aiter_like.sim import modelling
from aiter_like.sim.torch_cuda import absent, devices, streams
from aiter_like.sim.torch_cuda.streams import current_stream

_log = logging.getLogger("aiter_like")


class Event(absent.Partial):
    """torch.cuda.Event: a moment on this machine's clock and on the cycle model's."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
                 external: bool = False):
        self._has_time = enable_timing
        self._seconds: float | None = None
        self._modelled: tuple[int, float] | None = None
        self.device: torch.device | None = None

    def record(self, stream: Any = None) -> None:
        """Now; on a stream of a device, which is the event's from then on."""
        self.device = (stream or current_stream()).device
        self._seconds, self._modelled = time.perf_counter(), modelling.elapsed()

    def wait(self, stream: Any = None) -> None:
        """It is past."""

    def query(self) -> bool:
        """It is past."""
        return True

    def synchronize(self) -> None:
        """It is past."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds until another event: modelled ones of the kernels between them, or seconds of this machine.

        Raises:
            ValueError: one of them was not recorded, or is without time.
            RuntimeError: they were recorded on two devices.
        """
        for name, event in (("the first", self), ("the second", end_event)):
            if not event._has_time:
                raise ValueError(f"elapsed_time: {name} event must be made with enable_timing=True, as both must")
            if event._seconds is None:
                raise ValueError(f"elapsed_time: {name} event must have been recorded")
        if self.device != end_event.device:
            raise RuntimeError(f"elapsed_time: events of two devices, {self.device} and {end_event.device}")
        if self._modelled and end_event._modelled and self._modelled[0] == end_event._modelled[0]:
            _tell(f"times between events are modelled, by the cycle model {modelling.version()}: those of the kernels "
                  "alone, none of torch's own functions, and none is measured")
            return (end_event._modelled[1] - self._modelled[1]) / 1e3
        _tell("times between events are this machine's, which simulates an MI300X, and no MI300X's; "
              "sim.enabled(model=...) gives modelled ones")
        return (end_event._seconds - self._seconds) * 1e3


class HostTime:
    """The part of torch.cuda that Triton's benchmarks use where there is no torch.cuda."""

    Event = Event
    synchronize = staticmethod(streams.synchronize)
    current_device = staticmethod(devices.current)


@functools.cache
def _tell(text: str) -> None:
    _log.warning("simulated MI300X: %s", text)


def forget_told() -> None:
    """The next block tells anew what its times are."""
    _tell.cache_clear()
