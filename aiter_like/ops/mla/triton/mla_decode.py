# SPDX-License-Identifier: MIT
"""Latent attention over pages in Triton: the kernel, which works off a plan, and its launches, beside which that of
mla_decode_hopper.py may take the kernel's place."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.attention.triton.parts import (
    LN_2,
    LOG2_E,
    MASKED,
    clamped,
    exponent_of,
    no_keys,
    positive_scale,
    signed,
    tanh,
)
from aiter_like.ops.common.triton.launch import Launch, await_stream, config, launch, power_of_2
from aiter_like.ops.common.triton.overlap import overlaps
from aiter_like.ops.mla.call import MlaDecodeCall
from aiter_like.ops.mla.hopper import has_aligned_rows
from aiter_like.ops.mla.plan import rows_of_tile, tiles_of
from aiter_like.ops.mla.triton.mla_metadata import mla_metadata
from aiter_like.ops.mla.triton.mla_reduce import mla_reduce
from aiter_like.traced import exactly


@dataclass(frozen=True)
class Shape:
    """The kernel's one constexpr argument. Optional tensors show as None.

    Attributes:
        M, N: rows and keys of a tile of scores; a row is a head of a query token.
        V_DIM, DV: columns of the latent, and padded; they are keys and values alike.
        ROPE_DIM, DR: columns of the rotated part, and padded.
        PAGE: keys of a page.
        IS_CAUSAL: a query token sees no later one.
        HAS_SOFTCAP: scores are capped.
    """

    M: int
    N: int
    V_DIM: int
    DV: int
    ROPE_DIM: int
    DR: int
    PAGE: int
    IS_CAUSAL: bool
    HAS_SOFTCAP: bool


@triton.jit
def _columns(rows, inside, FIRST: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr):
    """[rows, PADDED]: columns FIRST … FIRST + DIM − 1 of the rows that are `inside`, else zeros."""
    dims = tl.arange(0, PADDED)
    mask = inside[:, None]
    if PADDED > DIM:
        mask = mask & (dims < DIM)[None, :]
    return tl.load(rows[:, None] + (FIRST + dims)[None, :], mask=mask, other=0.0)


@triton.jit
def _places(kv, strides, kv_indices, first_entry, start, count, num_pages, SHAPE: tl.constexpr):
    """(pointers [N] to keys `start` … of a part that begins with an entry of the list, which of them there are).

    An entry that names no page of the cache, as −1 does, has no keys.
    """
    lanes = tl.arange(0, SHAPE.N)
    inside = start + lanes < count
    if SHAPE.PAGE % SHAPE.N == 0:
        page = tl.load(kv_indices + first_entry + start // SHAPE.PAGE)
        inside = inside & (page >= 0) & (page < num_pages)
        page = clamped(page, 0, num_pages - 1).to(tl.int64)
        at = kv + page * strides[0] + (start % SHAPE.PAGE).to(tl.int64) * strides[1]
        return at + lanes.to(tl.int64) * strides[1], inside
    else:
        keys = start + lanes
        page = tl.load(kv_indices + first_entry + keys // SHAPE.PAGE, mask=inside, other=-1)
        inside = inside & (page >= 0) & (page < num_pages)
        page = clamped(page, 0, num_pages - 1).to(tl.int64)
        return kv + page * strides[0] + (keys % SHAPE.PAGE).to(tl.int64) * strides[1], inside


@triton.jit
def _attend(state, q_latent, q_rope, kv, strides, kv_indices, first_entry, count, num_pages, last, scale, softcap,
            SHAPE: tl.constexpr):
    """One online-softmax pass over `count` keys from an entry of the list on. last: last visible key of each row."""
    acc, total, maximum, highest = state
    for start in range(0, count, SHAPE.N):
        rows, inside = _places(kv, strides, kv_indices, first_entry, start, count, num_pages, SHAPE)
        latent = _columns(rows, inside, 0, SHAPE.V_DIM, SHAPE.DV).to(q_latent.dtype)  # [N, DV], keys and values
        rope = _columns(rows, inside, SHAPE.V_DIM, SHAPE.ROPE_DIM, SHAPE.DR).to(q_latent.dtype)
        scores = tl.dot(q_latent, tl.trans(latent))
        scores = tl.dot(q_rope, tl.trans(rope), scores)
        visible = inside[None, :] & (start + tl.arange(0, SHAPE.N)[None, :] <= last[:, None])
        if SHAPE.HAS_SOFTCAP:
            scores = tl.where(visible, tanh(scores * scale / softcap) * softcap, MASKED)
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            p = tl.exp2(scores - new_maximum[:, None])
        else:
            scores = tl.where(visible, scores, MASKED)
            highest = tl.maximum(highest, tl.max(scores, 1))
            new_maximum = tl.maximum(maximum, highest * scale)
            factor, origin = exponent_of(highest, new_maximum, scale)
            p = tl.exp2(scores * factor[:, None] - origin[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(p, 1)
        acc = tl.dot(p.to(q_latent.dtype), latent, acc * rescale[:, None])
        maximum = new_maximum
    return acc, total, maximum, highest


@triton.jit
def _piece(info, kv_indptr, kv_last_page_lens, sequence, num_entries, SHAPE: tl.constexpr):
    """(first entry of the list, keys from there on, keys of the sequence before it, and from it on) of an item."""
    entry = clamped(tl.load(info + 4), 0, num_entries)
    end = clamped(tl.load(info + 5), entry, num_entries)
    keys = (end - entry + clamped(tl.load(info + 6), 0, num_entries - end)) * SHAPE.PAGE
    if kv_last_page_lens is not None and SHAPE.PAGE > 1:
        keys -= SHAPE.PAGE - clamped(tl.load(kv_last_page_lens + sequence), 0, SHAPE.PAGE)
        keys = tl.maximum(keys, 0)
    before = tl.maximum(entry - clamped(tl.load(kv_indptr + sequence), 0, num_entries), 0) * SHAPE.PAGE
    return entry, tl.minimum((end - entry) * SHAPE.PAGE, keys), before, keys


@triton.jit(do_not_specialize=["batch", "num_parts", "num_items", "total_q", "num_heads", "num_pages", "num_entries",
                               "num_rows", "world_size", "rank"])
def _mla_decode_kernel(out, lse, partial_out, partial_lse, q, kv, kv_indptr, kv_indices, kv_last_page_lens,
                      g_kv_indptr, q_scale, kv_scale, work_indptr, work_info, out_strides, lse_strides, part_strides,
                      sum_strides, q_strides, kv_strides, batch, num_parts, num_items, total_q, num_heads, num_pages,
                      num_entries, num_rows, world_size, rank, scale, softcap, SHAPE: tl.constexpr,
                      OVERLAPS: tl.constexpr):
    """softmax(q kᵀ · scale) v of one tile of rows over one part of the plan per program; bound: memory while the rows
    are few, the matrix unit from about 128 rows on.

    A key is a latent and its rotated part, and the latent is its value too: it is loaded once for both products and
    for all heads of a tile. An item of the plan that is a sequence's only one writes out and lse, others their place
    of the parts. scale, softcap: in units of log 2.
    """
    await_stream(OVERLAPS)
    program = tl.program_id(0)
    part, tile = program % num_parts, program // num_parts  # a part's tiles land on the same chiplet, beside its L2
    value_scale = 1.0
    if q_scale is not None:
        scale *= tl.load(q_scale)
    if kv_scale is not None:
        value_scale = tl.load(kv_scale)
        scale *= value_scale
    rows = tile * SHAPE.M + tl.arange(0, SHAPE.M)
    tokens, heads = rows // num_heads, rows % num_heads
    first_item = clamped(tl.load(work_indptr + part), 0, num_items)
    last_item = clamped(tl.load(work_indptr + part + 1), first_item, num_items)
    for item in range(first_item, last_item):
        info = work_info + item.to(tl.int64) * 8
        sequence = clamped(tl.load(info), 0, batch - 1)
        place = tl.load(info + 1)
        q_start = clamped(tl.load(info + 2), 0, total_q)
        q_len = clamped(tl.load(info + 3), q_start, total_q) - q_start
        is_row = (tokens < q_len) & ((place < 0) | (tokens < num_rows - tl.maximum(place, 0)))
        entry, count, before, keys = _piece(info, kv_indptr, kv_last_page_lens, sequence, num_entries, SHAPE)
        last = rows * 0 + count
        if SHAPE.IS_CAUSAL:
            position = tokens - q_len  # the queries of a sequence are its last tokens
            if g_kv_indptr is not None:  # key j of this rank is key j · world_size + rank of all
                begin = tl.maximum(tl.load(g_kv_indptr + sequence), 0)
                every = tl.minimum(tl.maximum(tl.load(g_kv_indptr + sequence + 1), begin) - begin, 2**30)
                seen = every + position - rank
                last = tl.where(seen >= 0, seen // world_size, -1) - before
            else:
                last = keys + position
            highest_row = tl.max(tl.where(is_row, last, -1), 0)
            count = tl.minimum(count, tl.maximum(highest_row + 1, 0))
        if tile * SHAPE.M < q_len * num_heads:
            at = (q_start + tokens).to(tl.int64)
            q_rows = q + at * q_strides[0] + heads * q_strides[1]
            # fp8 is exact in bfloat16, and a tile of the cache is converted but once for both products.
            P: tl.constexpr = tl.bfloat16 if q.dtype.element_ty.is_fp8() else q.dtype.element_ty
            q_latent = _columns(q_rows, is_row, 0, SHAPE.V_DIM, SHAPE.DV).to(P)
            q_rope = _columns(q_rows, is_row, SHAPE.V_DIM, SHAPE.ROPE_DIM, SHAPE.DR).to(P)
            factor = scale
            if q_scale is not None or kv_scale is not None:
                q_latent, q_rope, factor = signed(q_latent, scale), signed(q_rope, scale), positive_scale(scale)
            acc, total, maximum, _ = _attend(no_keys(SHAPE.M, SHAPE.DV), q_latent, q_rope, kv, kv_strides, kv_indices,
                                             entry, count, num_pages, last, factor, softcap, SHAPE)
            result = acc * tl.where(total == 0.0, 0.0, value_scale / total)[:, None]  # 0: no visible key
            sums = tl.where(total == 0.0, float("-inf"), (maximum + tl.log2(total)) * LN_2)
            dims = tl.arange(0, SHAPE.DV)
            mask = is_row[:, None] & (dims < SHAPE.V_DIM)[None, :]
            if place < 0:
                out_rows = out + at * out_strides[0] + heads * out_strides[1]
                tl.store(out_rows[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=mask)
                if lse is not None:
                    tl.store(lse + at * lse_strides[0] + heads * lse_strides[1], sums, mask=is_row)
            else:
                at = (place + tokens).to(tl.int64)
                part_rows = partial_out + at * part_strides[0] + heads * part_strides[1]
                tl.store(part_rows[:, None] + dims[None, :], result, mask=mask)
                tl.store(partial_lse + at * sum_strides[0] + heads * sum_strides[1], sums, mask=is_row)


def mla_decode(call: MlaDecodeCall, kernel: str = "mla_decode", **params: int) -> tuple[Launch, ...]:
    """Plans where the call brings no plan, attends, and adds up the parts where there can be any.

    kernel: "mla_decode_hopper" is that of mla_decode_hopper.py; where an address forbids it the other takes over.
    params: a tuned row's values instead of those of configs/triton/<kernel>.toml.
    """
    if kernel == "mla_decode_hopper" and has_aligned_rows(call):
        from aiter_like.ops.mla.triton.mla_decode_hopper import attend  # not every Triton for AMD has Gluon

        attention = attend(call, params)
    else:
        attention = _attend_pages(call, params if kernel == "mla_decode" else {})
    plan = () if call.is_planned else (mla_metadata(call.plan),)
    return *plan, attention, *((mla_reduce(call.sum),) if call.has_parts else ())


def _attend_pages(call: MlaDecodeCall, params: dict[str, int]) -> Launch:
    """The launch of the kernel above."""
    num_heads, dim = exactly(call.q.shape[1:])
    v_dim, target = exactly(call.out.shape[2]), target_of(call.q.device)
    rows = rows_of_tile(call.max_seqlen_q * num_heads)
    kind = "fp8" if call.kv.element_size() == 1 else "bf16"
    settings = {**config("mla_decode", target.arch, f"m{rows}_{kind}"), **params}
    shape = exactly(Shape(
        M=rows, N=settings["BLOCK_N"], V_DIM=v_dim, DV=max(power_of_2(v_dim), 32), ROPE_DIM=dim - v_dim,
        DR=max(power_of_2(dim - v_dim), 16), PAGE=call.kv.shape[1],
        IS_CAUSAL=call.causal and (call.max_seqlen_q > 1 or call.g_kv_indptr is not None),
        HAS_SOFTCAP=call.softcap > 0))
    num_parts = call.work_indptr.shape[0] - 1
    q_scale = call.q_scale if call.q.element_size() == 1 else None
    kv_scale = call.kv_scale if call.kv.element_size() == 1 else None
    return launch(
        _mla_decode_kernel, (num_parts * tiles_of(call.max_seqlen_q * num_heads), 1, 1), call.out, call.lse,
        call.partial_out, call.partial_lse, call.q, call.kv, call.kv_indptr, call.kv_indices, call.kv_last_page_lens,
        call.g_kv_indptr, q_scale, kv_scale, call.work_indptr, call.work_info, call.out.stride()[:2],
        (0, 0) if call.lse is None else call.lse.stride(), call.partial_out.stride()[:2], call.partial_lse.stride(),
        call.q.stride()[:2], call.kv.stride()[:2], call.qo_indptr.shape[0] - 1, num_parts, call.work_info.shape[0],
        call.q.shape[0], num_heads, call.kv.shape[0], call.kv_indices.shape[0], call.partial_out.shape[0],
        call.cp_world_size, call.cp_rank, call.softmax_scale * LOG2_E.value, call.softcap * LOG2_E.value, SHAPE=shape,
        OVERLAPS=overlaps(target), options={name: value for name, value in settings.items() if not name.isupper()})
