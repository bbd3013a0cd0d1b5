# SPDX-License-Identifier: MIT
"""The plan of latent attention in Triton: which part of the launch takes which pages of which sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.attention.triton.parts import clamped
from aiter_like.ops.attention.triton.plan import MOST_LANES, OPTIONS, write_groups, write_items
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.common.triton.overlap import overlaps
from aiter_like.ops.mla.mla_metadata import MlaMetadataCall


@triton.jit
def _pages_of(kv_indptr, batch, mask, num_entries):
    """(first page, pages) of sequences, inside the list whatever kv_indptr holds."""
    start = tl.load(kv_indptr + batch, mask=mask, other=0)
    start = clamped(start, 0, num_entries)
    end = tl.load(kv_indptr + batch + 1, mask=mask, other=0)
    return start, clamped(end, start, num_entries) - start


@triton.jit
def _queries_of(qo_indptr, batch, mask, total_q, max_seqlen_q):
    """(first row, rows) of sequences, likewise, and of at most max_seqlen_q rows."""
    start = tl.load(qo_indptr + batch, mask=mask, other=0)
    start = clamped(start, 0, total_q)
    end = tl.load(qo_indptr + batch + 1, mask=mask, other=0)
    return start, tl.minimum(clamped(end, start, total_q) - start, max_seqlen_q)


@triton.jit
def _sequences(qo_indptr, kv_indptr, first, sizes, LANES: tl.constexpr, IS_SPARSE: tl.constexpr):
    """(first row, rows, first page, pages, keys' blocks) of the LANES sequences from `first` on; of IS_SPARSE a token
    is a sequence, of at most `topk` pages, and its first page is the caller's business.
    """
    batch, num_entries, total_q, max_seqlen_q, block_pages, topk, tokens = sizes
    index = first + tl.arange(0, LANES)
    mask = index < batch
    if IS_SPARSE:
        q_start, q_len = index, mask.to(tl.int32)
        start, pages = _pages_of(kv_indptr, index // tokens, mask, num_entries)
        pages = tl.minimum(pages, topk)
    else:
        q_start, q_len = _queries_of(qo_indptr, index, mask, total_q, max_seqlen_q)
        q_len = tl.where(mask, q_len, 0)
        start, pages = _pages_of(kv_indptr, index, mask, num_entries)
    blocks = tl.where(q_len > 0, tl.maximum(tl.cdiv(pages, block_pages), 1), 0)  # no key: still a row to write
    return q_start, q_len, start, tl.where(mask, pages, 0), blocks


@triton.jit
def _share_of(qo_indptr, kv_indptr, sizes, least, most, num_parts, LANES: tl.constexpr, OVERHEAD: tl.constexpr,
              IS_EVEN: tl.constexpr, IS_SPARSE: tl.constexpr):
    """(blocks of a part, whether each part holds those of one sequence only)."""
    batch = sizes[0]
    total, longest = 0, 0
    for first in range(0, batch, LANES):
        _, q_len, _, _, blocks = _sequences(qo_indptr, kv_indptr, first, sizes, LANES, IS_SPARSE)
        total += tl.sum(blocks + tl.where(q_len > 0, OVERHEAD, 0), 0)
        longest = tl.maximum(longest, tl.max(blocks, 0))
    share = tl.maximum(tl.maximum(tl.cdiv(total, num_parts), least), 1)
    if most > 0:
        share = tl.maximum(share, tl.cdiv(longest, most))
    is_whole = batch < 0
    if not IS_EVEN:  # parts a little longer, each of one sequence only, are worth it: fewer rows to add up
        wider, widest = share + share // 16, share + share // 8
        needed, needed_wider, needed_widest = 0, 0, 0
        for first in range(0, batch, LANES):
            _, q_len, _, _, blocks = _sequences(qo_indptr, kv_indptr, first, sizes, LANES, IS_SPARSE)
            size = blocks + tl.where(q_len > 0, OVERHEAD, 0)
            needed += tl.sum(tl.cdiv(size, share), 0)
            needed_wider += tl.sum(tl.cdiv(size, wider), 0)
            needed_widest += tl.sum(tl.cdiv(size, widest), 0)
        is_whole = needed_widest <= num_parts
        share = tl.where(needed <= num_parts, share, tl.where(needed_wider <= num_parts, wider,
                                                              tl.where(is_whole, widest, share)))
    return share, is_whole


@triton.jit(do_not_specialize=["batch", "num_entries", "total_q", "max_seqlen_q", "block_pages", "topk", "least",
                               "most", "num_parts", "num_items", "num_slots", "num_tiles"])
def _mla_metadata_kernel(work_indptr, work_info, reduce_indptr, reduce_final_map, reduce_partial_map, qo_indptr,
                        kv_indptr, batch, num_entries, total_q, max_seqlen_q, block_pages, topk, least, most, num_parts,
                        num_items, num_slots, num_tiles, LANES: tl.constexpr, OVERHEAD: tl.constexpr,
                        IS_EVEN: tl.constexpr, IS_SPARSE: tl.constexpr, OVERLAPS: tl.constexpr):
    """Lays all blocks of keys on a line, OVERHEAD blocks apart, and cuts it into equal parts. Bound: latency.

    Where parts up to an eighth longer are enough for each to hold blocks of one sequence only, each sequence begins
    one. Each program finds by itself where the sequences lie, and writes what its part of the line holds; program 0
    writes what belongs to no part. IS_EVEN: each sequence is cut into `most` parts of its own instead. least: blocks of
    a part; most: parts of a sequence, 0: any number.
    """
    await_stream(OVERLAPS)
    part = tl.program_id(0)
    tokens = 1
    if IS_SPARSE:
        begin = clamped(tl.load(qo_indptr), 0, total_q)
        tokens = tl.maximum(clamped(tl.load(qo_indptr + 1), begin, total_q) - begin, 1)
        batch = tl.where(batch < total_q // tokens, batch * tokens, total_q)
    sizes = (batch, num_entries, total_q, max_seqlen_q, block_pages, topk, tokens)
    share, is_whole = _share_of(qo_indptr, kv_indptr, sizes, least, most, num_parts, LANES, OVERHEAD, IS_EVEN,
                                IS_SPARSE)
    line, items, slots, rows, mine = 0, 0, 0, 0, 0
    for first in range(0, batch, LANES):
        q_start, q_len, start, pages, blocks = _sequences(qo_indptr, kv_indptr, first, sizes, LANES, IS_SPARSE)
        index = first + tl.arange(0, LANES)
        if IS_SPARSE:
            start = index * topk
        size = blocks + tl.where(q_len > 0, OVERHEAD, 0)
        if not IS_EVEN:
            size = tl.where(is_whole, tl.cdiv(size, share) * share, size)
        origin = line + tl.cumsum(size, 0) - size
        if IS_EVEN:
            chunk = tl.maximum(tl.cdiv(blocks, most), 1)
            count, first_part, offset = tl.cdiv(blocks, chunk), index * most, index * 0
        else:
            chunk, first_part = share + index * 0, origin // share
            count = tl.where(blocks > 0, (origin + blocks - 1) // share - first_part + 1, 0)
            offset = origin - first_part * share
        partials = tl.where(count > 1, count, 0)
        item = items + tl.cumsum(count, 0) - count  # below 0 where lengths that are none make sums wrap
        slot = slots + tl.cumsum(partials, 0) - partials
        row = rows + tl.cumsum(partials * q_len, 0) - partials * q_len

        nth = part - first_part
        mine += tl.sum(clamped(nth, 0, count), 0)
        is_mine = (nth >= 0) & (nth < count) & (item + nth >= 0) & (item + nth < num_items)
        low = tl.minimum(tl.maximum(nth * chunk - offset, 0) * block_pages, pages)
        high = tl.minimum(tl.minimum((nth + 1) * chunk - offset, blocks) * block_pages, pages)
        place = tl.where(count > 1, row + nth * q_len, -1)
        write_items(work_info + (item + nth).to(tl.int64) * 8, is_mine, index // tokens, place, q_start, q_len, start,
                    low, high, pages)
        is_slot = is_mine & (count > 1) & (slot + nth >= 0) & (slot + nth < num_slots)
        tl.store(reduce_partial_map + slot + nth, place, mask=is_slot)
        if part == 0:
            is_tile = (index < batch) & (index < num_tiles)
            write_groups(reduce_indptr, reduce_final_map, index, is_tile, slot + partials, q_start, q_start + q_len)
        line += tl.sum(size, 0)
        items += tl.sum(count, 0)
        slots += tl.sum(partials, 0)
        rows += tl.sum(partials * q_len, 0)
    tl.store(work_indptr + part, clamped(mine, 0, num_items))
    if part == 0:
        tl.store(work_indptr + num_parts, clamped(items, 0, num_items))
        tl.store(reduce_indptr, 0)
        for first in range(batch, num_tiles, LANES):
            index = first + tl.arange(0, LANES)
            write_groups(reduce_indptr, reduce_final_map, index, index < num_tiles, slots, index * 0, index * 0)


def mla_metadata(call: MlaMetadataCall, **params: int) -> Launch:
    """Writes the plan. params: a tuned row's launch options."""
    batch, num_parts = call.qo_indptr.shape[0] - 1, call.work_indptr.shape[0] - 1
    return launch(
        _mla_metadata_kernel, (num_parts, 1, 1), *call[:7], batch, call.num_entries, call.total_q, call.max_seqlen_q,
        call.block_pages, call.topk, call.least_blocks, call.num_kv_splits, num_parts, call.work_info.shape[0],
        call.reduce_partial_map.shape[0], call.reduce_indptr.shape[0] - 1,
        LANES=min(max(power_of_2(batch), 64), MOST_LANES), OVERHEAD=call.overhead, IS_EVEN=call.is_even,
        IS_SPARSE=call.topk >= 0, OVERLAPS=overlaps(target_of(call.work_info.device)),
        options={**OPTIONS, **params})
