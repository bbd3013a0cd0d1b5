# SPDX-License-Identifier: MIT
"""Padding between packed sequences: every second sequence of a call is the padding behind the one before it."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.common.contents import check_lengths


def with_padding(op: str, name: str, starts: Tensor, padded: Tensor | None, total: int) -> Tensor:
    """int32 [2 · batch + 1]: begin and end of each sequence, and the end of the last one's padding.

    Args:
        name: of `starts`.
        starts: [batch + 1], what tells the lengths.
        padded: [batch + 1]: where the sequences begin, and the last one's padding ends; None: at `starts`.
        total: rows of the tensor.

    Raises:
        TypeError: one of them is no int32 tensor.
        ValueError: shapes or devices do not fit, or (on the CPU) a sequence is longer than its place.
    """
    check.tensor(op, name, starts, rank=1, dtypes=(torch.int32,))
    if padded is None:
        padded = starts
    check.tensor(op, f"{name}_padded", padded, dtypes=(torch.int32,), shape=starts.shape, device=starts.device)
    check_lengths(op, f"{name}_padded", padded, total, None)
    ends = padded[:-1] + starts.diff()
    if check.is_on_host(ends) and (ends > padded[1:]).any():
        index = (ends > padded[1:]).nonzero()[0].item()
        begin, room = padded[index].item(), (padded[index + 1] - padded[index]).item()
        raise ValueError(f"{op}: {name}_padded must leave room for every sequence of {name}, got {room} rows from "
                         f"{begin} on for sequence {index} of {(ends[index] - begin).item()}")
    return torch.cat((torch.stack((padded[:-1], ends), 1).flatten(), padded[-1:]))


def for_padding_too(slopes: Tensor | None) -> Tensor | None:
    """ALiBi slopes of each sequence, [batch, num_heads], for the sequences of `with_padding`; others as they are."""
    return slopes.repeat_interleave(2, 0) if isinstance(slopes, Tensor) and slopes.ndim == 2 else slopes
