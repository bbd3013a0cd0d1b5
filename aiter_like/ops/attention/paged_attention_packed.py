# SPDX-License-Identifier: MIT
"""AITER's entries of decoding over packed and shuffled pages, thin edges of the operator like those of
paged_attention_entries.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.attention.paged_attention import paged_attention_op
from aiter_like.ops.attention.paged_attention_entries import (
    Called,
    check_block_size,
    integers_of,
    longest_of,
    paged_caches,
    run_paged,
)

__all__ = ["pa_fwd_asm", "paged_attention_common", "paged_attention_rocm"]


def paged_attention_rocm(
        out: Tensor, exp_sums: Tensor | None, max_logits: Tensor | None, tmp_out: Tensor | None, query: Tensor,
        key_cache: Tensor, value_cache: Tensor, num_kv_heads: int, scale: float, block_tables: Tensor,
        context_lens: Tensor, block_size: int, max_context_len: int, alibi_slopes: Tensor | None, kv_cache_dtype: str,
        k_scale: Tensor | None, v_scale: Tensor | None, fp8_out_scale: Tensor | None = None, partition_size: int = 256,
        mtp: int = 1, q_scale: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """Decoding over pages whose keys are packed. Like `paged_attention_v1`.

    Args:
        exp_sums, max_logits, tmp_out: memory of AITER's kernels, not used here.
        query: [seqs · mtp, num_heads, head_dim] bf16|fp16|fp8|int8.
        key_cache: [num_blocks, num_kv_heads, head_dim / x, block_size, x], dtype of `query`, fp8, int8, or uint8.
        value_cache: [num_blocks, num_kv_heads, head_dim, block_size], or shuffled [num_blocks, num_kv_heads,
            block_size / x, head_dim, x].
        num_kv_heads, block_size: of the caches.
        mtp: rows of each sequence.
        q_scale: fp32, one number or [seqs · mtp, num_heads].
    """
    op = "paged_attention_rocm"
    check.tensor(op, "value_cache", value_cache)
    check.integer(op, "mtp", mtp, low=0)
    layout = "packed" if value_cache.ndim == 4 else "shuffled"
    k, v = paged_caches(op, query, key_cache, value_cache, layout, kv_cache_dtype)
    check_block_size(op, block_size, k)
    if num_kv_heads != k.shape[2]:
        raise ValueError(f"{op}: num_kv_heads must be that of key_cache, {k.shape[2]}, got {num_kv_heads!r}")
    return run_paged(op, out, query, k, v, block_tables, context_lens, None, k_scale, v_scale, backend,
                     alibi_slopes=alibi_slopes, out_scale=fp8_out_scale, q_scale=q_scale, max_seqlen_q=mtp,
                     softmax_scale=scale, max_seqlen_k=longest_of(op, "max_context_len", max_context_len))


def pa_fwd_asm(Q: Tensor, K: Tensor, V: Tensor, block_tables: Tensor, context_lens: Tensor, block_tables_stride0: int,
               max_qlen: int = 1, K_QScale: Tensor | None = None, V_QScale: Tensor | None = None,
               out_: Tensor | None = None, qo_indptr: Tensor | None = None, high_precision: int | None = 1,
               kernelName: str | None = None, *, backend: str | None = None) -> Tensor:
    """Decoding over shuffled or packed pages: `out_ = softmax(q kᵀ / sqrt(head_dim)) v`. Like `paged_attention`.

    Args:
        Q: [rows, num_heads, head_dim] bf16|fp16.
        K: [num_blocks, num_kv_heads, head_dim / x, block_size, x], dtype of `Q`, fp8 or int8.
        V: [num_blocks, num_kv_heads, block_size / x, head_dim, x], or packed [num_blocks, num_kv_heads, head_dim,
            block_size].
        block_tables: [seqs, blocks] int32; its own strides count, and how long sequences may be follows from it.
        context_lens: [seqs] int32: keys of each sequence.
        max_qlen: the most rows of a sequence.
        K_QScale, V_QScale: fp32, one number or [num_blocks, num_kv_heads, block_size], of a cache of bytes.
        out_: tensor to write; default: a new one like `Q`.
        qo_indptr: [seqs + 1] int32: the rows of each sequence; None: max_qlen each.
        block_tables_stride0, high_precision, kernelName: of no meaning: sums are always fp32, and none of AITER's
            kernels runs here.

    Returns:
        `out_`, or the new tensor.
    """
    op = "pa_fwd_asm"
    check.tensor(op, "Q", Q, rank=3)
    check.tensor(op, "V", V)
    k, v = paged_caches(op, Q, K, V, "packed" if V.ndim == 4 else "shuffled", "fp8", ("Q", "K", "V"))
    table = integers_of(op, "block_tables", block_tables, 2)
    return run_paged(op, _out_like(Q) if out_ is None else out_, Q, k, v, table, context_lens, None, K_QScale, V_QScale,
                     backend, Called("K_QScale", "V_QScale", longest=""), cu_seqlens_q=qo_indptr,
                     max_seqlen_q=max_qlen, max_seqlen_k=min(table.shape[-1] * k.shape[1], 2**30),
                     softmax_scale=max(Q.shape[2], 1) ** -0.5)


def _out_like(query: Tensor) -> Tensor:
    """New, contiguous; bf16 for queries of bytes."""
    return torch.empty(query.shape, dtype=torch.bfloat16 if query.element_size() == 1 else query.dtype,
                       device=query.device)


def paged_attention_common(
        Q: Tensor, K: Tensor, V: Tensor, exp_sums: Tensor | None, max_logits: Tensor | None, tmp_out: Tensor | None,
        block_tables: Tensor, context_lens: Tensor, block_tables_stride0: int, scale: float, max_qlen: int = 1,
        max_seq_len: int = 1, K_QScale_hip: Tensor | None = None, V_QScale_hip: Tensor | None = None,
        K_QScale_asm: Tensor | None = None, V_QScale_asm: Tensor | None = None, out_: Tensor | None = None,
        qo_indptr: Tensor | None = None, high_precision: int | None = 1, kernelName: str | None = None,
        kv_cache_dtype: str = "auto", kv_cache_tensor_dtype: torch.dtype | None = None, *,
        backend: str | None = None) -> Tensor:
    """Decoding over packed or shuffled pages: `out_ = softmax(scale · q kᵀ) v`. Like `pa_fwd_asm`.

    Args:
        exp_sums, max_logits, tmp_out: memory of AITER's kernels, not used here.
        block_tables: [seqs, blocks] int32.
        scale: of the scores, whichever kernel runs; AITER drops it where its assembly serves.
        max_seq_len: not less than the longest sequence of keys.
        K_QScale_hip, V_QScale_hip: fp32, one number, of a cache of bytes.
        K_QScale_asm, V_QScale_asm: fp32 [num_blocks, num_kv_heads, block_size], where K_QScale_hip is None.
        kv_cache_dtype: "auto", "fp8" or "fp8_e4m3".
        kv_cache_tensor_dtype: of no meaning: that of `K` counts.
    """
    op = "paged_attention_common"
    check.tensor(op, "Q", Q, rank=3)
    check.tensor(op, "V", V)
    k, v = paged_caches(op, Q, K, V, "packed" if V.ndim == 4 else "shuffled", kv_cache_dtype, ("Q", "K", "V"))
    scales = (K_QScale_asm, V_QScale_asm) if K_QScale_hip is None else (K_QScale_hip, V_QScale_hip)
    return run_paged(op, _out_like(Q) if out_ is None else out_, Q, k, v, block_tables, context_lens, None, *scales,
                     backend, Called("K_QScale", "V_QScale", longest="max_seq_len"), cu_seqlens_q=qo_indptr,
                     max_seqlen_q=max_qlen, softmax_scale=scale,
                     max_seqlen_k=longest_of(op, "max_seq_len", max_seq_len))


paged_attention_op.public += [pa_fwd_asm, paged_attention_common, paged_attention_rocm]
