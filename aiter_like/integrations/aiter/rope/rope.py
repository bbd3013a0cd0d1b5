# SPDX-License-Identifier: MIT
"""AITER's rotary position embedding in Triton that engines call."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.rope import rotary
from aiter_like.ops.rope.rope_rounded import rope_rounded


@aiter("aiter.ops.triton.rope.rope", callers="V")
def rope_cached_thd_positions_offsets_2c_fwd_inplace(
        x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor | None, rotate_style: int,
        reuse_freqs_front_part: bool, nope_first: bool, transpose_output: bool = False) -> tuple[Tensor, Tensor]:
    """`aiter_like.rope_cached_thd_positions_offsets_2c_fwd_inplace`, which rounds each product, as AITER's does, where
    heads and tables have one dtype of 16 bits.
    """
    op = "rope_cached_thd_positions_offsets_2c_fwd_inplace"
    check.tensor(op, "x", x, rank=3)
    check.tensor(op, "y", y, shape=(len(x), None, x.shape[2]))
    check.tensor(op, "positions", positions, shape=(len(x),), last_contiguous=False)
    if offsets is not None:
        check.tensor(op, "offsets", offsets, shape=(len(x),), last_contiguous=False)
    flags = rotate_style, reuse_freqs_front_part, nope_first
    if transpose_output or not isinstance(cos, Tensor) or not cos.dtype == x.dtype in (torch.bfloat16, torch.float16):
        return rotary.rope_cached_thd_positions_offsets_2c_fwd_inplace(x, y, cos, sin, positions, offsets, *flags,
                                                                       transpose_output)
    return rope_rounded(x, y, cos, sin, positions, offsets, *flags, out=(x, y))
