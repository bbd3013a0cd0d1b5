# SPDX-License-Identifier: MIT
"""Streams of torch.cuda on the simulated MI300X: names for the one order in which everything runs, the program's.

As torch's they come from a pool, so that a handle of HIP is made for few of them, and only where a program asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import torch

from aiter_like.sim import library
from aiter_like.sim.torch_cuda import absent, devices

_CUDA = 1  # torch's number of the kind of device
_POOL = 32  # streams of a device; the next one is the first again


class Stream(absent.Partial):
    """torch.cuda.Stream, equal to another one of the same device and id.

    Args:
        device: its GPU; None: the current one.
        priority: 0 or less, which changes nothing.

    Attributes:
        device, device_index, device_type, stream_id, priority: as torch has them.

    Raises:
        RuntimeError: there is no such device.
    """

    def __init__(self, device: Any = None, priority: int = 0):
        self.device_index, self.device_type, self.priority = devices.number_of(device), _CUDA, priority
        self.device = devices.of_index(self.device_index)
        self.stream_id = 1 + next(_counter(self.device_index)) % _POOL

    @property
    def cuda_stream(self) -> int:
        """HIP's handle; the default stream's is 0."""
        return 0 if self.stream_id == 0 else _handle(self.device_index, self.stream_id)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device) == (other.stream_id, other.device)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def wait_event(self, event: Any) -> None:
        """It is past."""

    def wait_stream(self, stream: Stream) -> None:
        """Its work has ended."""

    def record_event(self, event: Any = None) -> Any:
        """An event, recorded."""
        event = event or torch.cuda.Event()
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

    def __enter__(self) -> Stream:
        block = stream(self)
        block.__enter__()
        _blocks().append(block)
        return self

    def __exit__(self, *error: Any) -> None:
        _blocks().pop().__exit__(*error)


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


def _stack() -> list[Stream]:
    if not hasattr(_local, "streams"):
        _local.streams, _local.blocks = [], []
    return _local.streams


def _blocks() -> list[contextlib.AbstractContextManager]:
    _stack()
    return _local.blocks


@functools.cache
def _default(index: int) -> Stream:
    made = Stream(index)
    made.stream_id = 0
    return made


@functools.cache
def _counter(index: int) -> Iterator[int]:
    return itertools.count()


@functools.cache
def _handle(index: int, stream_id: int) -> int:
    made, before = ctypes.c_void_p(), devices.exchange(index)
    try:
        library.load().hipStreamCreate(ctypes.byref(made))
    finally:
        devices.set_current(before)
    return made.value


_local = threading.local()
