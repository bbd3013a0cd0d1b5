# SPDX-License-Identifier: MIT
"""Flattening and quantisation by group in Triton, named by the operator of ops/quant/flatten_group_quant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.flatten_group_quant import FlattenGroupQuantCall

_MAX_BLOCK = 8192  # elements of a row that a program keeps
_TILE = 2048  # elements of several short rows that a program keeps


@triton.jit(do_not_specialize=["rows", "heads"])  # a build for each value would gain nothing
def _flatten_group_quant_kernel(out, scale, x, out_stride, scale_stride, group_stride, token_stride, head_stride,
                                rows, heads, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
                                LARGEST: tl.constexpr, OVERLAPS: tl.constexpr):
    """One program takes ROWS rows, each of one head of one token, with a scale per group; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    token = (row // heads).to(tl.int64)
    head = (row % heads).to(tl.int64)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        mask = (row < rows) & (column < columns)
        values = tl.load(x + token * token_stride + head * head_stride + column, mask=mask, other=0.0).to(tl.float32)
        groups = tl.reshape(values, [ROWS * BLOCK // GROUP, GROUP])
        own = quant_rule.scale_of(quant_rule.amax(groups, 1), LARGEST)
        q = tl.reshape(groups * quant_rule.inverse_of(own)[:, None], [ROWS, BLOCK])
        tl.store(out + token * out_stride + head * columns + column,
                 quant_rule.quantised(q, out.dtype.element_ty, LARGEST), mask=mask)
        group = start // GROUP + tl.arange(0, BLOCK // GROUP)[None, :]
        place = scale + token * scale_stride + (head * (columns // GROUP) + group) * group_stride
        tl.store(place, tl.reshape(own, [ROWS, BLOCK // GROUP]), mask=(row < rows) & (group * GROUP < columns))


def flatten_group_quant(call: FlattenGroupQuantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `scale`, with Triton's `num_warps`."""
    tokens, heads, columns = call.input.shape
    block = min(power_of_2(columns), _MAX_BLOCK)
    count = max(1, min(_TILE // block, power_of_2(tokens * heads)))
    return launch(_flatten_group_quant_kernel, (triton.cdiv(tokens * heads, count),), call.out, call.scale, call.input,
                  call.out.stride(0), *call.scale.stride(), *call.input.stride()[:2], tokens * heads, heads, columns,
                  ROWS=count, BLOCK=block, GROUP=call.group_size, LARGEST=largest(call.out.dtype),
                  options={"num_warps": num_warps or min(max(count * block // 512, 1), 8)})
