# SPDX-License-Identifier: MIT
"""dQ on Hopper: the programs of flash_attn_bwd_hopper.py that have rows of their own and walk along the keys."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_parts import (
    OWN,
    block_of_program,
    copy_tile,
    load_own,
    place_of,
    release,
    start_product,
    store_own,
)


@gluon.jit
def _rows_of_program(index, order, sizes, SHAPE: gl.constexpr):
    """(batch, head, first row), and tiles of keys: (those without a mask, all)."""
    ROWS: gl.constexpr = SHAPE.OWNERS * OWN
    block, head, batch = block_of_program(index, order)
    seqlen_q, seqlen_k, edge, _ = sizes
    first_row = (order[0] - 1 - block) * ROWS  # causal: the longest first
    last_row = gl.minimum(first_row + ROWS, seqlen_q) - 1
    end = gl.maximum(gl.minimum(last_row + edge + 1, seqlen_k), 0)
    num_open = gl.maximum(gl.minimum(first_row + edge + 1, seqlen_k), 0)
    num_open = num_open // (SHAPE.WALKED * SHAPE.ROWS_UNROLL) * SHAPE.ROWS_UNROLL
    return (batch, head, first_row), (num_open, (end + SHAPE.WALKED - 1) // SHAPE.WALKED)


@gluon.jit
def load_for_rows(index, boxes, memory, order, heads, sizes, SHAPE: gl.constexpr):
    """The warp that loads."""
    own, own_full, tiles, rings = memory
    place, counts = _rows_of_program(index, order, sizes, SHAPE)
    batch, head, first_row = place
    N: gl.constexpr = SHAPE.WALKED
    load_own((boxes[0], boxes[1]), own, own_full, batch, head, first_row, SHAPE.D, SHAPE.OWNERS)
    kv_head = head // (heads[1] * heads[2])
    for index in range(counts[1]):
        for which in gl.static_range(2):  # keys, values
            stage, full = place_of(rings[which], index, N * SHAPE.D * 2, SHAPE.STAGES)
            copy_tile(boxes[2 + which], [batch, index * N, kv_head, 0], full, tiles[which].index(stage))


@gluon.jit
def _walk_keys(dq, own, tiles, rings, begin, end, high, of_rows, scale, LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
               N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr, IS_MASKED: gl.constexpr):
    """Adds to dQ what key tiles begin … end − 1 contribute, UNROLL of them in one turn, whose products overlap.

    high: the last key that each row sees. of_rows: LSE and delta.
    """
    q, dout = own
    lse2, delta = of_rows
    ds_operand = gl.zeros([OWN, N], q.dtype, P_LAYOUT)  # operand of the product that dQ waits for
    for turn in range(begin, end, UNROLL):
        scores = start_product(q, tiles[0], rings[0], turn, LAYOUT, N, D, STAGES)
        dp = start_product(dout, tiles[1], rings[1], turn, LAYOUT, N, D, STAGES)
        scores = warpgroup_mma_wait(1, deps=[scores])
        for step in gl.static_range(UNROLL):
            index = turn + step
            exponent = scores * scale - lse2[:, None]
            if IS_MASKED:
                keys = index * N + gl.arange(0, N, gl.SliceLayout(0, LAYOUT))
                visible = keys[None, :] <= high[:, None]
                exponent = gl.where(visible, exponent, float("-inf"))
            p = gl.exp2(exponent)
            if step + 1 < UNROLL:
                scores = start_product(q, tiles[0], rings[0], index + 1, LAYOUT, N, D, STAGES)
                dp = warpgroup_mma_wait(1, deps=[dp])
            else:
                dp = warpgroup_mma_wait(0, deps=[dp])
            if step > 0:  # the product before dp's
                dq, ds_operand = warpgroup_mma_wait(1, deps=[dq, ds_operand])
                release(rings[0], index - 1, STAGES)
            release(rings[1], index, STAGES)
            slope = dp - delta[:, None]
            if IS_MASKED:
                slope = gl.where(visible, slope, 0.0)  # also where dp is NaN
            ds_operand = gl.convert_layout((p * slope).to(q.dtype), P_LAYOUT)
            dq = warpgroup_mma(ds_operand, tiles[0].index(index % STAGES).reshape([N, D]), dq, is_async=True)
            if step + 1 < UNROLL:
                dp = start_product(dout, tiles[1], rings[1], index + 1, LAYOUT, N, D, STAGES)
                scores = warpgroup_mma_wait(2, deps=[scores])
        dq = warpgroup_mma_wait(0, deps=[dq, ds_operand])[0]
        release(rings[0], turn + UNROLL - 1, STAGES)
    return dq


@gluon.jit
def of_rows(index, dq, strides, numbers, memory, order, sizes, scales, GROUP: gl.constexpr, SHAPE: gl.constexpr):
    """A warp group: dQ of OWN rows. numbers: LSE and delta."""
    N: gl.constexpr = SHAPE.WALKED
    D: gl.constexpr = SHAPE.D
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    own, own_full, tiles, rings = memory
    place, counts = _rows_of_program(index, order, sizes, SHAPE)
    batch, head, first_row = place
    num_open, num_tiles = counts
    seqlen_q, seqlen_k, edge, scratch_rows = sizes
    scale, softmax_scale = scales
    first_row += GROUP * OWN
    rows = first_row + gl.arange(0, OWN, gl.SliceLayout(1, LAYOUT))
    high = gl.minimum(rows + edge, seqlen_k - 1)
    rows_at = (batch * order[1] + head).to(gl.int64) * scratch_rows
    of_rows = gl.load(numbers[0] + rows_at + rows), gl.load(numbers[1] + rows_at + rows)
    both = own[0].index(GROUP).reshape([OWN, D]), own[1].index(GROUP).reshape([OWN, D])
    mbarrier.wait(own_full, 0)
    total = gl.zeros([OWN, D], gl.float32, SUMS)
    total = _walk_keys(total, both, tiles, rings, 0, num_open, high, of_rows, scale, LAYOUT, P_LAYOUT, N, D,
                       SHAPE.STAGES, SHAPE.ROWS_UNROLL, False)
    total = _walk_keys(total, both, tiles, rings, num_open, num_tiles, high, of_rows, scale, LAYOUT, P_LAYOUT, N, D,
                       SHAPE.STAGES, 1, True)
    store_own(dq, strides, batch, head, first_row, seqlen_q, total * softmax_scale, D, SHAPE.COLUMNS)
