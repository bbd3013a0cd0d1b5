# SPDX-License-Identifier: MIT
"""AITER's calls below flash_attn_func: forward with everything that its derivative needs. On flash_attn_fwd; read by
mha_backward.py, which has the derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.dispatch.public import public
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.attention.call import FP8, AttentionCall
from aiter_like.ops.attention.checks import AITER_ROUNDING, read_window
from aiter_like.ops.attention.dropout_randval import dropout_randval
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.ops.attention.padding import for_padding_too, with_padding
from aiter_like.ops.common.contents import check_lengths

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _flash_attn_forward(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, sink_size: int, bias: Tensor | None, alibi_slopes: Tensor | None,
        q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None, return_lse: bool,
        return_softmax: bool, how_v3_bf16_cvt: int | None = AITER_ROUNDING, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None, sink_ptr: Tensor | None = None, out: Tensor | None = None,
        num_splits: int = 0) -> _Four:
    """`flash_attn_func` of bf16, fp16 or, with scales, fp8.

    Returns:
        out, by default new and bf16 of fp8; with `return_lse` the log-sum-exp [batch, num_heads, seqlen_q] fp32, else
        no element; with `return_softmax` what dropout drew for each score, as of `dropout_randval`, else no element;
        int64 [2], what those bytes follow from.

    Raises:
        ValueError: `return_softmax` without dropout, or arguments that do not fit.
        UnsupportedError: dropout beside lengths, or no backend serves the call.
    """
    op = "_flash_attn_forward"
    check.tensor(op, "q", q, rank=4)
    check.tensor(op, "v", v, rank=4)
    _check_dropout(op, dropout_p, return_softmax)
    if cu_seqlens_q is not None or cu_seqlens_kv is not None:
        refuse(op, "beside cu_seqlens_q and cu_seqlens_kv", dropout_p=dropout_p != 0, q_descale=q_descale is not None)
        found = aiter_like.flash_attn_func(
            q, k, v, 0.0, softmax_scale, causal, (window_size_left, window_size_right, sink_size), bias, alibi_slopes,
            return_lse=True, how_v3_bf16_cvt=rounding_or_default(how_v3_bf16_cvt), cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_kv=cu_seqlens_kv, sink_ptr=sink_ptr, num_splits=num_splits, out=out)
        return _four(found[0], found[1] if return_lse else None, None)
    batch, seqlen_q, num_heads, _ = q.shape
    return _forward(
        op, out, q, k, v, (batch, num_heads, seqlen_q), return_lse, return_softmax, dropout_p,
        (window_size_left, window_size_right, sink_size), causal, max_seqlen_q=seqlen_q, max_seqlen_k=v.shape[1],
        softmax_scale=softmax_scale, bias=four_dimensional(bias),
        alibi_slopes=alibi_slopes, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, sink=sink_ptr,
        num_splits=num_splits, how_v3_bf16_cvt=rounding_or_default(how_v3_bf16_cvt))


@aiter("aiter aiter.ops.mha")
def mha_fwd(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, is_causal: bool,
        window_size_left: int, window_size_right: int, sink_size: int, return_softmax_lse: bool,
        return_dropout_randval: bool, cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None,
        out: Tensor | None = None, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
        q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
        sink_ptr: Tensor | None = None, gen: torch.Generator | None = None) -> _Four:
    """`_flash_attn_forward` in another order. `gen` must be None: dropout draws from torch's own of the device."""
    refuse("mha_fwd", "of its own", gen=gen is not None)
    return _flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right, sink_size, bias,
        alibi_slopes, q_descale, k_descale, v_descale, return_softmax_lse, return_dropout_randval, AITER_ROUNDING,
        cu_seqlens_q, cu_seqlens_kv, sink_ptr, out)


