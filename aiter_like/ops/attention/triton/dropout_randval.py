# SPDX-License-Identifier: MIT
"""dropout_randval in Triton: body and launcher, named by ops/attention/dropout_randval.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.attention.dropout_randval import DropoutRandvalCall, last_kept
from aiter_like.ops.common import philox
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.traced import exactly

_MOST_COLUMNS = 1024  # A program writes no more in one turn, four by each lane.


@triton.jit
def _place_of(starts, row, batch, seqlen_q):
    """(sequence, the row's number in it, whether it is there) of a row; starts None: each has seqlen_q rows."""
    if starts is None:
        return row // seqlen_q, row % seqlen_q, row >= 0
    else:
        low, high = row * 0, row * 0 + batch
        while high - low > 1:
            middle = low + (high - low) // 2
            is_before = tl.load(starts + middle) <= row
            low, high = tl.where(is_before, middle, low), tl.where(is_before, high, middle)
        first = tl.load(starts + low, mask=batch > 0, other=0)
        end = tl.load(starts + low + 1, mask=batch > 0, other=0)
        return low, row - first, (first <= row) & (row < end)


@triton.jit
def _dropout_randval_kernel(out, rng_state, starts, strides, batch, heads, seqlen_q, columns, threshold, last,
                            BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """One row of a head; bound: the integer units."""
    await_stream(OVERLAPS)
    row, head = tl.program_id(0), tl.program_id(1)
    sequence, place, is_there = _place_of(starts, row, batch, seqlen_q)
    if starts is None:
        out += sequence.to(tl.int64) * strides[0] + place.to(tl.int64) * strides[2]
    else:
        out += row.to(tl.int64) * strides[2]
    out += head.to(tl.int64) * strides[1]
    seed, offset = tl.load(rng_state), tl.load(rng_state + 1)
    for first in range(0, columns, BLOCK_N):
        quads = (first // 4 + tl.arange(0, BLOCK_N // 4)).to(tl.uint32)
        zero = quads * 0
        r0, r1, r2, r3 = tl.philox(seed, quads, zero + place.to(tl.uint32),
                                   zero + (sequence * heads + head).to(tl.uint32), zero + offset.to(tl.uint32))
        words = tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))
        byte = 255 - (words >> 24).to(tl.int32)
        is_kept = (words >> 8).to(tl.int32) >= threshold
        byte = tl.where(is_kept, tl.minimum(byte, last), tl.maximum(byte, last + 1))
        column = first + tl.arange(0, BLOCK_N)
        tl.store(out + column, tl.where(is_there, byte, 0).to(tl.uint8), mask=column < columns)


def dropout_randval(call: DropoutRandvalCall) -> Launch:
    """Writes `out`."""
    columns, starts = call.out.shape[-1], call.cu_seqlens_q
    strides = (call.out.stride(0) if starts is None else 0, *call.out.stride()[-3:-1])
    batch = call.out.shape[0] if starts is None else starts.shape[0] - 1
    block = exactly(min(max(power_of_2(columns), 64), _MOST_COLUMNS))
    return launch(_dropout_randval_kernel, (call.num_rows, call.num_heads, 1), call.out, call.rng_state, starts,
                  strides, batch, call.num_heads, call.out.shape[-2], columns, philox.threshold(call.dropout_p),
                  last_kept(call.dropout_p), BLOCK_N=block, options={"num_warps": 1 if block <= 256 else 4})
