# SPDX-License-Identifier: MIT
"""Plans the keys and the sequence of a program of paged_attention: on the device, from lengths, by each program.

A few vector operations per 1024 sequences are cheaper than another launch, and nothing has to be kept between calls.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.attention.triton.parts import clamped
from aiter_like.ops.common.triton.launch import gdc_launch_dependents, gdc_wait


@triton.jit
def await_lengths(OVERLAPS: tl.constexpr):
    """Like await_stream, but what follows on the stream starts only when all before this kernel has ended: it may read
    what that wrote, such as lengths, before it waits for this one."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def begin_before_parts(OVERLAPS: tl.constexpr):
    """Begins a kernel that follows one with await_lengths: until await_parts it may read what was there before that."""
    if OVERLAPS:
        gdc_launch_dependents()


@triton.jit
def await_parts(OVERLAPS: tl.constexpr):
    """Waits for the previous kernel. Each program does, or what follows would not wait for that one either."""
    if OVERLAPS:
        gdc_wait()


@triton.jit
def lengths_of(index, source, SHAPE: tl.constexpr):
    """(first row, rows, first entry of the block table, keys) of sequences, within the tensors whatever these hold.

    index: one, or several; those from the batch's size on have no rows and no keys. source: cu_seqlens_q, seqlens_k,
    page_starts, batch, elements of cu_seqlens_q, rows of q, rows of a sequence at most, entries or keys of a table.
    """
    cu_seqlens_q, seqlens_k, page_starts, batch, num_starts, total_q, max_seqlen_q, capacity = source
    inside = index < batch
    if cu_seqlens_q is None:
        row = tl.where(inside, index * max_seqlen_q, 0)
        rows = tl.where(inside, max_seqlen_q, 0)
    else:
        row = clamped(tl.load(cu_seqlens_q + index, mask=inside, other=0), 0, total_q)
        has_end = inside & (index + 1 < num_starts)
        end = tl.load(cu_seqlens_q + index + 1, mask=has_end, other=0)
        end = tl.where(has_end, end, tl.minimum(total_q - max_seqlen_q, row) + max_seqlen_q)
        rows = tl.where(inside, clamped(end, row, total_q) - row, 0)
    if page_starts is None:
        entry = index * 0
        keys = clamped(tl.load(seqlens_k + index, mask=inside, other=0), 0, capacity)
    else:
        entry = clamped(tl.load(page_starts + index, mask=inside, other=0), 0, capacity)
        pages = clamped(tl.load(page_starts + index + 1, mask=inside, other=0), entry, capacity) - entry
        last = pages * 0 + SHAPE.PAGE
        if seqlens_k is not None:
            last = clamped(tl.load(seqlens_k + index, mask=inside, other=0), 0, SHAPE.PAGE)
        keys = tl.where(pages > 0, (pages - 1) * SHAPE.PAGE + last, 0)
    return row, rows, entry, keys


@triton.jit
def first_key(rows, keys, window_left, SHAPE: tl.constexpr):
    """The first key that a sequence's first row sees, or one before it: a multiple of N."""
    if SHAPE.HAS_LEFT:
        return tl.maximum(keys - rows - window_left, 0) // SHAPE.N * SHAPE.N
    return keys * 0


@triton.jit
def _visible(rows, keys, window_left, SHAPE: tl.constexpr):
    """The keys that the rows of sequences see."""
    return tl.maximum(keys - first_key(rows, keys, window_left, SHAPE), 0)


@triton.jit
def _visible_of(index, source, window_left, SHAPE: tl.constexpr):
    """(rows, visible keys) of sequences."""
    _, rows, _, keys = lengths_of(index, source, SHAPE)
    return rows, _visible(rows, keys, window_left, SHAPE)


@triton.jit
def _parts_of(rows, visible, chunk, most):
    """Parts that sequences are cut into; 0 where a sequence has no rows."""
    return tl.where(rows > 0, tl.minimum(tl.cdiv(tl.maximum(visible, 1), chunk), most), 0)


@triton.jit
def _added(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def find_sequence(number, source, window_left, bounds, SHAPE: tl.constexpr, IS_MERGE: tl.constexpr):
    """(sequence, split, slot, its parts, its lengths_of) of part `number`; IS_MERGE: of the first part of the sequence
    that is number `number` of those with two parts or more. The batch's size where there is no such one.

    Parts of sequences that have several come first: they are the longer ones, and the others fill what they leave.
    bounds: share and most of Parts. Slots are places for partial sums, one for each of those first parts.
    """
    share, most = bounds
    batch = source[3]
    BATCH: tl.constexpr = SHAPE.BATCH
    stop = tl.full([], BATCH, tl.int32) if SHAPE.IS_ONE_BLOCK else batch
    lanes = tl.arange(0, BATCH)
    chunk = batch * 0 + SHAPE.N
    rows, visible = _visible_of(lanes, source, window_left, SHAPE)  # Those of one block stay in registers.
    if SHAPE.IS_SHARED:
        total = tl.zeros([BATCH], tl.int64)
        for first in range(0, stop, BATCH):
            if not SHAPE.IS_ONE_BLOCK:
                rows, visible = _visible_of(first + lanes, source, window_left, SHAPE)
            total += tl.where(rows > 0, visible, 0).to(tl.int64)
        chunk = tl.maximum(tl.cdiv(tl.sum(total, 0), share), SHAPE.LEAST).to(tl.int32)
    of_several = batch * 0
    if not IS_MERGE:
        for first in range(0, stop, BATCH):
            if not SHAPE.IS_ONE_BLOCK:
                rows, visible = _visible_of(first + lanes, source, window_left, SHAPE)
            parts = _parts_of(rows, visible, chunk, most)
            of_several += tl.sum(tl.where(parts > 1, parts, 0), 0)
    is_single = (number >= of_several) & (not IS_MERGE)
    rest = tl.where(is_single, number - of_several, number)
    found, before, slots, counted = batch * 0, batch * 0, batch * 0, batch * 0
    for first in range(0, stop, BATCH):
        if not SHAPE.IS_ONE_BLOCK:
            rows, visible = _visible_of(first + lanes, source, window_left, SHAPE)
        parts = _parts_of(rows, visible, chunk, most)
        if IS_MERGE:
            weights = (parts > 1).to(tl.int32)
        else:
            weights = tl.where((parts > 1) != is_single, parts, 0)
        is_before = counted + tl.cumsum(weights, 0) <= rest
        sums = tl.reduce(((is_before & (first + lanes < batch)).to(tl.int32), tl.where(is_before, weights, 0),
                          tl.where(is_before & (parts > 1), parts, 0)), 0, _added)
        found, before, slots = found + sums[0], before + sums[1], slots + sums[2]
        if not SHAPE.IS_ONE_BLOCK:
            counted += tl.sum(weights, 0)
    split = tl.where(is_single, 0, rest - before)
    lengths = lengths_of(found, source, SHAPE)
    visible_found = _visible(lengths[1], lengths[3], window_left, SHAPE)
    return found, split, slots + split, _parts_of(lengths[1], visible_found, chunk, most), lengths
