# SPDX-License-Identifier: MIT
"""dK and dV on Hopper: the programs of flash_attn_bwd_hopper.py that have keys of their own and walk along the rows."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_parts import (
    OWN,
    block_of_program,
    copy_tile,
    load_own,
    of_columns,
    place_of,
    release,
    start_product,
    store_own,
)


@gluon.jit
def keys_of_program(index, order, sizes, SHAPE: gl.constexpr):
    """(batch, part of all KV heads' parts, first key), and row blocks (first, inner, end): first … end − 1 see any of
    the keys, those from inner on see them all.
    """
    KEYS: gl.constexpr = SHAPE.OWNERS * OWN
    M: gl.constexpr = SHAPE.WALKED
    block, part, batch = block_of_program(index, order)
    first_key = block * KEYS
    seqlen_q, _, edge, _ = sizes
    end = (seqlen_q + M - 1) // M
    first = gl.minimum(gl.maximum(first_key - edge, 0) // M, end)
    inner = gl.minimum((gl.maximum(first_key + KEYS - 1 - edge, 0) + M - 1) // M, end)
    inner += (end - inner) % SHAPE.KEYS_UNROLL  # a block more with the mask that it does not need
    return (batch, part, first_key), (first, inner, end)


@gluon.jit
def load_for_keys(index, boxes, memory, order, heads, sizes, SHAPE: gl.constexpr):
    """The warp that loads: of each head the row blocks with a mask, then of each head the others."""
    own, own_full, tiles, rings = memory
    place, counts = keys_of_program(index, order, sizes, SHAPE)
    batch, part, first_key = place
    first, inner, end = counts
    num_heads, part_heads, parts = heads
    M: gl.constexpr = SHAPE.WALKED
    load_own((boxes[2], boxes[3]), own, own_full, batch, part // parts, first_key, SHAPE.D, SHAPE.OWNERS)
    masked = part_heads * (inner - first)
    block, head = first, part * part_heads
    for index in range(part_heads * (end - first)):
        if index == masked:
            block, head = inner, part * part_heads
        for which in gl.static_range(2):  # rows of q with their LSE, of dout with their delta
            stage, full = place_of(rings[which], index, M * SHAPE.D * 2 + M * 4, SHAPE.STAGES)
            copy_tile(boxes[which], [batch, block * M, head, 0], full, tiles[which].index(stage))
            copy_tile(boxes[4 + which], [batch * num_heads + head, block * M], full, tiles[2 + which].index(stage))
        block += 1
        if block == gl.where(index < masked, inner, end):
            block = gl.where(index < masked, first, inner)
            head += 1


@gluon.jit
def _walk_rows(sums, own, tiles, rings, begin, end, mask, scale, LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
               M: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr, IS_MASKED: gl.constexpr):
    """Adds to dK and dV what tiles begin … end − 1 contribute, UNROLL of them in one turn, whose products overlap.

    mask: the first row that sees each key; the first row block of each head, and the one after the last.
    """
    dk, dv = sums
    k, v = own
    first_seeing, first, inner = mask
    block = first
    for turn in range(begin, end, UNROLL):
        scores = start_product(k, tiles[0], rings[0], turn, LAYOUT, M, D, STAGES)
        dp = start_product(v, tiles[1], rings[1], turn, LAYOUT, M, D, STAGES)
        for step in gl.static_range(UNROLL):
            index = turn + step
            q = tiles[0].index(index % STAGES).reshape([M, D])
            dout = tiles[1].index(index % STAGES).reshape([M, D])
            scores = warpgroup_mma_wait(1, deps=[scores])
            exponent = scores * scale - of_columns(tiles[2], index, LAYOUT, M, STAGES)
            if IS_MASKED:
                rows = block * M + gl.arange(0, M, gl.SliceLayout(0, LAYOUT))
                visible = rows[None, :] >= first_seeing[:, None]
                exponent = gl.where(visible, exponent, float("-inf"))
            p = gl.exp2(exponent)
            p_operand = gl.convert_layout(p.to(k.dtype), P_LAYOUT)
            dv = warpgroup_mma(p_operand, dout, dv, is_async=True)
            dp = warpgroup_mma_wait(1, deps=[dp])
            slope = dp - of_columns(tiles[3], index, LAYOUT, M, STAGES)
            if IS_MASKED:
                slope = gl.where(visible, slope, 0.0)  # also where dp is NaN
            ds_operand = gl.convert_layout((p * slope).to(k.dtype), P_LAYOUT)
            dk = warpgroup_mma(ds_operand, q, dk, is_async=True)
            if step + 1 < UNROLL:
                dv, p_operand = warpgroup_mma_wait(1, deps=[dv, p_operand])
                release(rings[1], index, STAGES)
                scores = start_product(k, tiles[0], rings[0], index + 1, LAYOUT, M, D, STAGES)
                dk, ds_operand = warpgroup_mma_wait(1, deps=[dk, ds_operand])
                release(rings[0], index, STAGES)
                dp = start_product(v, tiles[1], rings[1], index + 1, LAYOUT, M, D, STAGES)
            else:
                dv, p_operand = warpgroup_mma_wait(1, deps=[dv, p_operand])
                release(rings[1], index, STAGES)
                dk, ds_operand = warpgroup_mma_wait(0, deps=[dk, ds_operand])
                release(rings[0], index, STAGES)
        block = gl.where(block + 1 == inner, first, block + 1)
    return dk, dv


@gluon.jit
def of_keys(index, results, strides, memory, order, heads, sizes, scales, GROUP: gl.constexpr, SHAPE: gl.constexpr):
    """A warp group: dK and dV of OWN keys, as far as one part of the query heads contributes."""
    M: gl.constexpr = SHAPE.WALKED
    D: gl.constexpr = SHAPE.D
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, M, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    own, own_full, tiles, rings = memory
    place, counts = keys_of_program(index, order, sizes, SHAPE)
    batch, part, first_key = place
    first, inner, end = counts
    _, seqlen_k, edge, _ = sizes
    scale, softmax_scale = scales
    first_key += GROUP * OWN
    both = own[0].index(GROUP).reshape([OWN, D]), own[1].index(GROUP).reshape([OWN, D])
    mask = first_key + gl.arange(0, OWN, gl.SliceLayout(1, LAYOUT)) - edge, first, inner
    masked, total = heads[1] * (inner - first), heads[1] * (end - first)
    mbarrier.wait(own_full, 0)
    sums = gl.zeros([OWN, D], gl.float32, SUMS), gl.zeros([OWN, D], gl.float32, SUMS)
    sums = _walk_rows(sums, both, tiles, rings, 0, masked, mask, scale, LAYOUT, P_LAYOUT, M, D, SHAPE.STAGES, 1, True)
    dk, dv = _walk_rows(sums, both, tiles, rings, masked, total, mask, scale, LAYOUT, P_LAYOUT, M, D, SHAPE.STAGES,
                        SHAPE.KEYS_UNROLL, False)
    store_own(results[0], strides[0], batch, part, first_key, seqlen_k, dk * softmax_scale, D, SHAPE.COLUMNS)
    store_own(results[1], strides[1], batch, part, first_key, seqlen_k, dv, D, SHAPE.COLUMNS)