def _flash_attn_varlen_forward(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
        cu_seqlens_q_padded: Tensor | None, cu_seqlens_k_padded: Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
        min_seqlen_q: int, dropout_p: float, softmax_scale: float, causal: bool, logits_soft_cap: float = 0.0,
        window_size_left: int = -1, window_size_right: int = -1, sink_size: int = 0, bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
        v_descale: Tensor | None = None, return_lse: bool = False, return_softmax: bool = False,
        how_v3_bf16_cvt: int | None = AITER_ROUNDING, block_table: Tensor | None = None, out: Tensor | None = None,
        zero_tensors: bool = False, sink_ptr: Tensor | None = None) -> _Four:
    """`flash_attn_varlen_func` of bf16, fp16 or, with scales, fp8; what it returns: as `_flash_attn_forward`, with a
    log-sum-exp of [num_heads, total_q].

    Args:
        zero_tensors: rows of no sequence become 0.
    """
    op, window = "_flash_attn_varlen_forward", (window_size_left, window_size_right, sink_size)
    check.tensor(op, "q", q, rank=3)
    check.tensor(op, "v", v, rank=3 if block_table is None else 4)
    check_starts(op, cu_seqlens_q, cu_seqlens_k)
    _check_dropout(op, dropout_p, return_softmax)
    if block_table is not None:
        refuse(op, "beside block_table", dropout_p=dropout_p != 0, q_descale=q_descale is not None,
                zero_tensors=zero_tensors)
        found = aiter_like.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q, 0.0, softmax_scale,
            logits_soft_cap, causal, window, bias, alibi_slopes, return_lse=True,
            how_v3_bf16_cvt=rounding_or_default(how_v3_bf16_cvt), block_table=block_table, out=out,
            cu_seqlens_q_padded=cu_seqlens_q_padded, cu_seqlens_k_padded=cu_seqlens_k_padded, sink_ptr=sink_ptr)
        return _four(found[0], found[1] if return_lse else None, None)
    lengths = packed_lengths(op, q, v, cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded,
                             max_seqlen_q, max_seqlen_k, alibi_slopes)
    return _forward(
        op, out, q, k, v, (q.shape[1], len(q)), return_lse, return_softmax, dropout_p, window, causal,
        softmax_scale=softmax_scale, softcap=logits_soft_cap, bias=bias, q_descale=q_descale, k_descale=k_descale,
        v_descale=v_descale, sink=sink_ptr, how_v3_bf16_cvt=rounding_or_default(how_v3_bf16_cvt),
        zero_tensors=zero_tensors, **lengths)


@aiter("aiter aiter.ops.mha")
def mha_varlen_fwd(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, min_seqlen_q: int, dropout_p: float, softmax_scale: float, logits_soft_cap: float,
        zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, sink_size: int,
        return_softmax_lse: bool, return_dropout_randval: bool, out: Tensor | None = None,
        block_table: Tensor | None = None, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
        q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
        gen: torch.Generator | None = None, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None, sink_ptr: Tensor | None = None) -> _Four:
    """`_flash_attn_varlen_forward` in another order. `gen` must be None, as in `mha_fwd`."""
    refuse("mha_varlen_fwd", "of its own", gen=gen is not None)
    return _flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded, max_seqlen_q, max_seqlen_k,
        min_seqlen_q, dropout_p, softmax_scale, is_causal, logits_soft_cap, window_size_left, window_size_right,
        sink_size, bias, alibi_slopes, q_descale, k_descale, v_descale, return_softmax_lse, return_dropout_randval,
        AITER_ROUNDING, block_table, out, zero_tensors, sink_ptr)


@aiter("aiter.ops.mha")
def fmha_fwd_bf16_opus_fwd(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool,
                           out: Tensor | None = None) -> Tensor:
    """`flash_attn_func`, by any of our kernels: AITER's of this name is for gfx950."""
    return aiter_like.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, out=out)


@aiter("aiter.ops.mha")
def fmha_fwd_bf16_opus_varlen_fwd(
        q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool, seqstart_q: Tensor, seqstart_k: Tensor,
        max_seqlen_q: int, max_seqlen_k: int, out: Tensor | None = None, seqstart_q_pad: Tensor | None = None,
        seqstart_k_pad: Tensor | None = None) -> Tensor:
    """`flash_attn_varlen_func`, by any of our kernels: AITER's of this name is for gfx950."""
    return aiter_like.flash_attn_varlen_func(
        q, k, v, seqstart_q, seqstart_k, max_seqlen_q, max_seqlen_k, softmax_scale=softmax_scale, causal=causal,
        out=out, cu_seqlens_q_padded=seqstart_q_pad, cu_seqlens_k_padded=seqstart_k_pad)


