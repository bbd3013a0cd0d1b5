# SPDX-License-Identifier: MIT
"""Rows whose log-sum-exp is so far from 0 that fp32 rounds off what P needs of it: their maximum and Σ p, anew.

A bias or slopes move whole rows there. Launched by flash_attn_bwd.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from aiter_like.ops.attention.call import AttentionBackwardCall
from aiter_like.ops.attention.triton.flash_attn_bwd_parts import (
    PADDING,
    Bias,
    Rule,
    address,
    alibi_slope,
    bias_address,
    is_visible,
    load_rows,
    rows_index,
    score_of,
    scratch_index,
    sequence,
    view_of,
)
from aiter_like.ops.attention.triton.parts import LOG2_E, MINIMUM
from aiter_like.ops.attention.triton.strides import stride_of_batch, strides_of_bias, strides_of_rows
from aiter_like.ops.attention.triton.terms import sink_score
from aiter_like.ops.common.triton.launch import Launch, launch

FAR_LSE = tl.constexpr(4096.0)  # up to there its rounding changes P by less than 2^-11, half a unit of fp16


@triton.jit(do_not_specialize=("slopes_batch", "scratch_rows", "num_heads", "group_size", "total_q", "total_k",
                               "max_seqlen_q", "max_seqlen_k", "left", "right", "sink_size"))
def _far_kernel(highest, rests, lse, q, k, bias, slopes, sink, cu_seqlens_q, cu_seqlens_k, strides, bias_strides,
                slopes_batch, scratch_rows, num_heads, group_size, total_q, total_k, max_seqlen_q, max_seqlen_k, left,
                right, sink_size, scale, cap_log2, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
                BLOCK_N: tl.constexpr):
    """The LSE to base 2 as highest + rest: the maximum and log2 Σ p of rows where it is far, else LSE and 0.

    Blocks without such rows, the usual ones, read no key. strides: of q, k.
    """
    q, k = view_of(q, strides[0]), view_of(k, strides[1])
    bias = Bias(bias, bias_strides[0], bias_strides[1], bias_strides[2], bias_strides[3])
    first_row, head, batch = tl.program_id(0) * BLOCK_M, tl.program_id(1), tl.program_id(2)
    q_start, seqlen_q = sequence(cu_seqlens_q, batch, total_q, max_seqlen_q)
    k_start, seqlen_k = sequence(cu_seqlens_k, batch, total_k, max_seqlen_k)
    rows = first_row + tl.arange(0, BLOCK_M)
    is_row = rows < seqlen_q
    index = rows_index(cu_seqlens_q, batch, q_start, head, num_heads, total_q, max_seqlen_q) + rows
    value = tl.load(lse + index, mask=is_row, other=0.0)
    is_far = (tl.abs(value) > FAR_LSE) & (tl.abs(value) <= -MINIMUM)
    maximum, total = tl.zeros([BLOCK_M], tl.float32) + MINIMUM, tl.zeros([BLOCK_M], tl.float32)
    if tl.max(is_far.to(tl.int32), 0) > 0:
        rule = Rule(seqlen_q, seqlen_k, left, right, sink_size, scale, cap_log2, slopes,
                    alibi_slope(slopes, batch, slopes_batch, head), bias, bias_address(bias, batch, q_start, head),
                    None, 0)
        q_tile = load_rows(address(q, batch, q_start, head), first_row, q.row, is_row, BLOCK_M, DIM, BLOCK_D)
        keys_at = address(k, batch, k_start, head // group_size)
        for first_key in range(0, seqlen_k, BLOCK_N):
            keys = first_key + tl.arange(0, BLOCK_N)
            visible = is_visible(rule, rows[:, None], keys[None, :])
            k_tile = load_rows(keys_at, first_key, k.row, keys < seqlen_k, BLOCK_N, DIM, BLOCK_D)
            score, _ = score_of(rule, tl.dot(q_tile, tl.trans(k_tile)), rows[:, None], keys[None, :], visible, True)
            score = tl.where(visible, score, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(score, 1))
            total = total * tl.exp2(maximum - new_maximum) + tl.sum(tl.exp2(score - new_maximum[:, None]), 1)
            maximum = new_maximum
        if sink is not None:
            own = sink_score(tl.load(sink + head), True)
            new_maximum = tl.maximum(maximum, own)
            total = total * tl.exp2(maximum - new_maximum) + tl.exp2(own - new_maximum)
            maximum = new_maximum
    is_padded = rows < tl.cdiv(seqlen_q, PADDING) * PADDING
    place = scratch_index(cu_seqlens_q, batch, q_start, head, num_heads, scratch_rows) + rows
    tl.store(highest + place, tl.where(is_far, maximum, value * LOG2_E), mask=is_padded)
    tl.store(rests + place, tl.where(is_far, tl.log2(total), 0.0), mask=is_padded)


def far(call: AttentionBackwardCall, highest: Tensor, rests: Tensor, limits: tuple, scales: tuple,
        block_d: int) -> Launch:
    """The launch of _far_kernel, which writes `highest` and `rests`, [heads, rows] as scratch_index has them.

    Args:
        limits: left and right of the window, None where it limits nothing.
        scales: scale and cap_log2 of a Rule.
        block_d: head dimension as the kernels hold it.
    """
    forward, block = call.forward, min(8192 // block_d, 64)
    blocks = triton.cdiv(call.max_seqlen_q, PADDING.value) * (PADDING.value // block)
    return launch(
        _far_kernel, (blocks, forward.num_heads, forward.batch), highest, rests, call.lse, call.q, call.k, call.bias,
        call.alibi_slopes, call.sink, call.cu_seqlens_q, call.cu_seqlens_k,
        (strides_of_rows(call.q), strides_of_rows(call.k)), strides_of_bias(call.bias),
        stride_of_batch(call.alibi_slopes), highest.shape[1], forward.num_heads,
        forward.num_heads // max(forward.num_kv_heads, 1), call.q.shape[0], call.k.shape[0], call.max_seqlen_q,
        call.max_seqlen_k, *limits, call.sink_size, *scales, DIM=forward.head_dim, BLOCK_D=block_d, BLOCK_M=block,
        BLOCK_N=block, options={"num_warps": 4})
