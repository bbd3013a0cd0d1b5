# SPDX-License-Identifier: MIT
"""merge_attn_states in Triton: body and launcher, named by ops/attention/merge_attn_states.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.attention.merge_attn_states import MergeAttnStatesCall
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.traced import exactly

_ELEMENTS = 2048  # a program takes so many at a time


@triton.jit
def _merge_kernel(out, out_lse, a, a_lse, b, b_lse, out_strides, out_lse_strides, a_strides, a_lse_strides, b_strides,
                  b_lse_strides, rows, heads, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                  OVERLAPS: tl.constexpr):
    """BLOCK_M rows of heads; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, head, is_row, column = row // heads, row % heads, row < rows, tl.arange(0, BLOCK_N)
    mask = is_row[:, None] & (column < columns)[None, :]
    infinity = float("inf")
    first = tl.load(a_lse + token * a_lse_strides[0] + head * a_lse_strides[1], mask=is_row, other=-infinity)
    second = tl.load(b_lse + token * b_lse_strides[0] + head * b_lse_strides[1], mask=is_row, other=-infinity)
    first, second = tl.where(first == infinity, -infinity, first), tl.where(second == infinity, -infinity, second)
    maximum = tl.maximum(first, second, propagate_nan=tl.PropagateNan.ALL)
    is_empty = maximum == -infinity
    first = tl.where(is_empty, 0.0, tl.exp(first - maximum))
    second = tl.where(is_empty, 0.0, tl.exp(second - maximum))
    total = first + second
    x = tl.load(a + (token * a_strides[0] + head * a_strides[1])[:, None] + column[None, :], mask=mask).to(tl.float32)
    y = tl.load(b + (token * b_strides[0] + head * b_strides[1])[:, None] + column[None, :], mask=mask).to(tl.float32)
    # A weight of 0 hides whatever stands there.
    x = tl.where((first == 0.0)[:, None], 0.0, x * first[:, None])
    y = tl.where((second == 0.0)[:, None], 0.0, y * second[:, None])
    merged = (x + y) * tl.where(is_empty, 0.0, 1.0 / total)[:, None]
    tl.store(out + (token * out_strides[0] + head * out_strides[1])[:, None] + column[None, :],
             merged.to(out.dtype.element_ty), mask=mask)
    if out_lse is not None:
        tl.store(out_lse + token * out_lse_strides[0] + head * out_lse_strides[1],
                 tl.where(is_empty, -infinity, maximum + tl.log(total)), mask=is_row)


def merge_attn_states(call: MergeAttnStatesCall, num_warps: int = 4) -> Launch:
    """Writes `out` and `out_lse`, with Triton's `num_warps`."""
    tokens, heads, columns = call.out.shape
    block_n = exactly(power_of_2(columns))
    block_m = max(_ELEMENTS // block_n, 1)
    strides = [(0, 0) if tensor is None else tensor.stride()[:2] for tensor in call]
    return launch(_merge_kernel, (triton.cdiv(tokens * heads, block_m), 1, 1), *call, *strides, tokens * heads, heads,
                  columns, BLOCK_M=block_m, BLOCK_N=block_n, options={"num_warps": num_warps})
