# SPDX-License-Identifier: MIT
"""AITER's calls of attention by the names of its kernels, on those of mha.py and mha_backward.py, and
flash_attn_func as it takes its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like.dispatch.public import public
from aiter_like.integrations.aiter.attention import mha, mha_backward
from aiter_like.integrations.aiter.declare import aiter

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


@aiter("aiter aiter.ops.mha", callers="S")
def flash_attn_func(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, window_size: Sequence[int] | Tensor | None = (-1, -1, 0), bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None, deterministic: bool = True, return_lse: bool = False,
        return_attn_probs: bool = False, how_v3_bf16_cvt: int = 1, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None, sink_ptr: Tensor | None = None, num_splits: int = 0,
        **options: Any) -> Tensor | tuple[Tensor, ...]:
    """`aiter_like.flash_attn_func` with its further options; `window_size` may be a tensor, as it may in AITER."""
    return aiter_like.flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, _numbers(window_size), bias, alibi_slopes, deterministic, return_lse,
        return_attn_probs, how_v3_bf16_cvt, cu_seqlens_q, cu_seqlens_kv, sink_ptr, num_splits, **options)


@aiter("aiter aiter.ops.mha", callers="V s")
def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, min_seqlen_q: int = 0, dropout_p: float = 0.0, softmax_scale: float | None = None,
        logits_soft_cap: float = 0.0, causal: bool = False, window_size: Sequence[int] | Tensor | None = (-1, -1, 0),
        bias: Tensor | None = None, alibi_slopes: Tensor | None = None, deterministic: bool = False,
        return_lse: bool = False, return_attn_probs: bool = False, how_v3_bf16_cvt: int = 1,
        block_table: Tensor | None = None, out: Tensor | None = None, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None, sink_ptr: Tensor | None = None,
        **options: Any) -> Tensor | tuple[Tensor, ...]:
    """`aiter_like.flash_attn_varlen_func` with its further options; `window_size` may be a tensor, as in AITER."""
    return aiter_like.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q, dropout_p, softmax_scale,
        logits_soft_cap, causal, _numbers(window_size), bias, alibi_slopes, deterministic, return_lse,
        return_attn_probs, how_v3_bf16_cvt, block_table, out, cu_seqlens_q_padded, cu_seqlens_k_padded, sink_ptr,
        **options)


@aiter("aiter aiter.ops.mha")
def fmha_v3_fwd(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, is_causal: bool,
        window_size_left: int, window_size_right: int, return_softmax_lse: bool, return_dropout_randval: bool,
        how_v3_bf16_cvt: int, out: Tensor | None = None, bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
        v_descale: Tensor | None = None, gen: torch.Generator | None = None) -> _Four:
    """`_flash_attn_forward` in another order, by any of our kernels. `gen` must be None."""
    mha.refuse("fmha_v3_fwd", "of its own", gen=gen is not None)
    return mha.flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right, 0, bias, alibi_slopes,
        q_descale, k_descale, v_descale, return_softmax_lse, return_dropout_randval, how_v3_bf16_cvt, out=out)


@aiter("aiter aiter.ops.mha")
def fmha_v3_varlen_fwd(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, max_seqlen_q: int,
        max_seqlen_k: int, min_seqlen_q: int, dropout_p: float, softmax_scale: float, logits_soft_cap: float,
        zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, return_softmax_lse: bool,
        return_dropout_randval: bool, how_v3_bf16_cvt: int, out: Tensor | None = None,
        block_table: Tensor | None = None, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
        q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
        gen: torch.Generator | None = None, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None) -> _Four:
    """`_flash_attn_varlen_forward` in another order, by any of our kernels. `gen` must be None."""
    mha.refuse("fmha_v3_varlen_fwd", "of its own", gen=gen is not None)
    return mha.flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded, max_seqlen_q, max_seqlen_k,
        min_seqlen_q, dropout_p, softmax_scale, is_causal, logits_soft_cap, window_size_left, window_size_right, 0,
        bias, alibi_slopes, q_descale, k_descale, v_descale, return_softmax_lse, return_dropout_randval,
        how_v3_bf16_cvt, block_table, out, zero_tensors)


@aiter("aiter aiter.ops.mha")
def fmha_v3_bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dropout_p: float,
        softmax_scale: float, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
        is_v3_atomic_fp32: bool, how_v3_bf16_cvt: int, dq: Tensor | None = None, dk: Tensor | None = None,
        dv: Tensor | None = None, alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None,
        gen: torch.Generator | None = None) -> _Four:
    """`mha_bwd`, whose results do not depend on `is_v3_atomic_fp32` and `how_v3_bf16_cvt`."""
    mha_backward.check_kernel_options("fmha_v3_bwd", is_v3_atomic_fp32, how_v3_bf16_cvt)
    return mha_backward.mha_bwd(
        dout, q, k, v, out, softmax_lse, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right,
        deterministic, dq, dk, dv, None, None, alibi_slopes, rng_state, gen)


@aiter("aiter aiter.ops.mha")
def fmha_v3_varlen_bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float,
        zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
        is_v3_atomic_fp32: bool, how_v3_bf16_cvt: int, dq: Tensor | None = None, dk: Tensor | None = None,
        dv: Tensor | None = None, alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None,
        gen: torch.Generator | None = None, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None) -> _Four:
    """`mha_varlen_bwd`, whose results do not depend on `is_v3_atomic_fp32` and `how_v3_bf16_cvt`."""
    mha_backward.check_kernel_options("fmha_v3_varlen_bwd", is_v3_atomic_fp32, how_v3_bf16_cvt)
    return mha_backward.mha_varlen_bwd(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, deterministic, dq, dk, dv,
        alibi_slopes, rng_state, gen, cu_seqlens_q_padded, cu_seqlens_k_padded)


def _numbers(window: Sequence[int] | Tensor | None) -> Sequence[int] | None:
    return window.tolist() if isinstance(window, Tensor) else window


fmha_v3_fwd, fmha_v3_varlen_fwd = public("fmha_v3_fwd", fmha_v3_fwd), public("fmha_v3_varlen_fwd", fmha_v3_varlen_fwd)
fmha_v3_bwd, fmha_v3_varlen_bwd = public("fmha_v3_bwd", fmha_v3_bwd), public("fmha_v3_varlen_bwd", fmha_v3_varlen_bwd)
