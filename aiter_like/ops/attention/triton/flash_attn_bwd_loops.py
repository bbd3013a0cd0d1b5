# SPDX-License-Identifier: MIT
"""The loops of flash_attn_bwd.py's kernels: along the rows for dK and dV, along the keys for dQ."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.attention.triton.flash_attn_bwd_parts import (
    is_visible,
    keys_at,
    loads_ahead,
    narrowed,
    probability,
    rows_at,
)
from aiter_like.ops.common.triton.philox import attention_kept


@triton.jit
def dkdv_rows(dk, dv, k, v, first_key, rule, dropout, rows_of, first, end, gap_first, gap, DIM: tl.constexpr,
              BLOCK_D: tl.constexpr, DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
              BLOCK_N: tl.constexpr, IS_MASKED: tl.constexpr):
    """Adds what row blocks contribute: `first` … `end` − 1, from gap_first on `gap` blocks further.

    rows_of: q and its row stride, dout and its row stride, delta, lse2, from row 0 of the head on; first and last key.
    """
    keys = first_key + tl.arange(0, BLOCK_N)
    AHEAD: tl.constexpr = loads_ahead(IS_MASKED)
    if AHEAD:
        block = tl.maximum(tl.minimum(first, end - 1), 0)
        q_next, dout_next, lse2_next, delta_next = rows_at(rows_of, block, rule, DIM, BLOCK_D, DIM_V, BLOCK_DV,
                                                           BLOCK_M, True)
    for index in range(first, end):
        block = index
        if IS_MASKED:
            block += tl.where(index >= gap_first, gap, 0)
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        if AHEAD:
            q_tile, dout_tile, lse2_rows, delta_rows = q_next, dout_next, lse2_next, delta_next
            q_next, dout_next, lse2_next, delta_next = rows_at(rows_of, tl.minimum(index + 1, end - 1), rule, DIM,
                                                               BLOCK_D, DIM_V, BLOCK_DV, BLOCK_M, False)
        else:
            q_tile, dout_tile, lse2_rows, delta_rows = rows_at(rows_of, block, rule, DIM, BLOCK_D, DIM_V, BLOCK_DV,
                                                               BLOCK_M, IS_MASKED)
        visible = is_visible(rule, rows[None, :], keys[:, None])
        if IS_MASKED:
            visible &= (rows < rule.seqlen_q)[None, :]  # whatever infinite keys there are
        products = tl.dot(k, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M]
        p, slope = probability(rule, products, rows[None, :], keys[:, None], lse2_rows[None, :], visible, IS_MASKED)
        dp = tl.dot(v, tl.trans(dout_tile))
        survivors = p
        if dropout.rng_state is not None:
            kept = attention_kept(dropout.seed, dropout.offset, dropout.head, rows, first_key, dropout.threshold,
                                  BLOCK_N, True)
            dp = tl.where(kept, dp * dropout.scale, 0.0)
            survivors = tl.where(kept, p * dropout.scale, 0.0)
        dv = tl.dot(narrowed(survivors, rule, dout_tile.dtype), dout_tile, dv)
        ds = p * (dp - delta_rows[None, :]) * slope
        if IS_MASKED:
            ds = tl.where(visible, ds, 0.0)  # also where dp is NaN
        dk = tl.dot(narrowed(ds, rule, q_tile.dtype), q_tile, dk)
    return dk, dv


@triton.jit
def dq_keys(dq, q, dout, rows, delta, lse2, rule, dropout, keys_of, first, end, sinks, low, gap_first, gap,
            DIM: tl.constexpr, BLOCK_D: tl.constexpr, DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
            BLOCK_N: tl.constexpr, IS_MASKED: tl.constexpr):
    """Adds what key blocks contribute: `first` … `end` − 1; masked: `sinks` blocks from 0 on, then those from `low` on,
    of which from gap_first on `gap` blocks further.

    keys_of: k and its row stride, v and its row stride, from key 0 of the head on; first and last row.
    """
    AHEAD: tl.constexpr = loads_ahead(IS_MASKED)
    if AHEAD:
        block = tl.maximum(tl.minimum(first, end - 1), 0)
        k_next, v_next = keys_at(keys_of, block, rule, DIM, BLOCK_D, DIM_V, BLOCK_DV, BLOCK_N, True)
    for index in range(first, end):
        block = index
        if IS_MASKED:
            block = tl.where(index < sinks, index, index - sinks + low)
            block += tl.where(block >= gap_first, gap, 0)
        keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
        if AHEAD:
            k_tile, v_tile = k_next, v_next
            k_next, v_next = keys_at(keys_of, tl.minimum(index + 1, end - 1), rule, DIM, BLOCK_D, DIM_V, BLOCK_DV,
                                     BLOCK_N, False)
        else:
            k_tile, v_tile = keys_at(keys_of, block, rule, DIM, BLOCK_D, DIM_V, BLOCK_DV, BLOCK_N, IS_MASKED)
        visible = is_visible(rule, rows[:, None], keys[None, :])
        products = tl.dot(q, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
        p, slope = probability(rule, products, rows[:, None], keys[None, :], lse2[:, None], visible, IS_MASKED)
        dp = tl.dot(dout, tl.trans(v_tile))
        if dropout.rng_state is not None:
            kept = attention_kept(dropout.seed, dropout.offset, dropout.head, rows, block * BLOCK_N,
                                  dropout.threshold, BLOCK_N)
            dp = tl.where(kept, dp * dropout.scale, 0.0)
        ds = p * (dp - delta[:, None]) * slope
        if IS_MASKED:
            ds = tl.where(visible, ds, 0.0)  # also where dp is NaN
        dq = tl.dot(narrowed(ds, rule, k_tile.dtype), k_tile, dq)
    return dq
