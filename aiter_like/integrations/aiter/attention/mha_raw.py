# SPDX-License-Identifier: MIT
"""AITER's calls of attention by the names of its kernels, on those of mha.py, and flash_attn_func as it takes its
arguments. Named by names.txt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.dispatch.public import public
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import mha

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


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


def fmha_v3_fwd(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, is_causal: bool,
        window_size_left: int, window_size_right: int, return_softmax_lse: bool, return_dropout_randval: bool,
        how_v3_bf16_cvt: int, out: Tensor | None = None, bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
        v_descale: Tensor | None = None, gen: torch.Generator | None = None) -> _Four:
    """`_flash_attn_forward` in another order, by any of our kernels. `gen` must be None."""
    _refuse("fmha_v3_fwd", gen=gen is not None)
    return mha.flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right, 0, bias, alibi_slopes,
        q_descale, k_descale, v_descale, return_softmax_lse, return_dropout_randval, how_v3_bf16_cvt, out=out)


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
    _refuse("fmha_v3_varlen_fwd", gen=gen is not None)
    return mha.flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded, max_seqlen_q, max_seqlen_k,
        min_seqlen_q, dropout_p, softmax_scale, is_causal, logits_soft_cap, window_size_left, window_size_right, 0,
        bias, alibi_slopes, q_descale, k_descale, v_descale, return_softmax_lse, return_dropout_randval,
        how_v3_bf16_cvt, block_table, out, zero_tensors)


def fmha_v3_bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dropout_p: float,
        softmax_scale: float, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
        is_v3_atomic_fp32: bool, how_v3_bf16_cvt: int, dq: Tensor | None = None, dk: Tensor | None = None,
        dv: Tensor | None = None, alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None,
        gen: torch.Generator | None = None) -> _Four:
    """`mha_bwd`, whose results do not depend on `is_v3_atomic_fp32` and `how_v3_bf16_cvt`."""
    return mha.mha_bwd(
        dout, q, k, v, out, softmax_lse, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right,
        deterministic, dq, dk, dv, None, None, alibi_slopes, rng_state, gen)


def fmha_v3_varlen_bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float,
        zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
        is_v3_atomic_fp32: bool, how_v3_bf16_cvt: int, dq: Tensor | None = None, dk: Tensor | None = None,
        dv: Tensor | None = None, alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None,
        gen: torch.Generator | None = None, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None) -> _Four:
    """`mha_varlen_bwd`, whose results do not depend on `is_v3_atomic_fp32` and `how_v3_bf16_cvt`."""
    return mha.mha_varlen_bwd(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, deterministic, dq, dk, dv,
        alibi_slopes, rng_state, gen, cu_seqlens_q_padded, cu_seqlens_k_padded)


def flash_attn_onekernel_backward(
        do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, softmax_lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
        dbias: Tensor | None, sm_scale: float, alibi_slopes: Tensor | None, causal: bool, cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
        philox_seed: int | None = 0, philox_offset: int | None = 0, descale_q: Tensor | None = None,
        descale_k: Tensor | None = None, descale_v: Tensor | None = None, descale_do: Tensor | None = None,
        USE_INT64_STRIDES: bool | None = False, sink: Tensor | None = None, dsink: Tensor | None = None,
        config: dict[str, Any] | None = None, sliding_window: int = 0) -> Tensor:
    """`mha_bwd`, with `cu_seqlens_q` `mha_varlen_bwd`, as AITER's Triton module has it: dq, dk and dv are written,
    and Σ do · o of each row is returned. `USE_INT64_STRIDES` and `config`, of AITER's kernel, have no meaning.

    Args:
        softmax_lse: fp32 [batch, num_heads, seqlen_q], of packed sequences [total_q, num_heads].
        dropout_p: 0: what was dropped follows from a generator of AITER's.
        dsink: fp32 [num_heads], to which the derivative of `sink` is added.
        sliding_window: above 0, a query sees that many keys before its own.
    """
    op = "flash_attn_onekernel_backward"
    check.integer(op, "sliding_window", sliding_window, 0)
    return _triton_backward(op, do, q, k, v, o, softmax_lse, (dq, dk, dv), dbias, sm_scale, alibi_slopes, causal,
                            (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), dropout_p,
                            (descale_q, descale_k, descale_v, descale_do), sink, dsink, sliding_window or -1)


def flash_attn_fused_backward(
        do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, softmax_lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
        dbias: Tensor | None, sm_scale: float, alibi_slopes: Tensor | None, causal: bool, cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
        philox_seed: int | None = 0, philox_offset: int | None = 0, descale_q: Tensor | None = None,
        descale_k: Tensor | None = None, descale_v: Tensor | None = None, descale_do: Tensor | None = None,
        USE_INT64_STRIDES: bool | None = False, config: dict[str, Any] | None = None) -> Tensor:
    """`flash_attn_onekernel_backward` without sinks and windows."""
    return _triton_backward("flash_attn_fused_backward", do, q, k, v, o, softmax_lse, (dq, dk, dv), dbias, sm_scale,
                            alibi_slopes, causal, (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), dropout_p,
                            (descale_q, descale_k, descale_v, descale_do), None, None, -1)


def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        cache_seqlens: Tensor | int | None = None, softmax_scale: float | None = None, causal: bool = True,
        window_size: Sequence[int] | Tensor | None = (-1, -1), softcap: float = 0.0, num_splits: int = 0,
        rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None, block_table: Tensor | None = None, alibi_slopes: Tensor | None = None,
        rotary_interleaved: bool = True, return_softmax_lse: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """`aiter_like.flash_attn_with_kvcache` with the parameters of FlashAttention-2; `alibi_slopes` must be None."""
    _refuse("flash_attn_with_kvcache", alibi_slopes=alibi_slopes is not None)
    return aiter_like.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, softmax_scale=softmax_scale, causal=causal,
        window_size=_numbers(window_size), softcap=softcap, num_splits=num_splits,
        return_softmax_lse=return_softmax_lse, page_table=block_table, cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved)


def _triton_backward(op: str, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, softmax_lse: Tensor,
                     grads: tuple[Tensor, Tensor, Tensor], dbias: Tensor | None, scale: float,
                     alibi_slopes: Tensor | None, causal: bool, lengths: tuple, dropout_p: float, scales: tuple,
                     sink: Tensor | None, dsink: Tensor | None, left: int) -> Tensor:
    _refuse(op, dbias=dbias is not None, dropout_p=dropout_p != 0,
            descale_q=any(one is not None for one in scales))
    for name, grad in zip(("dq", "dk", "dv"), grads):
        check.tensor(op, name, grad)
    if lengths[0] is None:
        return mha.mha_bwd(do, q, k, v, o, softmax_lse, 0.0, scale, causal, left, -1, True, *grads, None, None,
                                 alibi_slopes, None, None, sink, dsink)[3]
    check.tensor(op, "softmax_lse", softmax_lse, rank=2, last_contiguous=False)
    found = mha.mha_varlen_bwd(do, q, k, v, o, softmax_lse.t().contiguous(), *lengths, 0.0, scale, False, causal,
                                     left, -1, True, *grads, alibi_slopes, None, None, None, None, sink, dsink)[3]
    return found.t().contiguous()


def _numbers(window: Sequence[int] | Tensor | None) -> Sequence[int] | None:
    return window.tolist() if isinstance(window, Tensor) else window


def _refuse(op: str, **asked: bool) -> None:
    """Raises where one of them is asked for."""
    reasons = {name: "not supported" for name, is_asked in asked.items() if is_asked}
    if reasons:
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)}", op, reasons)


fmha_v3_fwd, fmha_v3_varlen_fwd = public("fmha_v3_fwd", fmha_v3_fwd), public("fmha_v3_varlen_fwd", fmha_v3_varlen_fwd)
fmha_v3_bwd, fmha_v3_varlen_bwd = public("fmha_v3_bwd", fmha_v3_bwd), public("fmha_v3_varlen_bwd", fmha_v3_varlen_bwd)
flash_attn_onekernel_backward = public("flash_attn_onekernel_backward", flash_attn_onekernel_backward)
flash_attn_fused_backward = public("flash_attn_fused_backward", flash_attn_fused_backward)
flash_attn_with_kvcache = public("flash_attn_with_kvcache", flash_attn_with_kvcache)
