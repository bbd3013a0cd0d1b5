# SPDX-License-Identifier: MIT
"""mha_batch_prefill_func: the operator of ops/attention/unified_attention.py with ragged page tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import FP8, unshuffled_axes
from aiter_like.ops.attention.checks import read_window
from aiter_like.ops.attention.unified_attention import unified_attention_op
from aiter_like.ops.common.contents import check_lengths, check_page_list, check_pages

__all__ = ["mha_batch_prefill_func"]


def mha_batch_prefill_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, kv_indptr: Tensor, kv_page_indices: Tensor,
        max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
        logits_soft_cap: float = 0.0, causal: bool = False, window_size: Sequence[int] | None = (-1, -1),
        alibi_slopes: Tensor | None = None, deterministic: bool = False, return_lse: bool = False,
        return_attn_probs: bool = False, out: Tensor | None = None, kv_last_page_lens: Tensor | None = None,
        block_table: Tensor | None = None, seqlen_k: Tensor | None = None, q_descale: Tensor | None = None,
        k_descale: Tensor | None = None, v_descale: Tensor | None = None, kv_block_descale: None = None,
        sink_ptr: Tensor | None = None, sink_size: int = 0, *,
        backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of sequences whose pages are listed one after the other. Like `unified_attention`.

    Args:
        k: [num_pages, page_size, num_kv_heads, head_dim], or [slots, num_kv_heads, head_dim]: pages of one key, or
            shuffled [num_pages, num_kv_heads, head_dim / x, page_size, x], x elements of 16 bytes.
        v: likewise, with head_dim_v, shuffled [num_pages, num_kv_heads, page_size / x, head_dim_v, x].
        kv_indptr: [batch + 1] int32: the pages of each sequence in `kv_page_indices`.
        kv_page_indices: [pages] int32.
        max_seqlen_k: not less than the longest sequence of keys.
        dropout_p: 0.
        softmax_scale: finite, ≥ 1e-8; default 1 / sqrt(head_dim).
        logits_soft_cap: 0, or the limit that tanh keeps scores below.
        window_size: (left, right[, sink tokens]), −1 = no limit, or None.
        deterministic: results always repeat bit for bit.
        return_lse: also return the log-sum-exp of the scores.
        return_attn_probs: False.
        out: tensor to write; default: a new one in the dtype of `q`, bf16 for fp8.
        kv_last_page_lens: [batch] int32: keys in the last page of each sequence; None: the pages are full.
        block_table, seqlen_k: [batch, pages] and [batch] int32: pages and keys of each sequence, instead of kv_indptr
            and kv_page_indices.
        kv_block_descale: None.
        sink_ptr: [num_heads] fp32: one more score in the denominator.
        sink_size: leading keys that a left window never hides; so does window_size[2].

    Returns:
        `out`, or with `return_lse` the pair `out`, lse [num_heads, total_q] fp32. Rows outside every sequence are not
        written.

    Source: AITER's `mha_batch_prefill_func`; FlashInfer's ragged page tables.
    """
    op = "mha_batch_prefill_func"
    check.tensor(op, "q", q, rank=3)
    check.tensor(op, "k", k)
    check.tensor(op, "v", v, rank=k.ndim)
    asked = {"dropout_p": dropout_p, "return_attn_probs": return_attn_probs,
             "kv_block_descale": kv_block_descale is not None}
    if any(asked.values()):
        reasons = {name: "not supported" for name, is_asked in asked.items() if is_asked}
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)}", "unified_attention", reasons)
    if k.ndim not in (3, 4, 5):
        raise ValueError(f"{op}: k must have 3, 4 or 5 dimensions, got shape {tuple(k.shape)}")
    if k.ndim == 3:
        k, v = k.unsqueeze(1), v.unsqueeze(1)
    head_dim_v = v.shape[3]
    if k.ndim == 5:
        k, v = unshuffled_axes(k, v)
    left, right, tokens = read_window(op, window_size, causal)
    if out is None:
        dtype = torch.bfloat16 if q.dtype in FP8 else q.dtype
        out = torch.empty(*q.shape[:2], head_dim_v, dtype=dtype, device=q.device)
    lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device) if return_lse else None
    scale = softmax_scale if softmax_scale is not None else max(q.shape[2], 1) ** -0.5
    lengths, table, starts = kv_last_page_lens, kv_page_indices, kv_indptr
    check_lengths(op, "cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    if block_table is not None:
        lengths, table, starts = seqlen_k, block_table, None
        check.tensor(op, "seqlen_k", lengths, rank=1)
        check_pages(op, table, lengths, k, max_seqlen_k)
    else:
        check.tensor(op, "kv_page_indices", table, rank=1, last_contiguous=False)
        check_page_list(op, starts, table, lengths, k, max_seqlen_k)
    unified_attention_op.run(
        out, lse, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, seqlens_k=lengths, block_table=table, page_starts=starts,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, alibi_slopes=alibi_slopes, sink=sink_ptr,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, softmax_scale=scale, window_left=left,
        window_right=right, sink_size=max(sink_size, tokens), softcap=logits_soft_cap, backend=backend)
    return out if lse is None else (out, lse)


unified_attention_op.public.append(mha_batch_prefill_func)
