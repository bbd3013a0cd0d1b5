# SPDX-License-Identifier: MIT
"""Work of a warp group of flash_attn_fwd_hopper.py on tiles: scores, softmax, rounding, products, ends of rows."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma

from aiter_like.ops.attention.triton.parts import LN_2, LOG2_E, MASKED, round_finite, round_to

KEYS, VALUES = gl.constexpr(0), gl.constexpr(1)
_round_to, _round_finite = gluon.jit(round_to.fn), gluon.jit(round_finite.fn)


@dataclass(frozen=True)
class Shape:
    """The constants that the kernel is compiled for, besides which tensors there are.

    Attributes:
        GROUPS: warp groups that attend.
        M, N, D: rows of a group, keys of a tile, head dimension in shared memory and registers.
        COLUMNS: the head dimension; beyond it up to D there are zeros.
        STAGES: tiles of keys, and of values, in flight.
        ROUNDING: of P and out, see round_to.
        HAS_LEFT: the window begins somewhere; its end is always looked at.
        HAS_ENDS: sequences may end before the tensor does, and NaN may follow.
    """

    GROUPS: int
    M: int
    N: int
    D: int
    COLUMNS: int
    STAGES: int
    ROUNDING: int
    HAS_LEFT: bool
    HAS_ENDS: bool


@gluon.jit
def softmax(scores, maximum, start, visibility, scale, SHAPE: gl.constexpr, IS_MASKED: gl.constexpr):
    """(p, its sums [M, 8] over a lane's own keys, maximum) with the scores of the keys from `start` on."""
    if IS_MASKED:
        low, high = visibility
        keys = gl.arange(0, SHAPE.N, gl.SliceLayout(0, scores.type.layout))[None, :]
        visible = keys <= (high - start)[:, None]
        if SHAPE.HAS_LEFT:
            visible = visible & (keys >= (low - start)[:, None])
        scores = gl.where(visible, scores, MASKED)
    maximum = gl.maximum(maximum, gl.max(scores, 1) * scale)
    p = gl.exp2(scores * scale - maximum[:, None])
    return p, gl.sum(p.reshape([SHAPE.M, SHAPE.N // 8, 8]), 1), maximum


@gluon.jit
def packed(p, dtype: gl.constexpr, SHAPE: gl.constexpr):
    """p rounded, [M, N / 2] words of two neighbours: as single 16-bit values they would take an instruction more each,
    to pair them again for the product of the next step.
    """
    even, odd = gl.split(p.reshape([SHAPE.M, SHAPE.N // 2, 2]))
    pairs = [_round_finite(even, dtype, SHAPE.ROUNDING), _round_finite(odd, dtype, SHAPE.ROUNDING)]
    return gl.inline_asm_elementwise("mov.b32 $0, {$1, $2};", "=r,h,h", pairs, gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpacked(words, acc, dtype: gl.constexpr, SHAPE: gl.constexpr):
    """The first operand [M, N] of the product with values."""
    pairs = gl.join(words.to(gl.int16), (words >> 16).to(gl.int16)).to(dtype, bitcast=True)
    return gl.convert_layout(pairs.reshape([SHAPE.M, SHAPE.N]), gl.DotOperandLayout(0, acc.type.layout, 2))


@gluon.jit
def wait_full(ring, WHICH: gl.constexpr, tile, SHAPE: gl.constexpr):
    """Until the tile is there. ring: tiles, barriers, how many tiles earlier work used; tile: of this work."""
    position = ring[2] + tile
    mbarrier.wait(ring[1][2 * WHICH].index(position % SHAPE.STAGES), position // SHAPE.STAGES & 1)


@gluon.jit
def free(ring, WHICH: gl.constexpr, tile, SHAPE: gl.constexpr):
    """Says that this group is done with the tile."""
    mbarrier.arrive(ring[1][2 * WHICH + 1].index((ring[2] + tile) % SHAPE.STAGES))


@gluon.jit
def tile_of(ring, WHICH: gl.constexpr, tile, SHAPE: gl.constexpr):
    """[N, D] in shared memory."""
    return ring[0][WHICH].index((ring[2] + tile) % SHAPE.STAGES).reshape([SHAPE.N, SHAPE.D])


@gluon.jit
def start_scores(q, ring, tile, LAYOUT: gl.constexpr, SHAPE: gl.constexpr):
    """Starts q kᵀ of a tile, once it is there."""
    wait_full(ring, KEYS, tile, SHAPE)
    zeros = gl.full([SHAPE.M, SHAPE.N], 0.0, gl.float32, LAYOUT)
    return warpgroup_mma(q, tile_of(ring, KEYS, tile, SHAPE).permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def start_output(acc, p, ring, tile, SHAPE: gl.constexpr):
    """Starts acc + p v of a tile, once it is there."""
    wait_full(ring, VALUES, tile, SHAPE)
    return warpgroup_mma(p, tile_of(ring, VALUES, tile, SHAPE), acc, is_async=True)


@gluon.jit
def clear_rows(tile, first, end, SHAPE: gl.constexpr):
    """Zeros in the rows of a tile of values outside `first` … `end` − 1: where no row of a sequence sees a key, NaN
    would survive a p of 0.

    Each group does it, and writes what the others do.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SHAPE.D, SHAPE.D // 8], [4, 1], [1, 0])
    N: gl.constexpr = SHAPE.N
    for part in gl.static_range(0, N, 16):
        if (part < first) | (end < part + 16):
            piece = tile.slice(part, 16)
            rows = part + gl.arange(0, 16, gl.SliceLayout(1, LAYOUT))
            is_seen = (rows >= first) & (rows < end)
            piece.store(gl.where(is_seen[:, None], piece.load(LAYOUT), 0.0))
    fence_async_shared()


@gluon.jit
def finish(acc, maximum, total, results, head, starts, rows, first_row, seqlen_q, SHAPE: gl.constexpr):
    """Stores a group's rows: acc / Σ p, and the log-sum-exp. results: out, lse or None, strides of batch, row and head
    behind each; sinks, one more score for each head, or None.
    """
    out, strides, lse, lse_strides, sink = results
    if sink is not None:
        extra = gl.load(sink + head) * LOG2_E
        new_maximum = gl.maximum(maximum, extra)
        shrink = gl.exp2(maximum - new_maximum)
        total = total * shrink + gl.exp2(extra - new_maximum)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
        maximum = new_maximum
    factor = gl.where(total == 0.0, 0.0, 1.0 / total)  # 0: no visible key
    acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, acc.type.layout))[:, None]
    STORED: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SHAPE.D, SHAPE.D // 8], [4, 1], [1, 0])
    result = gl.convert_layout(_round_to(acc, out.dtype.element_ty, SHAPE.ROUNDING), STORED)
    batch, start_q, head = starts[0].to(gl.int64), starts[1].to(gl.int64), head.to(gl.int64)
    to = first_row + gl.arange(0, SHAPE.M, gl.SliceLayout(1, STORED))
    pointers = out + batch * strides[0] + head * strides[2] + ((start_q + to) * strides[1])[:, None]
    columns = gl.arange(0, SHAPE.D, gl.SliceLayout(0, STORED))[None, :]
    mask = (to < seqlen_q)[:, None]
    if SHAPE.COLUMNS < SHAPE.D:
        mask = mask & (columns < SHAPE.COLUMNS)
    gl.store(pointers + columns, result, mask=mask)
    if lse is not None:
        sums = gl.where(total == 0.0, float("-inf"), (maximum + gl.log2(total)) * LN_2)
        gl.store(lse + batch * lse_strides[0] + head * lse_strides[2] + (start_q + rows) * lse_strides[1], sums,
                 mask=rows < seqlen_q)
