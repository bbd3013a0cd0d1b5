# SPDX-License-Identifier: MIT
"""rope_rounded in Triton: body and launcher, named by ops/rope/rope_rounded.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.rope.rope_rounded import RopeRoundedCall
from aiter_like.ops.rope.triton.parts import (
    DEFAULT_ELEMENTS,
    constants,
    copy_rest,
    load_pairs,
    row_angles,
    row_count,
    row_step,
    store_pairs,
    tiles,
)


@triton.jit
def _product(x, factor, dtype: tl.constexpr):
    """x · factor, rounded to `dtype`, in fp32; the launcher turns fusion off, with which the rounding is left out."""
    return (x.to(tl.float32) * factor).to(dtype).to(tl.float32)


@triton.jit
def _turn(out, x, out_head, x_head, heads, cos_1, sin_1, cos_2, sin_2, rotary_begin, rotary_half, copied_begin, copied,
          BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, IS_GPTJ: tl.constexpr,
          IS_IN_PLACE: tl.constexpr):
    """BLOCK_H heads of a token of one tensor."""
    dtype: tl.constexpr = out.dtype.element_ty
    head = tl.program_id(1) * BLOCK_H
    first, second = load_pairs(x, x_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    if IS_GPTJ:
        first, second = tl.split(tl.reshape(first, (BLOCK_H, BLOCK_P, 2)))
    turned_1 = (_product(first, cos_1, dtype) - _product(second, sin_1, dtype)).to(dtype)
    turned_2 = (_product(second, cos_2, dtype) + _product(first, sin_2, dtype)).to(dtype)
    store_pairs(out, turned_1, turned_2, out_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ,
                IS_IN_PLACE)
    copy_rest(out, x, out_head, x_head, heads, head, copied_begin, copied, BLOCK_H, BLOCK_C)


@triton.jit
def _rope_rounded_kernel(out, out_y, x, y, cos, sin, positions, offsets, out_s, out_head, out_y_s, out_y_head, x_s,
                         x_head, y_s, y_head, heads, y_heads, cos_row, sin_row, positions_s, offsets_s, rotary_begin,
                         rotary_half, copied_begin, copied, rows, BLOCK_H: tl.constexpr, BLOCK_Y: tl.constexpr,
                         BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr,
                         IS_BACKWARD: tl.constexpr, IS_IN_PLACE: tl.constexpr, OVERLAPS: tl.constexpr):
    """One token's BLOCK_H heads of `x` and BLOCK_Y heads of `y`; bound: memory."""
    await_stream(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(positions + token * positions_s).to(tl.int64)
    if offsets is not None:
        row += tl.load(offsets + token * offsets_s).to(tl.int64)
    is_row = (row >= 0) & (row < rows)
    cos_1, sin_1, cos_2, sin_2 = row_angles(cos + row * cos_row, sin + row * sin_row, is_row, rotary_half, BLOCK_P,
                                            IS_GPTJ, IS_SHARED, IS_BACKWARD)
    if BLOCK_H > 0:
        _turn(out + token * out_s, x + token * x_s, out_head, x_head, heads, cos_1, sin_1, cos_2, sin_2, rotary_begin,
              rotary_half, copied_begin, copied, BLOCK_H, BLOCK_P, BLOCK_C, IS_GPTJ, IS_IN_PLACE)
    if BLOCK_Y > 0:
        _turn(out_y + token * out_y_s, y + token * y_s, out_y_head, y_head, y_heads, cos_1, sin_1, cos_2, sin_2,
              rotary_begin, rotary_half, copied_begin, copied, BLOCK_Y, BLOCK_P, BLOCK_C, IS_GPTJ, IS_IN_PLACE)


def rope_rounded(call: RopeRoundedCall, elements: int | None = None, num_warps: int | None = None) -> Launch | None:
    """The launch that writes `out` and `out_y`.

    `elements` of either tensor's heads are one program's; None for either parameter: what suits most sizes.
    """
    tokens, heads, head_dim = call.x.shape
    y_heads, tensors = call.y.shape[1], (call.out, call.out_y, call.x, call.y)
    pairs = [(call.out, call.x), (call.out_y, call.y)]
    sizes, blocks = constants(call, head_dim, call.cos.shape[-1], pairs)
    blocks["IS_IN_PLACE"] = any(out.data_ptr() == x.data_ptr() for out, x in pairs)
    programs, (block_h, block_y), num_warps = tiles(call.x, [heads, y_heads], blocks, elements or DEFAULT_ELEMENTS,
                                                    num_warps)
    strides = [stride for tensor in tensors for stride in tensor.stride()[:2]]
    steps = [row_step(call.cos), row_step(call.sin), call.positions.stride(0),
             0 if call.offsets is None else call.offsets.stride(0)]
    if not (tokens and programs):
        return None
    return launch(_rope_rounded_kernel, (tokens, programs), *tensors, call.cos, call.sin, call.positions, call.offsets,
                  *strides, heads, y_heads, *steps, *sizes, row_count(call.cos), **blocks, BLOCK_H=block_h,
                  BLOCK_Y=block_y, options={"num_warps": num_warps, "enable_fp_fusion": False})
