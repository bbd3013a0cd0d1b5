# SPDX-License-Identifier: MIT
"""mla_reduce in Triton: adds up what the parts of a sequence's keys gave, always in the same order."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.common.triton.overlap import overlaps
from aiter_like.ops.mla.mla_reduce import MlaReduceCall
from aiter_like.traced import exactly

# A product fused into a sum across lanes differs between lanes that hold the same element.
_OPTIONS = {"enable_fp_fusion": False}
_MOST_TOGETHER = 32  # rows of parts that are loaded at once
_MOST_HEADS = 8  # heads of a program
_PROGRAMS = 1024  # more have several heads each: a program waits for five loads one after the other


@triton.jit(do_not_specialize=["max_seqlen_q", "num_heads", "total_q", "num_rows", "num_slots"])
def _mla_reduce_kernel(out, lse, partial_out, partial_lse, reduce_indptr, reduce_final_map, reduce_partial_map,
                      out_strides, lse_strides, part_strides, sum_strides, max_seqlen_q, num_heads, total_q, num_rows,
                      num_slots, V_DIM: tl.constexpr, DV: tl.constexpr, HEADS: tl.constexpr, TOGETHER: tl.constexpr,
                      OVERLAPS: tl.constexpr):
    """HEADS heads of one row per program: out = Σ w·part / Σ w with w = exp(lse − max lse); bound: memory.

    A tile without parts was written by whoever computed it. Places outside the parts count as parts without keys.
    """
    await_stream(OVERLAPS)
    groups = tl.cdiv(num_heads, HEADS)
    program = tl.program_id(0)
    row, tile = program // groups % max_seqlen_q, program // groups // max_seqlen_q
    first = tl.maximum(tl.load(reduce_indptr + tile), 0)
    last = tl.minimum(tl.load(reduce_indptr + tile + 1), num_slots)
    query = tile * max_seqlen_q + row
    is_row = last > first
    if reduce_final_map is not None:
        query = tl.load(reduce_final_map + tile * 2).to(tl.int64) + row  # whatever it holds, the sum is right
        is_row = is_row & (query < tl.load(reduce_final_map + tile * 2 + 1))
    if is_row & (query >= 0) & (query < total_q):
        heads = program % groups * HEADS + tl.arange(0, HEADS)
        is_head, dims, nth = heads < num_heads, tl.arange(0, DV), tl.arange(0, TOGETHER)
        highest, total = tl.full([HEADS], -float("inf"), tl.float32), tl.zeros([HEADS], tl.float32)
        acc = tl.zeros([HEADS, DV], tl.float32)
        for start in range(first, last, TOGETHER):
            place = tl.load(reduce_partial_map + start + nth, mask=start + nth < last, other=-1).to(tl.int64)
            is_part = (place >= 0) & (place + row < num_rows)
            at = place + row
            sums = tl.load(partial_lse + at[:, None] * sum_strides[0] + heads[None, :] * sum_strides[1],
                           mask=is_part[:, None] & is_head[None, :], other=-float("inf"))  # [TOGETHER, HEADS]
            new = tl.maximum(highest, tl.max(sums, 0))
            origin = tl.where(new == -float("inf"), 0.0, new)
            weights = tl.exp(sums - origin[None, :])
            rescale = tl.exp(highest - origin)
            has_keys = sums != -float("inf")  # a part without keys may be memory that nobody wrote
            rows = partial_out + at[:, None] * part_strides[0] + heads[None, :] * part_strides[1]
            parts = tl.load(rows[:, :, None] + dims[None, None, :],
                            mask=has_keys[:, :, None] & (dims < V_DIM)[None, None, :], other=0.0)
            acc = acc * rescale[:, None] + tl.sum(parts * weights[:, :, None], 0)
            total = total * rescale + tl.sum(weights, 0)
            highest = new
        result = acc * tl.where(total == 0.0, 0.0, 1.0 / total)[:, None]
        at = query.to(tl.int64)
        tl.store((out + at * out_strides[0] + heads * out_strides[1])[:, None] + dims[None, :],
                 result.to(out.dtype.element_ty), mask=is_head[:, None] & (dims < V_DIM)[None, :])
        if lse is not None:
            tl.store(lse + at * lse_strides[0] + heads * lse_strides[1],
                     tl.where(total == 0.0, -float("inf"), highest + tl.log(total)), mask=is_head)


def mla_reduce(call: MlaReduceCall, **params: int) -> Launch:
    """Writes `out` and `lse` of the rows that have parts. params: a tuned row's launch options, HEADS and TOGETHER."""
    total_q, num_heads, v_dim = call.out.shape
    tiles, slots = call.reduce_indptr.shape[0] - 1, call.reduce_partial_map.shape[0]
    rows = tiles * call.max_seqlen_q
    heads = exactly(min(power_of_2(max(rows * num_heads // _PROGRAMS, 1)), _MOST_HEADS))
    together = exactly(min(power_of_2(max(slots // max(tiles, 1), 4)), _MOST_TOGETHER // heads))
    options = {**_OPTIONS, "num_warps": 8 if heads * together == _MOST_TOGETHER else 4, **params}
    heads, together = options.pop("HEADS", heads), options.pop("TOGETHER", together)
    return launch(
        _mla_reduce_kernel, (rows * triton.cdiv(num_heads, heads), 1, 1), *call[:7], call.out.stride()[:2],
        (0, 0) if call.lse is None else call.lse.stride(), call.partial_out.stride()[:2], call.partial_lse.stride(),
        call.max_seqlen_q, num_heads, total_q, call.partial_out.shape[0], slots, V_DIM=v_dim, DV=power_of_2(v_dim),
        HEADS=heads, TOGETHER=together, OVERLAPS=overlaps(target_of(call.out.device)), options=options)
