# SPDX-License-Identifier: MIT
"""AITER's Triton functions of attention in the manner of FlashAttention-3, and of a batch's first tokens. Named by
names.txt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common.contents import as_int32
from aiter_like.ops.common.elements import FP8, INTEGERS

FP8_ARCHS = frozenset({"gfx942"})
"""Architectures whose attention takes fp8."""


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
                    qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                    v_descale: Tensor | None = None, window_size: Sequence[int] | None = (-1, -1),
                    attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                    pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0) -> Tensor:
    """`aiter_like.flash_attn_func`, of fp8 `flash_attn_fp8_pertensor_func`. How keys are split, heads are packed and
    how many compute units stay free is the kernels' own choice: the parameters that ask for it have no meaning.

    Raises:
        UnsupportedError: qv or attention_chunk; softcap with fp8.
    """
    op = "flash_attn_func"
    _refuse(op, qv=qv is not None, attention_chunk=attention_chunk not in (0, 1))
    if isinstance(q, Tensor) and q.dtype in FP8:
        _refuse(op, softcap=softcap != 0)
        return aiter_like.flash_attn_fp8_pertensor_func(q, k, v, q_descale, k_descale, v_descale, causal, window_size,
                                                        softmax_scale)
    _refuse_scales(op, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    return aiter_like.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                                      deterministic=deterministic, logits_soft_cap=softcap)


def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, softmax_scale: float | None = None, causal: bool = False, q_descale: Tensor | None = None,
        k_descale: Tensor | None = None, v_descale: Tensor | None = None,
        window_size: Sequence[int] | None = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
        deterministic: bool = False, sm_margin: int = 0) -> Tensor:
    """`aiter_like.flash_attn_varlen_func`, of fp8 `flash_attn_varlen_fp8_pertensor_func`; as `flash_attn_func` here.

    Raises:
        UnsupportedError: attention_chunk.
    """
    op = "flash_attn_varlen_func"
    _refuse(op, attention_chunk=attention_chunk not in (0, 1))
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if isinstance(q, Tensor) and q.dtype in FP8:
        return aiter_like.flash_attn_varlen_fp8_pertensor_func(
            q, k, v, q_descale, k_descale, v_descale, *lengths, logits_soft_cap=softcap, causal=causal,
            window_size=window_size, softmax_scale=softmax_scale)
    _refuse_scales(op, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    return aiter_like.flash_attn_varlen_func(
        q, k, v, *lengths, softmax_scale=softmax_scale, logits_soft_cap=softcap, causal=causal,
        window_size=window_size, deterministic=deterministic)


def context_attention_fwd(q: Tensor, k: Tensor, v: Tensor, o: Tensor, b_start_loc: Tensor, b_seq_len: Tensor,
                          max_input_len: int, is_causal: bool = True) -> None:
    """`aiter_like.flash_attn_varlen_func` into `o`, of sequences that have queries for all of their keys and lie one
    behind the other.

    Args:
        q, o: [tokens, num_heads, head_dim] bf16|fp16, and k, v with a number of heads of their own.
        b_start_loc: [batch] integers: where each sequence begins, the first of them at 0.
        b_seq_len: [batch] integers: its length; the next begins where it ends.
        max_input_len: not less than the longest.
        is_causal: a query sees the keys up to its own.
    """
    op = "context_attention_fwd"
    check.tensor(op, "b_start_loc", b_start_loc, rank=1, dtypes=INTEGERS)
    check.tensor(op, "b_seq_len", b_seq_len, dtypes=INTEGERS, shape=b_start_loc.shape, device=b_start_loc.device)
    if not len(b_start_loc):
        return
    ends = torch.cat((b_start_loc, b_start_loc[-1:] + b_seq_len[-1:])).long()
    if check.is_on_host(ends) and (ends[0] != 0 or not torch.equal(ends.diff(), b_seq_len.long())):
        raise ValueError(f"{op}: b_start_loc must be the sums of b_seq_len, from 0, got {b_start_loc.tolist()[:20]} "
                         f"and {b_seq_len.tolist()[:20]}")
    ends = as_int32(ends)
    aiter_like.flash_attn_varlen_func(q, k, v, ends, ends, max_input_len, max_input_len, causal=is_causal, out=o)


def extend_attention_fwd(
        q_extend: Tensor, k_extend: Tensor, v_extend: Tensor, o_extend: Tensor, k_buffer: Tensor, v_buffer: Tensor,
        qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, custom_mask: Tensor | None, is_causal: bool,
        mask_indptr: Tensor | None, max_len_extend: int, sm_scale: float | None = None, logit_cap: float = 0.0,
        skip_prefix_custom_mask: bool = True, config: dict | None = None) -> None:
    """Attention of new tokens to themselves and to a prefix in a cache, into `o_extend`: `flash_attn_varlen_func`,
    `mha_batch_prefill_func` and `merge_attn_states`.

    Args:
        q_extend, o_extend: [tokens, num_heads, head_dim] bf16|fp16, and head_dim_v of the latter.
        k_extend, v_extend: [tokens, num_kv_heads, …].
        k_buffer, v_buffer: [slots, num_kv_heads, …], the cache.
        qo_indptr: [batch + 1] int32: the new tokens of each sequence.
        kv_indptr: [batch + 1] int32: the places of its prefix in `kv_indices`.
        kv_indices: slots, int32|int64.
        custom_mask: None, mask_indptr too; skip_prefix_custom_mask and config are of no meaning.
        is_causal: a new token sees none after it; the prefix is before them all.
        max_len_extend: not less than the most new tokens of a sequence.
        sm_scale: of the scores; None or 0: 1 / sqrt(head_dim).
        logit_cap: 0, or scores become cap · tanh(score / cap).

    Raises:
        UnsupportedError: a mask.
    """
    op = "extend_attention_fwd"
    _refuse(op, custom_mask=custom_mask is not None)
    check.tensor(op, "kv_indices", kv_indices, rank=1, dtypes=INTEGERS)
    scale = sm_scale or None
    new, *lse = aiter_like.flash_attn_varlen_func(
        q_extend, k_extend, v_extend, qo_indptr, qo_indptr, max_len_extend, max_len_extend, softmax_scale=scale,
        logits_soft_cap=logit_cap, causal=is_causal, return_lse=True)
    if not len(kv_indices):
        o_extend.copy_(new)
        return
    old, old_lse = aiter_like.mha_batch_prefill_func(
        q_extend, k_buffer, v_buffer, qo_indptr, as_int32(kv_indptr), as_int32(kv_indices), max_len_extend,
        len(kv_indices), softmax_scale=scale, logits_soft_cap=logit_cap, return_lse=True)
    aiter_like.merge_attn_states(o_extend, old, old_lse, new, lse[0])


def _refuse(op: str, **asked: bool) -> None:
    """Raises UnsupportedError for what is asked."""
    reasons = {name: "not supported" for name, is_asked in asked.items() if is_asked}
    if reasons:
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)}", op, reasons)


def _refuse_scales(op: str, **scales: Any) -> None:
    for name, scale in scales.items():
        if scale is not None:
            raise ValueError(f"{op}: {name} is for fp8 tensors, got one with q of another dtype")
