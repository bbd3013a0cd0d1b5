# SPDX-License-Identifier: MIT
"""moe_sum in Triton: body and launcher, named by ops/moe/moe_sum.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.moe.moe_sum import MoeSumCall

_TILE = 1024  # columns of one program
_MOST_UNROLLED = 8  # slots whose rows are loaded before the first is added
_MAX_GRID = 65535  # programs along the second and third dimension


@triton.jit
def _moe_sum_kernel(out, x, weights, ids, mask, local_tokens, index, used, out_stride, token_stride, row_stride,
                    weights_stride, ids_stride, index_stride, tokens, slots, experts, rows, columns,
                    BLOCK_N: tl.constexpr, UNROLLED: tl.constexpr, OVERLAPS: tl.constexpr):
    """A token's sum of BLOCK_N columns, slot by slot; a load of a row that does not count is masked. Bound: memory."""
    await_stream(OVERLAPS)
    token = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    if token < tokens:
        column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = column < columns
        end = slots
        if local_tokens is not None:
            end = tl.where(token < tl.load(local_tokens), slots, 0)
        total = tl.zeros((BLOCK_N,), tl.float32)
        for first in range(0, end, UNROLLED):
            for i in tl.static_range(UNROLLED):
                slot = first + i
                counts = slot < end
                if ids is not None:
                    expert = tl.load(ids + token * ids_stride + slot, mask=counts, other=-1)
                    counts = (expert >= 0) & (expert < experts)
                    if mask is not None:
                        counts = tl.load(mask + expert, mask=counts, other=0) != 0
                row = slot
                if index is not None:
                    row = tl.load(index + token * index_stride + slot, mask=counts, other=-1)
                    counts = (row >= 0) & (row < rows)
                    if used is not None:
                        counts = counts & (row < tl.load(used))
                address = x + token * token_stride + row.to(tl.int64) * row_stride + column
                values = tl.load(address, mask=inside & counts, other=0.0).to(tl.float32)
                if weights is not None:
                    values *= tl.load(weights + token * weights_stride + slot, mask=counts, other=0.0)
                total += values
        tl.store(out + token * out_stride + column, total.to(out.dtype.element_ty), mask=inside)


def moe_sum(call: MoeSumCall, num_warps: int = 2) -> Launch:
    """The launch that writes `output`, with Triton's `num_warps`."""
    (tokens, columns), x, index = call.output.shape, call.input, call.index
    slots = x.shape[1] if index is None else index.shape[1]
    block_n = power_of_2(min(columns, _TILE))
    grid = (triton.cdiv(columns, block_n), min(tokens, _MAX_GRID), triton.cdiv(tokens, _MAX_GRID))
    strides = [0 if matrix is None else matrix.stride(0) for matrix in (call.weights, call.ids, index)]
    return launch(
        _moe_sum_kernel, grid, call.output, x, call.weights, call.ids, call.mask, call.local_tokens, index, call.used,
        call.output.stride(0), x.stride(0) if index is None else 0, x.stride(-2), *strides, tokens, slots, call.experts,
        x.shape[0], columns, BLOCK_N=block_n, UNROLLED=power_of_2(min(max(slots, 1), _MOST_UNROLLED)),
        options={"num_warps": num_warps})
