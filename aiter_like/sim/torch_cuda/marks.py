# SPDX-License-Identifier: MIT
"""Which tensors a program has on its GPU: CPU tensors whose storage is marked. Views share the mark, and it goes with
the memory.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._C import _functorch

from aiter_like.sim.torch_cuda import memory

_NAME = "_aiter_like_place"  # of the attribute of a storage; torch keeps the object as long as the memory


class _Place:
    """The mark of a storage: the GPU's number, or None for pinned memory of the host."""

    def __init__(self, index: int | None, address: int, count: int):
        self._memory = None
        self.index, found = index, memory.of(index)
        self._number, self._memory = found.take(address, count), found

    def __reduce__(self) -> tuple:
        return _Place, (self.index, 0, 0)  # a copy's memory is counted where it has any

    def __del__(self) -> None:
        if self._memory:
            self._memory.give_back(self._number)


def index_of(tensor: torch.Tensor) -> int | None:
    """The number of the GPU that the tensor is on; None: on none."""
    place = _place_of(tensor)
    return place.index if place else None


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether it is in pinned memory of the host."""
    place = _place_of(tensor)
    return place is not None and place.index is None


def put(tensor: torch.Tensor, index: int | None) -> torch.Tensor:
    """Marks the memory of a tensor as that GPU's, or with None as pinned; returns the tensor.

    A tensor that is on no CPU (`meta`) stays as it is.
    """
    with torch._C.DisableTorchFunction():
        if tensor.device.type == "cpu":
            address = 0
            with contextlib.suppress(RuntimeError, NotImplementedError):  # a sparse tensor has none
                # data_ptr() would end torch's copying on write
                address = torch._C._data_address(tensor) - tensor.storage_offset() * tensor.element_size()
            put_storage(holder_of(tensor), index, address)
    return tensor


def remove(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor is the host's, as that of what a backward pass has made of a GPU's is not; returns it."""
    holder = holder_of(tensor)
    if getattr(holder, _NAME, None) is not None:
        delattr(holder, _NAME)
    return tensor


def index_of_storage(holder: Any) -> int | None:
    """Like `index_of`, of a storage."""
    place = getattr(holder, _NAME, None)
    return place.index if place else None


def first_place(args: tuple, kwargs: dict) -> int | None:
    """The number of the GPU of the first tensor that is on one; None: none is."""
    places = map(index_of, tensors((args, kwargs)))
    return next((place for place in places if place is not None), None)


def put_storage(holder: Any, index: int | None, address: int | None = None) -> None:
    """Like `put`, of a storage."""
    count = 0
    if isinstance(holder, torch.UntypedStorage) and holder.device.type != "meta":
        count = holder.nbytes() if address != 0 else 0
        if address is None:
            address = holder.data_ptr()
    setattr(holder, _NAME, _Place(index, address or 0, count))


def is_functional(tensor: torch.Tensor) -> bool:
    """Whether it is a value within torch.func's functions."""
    return _functorch.is_functorch_wrapped_tensor(tensor)


def holder_of(tensor: torch.Tensor) -> Any:
    """The object that bears a tensor's mark: its storage; one that has none, such as a sparse one, bears it itself."""
    with torch._C.DisableTorchFunction():
        while _functorch.is_functorch_wrapped_tensor(tensor):  # within torch.func's functions
            tensor = _functorch.get_unwrapped(tensor)
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return tensor


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among the arguments or results of a function of torch, also those in its tuples, lists, dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        yield from tensors(tuple(value.values()))


def follow(results: Any, arguments: Iterable[torch.Tensor]) -> None:
    """Results are where the arguments are: on a GPU if one of them is. Memory of the arguments stays what it is."""
    arguments = list(arguments)
    holders = [holder_of(tensor) for tensor in arguments]
    places = [getattr(holder, _NAME, None) for holder in holders]
    index = next((place.index for place in places if place and place.index is not None), None)
    if index is None:
        return
    for tensor in tensors(results):
        holder = holder_of(tensor)
        if not hasattr(holder, _NAME) and all(holder is not other for other in holders):
            put(tensor, index)


def _place_of(tensor: torch.Tensor) -> _Place | None:
    return getattr(holder_of(tensor), _NAME, None)
