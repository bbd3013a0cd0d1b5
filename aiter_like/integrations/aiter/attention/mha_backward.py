# SPDX-License-Identifier: MIT
"""AITER's calls for the derivative of attention, which no autograd sees. On the operators flash_attn_bwd and
flash_attn_dbias.

Read by mha_raw.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.dispatch.public import public
from aiter_like.integrations.aiter.attention.mha import (
    check_starts,
    four_dimensional,
    packed_lengths,
    refuse,
    rounding_or_default,
)
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.attention.call import FLOATS, AttentionBackwardCall, dbias_call
from aiter_like.ops.attention.checks import AITER_ROUNDING, read_window
from aiter_like.ops.attention.flash_attn_bwd import flash_attn_bwd
from aiter_like.ops.attention.flash_attn_dbias import flash_attn_dbias

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _flash_attn_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
        dk: Tensor | None, dv: Tensor | None, dbias: Tensor | None, dropout_p: float, softmax_scale: float,
        causal: bool, window_size_left: int, window_size_right: int, bias: Tensor | None,
        alibi_slopes: Tensor | None, deterministic: bool, rng_state: Tensor | None = None,
        is_v3_atomic_fp32: bool | None = True, how_v3_bf16_cvt: int | None = AITER_ROUNDING,
        sink: Tensor | None = None, d_sink: Tensor | None = None) -> Tensor:
    """The derivative of `_flash_attn_forward`; its results do not depend on `is_v3_atomic_fp32` and `how_v3_bf16_cvt`,
    which choose among AITER's kernels.

    Args:
        dout, q, k, v, out: of any strides.
        dq, dk, dv: written, each where it is given.
        dbias: of the shape and dtype of `bias`; written where it is given: the sum over sequences and heads.
        deterministic: results repeat bit for bit; else `dq` may differ in its last bits.
        sink: fp32 [num_heads], or [batch, num_heads] of less than 4096 in size.
        d_sink: fp32 [num_heads], to which the derivative of `sink` is added, of all sequences.

    Returns:
        fp32 [batch, num_heads, seqlen_q]: (1 − dropout_p) · Σ dout · out of each row.
    """
    check_kernel_options("_flash_attn_backward", is_v3_atomic_fp32, how_v3_bf16_cvt)
    return mha_bwd(*_with_rows(dout, q, k, v, out), softmax_lse, dropout_p, softmax_scale, causal, window_size_left,
                   window_size_right, deterministic, dq, dk, dv, dbias, bias, alibi_slopes, rng_state, None, sink,
                   d_sink)[3]


@aiter("aiter aiter.ops.mha")
def mha_bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dropout_p: float,
        softmax_scale: float, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
        dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None, dbias: Tensor | None = None,
        bias: Tensor | None = None, alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None,
        gen: torch.Generator | None = None, sink: Tensor | None = None, d_sink: Tensor | None = None) -> _Four:
    """`_flash_attn_backward`, with new tensors where none are given: (dq, dk, dv, Σ dout · out)."""
    op = "mha_bwd"
    check.tensor(op, "q", q, rank=4, dtypes=FLOATS)
    check.tensor(op, "v", v, rank=4)
    refuse(op, "of its own", gen=gen is not None)
    if dbias is not None:
        check.tensor(op, "bias", bias, last_contiguous=False)
        check.tensor(op, "dbias", dbias, dtypes=(bias.dtype,), shape=bias.shape, device=q.device, last_contiguous=False)
    return _backward(
        op, (dq, dk, dv, four_dimensional(dbias)), dout, q, k, v, out, softmax_lse, len(q),
        (window_size_left, window_size_right), is_causal, dropout_p, rng_state, sink, d_sink,
        deterministic=bool(deterministic), max_seqlen_q=q.shape[1], max_seqlen_k=v.shape[1],
        softmax_scale=softmax_scale, alibi_slopes=alibi_slopes, bias=four_dimensional(bias))


def _flash_attn_varlen_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
        dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
        window_size_right: int, alibi_slopes: Tensor | None, deterministic: bool, rng_state: Tensor | None = None,
        is_v3_atomic_fp32: bool | None = True, how_v3_bf16_cvt: int | None = AITER_ROUNDING,
        zero_tensors: bool = False, cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_k_padded: Tensor | None = None, sink: Tensor | None = None, d_sink: Tensor | None = None) -> Tensor:
    """The derivative of `_flash_attn_varlen_forward`; as `_flash_attn_backward`.

    Args:
        zero_tensors: rows of no sequence become 0.

    Returns:
        fp32 [num_heads, total_q].
    """
    check_kernel_options("_flash_attn_varlen_backward", is_v3_atomic_fp32, how_v3_bf16_cvt)
    return mha_varlen_bwd(
        *_with_rows(dout, q, k, v, out), softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right, deterministic, dq, dk, dv,
        alibi_slopes, rng_state, None, cu_seqlens_q_padded, cu_seqlens_k_padded, sink, d_sink)[3]


@aiter("aiter aiter.ops.mha")
def mha_varlen_bwd(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float,
        zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, deterministic: bool,
        dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None,
        alibi_slopes: Tensor | None = None, rng_state: Tensor | None = None, gen: torch.Generator | None = None,
        cu_seqlens_q_padded: Tensor | None = None, cu_seqlens_k_padded: Tensor | None = None,
        sink: Tensor | None = None, d_sink: Tensor | None = None) -> _Four:
    """`_flash_attn_varlen_backward`, with new tensors where none are given: (dq, dk, dv, Σ dout · out)."""
    op = "mha_varlen_bwd"
    check.tensor(op, "q", q, rank=3, dtypes=FLOATS)
    check.tensor(op, "v", v, rank=3)
    check_starts(op, cu_seqlens_q, cu_seqlens_k)
    refuse(op, "of its own", gen=gen is not None)
    lengths = packed_lengths(op, q, v, cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded,
                             max_seqlen_q, max_seqlen_k, alibi_slopes)
    return _backward(
        op, (dq, dk, dv, None), dout, q, k, v, out, softmax_lse, len(cu_seqlens_q) - 1,
        (window_size_left, window_size_right), is_causal, dropout_p, rng_state, sink, d_sink, zero_tensors,
        deterministic=bool(deterministic), softmax_scale=softmax_scale, **lengths)


def check_kernel_options(op: str, is_v3_atomic_fp32: bool | None, how_v3_bf16_cvt: int | None) -> None:
    """Checks what chooses among AITER's kernels, and changes none of our results."""
    if is_v3_atomic_fp32 is not None and not (isinstance(is_v3_atomic_fp32, int) and is_v3_atomic_fp32 in (0, 1)):
        check.flag(op, "is_v3_atomic_fp32", is_v3_atomic_fp32)
    check.choice(op, "how_v3_bf16_cvt", rounding_or_default(how_v3_bf16_cvt), (0, 1, 2))


