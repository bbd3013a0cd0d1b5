# SPDX-License-Identifier: MIT
"""Fills a tensor with a number, in a launch that goes before those of a launcher's own kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch

_TILE = 1024  # elements of one program


@triton.jit(do_not_specialize=["value"])
def _fill_kernel(out, value, count, TILE: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = value; bound: memory."""
    await_stream(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(out + at, tl.full([TILE], value, out.dtype.element_ty), mask=at < count)


def fill(tensor: Tensor, value: float) -> Launch:
    """The launch that gives all elements of a contiguous tensor `value`."""
    count = tensor.numel()
    grid = (triton.cdiv(count, _TILE),)
    return launch(_fill_kernel, grid, tensor, value, count, TILE=_TILE, options={"num_warps": 4})