def _forward(op: str, out: Tensor | None, q: Tensor, k: Tensor, v: Tensor, lse_shape: tuple[int, ...],
             return_lse: bool, return_softmax: bool, dropout_p: float, window: tuple[int, int, int], causal: bool,
             zero_tensors: bool = False, **fields: Any) -> _Four:
    rng_state = torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64, device=q.device) if dropout_p else None
    left, right, sink_size = read_window(op, window, causal)
    if out is None:
        out = q.new_empty(*q.shape[:-1], v.shape[-1], dtype=torch.bfloat16 if q.dtype in FP8 else q.dtype)
    lse = q.new_empty(lse_shape, dtype=torch.float32) if return_lse else None
    call = AttentionCall(out, lse, q, k, v, window_left=left, window_right=right, sink_size=sink_size,
                         dropout_p=dropout_p, rng_state=rng_state, **fields)
    with torch.no_grad():
        if zero_tensors:
            flash_attn_fwd.prepare(*call)
            out.zero_()
        flash_attn_fwd(call)
    randval = dropout_randval(rng_state, dropout_p, (*lse_shape, call.max_seqlen_k),
                              call.cu_seqlens_q) if return_softmax else None
    return _four(out, lse, rng_state, randval)


def check_starts(op: str, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    check.tensor(op, "cu_seqlens_q", cu_seqlens_q, rank=1)
    check.tensor(op, "cu_seqlens_k", cu_seqlens_k, rank=1, shape=cu_seqlens_q.shape)


def _check_dropout(op: str, dropout_p: float, return_softmax: bool) -> None:
    check.real(op, "dropout_p", dropout_p, low=0.0)
    check.flag(op, "return_softmax", return_softmax)
    if return_softmax and not dropout_p:
        raise ValueError(f"{op}: return_softmax must be False where dropout_p is 0, got True")


def packed_lengths(op: str, q: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, padded_q: Tensor | None,
                   padded_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int,
                   alibi_slopes: Tensor | None) -> dict[str, Any]:
    """Checks the lengths of packed sequences; the fields of a call that say where they are, padding included."""
    check_lengths(op, "cu_seqlens_q", starts_q, len(q), max_seqlen_q)
    check_lengths(op, "cu_seqlens_k", starts_k, len(v), max_seqlen_k)
    if padded_q is not None and padded_q is not starts_q or padded_k is not None and padded_k is not starts_k:
        starts_q = with_padding(op, "cu_seqlens_q", starts_q, padded_q, len(q))
        starts_k = with_padding(op, "cu_seqlens_k", starts_k, padded_k, len(v))
        alibi_slopes = for_padding_too(alibi_slopes)
    return {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "max_seqlen_q": max_seqlen_q,
            "max_seqlen_k": max_seqlen_k, "alibi_slopes": alibi_slopes}


def _four(out: Tensor, lse: Tensor | None, rng_state: Tensor | None, randval: Tensor | None = None) -> _Four:
    return (out, out.new_empty(0, dtype=torch.float32) if lse is None else lse,
            out.new_empty(0, dtype=torch.uint8) if randval is None else randval,
            out.new_zeros(2, dtype=torch.int64) if rng_state is None else rng_state)


def four_dimensional(bias: Tensor | None) -> Tensor | None:
    """A bias of one matrix, which is for every sequence and head, as the operators take it."""
    return bias[None, None] if isinstance(bias, Tensor) and bias.ndim == 2 else bias


def rounding_or_default(how_v3_bf16_cvt: int | None) -> int:
    return AITER_ROUNDING if how_v3_bf16_cvt is None else how_v3_bf16_cvt


def refuse(op: str, beside: str, **asked: bool) -> None:
    """Raises where one of them is asked for."""
    reasons = {name: f"not {beside}" for name, is_asked in asked.items() if is_asked}
    if reasons:
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)} {beside}", op, reasons)


flash_attn_forward = public("_flash_attn_forward", _flash_attn_forward)
flash_attn_varlen_forward = public("_flash_attn_varlen_forward", _flash_attn_varlen_forward)
mha_fwd, mha_varlen_fwd = public("mha_fwd", mha_fwd), public("mha_varlen_fwd", mha_varlen_fwd)
fmha_fwd_bf16_opus_fwd = public("fmha_fwd_bf16_opus_fwd", fmha_fwd_bf16_opus_fwd)
fmha_fwd_bf16_opus_varlen_fwd = public("fmha_fwd_bf16_opus_varlen_fwd", fmha_fwd_bf16_opus_varlen_fwd)