def _backward(op: str, given: tuple[Tensor | None, ...], dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
              lse: Tensor, batch: int, window: tuple[int, int], causal: bool, dropout_p: float,
              rng_state: Tensor | None, sink: Tensor | None, d_sink: Tensor | None, zero_tensors: bool = False,
              **fields: Any) -> _Four:
    """`given`: dq, dk, dv and dbias; `batch`: sequences, without those that stand for padding."""
    left, right, _ = read_window(op, window, causal)
    check.tensor(op, "k", k, rank=q.ndim)
    check.tensor(op, "dout", dout, dtypes=(q.dtype,), shape=(*q.shape[:-1], v.shape[-1]), device=q.device)
    check.tensor(op, "out", out, dtypes=(q.dtype,), shape=dout.shape, device=q.device)
    sink = _read_sinks(op, q, sink, d_sink, batch)
    new = [torch.empty_like(like, memory_format=torch.contiguous_format) if one is None else one
           for one, like in zip(given, (q, k, v))]
    call = AttentionBackwardCall(*new, None, dout, None, q, k, v, out, lse, window_left=left, window_right=right,
                                 dropout_p=dropout_p, rng_state=rng_state if dropout_p else None, **fields)
    has_padding = batch != call.forward.batch
    if sink is not None and sink.ndim == 1 and not has_padding:
        call = call._replace(sink=sink, dsink=None if d_sink is None else torch.empty_like(sink))
    of_bias = None if given[3] is None else dbias_call(call, given[3])
    with torch.no_grad():
        flash_attn_bwd.prepare(*call)
        if of_bias is not None:
            flash_attn_dbias.prepare(*of_bias)
        if zero_tensors:
            for one in new:
                one.zero_()
        flash_attn_bwd(call)
        if of_bias is not None:
            flash_attn_dbias(of_bias)
        sums = (dout.float() * out.float()).sum(-1).transpose(-1, -2).contiguous()
        index, is_row = None, lse != -math.inf
        if call.forward.is_varlen and (zero_tensors or d_sink is not None):
            index, is_in_one = _sequences(call.cu_seqlens_q, len(q), has_padding)
            is_row &= is_in_one
            sums = torch.where(is_in_one, sums, 0.0)
        if d_sink is not None:
            d_sink += call.dsink if call.dsink is not None else _sink_gradient(sink, lse, sums, index, is_row)
    return *new, sums.mul_(1.0 - dropout_p)


