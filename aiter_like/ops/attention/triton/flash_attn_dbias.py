# SPDX-License-Identifier: MIT
"""flash_attn_dbias in Triton: body and launcher, named by ops/attention/flash_attn_dbias.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.attention.call import AttentionDbiasCall
from aiter_like.ops.attention.triton.flash_attn_bwd import UNSPECIALIZED, arguments, row_sums, width
from aiter_like.ops.attention.triton.flash_attn_bwd_parts import (
    Bias,
    Rule,
    address,
    alibi_slope,
    bias_address,
    is_visible,
    load_rows,
    probability,
    random_word,
    scratch_index,
    sequence,
    view_of,
)
from aiter_like.ops.attention.triton.strides import strides_of_bias
from aiter_like.ops.common.triton.fill import fill
from aiter_like.ops.common.triton.launch import Launch, config, launch
from aiter_like.ops.common.triton.philox import attention_kept
from aiter_like.traced import exactly


@triton.jit(do_not_specialize=(*UNSPECIALIZED, "batches", "heads"))
def _dbias_kernel(dbias, dout, q, k, v, bias, slopes, delta, lse2, rests, cu_seqlens_q, cu_seqlens_k, rng_state,
                  dbias_strides, batches, heads, strides, bias_strides, slopes_batch, scratch_rows, num_heads,
                  group_size, total_q, total_k, max_seqlen_q, max_seqlen_k, left, right, sink_size, threshold, scale,
                  cap_log2, keep_scale, DIM: tl.constexpr, BLOCK_D: tl.constexpr, DIM_V: tl.constexpr,
                  BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """dbias = Σ P · (dO Vᵀ − delta) of a tile of one matrix, over the batches and heads that share it, in their order.

    A tile of which no row sees a key reads nothing. Bound: matrix unit. strides: of dout, q, k, v.
    """
    dout, q, k, v = view_of(dout, strides[0]), view_of(q, strides[1]), view_of(k, strides[2]), view_of(v, strides[3])
    bias = Bias(bias, bias_strides[0], bias_strides[1], bias_strides[2], bias_strides[3])
    columns, blocks, matrices = tl.cdiv(max_seqlen_k, BLOCK_N), tl.cdiv(max_seqlen_q, BLOCK_M), num_heads // heads
    place, first_key = tl.program_id(0) // columns, tl.program_id(0) % columns * BLOCK_N
    matrix, first_row = place // blocks, place % blocks * BLOCK_M
    first_batch, first_head = matrix // matrices, matrix % matrices
    q_start, seqlen_q = sequence(cu_seqlens_q, first_batch, total_q, max_seqlen_q)
    k_start, seqlen_k = sequence(cu_seqlens_k, first_batch, total_k, max_seqlen_k)
    if first_row >= seqlen_q:
        return
    rows, keys = first_row + tl.arange(0, BLOCK_M), first_key + tl.arange(0, BLOCK_N)
    is_row, is_key = rows < seqlen_q, keys < seqlen_k
    mask = Rule(seqlen_q, seqlen_k, left, right, sink_size, scale, cap_log2, slopes, 0.0, bias, 0, None, 0)
    visible = is_visible(mask, rows[:, None], keys[None, :])
    dbias_tile = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for index in range(tl.max(tl.max(visible.to(tl.int32), 0), 0) * batches * heads):
        batch, head = first_batch + index // heads, first_head + index % heads
        rows_at = scratch_index(cu_seqlens_q, batch, q_start, head, num_heads, scratch_rows)
        rule = Rule(seqlen_q, seqlen_k, left, right, sink_size, scale, cap_log2, slopes,
                    alibi_slope(slopes, batch, slopes_batch, head), bias, bias_address(bias, batch, q_start, head),
                    rests, rows_at)
        q_tile = load_rows(address(q, batch, q_start, head), first_row, q.row, is_row, BLOCK_M, DIM, BLOCK_D)
        k_tile = load_rows(address(k, batch, k_start, head // group_size), first_key, k.row, is_key, BLOCK_N, DIM,
                           BLOCK_D)
        lse2_rows, delta_rows = tl.load(lse2 + rows_at + rows), tl.load(delta + rows_at + rows)
        p, _ = probability(rule, tl.dot(q_tile, tl.trans(k_tile)), rows[:, None], keys[None, :],
                           lse2_rows[:, None], visible, True)
        dout_tile = load_rows(address(dout, batch, q_start, head), first_row, dout.row, is_row, BLOCK_M, DIM_V,
                              BLOCK_DV)
        v_tile = load_rows(address(v, batch, k_start, head // group_size), first_key, v.row, is_key, BLOCK_N, DIM_V,
                           BLOCK_DV)
        dp = tl.dot(dout_tile, tl.trans(v_tile))
        if rng_state is not None:
            kept = attention_kept(random_word(rng_state, 0), random_word(rng_state, 1), batch * num_heads + head, rows,
                                  first_key, threshold, BLOCK_N)
            dp = tl.where(kept, dp * keep_scale, 0.0)
        dbias_tile += tl.where(visible, p * (dp - delta_rows[:, None]), 0.0)  # 0 also where dp is NaN
    dbias += (first_batch.to(tl.int64) * dbias_strides[0] + q_start.to(tl.int64) * dbias_strides[1]
              + first_head.to(tl.int64) * dbias_strides[2])
    pointers = dbias + rows.to(tl.int64)[:, None] * dbias_strides[1] + keys.to(tl.int64)[None, :] * dbias_strides[3]
    tl.store(pointers, dbias_tile.to(dbias.dtype.element_ty), mask=is_row[:, None] & (keys < max_seqlen_k)[None, :])


def flash_attn_dbias(call: AttentionDbiasCall, **params: int) -> tuple[Launch, ...]:
    """Writes dbias. params: a tuned row's values instead of those of configs/triton/flash_attn_dbias.toml."""
    exactly((call.q.shape[-2:], call.k.shape[-2:], call.v.shape[-1]))  # A model has one of each.
    forward, is_packed = call.forward, call.cu_seqlens_q is not None
    # Packed rows may be of no sequence.
    cleared = (fill(call.dbias, 0.0),) if is_packed or not forward.batch or not forward.num_heads else ()
    if not forward.batch or not forward.num_heads:
        return cleared
    before, (delta, lse2, rests, _) = row_sums(call)
    settings = {**config("flash_attn_dbias", target_of(call.q.device).arch, width(call)), **params}
    block_m, block_n = settings.pop("BLOCK_M"), settings.pop("BLOCK_N")
    of_batch, of_head = (forward.batch, 1) if is_packed else call.dbias.shape[:2]  # matrices
    tiles = triton.cdiv(call.max_seqlen_q, block_m) * triton.cdiv(call.max_seqlen_k, block_n)
    tensors, numbers, factors, dims = arguments(call, delta, lse2, rests)
    return *cleared, *before, launch(
        _dbias_kernel, (tiles * of_batch * of_head, 1, 1), call.dbias, *tensors, strides_of_bias(call.dbias),
        forward.batch // of_batch, forward.num_heads // of_head, *numbers, *factors, **dims, BLOCK_M=block_m,
        BLOCK_N=block_n, options=settings)
