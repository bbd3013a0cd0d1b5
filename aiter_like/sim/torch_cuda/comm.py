# SPDX-License-Identifier: MIT
"""Copies between simulated GPUs within sim.as_gpu(): what torch.nn.parallel.comm, and by it DataParallel, ask of
torch._C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices, marks


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch._C: holder, name, what it means now."""
    yield torch._C, "_broadcast", broadcast
    yield torch._C, "_broadcast_out", _broadcast_out
    yield torch._C, "_broadcast_coalesced", lambda tensors, places, size: list(
        map(list, zip(*(broadcast(tensor, places) for tensor in tensors), strict=True))) or [[] for _ in places]
    yield torch._C, "_scatter", scatter
    yield torch._C, "_scatter_out", _scatter_out
    yield torch._C, "_gather", gather
    yield torch._C, "_gather_out", _gather_out


def broadcast(tensor: torch.Tensor, places: Sequence[int]) -> list[torch.Tensor]:
    """The tensor on each of some GPUs: itself where it is already.

    Raises:
        RuntimeError: no GPU is given, or the tensor is on another one than the first.
    """
    if not places:
        raise RuntimeError("Expected at least one device to broadcast to")
    source = marks.index_of(tensor)
    if source is not None and source != places[0]:
        raise RuntimeError("Expected device1 to be on the list of devices to broadcast to, as the first")
    return [tensor if source == place else tensor.to(devices.of_index(place)) for place in places]


def scatter(tensor: torch.Tensor, places: Sequence[int], chunk_sizes: Sequence[int] | None = None, dim: int = 0,
            streams: Any = None) -> list[torch.Tensor]:
    """Parts of the tensor along a dimension, one on each GPU.

    Raises:
        RuntimeError: sizes do not fit the devices or the tensor.
    """
    if not places:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(places):
        raise RuntimeError("Expected devices and chunk_sizes to be of same length, but got "
                           f"len(devices) = {len(places)} and len(chunk_sizes) = {len(chunk_sizes)}")
    parts = tensor.split(list(chunk_sizes), dim) if chunk_sizes is not None else tensor.chunk(len(places), dim)
    return [part.to(devices.of_index(place)) for part, place in zip(parts, places, strict=False)]


def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """The tensors of GPUs one behind the other, on a GPU, or with -1 on the host.

    Raises:
        RuntimeError: there is no tensor, or one of the host.
    """
    _check_gathered(tensors)
    place = torch.device("cpu") if destination == -1 else devices.of_index(
        devices.current() if destination is None else destination)
    return torch.cat([one.to(place) for one in tensors], dim)


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    for i, one in enumerate(out):
        if marks.index_of(one) is None:
            raise RuntimeError(f"Expected all output tensors to be CUDA tensors, but output tensor at index {i} has "
                               f"device '{one.device}'")
        if one.shape != tensor.shape:
            raise RuntimeError(f"Expected all output tensors to have same shape as the source tensor "
                               f"{list(tensor.shape)}, but output tensor at index {i} has shape {list(one.shape)}")
    for one in out:
        if one is not tensor:
            one.copy_(tensor)
    return out


def _scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Any) -> Sequence[torch.Tensor]:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim %= tensor.dim()
    for i, one in enumerate(out):
        if marks.index_of(one) is None:
            raise RuntimeError(f"Expected all output tensors to be CUDA tensors, but output tensor at index {i} has "
                               f"device '{one.device}'")
        if one.shape[:dim] + one.shape[dim + 1:] != tensor.shape[:dim] + tensor.shape[dim + 1:]:
            raise RuntimeError(f"Output tensor at index {i} has incorrect shape: {list(one.shape)}")
    sizes = [one.shape[dim] for one in out]
    if sum(sizes) != tensor.shape[dim]:
        raise RuntimeError(f"Total size for output tensors along scatter dim {dim} does not match: expected "
                           f"{tensor.shape[dim]}, but got {sum(sizes)}")
    for one, part in zip(out, tensor.split(sizes, dim), strict=True):
        one.copy_(part)
    return out


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    _check_gathered(tensors)
    shape = list(tensors[0].shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    if list(out.shape) != shape:
        raise RuntimeError(f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
    return out.copy_(torch.cat([one.to(out.device) for one in tensors], dim))


def _check_gathered(tensors: Sequence[torch.Tensor]) -> None:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    for i, one in enumerate(tensors):
        if marks.index_of(one) is None:
            raise RuntimeError(f"Expected all input tensors to be CUDA tensors, but tensor at index {i} has device "
                               f"'{one.device}'")
