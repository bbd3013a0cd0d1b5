# SPDX-License-Identifier: MIT
"""AITER's plan of decoding over listed pages in Triton: which part of a launch takes which pages of which sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.attention.pa_metadata import PaMetadataCall
from aiter_like.ops.attention.triton.parts import clamped
from aiter_like.ops.attention.triton.plan import MOST_LANES, OPTIONS, write_groups, write_items
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.common.triton.overlap import overlaps


@triton.jit
def _sequences(qo_indptr, kv_indptr, context_lens, index, sizes):
    """(first row, rows, first page, pages, blocks) of sequences."""
    batch, page_size, block_pages, max_seqlen_q = sizes
    mask = index < batch
    row = tl.maximum(tl.load(qo_indptr + index, mask=mask, other=0), 0)
    rows = tl.maximum(tl.load(qo_indptr + index + 1, mask=mask, other=0), row) - row
    rows = tl.minimum(rows, max_seqlen_q)
    page = tl.maximum(tl.load(kv_indptr + index, mask=mask, other=0), 0)
    listed = tl.maximum(tl.load(kv_indptr + index + 1, mask=mask, other=0), page) - page
    keys = tl.maximum(tl.load(context_lens + index, mask=mask, other=0), 0)
    pages = tl.minimum(keys // page_size + (keys % page_size != 0).to(tl.int32), listed)
    blocks = pages // block_pages + (pages % block_pages != 0).to(tl.int32)
    return row, rows, page, pages, tl.where(mask & (rows > 0), blocks, 0)


@triton.jit
def _part_of(block, share, rest):
    """The part of a block of the line, whose first `rest` parts have a block more than `share`."""
    wide = rest * (share + 1)
    return tl.where(block < wide, block // (share + 1), rest + (block - wide) // tl.maximum(share, 1))


@triton.jit
def _pieces_of(origin, blocks, mask, share, rest):
    """(first part, pieces) of sequences. One without blocks has a piece too, in the part of the block before it."""
    has_blocks = blocks > 0
    start = tl.where(has_blocks, origin, tl.maximum(origin - 1, 0))
    first = _part_of(start, share, rest)
    count = tl.where(has_blocks, _part_of(origin + blocks - 1, share, rest) - first + 1, 1)
    return first, tl.where(mask, count, 0)


@triton.jit
def _edge(part, share, rest):
    """The first block of a part."""
    return part * share + tl.minimum(part, rest)


@triton.jit
def _totals(qo_indptr, kv_indptr, context_lens, sizes, head_parts, LANES: tl.constexpr):
    """(blocks of a part, parts with one more, pieces of all sequences)."""
    batch = sizes[0]
    total = 0
    for first in range(0, batch, LANES):
        _, _, _, _, blocks = _sequences(qo_indptr, kv_indptr, context_lens, first + tl.arange(0, LANES), sizes)
        total += tl.sum(blocks, 0)
    share, rest = total // head_parts, total % head_parts
    line, pieces = 0, 0
    for first in range(0, batch, LANES):
        index = first + tl.arange(0, LANES)
        _, _, _, _, blocks = _sequences(qo_indptr, kv_indptr, context_lens, index, sizes)
        _, count = _pieces_of(line + tl.cumsum(blocks, 0) - blocks, blocks, index < batch, share, rest)
        pieces += tl.sum(count, 0)
        line += tl.sum(blocks, 0)
    return share, rest, pieces


@triton.jit(do_not_specialize=["batch", "page_size", "block_pages", "max_seqlen_q", "heads", "group", "head_parts",
                               "num_parts", "num_items", "num_slots", "num_groups"])
def _pa_metadata_kernel(work_indptr, work_info, reduce_indptr, reduce_final_map, reduce_partial_map, qo_indptr,
                        kv_indptr, context_lens, batch, page_size, block_pages, max_seqlen_q, heads, group, head_parts,
                        num_parts, num_items, num_slots, num_groups, LANES: tl.constexpr, OVERLAPS: tl.constexpr):
    """Lays the blocks of all sequences on a line, for each head of the keys, and cuts it into `head_parts` parts that
    differ by a block at most. Bound: latency.

    Each program finds by itself where the sequences lie, and writes what its part of the line holds; program 0 also
    what belongs to no part.
    """
    await_stream(OVERLAPS)
    part = tl.program_id(0)
    sizes = (batch, page_size, block_pages, max_seqlen_q)
    share, rest, head_items = _totals(qo_indptr, kv_indptr, context_lens, sizes, head_parts, LANES)
    head = tl.minimum(part // head_parts, heads)
    is_used = head < heads
    own_part = tl.where(is_used, part % head_parts, 0)
    head_range = head * group | ((head + 1) * group << 16)
    line, items, slots, groups, places, mine = 0, 0, 0, 0, 0, 0
    for first in range(0, batch, LANES):
        index = first + tl.arange(0, LANES)
        row, rows, page, pages, blocks = _sequences(qo_indptr, kv_indptr, context_lens, index, sizes)
        origin = line + tl.cumsum(blocks, 0) - blocks
        first_part, count = _pieces_of(origin, blocks, index < batch, share, rest)
        partials = tl.where(count > 1, count, 0)
        is_group = (count > 1).to(tl.int32)
        item = items + tl.cumsum(count, 0) - count
        slot = slots + tl.cumsum(partials, 0) - partials
        own_group = groups + tl.cumsum(is_group, 0) - is_group
        first_place = places + tl.cumsum(partials * rows, 0) - partials * rows

        nth = own_part - first_part
        mine += tl.sum(clamped(nth, 0, count), 0)
        item += head * head_items + nth
        is_mine = is_used & (nth >= 0) & (nth < count) & (item >= 0) & (item < num_items)
        low = clamped(_edge(own_part, share, rest) - origin, 0, blocks) * block_pages
        high = clamped(_edge(own_part + 1, share, rest) - origin, 0, blocks) * block_pages
        place = tl.where(count > 1, first_place + nth * rows, -1)
        high = tl.minimum(high, pages)
        write_items(work_info + item.to(tl.int64) * 8, is_mine, index, place, row, rows, page, tl.minimum(low, pages),
                    high, high, head_range)
        slot += nth
        is_slot = is_mine & (head == 0) & (count > 1) & (slot >= 0) & (slot < num_slots)
        tl.store(reduce_partial_map + slot, place, mask=is_slot)
        if part == 0:
            is_tile = (count > 1) & (own_group >= 0) & (own_group < num_groups)
            write_groups(reduce_indptr, reduce_final_map, own_group, is_tile, slot - nth + partials, row, row + rows)
        line += tl.sum(blocks, 0)
        items += tl.sum(count, 0)
        slots += tl.sum(partials, 0)
        groups += tl.sum(is_group, 0)
        places += tl.sum(partials * rows, 0)
    tl.store(work_indptr + part, clamped(head * head_items + mine, 0, num_items))
    if part == 0:
        tl.store(work_indptr + num_parts, clamped(heads * head_items, 0, num_items))
        tl.store(reduce_indptr, 0)
        for first in range(tl.maximum(groups, 0), num_groups, LANES):
            index = first + tl.arange(0, LANES)
            tl.store(reduce_indptr + index + 1, index * 0 + slots, mask=index < num_groups)


def pa_metadata(call: PaMetadataCall, **params: int) -> Launch:
    """Writes the plan. params: a tuned row's launch options."""
    num_parts = call.work_indptr.shape[0] - 1
    return launch(
        _pa_metadata_kernel, (num_parts, 1, 1), *call[:8], call.batch, call.page_size, call.block_pages,
        call.max_seqlen_q, call.num_heads_k, call.group, call.num_parts // call.num_heads_k, num_parts,
        call.work_info.shape[0], call.reduce_partial_map.shape[0], call.reduce_indptr.shape[0] - 1,
        LANES=min(max(power_of_2(call.batch), 64), MOST_LANES), OVERLAPS=overlaps(target_of(call.work_info.device)),
        options={**OPTIONS, **params})
