# SPDX-License-Identifier: MIT
"""Rotary position embedding in Triton: body and launcher, named by the operator of ops/rope/rope.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.rope.rope import RopeCall
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
    turned,
)


@triton.jit
def _rope_kernel(out, out_y, x, y, cos, sin, positions, offsets, out_s, out_b, out_head, x_s, x_b, x_head, out_y_s,
                 out_y_b, out_y_head, y_s, y_b, y_head, heads, y_heads, cos_row, sin_row, positions_s, positions_b,
                 offsets_s, offsets_b, batch, rotary_begin, rotary_half, copied_begin, copied, sequences, rows,
                 BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_P: tl.constexpr,
                 BLOCK_C: tl.constexpr, IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr, IS_BACKWARD: tl.constexpr,
                 IS_IN_PLACE: tl.constexpr, OVERLAPS: tl.constexpr):
    """One token's BLOCK_H heads of `x` and BLOCK_Y heads of `y`, all loaded before any is turned; bound: memory."""
    await_stream(OVERLAPS)
    s = (tl.program_id(0) // batch).to(tl.int64)
    b = (tl.program_id(0) % batch).to(tl.int64)
    head, y_first = tl.program_id(1) * BLOCK_H, tl.program_id(1) * BLOCK_Y
    if BLOCK_H > 0:
        x += s * x_s + b * x_b
        first, second = load_pairs(x, x_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    if BLOCK_Y > 0:
        y += s * y_s + b * y_b
        first_y, second_y = load_pairs(y, y_head, y_heads, y_first, rotary_begin, rotary_half, BLOCK_Y, BLOCK_P,
                                       IS_GPTJ)
    tl.debug_barrier()  # heads first: ptxas would wait for the position before it loads x, and load y after turning x
    row = s
    if BLOCK_S > 0:
        sequence = tl.arange(0, BLOCK_S)
        starts = tl.load(positions + sequence, mask=sequence < sequences, other=0).to(tl.int64)
        row = s - tl.max(tl.where(starts <= s, starts, 0), 0)
    elif positions is not None:
        row = tl.load(positions + s * positions_s + b * positions_b).to(tl.int64)
    if offsets is not None:
        row += tl.load(offsets + s * offsets_s + b * offsets_b).to(tl.int64)
    sines = sin
    if sin is not None:
        sines = sin + row * sin_row
    is_row = (row >= 0) & (row < rows)
    cos_1, sin_1, cos_2, sin_2 = row_angles(cos + row * cos_row, sines, is_row, rotary_half, BLOCK_P, IS_GPTJ,
                                            IS_SHARED, IS_BACKWARD)
    if BLOCK_H > 0:
        out += s * out_s + b * out_b
        first, second = turned(first, second, cos_1, sin_1, cos_2, sin_2, out.dtype.element_ty, BLOCK_H, BLOCK_P,
                               IS_GPTJ)
        store_pairs(out, first, second, out_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ,
                    IS_IN_PLACE)
        copy_rest(out, x, out_head, x_head, heads, head, copied_begin, copied, BLOCK_H, BLOCK_C)
    if BLOCK_Y > 0:
        out_y += s * out_y_s + b * out_y_b
        first_y, second_y = turned(first_y, second_y, cos_1, sin_1, cos_2, sin_2, out_y.dtype.element_ty, BLOCK_Y,
                                   BLOCK_P, IS_GPTJ)
        store_pairs(out_y, first_y, second_y, out_y_head, y_heads, y_first, rotary_begin, rotary_half, BLOCK_Y,
                    BLOCK_P, IS_GPTJ, IS_IN_PLACE)
        copy_rest(out_y, y, out_y_head, y_head, y_heads, y_first, copied_begin, copied, BLOCK_Y, BLOCK_C)


def rope(call: RopeCall, elements: int | None = None, num_warps: int | None = None) -> Launch | None:
    """The launch that writes `out` and `out_y`.

    `elements` of either tensor's heads are one program's; None for either parameter: what suits most sizes.
    """
    input, input_y = call.input, call.input_y
    batch = input.shape[1] if input.ndim == 4 else 1
    sequences = call.positions.shape[0] - 1 if call.positions is not None and input.ndim == 3 else 0
    heads, y_heads = input.shape[-2], 0 if input_y is None else input_y.shape[-2]
    sizes, blocks = constants(call, input.shape[-1], call.cos.shape[-1], [(call.out, input), (call.out_y, input_y)])
    programs, (block_h, block_y), num_warps = tiles(input, [heads, y_heads], blocks, elements or DEFAULT_ELEMENTS,
                                                    num_warps)
    strides = [stride for tensor in (call.out, input, call.out_y, input_y) for stride in _strides(tensor)]
    indices = [stride for tensor in (call.positions, call.offsets)
               for stride in ((0, 0) if tensor is None or tensor.ndim == 1 else tensor.stride())]
    if not (input.shape[0] * batch and programs):
        return None
    return launch(_rope_kernel, (input.shape[0] * batch, programs), call.out, call.out_y, input, input_y, call.cos,
                  call.sin, call.positions, call.offsets, *strides, heads, y_heads, row_step(call.cos),
                  0 if call.sin is None else row_step(call.sin), *indices, batch, *sizes, sequences,
                  row_count(call.cos), **blocks, BLOCK_H=block_h, BLOCK_Y=block_y,
                  BLOCK_S=power_of_2(sequences) if sequences else 0, options={"num_warps": num_warps})


def _strides(tensor: torch.Tensor | None) -> tuple[int, int, int]:
    """The strides of s, b and head; zeros where there is no tensor."""
    if tensor is None:
        return 0, 0, 0
    return (*tensor.stride()[:2], tensor.stride(-2)) if tensor.ndim == 4 else (tensor.stride(0), 0, tensor.stride(1))
