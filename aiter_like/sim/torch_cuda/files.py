# SPDX-License-Identifier: MIT
"""Files and pickles of tensors within sim.as_gpu(): they say where a tensor was, as a GPU's do."""

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import serialization

from aiter_like.sim.torch_cuda import devices, marks

_PRIORITY = 0  # before torch's own, which see tensors of the CPU


def loading(original: Callable) -> Callable:
    """torch.load, whose map_location may name a GPU."""
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        index = None
        if map_location is not None and not callable(map_location) and not isinstance(map_location, dict):
            index = devices.index_of(map_location)
        if index is None:
            return original(f, map_location, *args, **kwargs)

        def place(storage: Any, location: str) -> Any:
            marks.put_storage(storage, index)
            return storage

        return original(f, place, *args, **kwargs)

    return load


@contextlib.contextmanager
def placed() -> Iterator[None]:
    """torch's files name the GPU of marked storages, and mark those that they name, within the block."""
    entry = (_PRIORITY, _tag, _restore)
    serialization._package_registry.insert(0, entry)
    reducers = dict(ForkingPickler._extra_reducers)
    for kind in (torch.Tensor, torch.nn.Parameter):
        if kind in reducers:
            ForkingPickler.register(kind, _sending(reducers[kind]))
    try:
        yield
    finally:
        serialization._package_registry.remove(entry)
        ForkingPickler._extra_reducers.update(reducers)


def _sending(original: Callable) -> Callable:
    """Sends a tensor by multiprocessing: that of a GPU arrives there, in the same memory."""
    def reduce(tensor: torch.Tensor) -> tuple:
        index = marks.index_of(tensor)
        rebuild, arguments = original(tensor)
        return (rebuild, arguments) if index is None else (_received, (index, rebuild, arguments))

    return reduce


def _received(index: int, rebuild: Callable, arguments: tuple) -> torch.Tensor:
    return marks.put(rebuild(*arguments), index)


def _tag(storage: Any) -> str | None:
    index = marks.index_of_storage(getattr(storage, "_untyped_storage", storage))
    return None if index is None else f"cuda:{index}"


def _restore(storage: Any, location: str) -> Any:
    if not location.startswith("cuda"):
        return None  # torch's own way
    if int(location.partition(":")[2] or 0) >= devices.count():
        raise RuntimeError(f"Attempting to deserialize object on CUDA device {location.partition(':')[2]} but "
                           f"torch.cuda.device_count() is {devices.count()}. Please use torch.load with map_location "
                           "to map your storages to an existing device.")
    marks.put_storage(getattr(storage, "_untyped_storage", storage), devices.index_of(location))
    return storage
