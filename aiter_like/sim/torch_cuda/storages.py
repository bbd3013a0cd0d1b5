# SPDX-License-Identifier: MIT
"""Storages within sim.as_gpu(): where they are, and copies of them. Torch's own ask for the CPU's device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices, marks, refusals


class _Hidden(threading.local):
    count = 0


_hidden = _Hidden()


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch's storages: holder, name, what it means now."""
    yield torch.UntypedStorage, "__new__", _making(torch.UntypedStorage.__new__)
    yield torch.UntypedStorage, "device", property(_device)
    yield torch.UntypedStorage, "clone", _clone
    yield torch.UntypedStorage, "to", _to
    yield torch.UntypedStorage, "cuda", to_gpu
    yield torch.TypedStorage, "cuda", to_gpu


@contextlib.contextmanager
def as_host() -> Iterator[None]:
    """A block in which the calling thread sees all storages on the host, where their memory is."""
    _hidden.count += 1
    try:
        yield
    finally:
        _hidden.count -= 1


def to_gpu(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """A storage's `cuda`, as functions for map_location call it: a copy on a GPU."""
    copy = self.clone()
    marks.put_storage(getattr(copy, "_untyped_storage", copy), devices.number_of(device))
    return copy


def _making(original: Callable) -> Callable:
    """A storage's `__new__`, whose device may be a GPU.

    Raises:
        torch.OutOfMemoryError: the GPU has not so much memory.
    """
    def __new__(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> torch.UntypedStorage:
        index = None if device is None else devices.index_of(device)
        if index is None:
            return original(cls, *args, **kwargs, **({} if device is None else {"device": device}))
        try:
            made = original(cls, *args, device="cpu", **kwargs)
        except RuntimeError as error:
            told = refusals.out_of_memory(error)
            if told is None:
                raise
            raise told from error
        marks.put_storage(made, index)
        return made

    return __new__


def _device(self: torch.UntypedStorage) -> torch.device:
    index = None if _hidden.count else marks.index_of_storage(self)
    return marks.own_place(self) if index is None else devices.of_index(index)


def _clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
    index = marks.index_of_storage(self)
    copy = torch.UntypedStorage(self.nbytes(), device=marks.own_place(self)).copy_(self)
    if index is not None:
        marks.put_storage(copy, index)
    return copy


def _to(self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
    place = torch.device(device)
    index = devices.index_of(place)
    if index == marks.index_of_storage(self) and (index is not None or place == marks.own_place(self)):
        return self
    if index is not None:
        return to_gpu(self, index)
    return torch.UntypedStorage(self.nbytes(), device=place).copy_(self)
