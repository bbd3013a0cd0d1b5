# SPDX-License-Identifier: MIT
"""Streams and events of torch.cuda on the simulated MI300X: what is launched has ended when the launch returns.

Times between events are the cycle model's, where `sim.enabled(model=…)` is open at both, else this machine's: the first
one of either kind is a warning that says so. Read by the mode's table of names, and by Triton's driver for benchmarks.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from aiter_like.sim import modelling, session
from aiter_like.sim.torch_cuda import devices

_log = logging.getLogger("aiter_like")


class Event:
    """torch.cuda.Event: a moment on this machine's clock and on the cycle model's."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
                 external: bool = False):
        if interprocess:
            raise NotImplementedError("sim.as_gpu: events of several processes are not simulated")
        self._has_time = enable_timing
        self._seconds: float | None = None
        self._modelled: tuple[int, float] | None = None

    def record(self, stream: Any = None) -> None:
        """Now."""
        self._seconds, self._modelled = time.perf_counter(), session.modelled_us()

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
        """
        for name, event in (("the first", self), ("the second", end_event)):
            if not event._has_time:
                raise ValueError(f"elapsed_time: {name} event must be made with enable_timing=True")
            if event._seconds is None:
                raise ValueError(f"elapsed_time: {name} event must have been recorded")
        if self._modelled and end_event._modelled and self._modelled[0] == end_event._modelled[0]:
            _tell(f"times between events are modelled, by the cycle model {modelling.version()}: those of the kernels "
                  "alone, none of torch's own functions, and none is measured")
            return (end_event._modelled[1] - self._modelled[1]) / 1e3
        _tell("times between events are this machine's, which simulates an MI300X, and no MI300X's; "
              "sim.enabled(model=...) gives modelled ones")
        return (end_event._seconds - self._seconds) * 1e3


class Stream:
    """torch.cuda.Stream: a name for the one order in which everything runs, the program's.

    Attributes:
        device: its GPU.
        priority: as given.
        cuda_stream: HIP's handle: the null stream.
    """

    cuda_stream = stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any):
        self.device, self.priority = devices.of_index(devices.number_of(device)), priority
        self.device_index, self.device_type = self.device.index, 1

    def wait_event(self, event: Event) -> None:
        """It is past."""

    def wait_stream(self, stream: Stream) -> None:
        """Its work has ended."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event, recorded."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Its work has ended."""
        return True

    def synchronize(self) -> None:
        """Its work has ended."""

    def is_capturing(self) -> bool:
        """Whether a graph captures what is called."""
        return torch.cuda.is_current_stream_capturing()

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority, which change nothing."""
        return 0, -1

    def __enter__(self) -> Stream:
        self._block = stream(self)
        self._block.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)


def current_stream(device: Any = None) -> Stream:
    """The stream of the innermost block of this thread on that device, else its default stream."""
    index = devices.number_of(device)
    return next((one for one in reversed(_stack()) if one.device.index == index), None) or default_stream(index)


def default_stream(device: Any = None) -> Stream:
    """The device's default stream, always the same object."""
    return _default(devices.number_of(device))


def set_stream(stream: Stream | None) -> None:
    """Makes a stream this thread's."""
    if stream is not None:
        _stack()[:] = [*(one for one in _stack() if one.device != stream.device), stream]


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Makes a stream, and its device, this thread's within the block; None changes nothing."""
    before, device = list(_stack()), devices.current()
    try:
        if stream is not None:
            devices.set_current(stream.device)
            _stack().append(stream)
        yield
    finally:
        _stack()[:] = before
        devices.set_current(device)


def synchronize(device: Any = None) -> None:
    """Nothing runs that could be waited for; a device that there is not is an error."""
    devices.number_of(device)


def named(original: type, own: type) -> type:
    """A class of torch that has the one or the other object, by its device: torch.Stream, torch.Event."""
    class Meta(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, (original, own))

    def made(cls: type, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_gpu = device is None or devices.index_of(device) is not None
        if not is_gpu:
            return original(device, *args, **kwargs)
        return own(*args, **kwargs) if own is Event else own(device, *args, **kwargs)

    return Meta(original.__name__, (), {"__new__": made, "__doc__": original.__doc__})


class HostTime:
    """The part of torch.cuda that Triton's benchmarks use where there is no torch.cuda."""

    Event = Event
    synchronize = staticmethod(synchronize)
    current_device = staticmethod(devices.current)


def _stack() -> list[Stream]:
    if not hasattr(_local, "streams"):
        _local.streams = []
    return _local.streams


@functools.cache
def _default(index: int) -> Stream:
    return Stream(torch.device("cuda", index))


@functools.cache
def _tell(text: str) -> None:
    _log.warning("simulated MI300X: %s", text)


def forget_told() -> None:
    """The next block tells anew what its times are."""
    _tell.cache_clear()


_local = threading.local()
