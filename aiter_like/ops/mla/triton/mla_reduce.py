# SPDX-License-Identifier: MIT
"""mla_reduce in Triton: adds up what the parts of a sequence's keys gave, always in the same order."""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream
from aiter_like.ops.common.triton.overlap import overlaps
from aiter_like.ops.mla.mla_reduce import MlaReduceCall

# A product fused into a sum across lanes differs between lanes that hold the same element.
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
_TOGETHER = 8  # parts that are loaded at once


@triton.jit(do_not_specialize=["max_seqlen_q", "num_heads", "total_q", "num_rows", "num_slots"])
def _mla_reduce_kernel(out, lse, partial_out, partial_lse, reduce_indptr, reduce_final_map, reduce_partial_map,
                      out_strides, lse_strides, part_strides, sum_strides, max_seqlen_q, num_heads, total_q, num_rows,
                      num_slots, V_DIM: tl.constexpr, DV: tl.constexpr, TOGETHER: tl.constexpr, OVERLAPS: tl.constexpr):
    """One row of one head per program: out = Σ w·part / Σ w with w = exp(lse − max lse); bound: memory.

    A tile without parts was written by whoever computed it. Places outside the parts count as parts without keys.
    """
    await_stream(OVERLAPS)
    program = tl.program_id(0)
    head, row, tile = program % num_heads, program // num_heads % max_seqlen_q, program // num_heads // max_seqlen_q
    first = tl.maximum(tl.load(reduce_indptr + tile), 0)
    last = tl.minimum(tl.load(reduce_indptr + tile + 1), num_slots)
    query = tile * max_seqlen_q + row
    is_row = last > first
    if reduce_final_map is not None:
        query = tl.load(reduce_final_map + tile * 2).to(tl.int64) + row  # whatever it holds, the sum is right
        is_row = is_row & (query < tl.load(reduce_final_map + tile * 2 + 1))
    if is_row & (query >= 0) & (query < total_q):
        dims, nth = tl.arange(0, DV), tl.arange(0, TOGETHER)
        highest, total, acc = -float("inf"), 0.0, tl.zeros([DV], tl.float32)
        for start in range(first, last, TOGETHER):
            place = tl.load(reduce_partial_map + start + nth, mask=start + nth < last, other=-1).to(tl.int64)
            is_part = (place >= 0) & (place + row < num_rows)
            at = place + row
            sums = tl.load(partial_lse + at * sum_strides[0] + head * sum_strides[1], mask=is_part, other=-float("inf"))
            new = tl.maximum(highest, tl.max(sums, 0))
            origin = tl.where(new == -float("inf"), 0.0, new)
            weights = tl.exp(sums - origin)
            rescale = tl.exp(highest - origin)
            has_keys = is_part & (sums != -float("inf"))  # a part without keys may be memory that nobody wrote
            parts = tl.load(partial_out + at[:, None] * part_strides[0] + head * part_strides[1] + dims[None, :],
                            mask=has_keys[:, None] & (dims < V_DIM)[None, :], other=0.0)
            acc = acc * rescale + tl.sum(parts * weights[:, None], 0)
            total = total * rescale + tl.sum(weights, 0)
            highest = new
        result = acc * tl.where(total == 0.0, 0.0, 1.0 / total)
        at = query.to(tl.int64)
        tl.store(out + at * out_strides[0] + head * out_strides[1] + dims, result.to(out.dtype.element_ty),
                 mask=dims < V_DIM)
        if lse is not None:
            tl.store(lse + at * lse_strides[0] + head * lse_strides[1],
                     tl.where(total == 0.0, -float("inf"), highest + tl.log(total)))


def mla_reduce(call: MlaReduceCall, **params: int) -> Callable[..., None]:
    """Writes `out` and `lse` of the rows that have parts. What it returns: see Backend.returns_relaunch.

    params: a tuned row's launch options, and TOGETHER.
    """
    launches = ReduceLaunch(call, **params)
    launches(call)
    return lambda *fields: launches(MlaReduceCall(*fields))


class ReduceLaunch:
    """The launch of calls with the same metadata."""

    def __init__(self, call: MlaReduceCall, **params: int):
        total_q, num_heads, v_dim = call.out.shape
        options = {**_OPTIONS, **params}
        together = options.pop("TOGETHER", _TOGETHER)
        self.launch = Launch(
            _mla_reduce_kernel, ((call.reduce_indptr.shape[0] - 1) * call.max_seqlen_q * num_heads, 1, 1),
            (call.out.stride()[:2], (0, 0) if call.lse is None else call.lse.stride(), call.partial_out.stride()[:2],
             call.partial_lse.stride(), call.max_seqlen_q, num_heads, total_q, call.partial_out.shape[0],
             call.reduce_partial_map.shape[0]),
            V_DIM=v_dim, DV=triton.next_power_of_2(v_dim), TOGETHER=together,
            OVERLAPS=overlaps(target_of(call.out.device)), options=options)

    def __call__(self, call: MlaReduceCall) -> None:
        self.launch(*call[:7])
