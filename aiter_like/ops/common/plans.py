# SPDX-License-Identifier: MIT
"""The tensors of a plan of attention: pieces of sequences for the parts of a launch, and which of them are added up."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target

_MOST = 2**20  # sequences and parts

FIELDS = ("work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map")


def shapes(parts: int, items: int, tiles: int, slots: int) -> tuple[int | tuple[int, int], ...]:
    """Shapes of FIELDS.

    Args:
        parts: of the launch.
        items: pieces of sequences, of all parts.
        tiles: sequences whose pieces are added up.
        slots: pieces that are.
    """
    return parts + 1, (items, 8), tiles + 1, (tiles, 2), slots


def info(*sizes: int) -> tuple[tuple[int | tuple[int, int], torch.dtype], ...]:
    """(shape, dtype) of AITER's work_metadata_ptrs, and of FIELDS of such sizes."""
    return (2, torch.uint64), *((shape, torch.int32) for shape in shapes(*sizes))


def zeros(device: torch.device, *sizes: int) -> list[Tensor]:
    """FIELDS of such sizes."""
    return [torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes(*sizes)]


def starts(device: torch.device, lengths: list[int]) -> Tensor:
    """The beginnings of pieces of such lengths, and the end of the last one."""
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


def check_plan(op: str, call: Any) -> None:
    """The tensors of a plan are what kernels read and write without strides, beyond what annotations say."""
    for name, least in (("work_indptr", 2), ("reduce_indptr", 1), ("qo_indptr", 1)):
        if (count := getattr(call, name).shape[0]) < least:
            raise ValueError(f"{op}: {name} must have at least {least} element{'s' * (least > 1)}, got {count}")
    for name in ("work_info", "reduce_final_map"):
        if not (tensor := getattr(call, name)).is_contiguous():
            raise ValueError(f"{op}: {name} must be contiguous, got shape {tuple(tensor.shape)} with strides "
                             f"{tensor.stride()}")
    check.tensor(op, "reduce_final_map", call.reduce_final_map, shape=(call.reduce_indptr.shape[0] - 1, 2))


def refusal(target: Target, call: Any) -> str | None:
    """Says why no kernel that plans takes a call."""
    batch, parts = call.qo_indptr.shape[0] - 1, call.work_indptr.shape[0] - 1
    return f"less than {_MOST} sequences and parts, got {batch} and {parts}" if max(batch, parts) >= _MOST else None


def write(call: Any, items: list[list[list[int]]], tiles: list[int], groups: list[list[int]],
          slots: list[int]) -> None:
    """Writes what fits the tensors of a plan.

    Args:
        items: of each part, rows of work_info.
        tiles, groups, slots: of reduce_indptr, reduce_final_map and reduce_partial_map.
    """
    room = len(call.work_info)
    ends = [min(end, room) for end in itertools.accumulate(map(len, items), initial=0)]
    _put(call.work_indptr, ends, ends[-1])
    _put(call.work_info, [item for part in items for item in part])
    _put(call.reduce_indptr, tiles, len(slots))
    _put(call.reduce_final_map, groups)
    _put(call.reduce_partial_map, slots)


def _put(tensor: Tensor, values: list, rest: int | None = None) -> None:
    values = values[:len(tensor)]
    tensor[:len(values)] = torch.tensor(values, dtype=torch.int32, device="cpu").view(-1, *tensor.shape[1:])
    if rest is not None:
        tensor[len(values):] = rest