def _read_sinks(op: str, q: Tensor, sink: Tensor | None, d_sink: Tensor | None, batch: int) -> Tensor | None:
    """[num_heads], or [batch, num_heads] of more than one sequence."""
    heads = q.shape[-2]
    if d_sink is not None:
        check.tensor(op, "d_sink", d_sink, dtypes=(torch.float32,), shape=(heads,), device=q.device)
    if sink is None and d_sink is None:
        return None
    check.tensor(op, "sink", sink, dtypes=(torch.float32,), device=q.device)
    check.tensor(op, "sink", sink, shape=(heads,) if sink.ndim == 1 else (batch, heads))
    return sink[0] if sink.ndim == 2 and batch == 1 else sink


def _sequences(starts: Tensor, total: int, has_padding: bool) -> tuple[Tensor, Tensor]:
    """Of each of `total` rows the sequence in which it is, and whether it is in one, and not in padding."""
    rows = torch.arange(total, dtype=starts.dtype, device=starts.device)
    place = torch.searchsorted(starts, rows, right=True) - 1
    is_in_one = (place >= 0) & (place < len(starts) - 1)
    if has_padding:
        place, is_in_one = place // 2, is_in_one & (place % 2 == 0)
    return torch.where(is_in_one, place, 0), is_in_one


def _sink_gradient(sink: Tensor, lse: Tensor, sums: Tensor, index: Tensor | None, is_row: Tensor) -> Tensor:
    """−Σ exp(sink − lse) · Σ dout · out over the rows of each head; `index`: the sequences of packed rows."""
    sink = sink[:, None] if sink.ndim == 1 else sink[..., None] if index is None else sink[index].T
    parts = torch.where(is_row, torch.exp(sink - lse) * sums, 0.0).sum(-1)
    return -(parts if index is not None else parts.sum(0))


def _with_rows(*tensors: Any) -> list[Any]:
    """The tensors, those copied whose last dimension is not contiguous, as that of a sum's derivative is."""
    return [x.contiguous() if isinstance(x, Tensor) and x.ndim and x.stride(-1) != 1 else x for x in tensors]


flash_attn_backward = public("_flash_attn_backward", _flash_attn_backward)
flash_attn_varlen_backward = public("_flash_attn_varlen_backward", _flash_attn_varlen_backward)
mha_bwd, mha_varlen_bwd = public("mha_bwd", mha_bwd), public("mha_varlen_bwd", mha_varlen_bwd)
