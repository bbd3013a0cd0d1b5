# SPDX-License-Identifier: MIT
"""Parts of the attention kernels: rounding, which keys a tile of rows sees, loads of tiles, exponents, parts of rows.

SHAPE is a Shape of shape.py, or what flash_attn_fwd_hopper.py has in its place.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq, is_hip_cdna3

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)

# Start of the running maximum, and the score of a masked key, before it is scaled by a positive number and after it: a
# masked score never raises the maximum and its exp2 is 0 exactly, so that a fully masked row needs no special case.
MINIMUM = tl.constexpr(-3.4028234663852886e38)
MASKED = tl.constexpr(float("-inf"))
LEAST_SCALE = tl.constexpr(1.1754943508222875e-38)  # the least normal number: times it all but huge scores are about 0
FAR = tl.constexpr(134217728.0)  # 2^27, of a maximum in base 2: its rounding is up to 8


@triton.jit
def round_to(x, dtype: tl.constexpr, ROUNDING: tl.constexpr):
    """float32 → `dtype`: 0 to nearest even, 1 to nearest with ties away (bfloat16), 2 towards zero (16 bits)."""
    if ROUNDING == 2 and (dtype == tl.bfloat16 or dtype == tl.float16) and cuda_capability_geq(8):
        return x.to(dtype, fp_downcast_rounding="rtz")
    elif dtype == tl.bfloat16 and ROUNDING > 0:
        bits = x.to(tl.int32, bitcast=True)
        if ROUNDING == 1:
            bits += 0x8000
        truncated = (bits & -0x10000).to(tl.float32, bitcast=True)
        return tl.where(x == x, truncated, x).to(dtype)  # NaN stays NaN
    elif dtype == tl.float16 and ROUNDING == 2:
        nearest = x.to(dtype)
        is_beyond = tl.abs(nearest.to(tl.float32)) > tl.abs(x)
        return (nearest.to(tl.int16, bitcast=True) - is_beyond.to(tl.int16)).to(dtype, bitcast=True)
    else:
        return x.to(dtype)


@triton.jit
def round_finite(x, dtype: tl.constexpr, ROUNDING: tl.constexpr):
    """round_to where no x is infinite: in one instruction more than to nearest even where the hardware has that one.

    Ties away: with the lowest bit set a tie lies beyond the middle, and what is none stays on its side. NaN stays NaN,
    but on gfx942, which rounds to bfloat16 by addition: there one with its lower 16 bits set can become zero or
    infinite, so its row's Σ p must make the result NaN.
    """
    if ROUNDING == 1 and dtype == tl.bfloat16 and cuda_capability_geq(8):
        return (x.to(tl.int32, bitcast=True) | 1).to(tl.float32, bitcast=True).to(dtype)
    elif dtype == tl.bfloat16 and is_hip_cdna3():
        bits = x.to(tl.int32, bitcast=True)
        if ROUNDING == 0:
            bits += 0x7FFF + ((bits >> 16) & 1)
        elif ROUNDING == 1:
            bits += 0x8000
        return (bits >> 16).to(tl.int16).to(dtype, bitcast=True)
    else:
        return round_to(x, dtype, ROUNDING)


@triton.jit
def tanh(x):
    """Within a few units in the last place: a series (its next term: 62/2835 x⁹) where the quotient would cancel."""
    square = x * x
    series = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))))
    power = tl.exp2(-2.8853900817779268 * tl.abs(x))  # e^(-2 |x|)
    quotient = (1.0 - power) / (1.0 + power)
    return tl.where(square < 0.03, series, tl.where(x < 0, -quotient, quotient))


@triton.jit
def clamped(x, low, high):
    """Integer x within [low, high]; low where high is below it."""
    return tl.maximum(tl.minimum(x, high), low)


@triton.jit
def sequence(cu_seqlens, batch, total):
    """(first row, length) of a sequence, inside the tensor whatever cu_seqlens holds."""
    start = clamped(tl.load(cu_seqlens + batch), 0, total)
    return start, clamped(tl.load(cu_seqlens + batch + 1), start, total) - start


@triton.jit
def keys_of(batch, cu_seqlens_k, seqlens_k, seqlen_k, PAGE: tl.constexpr):
    """(first key, or first entry of the block table; keys) of a sequence, within `seqlen_k` keys or entries.

    Without cu_seqlens_k each sequence has an axis of its own. With pages (PAGE > 0) cu_seqlens_k counts entries of the
    block table, and seqlens_k the keys in a sequence's last page.
    """
    start = batch.to(tl.int32) * 0
    if cu_seqlens_k is not None:
        start, seqlen_k = sequence(cu_seqlens_k, batch, seqlen_k)
        if PAGE > 0:
            last = PAGE
            if seqlens_k is not None:
                last = clamped(tl.load(seqlens_k + batch), 0, PAGE)
            seqlen_k = tl.where(seqlen_k > 0, (seqlen_k - 1) * PAGE + last, 0)
    elif seqlens_k is not None:
        seqlen_k = clamped(tl.load(seqlens_k + batch), 0, seqlen_k)
    return start, seqlen_k


@triton.jit
def is_visible(keys, low, high, sink_size, HAS_LEFT: tl.constexpr, HAS_SINK_TOKENS: tl.constexpr):
    """bool: low ≤ key ≤ high, or key ≤ high and one of the sink tokens; of shapes that broadcast."""
    visible = keys <= high
    if HAS_SINK_TOKENS:
        return visible & ((keys >= low) | (keys < sink_size))
    if HAS_LEFT:
        return visible & (keys >= low)
    return visible


@triton.jit
def key_ranges(first, last, seqlen_k, window_left, window_right, sink_size, HAS_LEFT: tl.constexpr,
               HAS_RIGHT: tl.constexpr, N: tl.constexpr):
    """(end of the sink tokens, begin, begin of the interior, its end, end) of the keys that a tile of rows visits.

    first, last: of the rows, on the keys' axis (query + delta). Every row sees every key of the interior. All results
    but the last are multiples of N, and they never decrease, but for an end before the end of the interior.
    """
    end, seen_by_all = seqlen_k, seqlen_k
    if HAS_RIGHT:
        end = clamped(last + window_right + 1, 0, seqlen_k)
        seen_by_all = clamped(first + window_right + 1, 0, seqlen_k)
    # A length is never negative, but only said so does ptxas (12.8, 13.4) keep Hopper's products asynchronous: it
    # would otherwise set the sums of an empty interior between them.
    interior_end = tl.maximum(seen_by_all // N * N, 0)
    sinks_end, begin, interior = end * 0, end * 0, end * 0
    if HAS_LEFT:
        begin = clamped(first - window_left, 0, end) // N * N
        interior = tl.minimum(tl.cdiv(tl.maximum(last - window_left, 0), N), tl.cdiv(end, N)) * N
        interior_end = tl.maximum(interior, interior_end)
        sinks_end = tl.minimum(tl.cdiv(sink_size, N) * N, begin)
    return sinks_end, begin, interior, interior_end, end


@triton.jit
def tile_of_program(num_blocks, num_splits, num_heads, XCDS: tl.constexpr, ARE_RAGGED: tl.constexpr):
    """(block, split, head, batch): the last block first, because under a causal mask it is the longest.

    Blocks come fastest. Where sequences are ragged, programs are dealt to chiplets one by one, and blocks come slowest,
    so that each chiplet gets as many first blocks, which all sequences have, as others: heads deal themselves out;
    where they do not, each block begins with another sequence.
    """
    index = tl.program_id(0)
    total = tl.num_programs(0)
    if XCDS > 1 and ARE_RAGGED:
        items = total // num_blocks
        block, item = index // items, index % items
        if num_heads % XCDS != 0:
            item = (item + block) % items
        split, head, batch = item // num_heads % num_splits, item % num_heads, item // num_heads // num_splits
    else:
        if XCDS > 1:
            xcd = index % XCDS
            index = xcd * (total // XCDS) + tl.minimum(xcd, total % XCDS) + index // XCDS
        tile = index // num_blocks
        rest = tile // num_splits
        block, split, head, batch = index % num_blocks, tile % num_splits, rest % num_heads, rest // num_heads
    return num_blocks - 1 - block, split, head, batch.to(tl.int64)


@triton.jit
def row_pointers(tensor, strides, batch, tile, SHAPE: tl.constexpr):
    """Pointers [M] to the rows of a tile: its first row and head, and [M] from there. strides: of batch, row, head."""
    first_row, first_head, rows, heads = tile
    base = tensor + batch * strides[0] + first_row.to(tl.int64) * strides[1] + first_head.to(tl.int64) * strides[2]
    if SHAPE.IS_WIDE:
        rows, heads = rows.to(tl.int64), heads.to(tl.int64)
    if SHAPE.PACK == 1:
        return base + rows * strides[1]
    return base + (rows * strides[1] + heads * strides[2])


@triton.jit
def packed(index, stride, X: tl.constexpr):
    """Offset of an element along an axis of which X elements lie together, and then `stride` further X; 0: of rows."""
    if X == 0:
        return index * stride
    else:
        return index // X * stride + index % X


@triton.jit
def key_pointers(base, strides, pages, start, seqlen_k, X: tl.constexpr, SHAPE: tl.constexpr):
    """(pointer, offsets [N]) of the rows of k or v from key `start` on. strides: of batch or page, and row.

    pages: (this sequence's row of the block table, number of pages in the cache), or None. Without pages, and where a
    tile lies in one page, the offsets are the same in every step.
    """
    lanes = tl.arange(0, SHAPE.N)
    keys = start + lanes
    if SHAPE.IS_WIDE:
        lanes = lanes.to(tl.int64)
    if pages is None:
        return base + start.to(tl.int64) * strides[1], lanes * strides[1]
    else:
        table, num_pages = pages
        if SHAPE.PAGE % SHAPE.N == 0:
            page = clamped(tl.load(table + start // SHAPE.PAGE), 0, num_pages - 1).to(tl.int64)
            first = packed((start % SHAPE.PAGE).to(tl.int64), strides[1], X)
            return base + page * strides[0] + first, packed(lanes, strides[1], X)
        else:
            page = tl.load(table + keys // SHAPE.PAGE, mask=keys < seqlen_k, other=0)
            page = clamped(page, 0, num_pages - 1).to(tl.int64)
            return base, page * strides[0] + packed((keys % SHAPE.PAGE).to(tl.int64), strides[1], X)


@triton.jit
def load_tile(pointers, inside, dims, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, IS_MASKED: tl.constexpr):
    """Zeros where a row is not `inside` and in the columns of padding; no mask where none is needed."""
    if IS_MASKED:
        return tl.load(pointers, mask=inside & (dims < HEAD_DIM), other=0.0)
    if PADDED > HEAD_DIM:
        return tl.load(pointers, mask=dims < HEAD_DIM, other=0.0)
    return tl.load(pointers)


@triton.jit
def load_rows(rows, is_row, FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Columns FIRST … FIRST + COLUMNS − 1 of the rows of q, zeros outside."""
    dims = FIRST + tl.arange(0, COLUMNS)
    return tl.load(rows[:, None] + dims[None, :], mask=is_row[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def descaled(scale, q_descale, k_descale, batch, kv_head, k_strides):
    """scale times the descales that there are; k_strides: of batch and head."""
    if q_descale is not None:
        scale *= tl.load(q_descale)
    if k_descale is not None:
        scale *= tl.load(k_descale + batch * k_strides[0] + kv_head * k_strides[1])
    return scale


@triton.jit
def value_factor(value_scale, v_descale, out_scale, batch, kv_head, v_strides):
    """The factor of sums of values; v_strides: of batch and head."""
    if v_descale is not None:
        value_scale *= tl.load(v_descale + batch * v_strides[0] + kv_head * v_strides[1])
    if out_scale is not None:
        value_scale /= tl.load(out_scale)
    return value_scale


@triton.jit
def positive_scale(scale):
    """The factor of scores, masked ones too, in place of `scale`; `signed` makes up for it. 0 is as good as
    LEAST_SCALE.
    """
    return tl.maximum(tl.abs(scale), LEAST_SCALE)


@triton.jit
def signed(q, scale):
    """Queries that have taken over the sign of a scale of scores, or its NaN."""
    dtype: tl.constexpr = q.dtype
    if dtype.is_fp8():
        NAN: tl.constexpr = 0x7F if dtype == tl.float8e4nv else 0x80
        bits = q.to(tl.uint8, bitcast=True)
        negated = tl.where((bits & 0x7F) == 0, bits, bits ^ 0x80)  # gfx942's fp8 has no −0, whose bits are its NaN
        return tl.where(scale < 0, negated, tl.where(scale == scale, bits, NAN)).to(tl.uint8).to(dtype, bitcast=True)
    else:
        return tl.where(scale < 0, -q, tl.where(scale == scale, q, float("nan")))


@triton.jit
def exponent_of(highest, maximum, scale):
    """(factor, origin) of rows, for p = 2^(factor · score − origin). highest: of their scores; maximum: times scale.

    That is the scale and the maximum. But the fma of the highest score leaves what the rounding of the maximum took:
    128 and more from 2^31 on, where 2^128 is infinite. There the factor is the power of two at or below the scale, so
    that nothing is rounded: scores that differ are so far from one another that only p = 1 and p ≈ 0 are left.
    """
    power = (scale.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    is_near = (tl.abs(maximum) < FAR) | (maximum == MINIMUM)  # the latter: no key was visible yet
    return tl.where(is_near, scale, power), tl.where(is_near, maximum, highest * power)


@triton.jit
def no_keys(M: tl.constexpr, DV: tl.constexpr):
    """(acc, Σ p, maximum, highest score) of rows before their first key."""
    zero = tl.zeros([M], tl.float32)
    return tl.zeros([M, DV], tl.float32), zero, zero + MINIMUM, zero + MASKED


@triton.jit
def load_box(box, boxes, start, N: tl.constexpr, D: tl.constexpr):
    """[N, D] from key `start` on of a descriptor [batch, keys, heads, dim]. boxes: …, …, batch, first key, head."""
    return box.load([boxes[2], boxes[3] + start, boxes[4], 0]).reshape([N, D])


@triton.jit
def store_part(out_rows, lse_rows, strides, split, is_row, acc, total, maximum, HEAD_DIM_V: tl.constexpr,
               DV: tl.constexpr):
    """Stores a split's sums, weights and maxima of its rows, for _combine_kernel. strides: of split in out and lse,
    from Σ p to maximum."""
    dims = tl.arange(0, DV)
    at = out_rows + split.to(tl.int64) * strides[0]
    tl.store(at[:, None] + dims[None, :], acc, mask=is_row[:, None] & (dims < HEAD_DIM_V)[None, :])
    at = lse_rows + split.to(tl.int64) * strides[1]
    tl.store(at, total, mask=is_row)
    tl.store(at + strides[2], maximum, mask=is_row)
