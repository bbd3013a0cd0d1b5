# SPDX-License-Identifier: MIT
"""Attention of fp8 tensors with a scale each: flash_attn_fp8_pertensor_func and its form for packed sequences. The
operator behind them: ops/attention/flash_attn_fwd.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.attention.checks import read_window
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.ops.common.contents import check_lengths

__all__ = ["flash_attn_fp8_pertensor_func", "flash_attn_varlen_fp8_pertensor_func"]


def flash_attn_fp8_pertensor_func(
        q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None,
        causal: bool = False, window_size: Sequence[int] | None = (-1, -1, 0), softmax_scale: float | None = None,
        sink_ptr: Tensor | None = None, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Attention of dense fp8 tensors. Like `flash_attn_func` of q · q_descale, k · k_descale and v · v_descale.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim], the device's e4m3, last dimension contiguous, other strides free.
        q_descale, k_descale, v_descale: fp32 [1], what the elements are multiplied by; None: 1.
        out: [batch, seqlen_q, num_heads, head_dim_v] bf16|fp16 to write; default: a new one, bf16.

    Notes:
        Scores, softmax and sums in fp32; P may be rounded to e4m3. Deterministic.
    """
    op = "flash_attn_fp8_pertensor_func"
    check.tensor(op, "q", q, rank=4)
    check.tensor(op, "v", v, rank=4)
    left, right, sink_size = read_window(op, window_size, causal)
    if out is None:
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=torch.bfloat16, device=q.device)
    scale = max(q.shape[3], 1) ** -0.5 if softmax_scale is None else softmax_scale
    flash_attn_fwd.run(
        out, None, q=q, k=k, v=v, sink=sink_ptr, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        max_seqlen_q=q.shape[1], max_seqlen_k=v.shape[1], softmax_scale=scale, window_left=left, window_right=right,
        sink_size=sink_size, backend=backend)
    return out


def flash_attn_varlen_fp8_pertensor_func(
        q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None,
        cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, min_seqlen_q: int = 0,
        logits_soft_cap: float = 0.0, causal: bool = False, window_size: Sequence[int] | None = (-1, -1, 0),
        softmax_scale: float | None = None, sink_ptr: Tensor | None = None, *, out: Tensor | None = None,
        backend: str | None = None) -> Tensor:
    """Attention of packed fp8 sequences. Like `flash_attn_varlen_func` of q · q_descale, k · k_descale, v · v_descale.

    Args:
        q: [total_q, num_heads, head_dim], the device's e4m3, last dimension contiguous, other strides free.
        q_descale, k_descale, v_descale: fp32 [1], what the elements are multiplied by; None: 1.
        out: [total_q, num_heads, head_dim_v] bf16|fp16 to write; default: a new one, bf16.

    Returns:
        `out`. Rows of no sequence are not written.

    Notes:
        Scores, softmax and sums in fp32; P may be rounded to e4m3. Deterministic.
    """
    op = "flash_attn_varlen_fp8_pertensor_func"
    check.tensor(op, "q", q, rank=3)
    check.tensor(op, "v", v, rank=3)
    check_lengths(op, "cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    check_lengths(op, "cu_seqlens_k", cu_seqlens_k, len(v), max_seqlen_k)
    left, right, sink_size = read_window(op, window_size, causal)
    if out is None:
        out = torch.empty(*q.shape[:2], v.shape[2], dtype=torch.bfloat16, device=q.device)
    scale = max(q.shape[2], 1) ** -0.5 if softmax_scale is None else softmax_scale
    flash_attn_fwd.run(
        out, None, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, sink=sink_ptr,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, softmax_scale=scale, window_left=left, window_right=right, sink_size=sink_size,
        softcap=logits_soft_cap, backend=backend)
    return out


flash_attn_fwd.public += [flash_attn_fp8_pertensor_func, flash_attn_varlen_fp8_pertensor_func]
