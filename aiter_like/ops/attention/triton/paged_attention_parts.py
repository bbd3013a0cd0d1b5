# SPDX-License-Identifier: MIT
"""The loop of paged_attention in Triton: tiles of keys and values by way of a table of pages, online softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.attention.triton.parts import MASKED, MINIMUM, clamped, packed, tanh
from aiter_like.ops.attention.triton.terms import minus_alibi


@triton.jit
def _shared_out(x, SHAPE: tl.constexpr):
    """[N] of a tile's keys as [W, N / W] where each of W waves has keys of its own."""
    W: tl.constexpr = SHAPE.W  # Triton 3.6 takes no field in a list of sizes
    EACH: tl.constexpr = SHAPE.N // SHAPE.W
    if W > 1:
        return tl.reshape(x, [W, EACH])
    else:
        return x


@triton.jit
def _load_pages(table, start, end, SHAPE: tl.constexpr):
    """Entries of the table for the keys from `start` on, of the last key for those behind; one may stand for all."""
    keys = tl.minimum(start, end - 1)
    if SHAPE.PAGE % SHAPE.N != 0:
        keys = tl.minimum(start + _shared_out(tl.arange(0, SHAPE.N), SHAPE), end - 1)
    return tl.load(table + keys.to(tl.uint32) // SHAPE.PAGE, mask=start < end, other=0)


@triton.jit
def _converted(x, dtype: tl.constexpr):
    """Exactly; bytes by way of types that Hopper converts two at a time."""
    if x.dtype.primitive_bitwidth == 8 and dtype == tl.bfloat16:
        return x.to(tl.float16).to(tl.float32).to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def power_of_rows(rows, is_row, SHAPE: tl.constexpr):
    """(factor, inverse) of rows of q: powers of two. The factor brings the row's largest element near 1.

    In fp16 the row is then exact down to 2^-17 of that, and below more so than its products with bytes are.
    """
    WIDTH: tl.constexpr = SHAPE.D if SHAPE.D_TAIL == 0 else 2 * SHAPE.D
    dims = tl.arange(0, WIDTH)
    loaded = tl.load(rows[:, None] + dims[None, :], mask=is_row[:, None] & (dims < SHAPE.HEAD_DIM)[None, :], other=0.0)
    largest = tl.max(tl.abs(loaded.to(tl.float32)), 1)
    exponent = clamped(largest.to(tl.int32, bitcast=True) >> 23, 2, 252)
    return ((254 - exponent) << 23).to(tl.float32, bitcast=True), (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def load_rows(rows, is_row, factor, FIRST: tl.constexpr, COLUMNS: tl.constexpr, SHAPE: tl.constexpr,
               dtype: tl.constexpr):
    """Columns of the rows of q times a factor each as `dtype`, for each wave that has keys of its own."""
    M: tl.constexpr = SHAPE.M
    W: tl.constexpr = SHAPE.W
    dims = FIRST + tl.arange(0, COLUMNS)
    loaded = tl.load(rows[:, None] + dims[None, :], mask=is_row[:, None] & (dims < SHAPE.HEAD_DIM)[None, :], other=0.0)
    loaded = (loaded.to(tl.float32) * factor[:, None]).to(dtype)
    if W > 1:
        return tl.broadcast_to(loaded[None, :, :], [W, M, COLUMNS])
    else:
        return loaded


@triton.jit
def _load_keys(rows, stride, FIRST: tl.constexpr, COLUMNS: tl.constexpr, SHAPE: tl.constexpr, dtype: tl.constexpr):
    """[…, COLUMNS, keys] of K as `dtype`."""
    dims = FIRST + tl.arange(0, COLUMNS)
    at = tl.expand_dims(rows, -1) + packed(dims, stride, SHAPE.X)
    if FIRST + COLUMNS > SHAPE.HEAD_DIM:
        return _converted(tl.trans(tl.load(at, mask=dims < SHAPE.HEAD_DIM, other=0.0)), dtype)
    else:
        return _converted(tl.trans(tl.load(at)), dtype)


@triton.jit
def _load_values(rows, stride, seen, SHAPE: tl.constexpr, IS_MASKED: tl.constexpr):
    """[…, keys, DV] of V, or with bytes in pairs [keys, DV / 2] of 16 bits; zeros where a key is not `seen`, if there
    may be such (IS_MASKED).

    Engines give pages before all windows away: what they hold then is anything.
    """
    COLUMNS: tl.constexpr = SHAPE.DV // 2 if SHAPE.IN_PAIRS else SHAPE.DV
    HEAD_DIM: tl.constexpr = SHAPE.HEAD_DIM_V // 2 if SHAPE.IN_PAIRS else SHAPE.HEAD_DIM_V
    dims = tl.arange(0, COLUMNS)
    at = tl.expand_dims(rows, -1) + dims * stride
    if IS_MASKED:
        return tl.load(at, mask=tl.expand_dims(seen, -1) & (dims < HEAD_DIM), other=0.0)
    elif HEAD_DIM < COLUMNS:
        return tl.load(at, mask=dims < HEAD_DIM, other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _load_scales(at, seen, IS_MASKED: tl.constexpr):
    """Scales of values, of keys that are `seen` as _load_values has them."""
    if IS_MASKED:
        return tl.load(at, mask=seen, other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _scores(scores, keys, rows, terms, low_high, SHAPE: tl.constexpr):
    """(scores in units of log 2 with everything that changes or hides one, which are visible)."""
    queries, positions, first_own = rows
    softcap, slopes, tree, tree_row, tree_column, num_queries, _ = terms
    low, high = low_high
    columns = tl.expand_dims(keys, -2)
    if SHAPE.HAS_SOFTCAP:
        scores = tanh(scores / softcap) * softcap
    if slopes is not None:
        scores = minus_alibi(scores, slopes[:, None], positions[:, None] - columns)
    visible = columns <= high[:, None]
    if SHAPE.HAS_LEFT:
        visible = visible & (columns >= low[:, None])
    if tree is not None:
        own = columns - first_own
        is_own = (own >= 0) & (own < num_queries)
        at = tree + (queries * tree_row)[:, None] + own * tree_column
        allowed = tl.load(at, mask=(queries < num_queries)[:, None] & is_own, other=0)
        visible = visible & ((own < 0) | (allowed != 0))
    return tl.where(visible, scores, MASKED), visible


@triton.jit
def attend(q_tiles, source, begin, end, row_scale, rows, terms, low_high, SHAPE: tl.constexpr, dtype: tl.constexpr):
    """One pass of online softmax over the keys [begin, end): (Σ p·v, Σ p, maximum), of rows.

    source: of K, of V and of their scales (base of the head, strides); table, pages of the cache.
    """
    q_tile, q_tail = q_tiles
    k, k_strides, v, v_strides, k_scale, k_scale_strides, v_scale, v_scale_strides, table, num_pages = source
    v_type: tl.constexpr = k.dtype.element_ty
    # Bytes are exact in fp16, but scales may leave its range.
    p_dtype: tl.constexpr = tl.bfloat16 if SHAPE.V_BY_TOKEN else tl.float16 if SHAPE.IN_PAIRS else dtype
    zero, acc = _no_keys(SHAPE)
    total, maximum, odd = zero, zero + MINIMUM, zero
    if SHAPE.IN_PAIRS:
        odd = acc
    HAS_TREE: tl.constexpr = terms[2] is not None
    IS_MASKED: tl.constexpr = SHAPE.HAS_LEFT or HAS_TREE
    entries = _load_pages(table, begin, end, SHAPE)
    for start in range(begin, end, SHAPE.N):
        keys = _shared_out(start + tl.arange(0, SHAPE.N), SHAPE)
        page, inside = clamped(entries, 0, num_pages - 1).to(tl.int64), tl.minimum(keys, end - 1)
        entries = _load_pages(table, start + SHAPE.N, end, SHAPE)  # the next tile's: its loads wait for no other
        places = (inside.to(tl.uint32) % SHAPE.PAGE).to(tl.int32)
        offsets = page * k_strides[0] + places * k_strides[1]
        k_rows = k + offsets
        scores = tl.dot(q_tile, _load_keys(k_rows, k_strides[3], 0, SHAPE.D, SHAPE, dtype))
        if SHAPE.D_TAIL > 0:
            scores = tl.dot(q_tail, _load_keys(k_rows, k_strides[3], SHAPE.D, SHAPE.D_TAIL, SHAPE, dtype), scores)
        scores *= row_scale[:, None]
        if SHAPE.K_BY_TOKEN:
            at = k_scale + page * k_scale_strides[0] + places * k_scale_strides[1]
            scores *= tl.expand_dims(tl.load(at), -2)
        scores, visible = _scores(scores, keys, rows, terms, low_high, SHAPE)
        new_maximum = tl.maximum(maximum, tl.max(scores, SHAPE.AXES - 1))
        p = tl.exp2(scores - tl.expand_dims(new_maximum, -1))
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(p, SHAPE.AXES - 1)
        acc = acc * tl.expand_dims(rescale, -1)
        if SHAPE.IN_PAIRS:
            odd = odd * tl.expand_dims(rescale, -1)
        maximum = new_maximum
        seen = keys >= rows[2] - terms[6]
        if HAS_TREE:
            seen = tl.max((visible & (rows[0] < terms[5])[:, None]).to(tl.int32), SHAPE.AXES - 2) != 0
        if SHAPE.V_BY_TOKEN:
            p *= tl.expand_dims(_load_scales(v_scale + page * v_scale_strides[0] + places * v_scale_strides[1], seen,
                                             IS_MASKED), -2)
        if SHAPE.IS_ALIKE:
            v_rows = v + offsets
        else:
            v_rows = v + (page * v_strides[0] + packed(places, v_strides[1], SHAPE.Y))
        v_tile = _load_values(v_rows, v_strides[3], seen, SHAPE, IS_MASKED)
        p = p.to(p_dtype)
        if SHAPE.IN_PAIRS:
            acc = tl.dot(p, _converted(v_tile.to(tl.int8).to(v_type, bitcast=True), p_dtype), acc)
            odd = tl.dot(p, _converted((v_tile >> 8).to(tl.int8).to(v_type, bitcast=True), p_dtype), odd)
        else:
            acc = tl.dot(p, _converted(v_tile, p_dtype), acc)
    return _of_all_waves(acc, odd, total, maximum, SHAPE)


@triton.jit
def _no_keys(SHAPE: tl.constexpr):
    """(zeros of rows, zeros of their sums), for each wave that has keys of its own."""
    M: tl.constexpr = SHAPE.M
    DV: tl.constexpr = SHAPE.DV // 2 if SHAPE.IN_PAIRS else SHAPE.DV
    W: tl.constexpr = SHAPE.W
    if W > 1:
        return tl.zeros([W, M], tl.float32), tl.zeros([W, M, DV], tl.float32)
    else:
        return tl.zeros([M], tl.float32), tl.zeros([M, DV], tl.float32)


@triton.jit
def _of_all_waves(acc, odd, total, maximum, SHAPE: tl.constexpr):
    """Adds up what waves with keys of their own have found, always in the same order; interleaves columns in pairs."""
    if SHAPE.W > 1:
        highest = tl.max(maximum, 0)
        weights = tl.exp2(maximum - highest[None, :])
        acc, total, maximum = tl.sum(acc * weights[:, :, None], 0), tl.sum(total * weights, 0), highest
        if SHAPE.IN_PAIRS:
            odd = tl.sum(odd * weights[:, :, None], 0)
    if SHAPE.IN_PAIRS:
        acc = tl.interleave(acc, odd)
    return acc, total, maximum
