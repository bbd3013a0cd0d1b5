# SPDX-License-Identifier: MIT
"""Shared by the warp groups of mla_decode_hopper.py: an item of the plan, its keys' places, softmax, stores."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier, tma

from aiter_like.ops.attention.triton.parts import LN_2, MASKED, clamped, exponent_of, tanh

KEYS = gl.constexpr(64)  # keys of a tile
ROWS = gl.constexpr(64)  # rows of a tile: heads of query tokens
HALF = gl.constexpr(256)  # columns of the latent of which a warp group has the sums
ROPE = gl.constexpr(64)
STAGES = gl.constexpr(2)  # tiles of keys in shared memory
RUN = gl.constexpr(8)  # elements of 16 bits that a lane copies at once; strides come in this unit

# A warp copies 128 bytes of four rows at once.
COPIED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
SCORES = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]))
SUMS = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 16]))

copy = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
copy_box = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # both since Triton 3.7
_clamped, _exponent_of, _tanh = (gluon.jit(function.fn) for function in (clamped, exponent_of, tanh))


@dataclass(frozen=True)
class Shape:
    """The constants that the kernel is compiled for, besides which tensors there are.

    Attributes:
        PAGE: keys of a page.
        IS_LATE: the right half of a tile's sums waits for the scores of the next one, to run beside its softmax.
        HAS_BOXES: whole tiles of keys are copied by the unit for it (TMA).
        IS_CAUSAL: a query token sees no later one.
        HAS_RANKS: other ranks have keys of the sequences, too.
        HAS_SOFTCAP: scores are capped.
    """

    PAGE: int
    IS_LATE: bool
    HAS_BOXES: bool
    IS_CAUSAL: bool
    HAS_RANKS: bool
    HAS_SOFTCAP: bool


@gluon.jit
def last_key(token, span, SHAPE: gl.constexpr):
    """The last key of an item that a token sees. span: what `item_of` says of it."""
    q_len, keys, before, every, world_size, rank = span
    if not SHAPE.HAS_RANKS:
        return keys + token - q_len  # the queries of a sequence are its last tokens
    else:
        seen = every + token - q_len - rank  # key j of this rank is key j · world_size + rank of all
        return gl.where(seen >= 0, seen // world_size, -1) - before


@gluon.jit
def item_of(item, tile, lists, sizes, SHAPE: gl.constexpr):
    """(token limit: those below have rows to write, place of the parts or −1, first query row, first entry of the
    list, keys, what `last_key` takes) of a tile of rows of an item, inside of all tensors whatever the lists hold.
    """
    work_info, kv_indptr, kv_last_page_lens, g_kv_indptr = lists
    batch, total_q, num_heads, num_entries, num_rows, world_size, rank = sizes
    info = work_info + item.to(gl.int64) * 8
    sequence = _clamped(gl.load(info), 0, batch - 1)
    place = gl.load(info + 1)
    q_start = _clamped(gl.load(info + 2), 0, total_q)
    q_len = _clamped(gl.load(info + 3), q_start, total_q) - q_start
    limit = gl.where(place >= 0, gl.minimum(q_len, gl.maximum(num_rows - place, 0)), q_len)
    entry = _clamped(gl.load(info + 4), 0, num_entries)
    end = _clamped(gl.load(info + 5), entry, num_entries)
    keys = (end - entry + _clamped(gl.load(info + 6), 0, num_entries - end)) * SHAPE.PAGE
    if kv_last_page_lens is not None and SHAPE.PAGE > 1:
        keys -= SHAPE.PAGE - _clamped(gl.load(kv_last_page_lens + sequence), 0, SHAPE.PAGE)
        keys = gl.maximum(keys, 0)
    count = gl.minimum((end - entry) * SHAPE.PAGE, keys)
    before, every = entry * 0, entry * 0
    if SHAPE.IS_CAUSAL:
        if SHAPE.HAS_RANKS:
            before = gl.maximum(entry - _clamped(gl.load(kv_indptr + sequence), 0, num_entries), 0) * SHAPE.PAGE
            every = _clamped(gl.load(g_kv_indptr + sequence + 1) - gl.load(g_kv_indptr + sequence), 0, 2**30)
    span = (q_len, keys, before, every, world_size, rank)
    if SHAPE.IS_CAUSAL:  # the last token of the tile sees the most
        highest = last_key(gl.minimum((tile * ROWS + ROWS - 1) // num_heads, limit - 1), span, SHAPE)
        count = _clamped(highest + 1, 0, count)
    return limit, place, q_start, entry, count, span


@gluon.jit
def places_of(kv, strides, kv_indices, entry, start, count, num_pages, SHAPE: gl.constexpr):
    """(pointers to the keys `start` … of an item that begins at an entry of the list, which of them there are). An
    entry that names no page of the cache, as −1 does, has no keys.
    """
    lanes = gl.arange(0, KEYS, gl.SliceLayout(1, COPIED))
    inside = start + lanes < count
    if SHAPE.PAGE % KEYS == 0:
        page = gl.load(kv_indices + entry + start // SHAPE.PAGE)
        slots = start % SHAPE.PAGE + lanes
        is_page = (page >= 0) & (page < num_pages)
        inside = inside & is_page
    else:
        keys = start + lanes
        page = gl.load(kv_indices + entry + keys // SHAPE.PAGE, mask=inside, other=-1)
        slots = keys % SHAPE.PAGE
        inside = inside & (page >= 0) & (page < num_pages)
    page = _clamped(page, 0, num_pages - 1).to(gl.int64)
    return kv + (page * strides[0] + slots.to(gl.int64) * strides[1]) * RUN, inside


@gluon.jit
def start_copy(place, pointers, FIRST: gl.constexpr, COUNT: gl.constexpr, inside):
    """Starts the copies of some columns of rows into their place; zeros for rows that are not `inside`."""
    columns = FIRST + gl.arange(0, COUNT, gl.SliceLayout(0, COPIED))
    copy(place, pointers[:, None] + columns[None, :], inside[:, None])


@gluon.jit
def copy_columns(place, pointers, FIRST: gl.constexpr, COUNT: gl.constexpr, inside, full):
    """Like start_copy; the barrier says when all that was started before is there, too."""
    start_copy(place, pointers, FIRST, COUNT, inside)
    async_copy.mbarrier_arrive(full, increment_count=False)


@gluon.jit
def copy_whole(places, boxes, row, full, right_free, phase):
    """Starts the copies of a tile whose rows are all there, from a row of the cache on."""
    left, right, rope = places
    left_full, right_full, rope_full = full
    mbarrier.expect(rope_full, KEYS * ROPE * 2)
    copy_box(boxes[1], [row, 2 * HALF], rope_full, rope)
    mbarrier.expect(left_full, KEYS * HALF * 2)
    copy_box(boxes[0], [row, 0], left_full, left)
    mbarrier.wait(right_free, phase)
    mbarrier.expect(right_full, KEYS * HALF * 2)
    copy_box(boxes[0], [row, HALF], right_full, right)


@gluon.jit
def copy_some(places, pointers, inside, full, right_free, phase):
    """Copies a tile of which some rows are not there, and waits for it."""
    left, right, rope = places
    left_full, right_full, rope_full = full
    start_copy(rope, pointers, 2 * HALF, ROPE, inside)
    start_copy(left, pointers, 0, HALF, inside)
    mbarrier.wait(right_free, phase)
    start_copy(right, pointers, HALF, HALF, inside)
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    mbarrier.arrive(rope_full)
    mbarrier.arrive(left_full)
    mbarrier.arrive(right_full)


@gluon.jit
def softmax(scores, state, absent, start, last, scale, softcap, SHAPE: gl.constexpr):
    """(scores with those masked that a row does not see, factor and origin for `exponentials`, factor of the sums
    before, state) of a tile. state: maximum and highest score of each row, Σ p. absent: 0, or less where a key is not
    there.
    """
    maximum, highest, total = state
    visible = (absent == 0.0)[None, :]
    if SHAPE.IS_CAUSAL:
        visible = visible & (start + gl.arange(0, KEYS, gl.SliceLayout(0, SCORES))[None, :] <= last[:, None])
    if SHAPE.HAS_SOFTCAP:
        scores = gl.where(visible, _tanh(scores * (scale / softcap)) * softcap, MASKED)
        new_maximum = gl.maximum(maximum, gl.max(scores, 1))
        factor, origin = new_maximum * 0.0 + 1.0, new_maximum
    else:
        scores = gl.where(visible, scores, MASKED)
        highest = gl.maximum(highest, gl.max(scores, 1))
        new_maximum = gl.maximum(maximum, highest * scale)
        factor, origin = _exponent_of(highest, new_maximum, scale)
    shrink = gl.exp2(maximum - new_maximum)
    total = total * gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))[:, None]
    return scores, factor, origin, shrink, (new_maximum, highest, total)


@gluon.jit
def exponentials(scores, factor, origin, total):
    """(p, Σ p with them) of half of a tile's scores. total: over a lane's own keys, [ROWS, 8]."""
    LAYOUT: gl.constexpr = gl.SliceLayout(1, scores.type.layout)
    p = gl.exp2(scores * gl.convert_layout(factor, LAYOUT)[:, None] - gl.convert_layout(origin, LAYOUT)[:, None])
    sums = gl.sum(p.reshape([ROWS, KEYS // 16, 8]), 1)
    return p, total + gl.convert_layout(sums, total.type.layout)


@gluon.jit
def no_sums():
    """The Σ p of no keys, in the layout that those of a lane's own keys have."""
    zeros = gl.full([ROWS, KEYS], 0.0, gl.float32, SCORES)
    return gl.sum(zeros.reshape([ROWS, KEYS // 8, 8]), 1)


@gluon.jit
def store_sums(acc, FIRST: gl.constexpr, tile, limit, place, q_start, num_heads, results):
    """A warp group's columns, from FIRST on, of the finished rows: to out, or to their place of the parts."""
    out, out_strides, partial_out, part_strides = results
    rows = tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SUMS))
    tokens, heads = rows // num_heads, rows % num_heads
    columns = FIRST + gl.arange(0, HALF, gl.SliceLayout(0, SUMS))[None, :]
    mask = (tokens < limit)[:, None]
    if place < 0:
        to = out + (q_start + tokens).to(gl.int64) * out_strides[0] + heads.to(gl.int64) * out_strides[1]
        gl.store(to[:, None] + columns, acc.to(out.dtype.element_ty), mask=mask)
    else:
        part = partial_out + (place + tokens).to(gl.int64) * part_strides[0] + heads.to(gl.int64) * part_strides[1]
        gl.store(part[:, None] + columns, acc, mask=mask)


@gluon.jit
def store_lse(maximum, total, rows, limit, place, q_start, num_heads, results):
    """The log-sum-exps of the finished rows, likewise."""
    lse, lse_strides, partial_lse, sum_strides = results
    tokens, heads = rows // num_heads, rows % num_heads
    mask = tokens < limit
    sums = gl.where(total == 0.0, float("-inf"), (maximum + gl.log2(total)) * LN_2)
    if place >= 0:
        to = partial_lse + (place + tokens).to(gl.int64) * sum_strides[0] + heads.to(gl.int64) * sum_strides[1]
        gl.store(to, sums, mask=mask)
    else:
        if lse is not None:
            to = lse + (q_start + tokens).to(gl.int64) * lse_strides[0] + heads.to(gl.int64) * lse_strides[1]
            gl.store(to, sums, mask=mask)
