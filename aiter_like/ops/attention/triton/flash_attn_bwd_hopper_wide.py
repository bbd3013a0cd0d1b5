# SPDX-License-Identifier: MIT
"""dK and dV on Hopper where the registers of a warp group hold only one of them: head dimensions beyond 128.

Both groups of a program of flash_attn_bwd_hopper.py then have the same keys; one computes dV, the other dK, and both
the scores.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_keys import keys_of_program
from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_parts import (
    OWN,
    of_columns,
    release,
    start_product,
    store_own,
)


@gluon.jit
def _walk_rows(total, own, tiles, rings, begin, end, mask, scale, LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
               M: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, IS_KEY: gl.constexpr, IS_MASKED: gl.constexpr):
    """Adds to dK (IS_KEY) or to dV what tiles begin … end − 1 contribute. mask: as in flash_attn_bwd_hopper_keys.py."""
    k, v = own
    first_seeing, first, inner = mask
    block = first
    for index in range(begin, end):
        scores = start_product(k, tiles[0], rings[0], index, LAYOUT, M, D, STAGES)
        if IS_KEY:
            dp = start_product(v, tiles[1], rings[1], index, LAYOUT, M, D, STAGES)
            scores = warpgroup_mma_wait(1, deps=[scores])
        else:
            scores = warpgroup_mma_wait(0, deps=[scores])
        exponent = scores * scale - of_columns(tiles[2], index, LAYOUT, M, STAGES)
        if IS_MASKED:
            rows = block * M + gl.arange(0, M, gl.SliceLayout(0, LAYOUT))
            visible = rows[None, :] >= first_seeing[:, None]
            exponent = gl.where(visible, exponent, float("-inf"))
        p = gl.exp2(exponent)
        if IS_KEY:
            dp = warpgroup_mma_wait(0, deps=[dp])
            slope = dp - of_columns(tiles[3], index, LAYOUT, M, STAGES)
            release(rings[1], index, STAGES)
            if IS_MASKED:
                slope = gl.where(visible, slope, 0.0)  # also where dp is NaN
            operand = gl.convert_layout((p * slope).to(k.dtype), P_LAYOUT)
            total = warpgroup_mma(operand, tiles[0].index(index % STAGES).reshape([M, D]), total, is_async=True)
            total, operand = warpgroup_mma_wait(0, deps=[total, operand])
            release(rings[0], index, STAGES)
        else:
            release(rings[0], index, STAGES)
            operand = gl.convert_layout(p.to(k.dtype), P_LAYOUT)
            mbarrier.wait(rings[1][0].index(index % STAGES), index // STAGES & 1)
            total = warpgroup_mma(operand, tiles[1].index(index % STAGES).reshape([M, D]), total, is_async=True)
            total, operand = warpgroup_mma_wait(0, deps=[total, operand])
            release(rings[1], index, STAGES)
        block = gl.where(block + 1 == inner, first, block + 1)
    return total


@gluon.jit
def of_shared_keys(index, results, strides, memory, order, heads, sizes, scales, IS_KEY: gl.constexpr,
                   SHAPE: gl.constexpr):
    """One warp group: dK (IS_KEY) or dV of OWN keys, as far as one part of the query heads contributes."""
    M: gl.constexpr = SHAPE.WALKED
    D: gl.constexpr = SHAPE.D
    WHICH: gl.constexpr = 0 if IS_KEY else 1
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, M, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    own, own_full, tiles, rings = memory
    place, counts = keys_of_program(index, order, sizes, SHAPE)
    batch, part, first_key = place
    first, inner, end = counts
    _, seqlen_k, edge, _ = sizes
    scale, softmax_scale = scales
    both = own[0].index(0).reshape([OWN, D]), own[1].index(0).reshape([OWN, D])
    mask = first_key + gl.arange(0, OWN, gl.SliceLayout(1, LAYOUT)) - edge, first, inner
    masked, end = heads[1] * (inner - first), heads[1] * (end - first)
    mbarrier.wait(own_full, 0)
    total = gl.zeros([OWN, D], gl.float32, SUMS)
    total = _walk_rows(total, both, tiles, rings, 0, masked, mask, scale, LAYOUT, P_LAYOUT, M, D, SHAPE.STAGES, IS_KEY,
                       True)
    total = _walk_rows(total, both, tiles, rings, masked, end, mask, scale, LAYOUT, P_LAYOUT, M, D, SHAPE.STAGES,
                       IS_KEY, False)
    if IS_KEY:
        total = total * softmax_scale
    store_own(results[WHICH], strides[WHICH], batch, part, first_key, seqlen_k, total, D, SHAPE.COLUMNS)
