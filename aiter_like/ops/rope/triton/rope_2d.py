# SPDX-License-Identifier: MIT
"""Rotary position embedding of image patches in Triton: body and launcher, named by the operator of
ops/rope/rope_2d.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.rope.rope_2d import Rope2dCall
from aiter_like.ops.rope.triton.parts import (
    DEFAULT_ELEMENTS,
    constants,
    copy_rest,
    load_pairs,
    row_angles,
    row_step,
    store_pairs,
    tiles,
    turned,
)


@triton.jit
def _rope_2d_kernel(out, x, cos_h, sin_h, cos_w, sin_w, out_b, out_s, out_head, x_b, x_s, x_head, heads, cos_h_row,
                    sin_h_row, cos_w_row, sin_w_row, patches, img_width, half_dim, rotary_begin, rotary_half,
                    copied_begin, copied, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
                    IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr, IS_BACKWARD: tl.constexpr,
                    IS_IN_PLACE: tl.constexpr, OVERLAPS: tl.constexpr):
    """One patch's BLOCK_H heads: the first half by its row, the second by its column; bound: memory."""
    await_stream(OVERLAPS)
    b = (tl.program_id(0) // patches).to(tl.int64)
    s = (tl.program_id(0) % patches).to(tl.int64)
    out += s * out_s + b * out_b
    x += s * x_s + b * x_b
    head = tl.program_id(1) * BLOCK_H
    row, column = s // img_width, s % img_width
    first, second = load_pairs(x, x_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    first_w, second_w = load_pairs(x + half_dim, x_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P,
                                   IS_GPTJ)
    cos_1, sin_1, cos_2, sin_2 = row_angles(cos_h + row * cos_h_row, sin_h + row * sin_h_row, True, rotary_half,
                                            BLOCK_P, IS_GPTJ, IS_SHARED, IS_BACKWARD)
    cos_3, sin_3, cos_4, sin_4 = row_angles(cos_w + column * cos_w_row, sin_w + column * sin_w_row, True, rotary_half,
                                            BLOCK_P, IS_GPTJ, IS_SHARED, IS_BACKWARD)
    kind = out.dtype.element_ty
    first, second = turned(first, second, cos_1, sin_1, cos_2, sin_2, kind, BLOCK_H, BLOCK_P, IS_GPTJ)
    store_pairs(out, first, second, out_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ,
                IS_IN_PLACE)
    copy_rest(out, x, out_head, x_head, heads, head, copied_begin, copied, BLOCK_H, BLOCK_C)
    out += half_dim
    first_w, second_w = turned(first_w, second_w, cos_3, sin_3, cos_4, sin_4, kind, BLOCK_H, BLOCK_P, IS_GPTJ)
    store_pairs(out, first_w, second_w, out_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ,
                IS_IN_PLACE)
    copy_rest(out, x + half_dim, out_head, x_head, heads, head, copied_begin, copied, BLOCK_H, BLOCK_C)


def rope_2d(call: Rope2dCall, elements: int | None = None, num_warps: int | None = None) -> Launch:
    """The launch that writes `out`, with the parameters of `rope`."""
    batch, patches, heads, head_dim = call.input.shape
    half_dim, tables = head_dim // 2, (call.cos_h, call.sin_h, call.cos_w, call.sin_w)
    sizes, blocks = constants(call, half_dim, call.cos_h.shape[-1], [(call.out, call.input)])
    programs, (block_h,), num_warps = tiles(call.input, [heads], blocks, (elements or DEFAULT_ELEMENTS) // 2, num_warps)
    return launch(_rope_2d_kernel, (batch * patches, programs), call.out, call.input, *tables, *call.out.stride()[:3],
                  *call.input.stride()[:3], heads, *map(row_step, tables), patches, call.img_width, half_dim, *sizes,
                  **blocks, BLOCK_H=block_h, options={"num_warps": num_warps})
