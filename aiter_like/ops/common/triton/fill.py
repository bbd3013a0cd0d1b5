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


@triton.jit(do_not_specialize=["value"])
def _fill_strided_kernel(out, value, count, sizes, strides, TILE: tl.constexpr, OVERLAPS: tl.constexpr):
    """The same of four dimensions of any strides."""
    await_stream(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_one, rest = at < count, at
    for dim in tl.static_range(3, -1, -1):
        out += rest % sizes[dim] * strides[dim]
        rest = rest // sizes[dim]
    tl.store(out, tl.full([TILE], value, out.dtype.element_ty), mask=is_one)


def fill(tensor: Tensor, value: float) -> Launch:
    """The launch that gives all elements of a tensor of up to four dimensions `value`."""
    count = tensor.numel()
    grid, facts = (triton.cdiv(count, _TILE),), {"TILE": _TILE, "options": {"num_warps": 4}}
    if tensor.is_contiguous():
        return launch(_fill_kernel, grid, tensor, value, count, **facts)
    sizes, strides = ((1, 1, 1, 1, *given)[-4:] for given in (tensor.shape, tensor.stride()))
    return launch(_fill_strided_kernel, grid, tensor, value, count, sizes, strides, **facts)
