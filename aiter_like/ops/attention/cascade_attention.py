# SPDX-License-Identifier: MIT
"""Decoding of sequences that share their first pages: cascade_attention, of unified_attention's kernel for the shared
prefix, paged_attention's for the rest, and merge_attn_states'.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.attention.merge_attn_states import merge_attn_states
from aiter_like.ops.attention.paged_attention import paged_attention
from aiter_like.ops.attention.unified_attention import unified_attention_op
from aiter_like.ops.common.contents import check_pages

__all__ = ["cascade_attention"]

_OP = "cascade_attention"


def _check_prefix(table: Tensor, lengths: Tensor, k: Tensor, longest: int, prefix_len: int, num_queries: int) -> None:
    """On the CPU, where nobody waits for contents: what check_pages says, and that all sequences have the prefix."""
    check_pages(_OP, table, lengths, k, longest)
    if not prefix_len or not len(table) or not check.is_on_host(table) or not check.is_on_host(lengths):
        return
    if (lengths < prefix_len + num_queries).any():
        raise ValueError(f"{_OP}: seq_lens must be at least {prefix_len + num_queries}, prefix_len and the queries "
                         f"behind it, got {lengths.min().item()}")
    prefix = table[:, :prefix_len // k.shape[1]]
    if (is_other := (prefix != prefix[0]).any(1)).any():
        raise ValueError(f"{_OP}: block_table must begin with the same {prefix.shape[1]} pages in every row, got "
                         f"others in row {is_other.nonzero()[0].item()}")


def cascade_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
                      max_seqlen_k: int, prefix_len: int, softmax_scale: float | None = None, *, max_seqlen_q: int = 1,
                      softcap: float = 0.0, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Attention of sequences that begin with the same pages, which are read once for all. Like `paged_attention`:
    over the prefix as one sequence of all queries, over the rest sequence by sequence, merged by their log-sum-exps.

    Args:
        q: [batch · max_seqlen_q, num_heads, head_dim] bf16|fp16, last dimension contiguous.
        k_cache, v_cache: [num_pages, page_size, num_kv_heads, head_dim], dtype of `q`, strides free but for the last.
        block_table: [batch, pages] int32; the first prefix_len / page_size entries of all rows are equal.
        seq_lens: [batch] int32: keys of each sequence, those of the prefix and its queries' own included.
        prefix_len: keys of the prefix, a multiple of the page size, not more than any sequence has before its queries.
        max_seqlen_q: rows of each sequence.
        backend: "triton" or "torch" for all three, or "hip" for those that have it: the prefix is Triton's then.

    Returns:
        `out`, of which every row is written, as every row is of a sequence; 0 where it sees no key.

    Notes:
        Both parts are rounded to the dtype of `q` before they are merged. Deterministic; no synchronisation; can be
        captured in a graph as long as `prefix_len` stays. What sequences share is looked at on the CPU; on a GPU every
        sequence sees the whole prefix of the first, one that is shorter too.

    Source: FlashInfer's cascade attention; vLLM's `use_cascade_attention`.
    """
    check.tensor(_OP, "q", q, rank=3)
    check.tensor(_OP, "k_cache", k_cache, rank=4)
    check.tensor(_OP, "v_cache", v_cache, rank=4)
    check.tensor(_OP, "block_table", block_table, rank=2)
    check.tensor(_OP, "seq_lens", seq_lens, dtypes=(torch.int32,), shape=block_table.shape[:1], device=q.device)
    for name, value in (("prefix_len", prefix_len), ("max_seqlen_k", max_seqlen_k), ("max_seqlen_q", max_seqlen_q)):
        check.integer(_OP, name, value, 0, check.INT32_MAX)
    page_size = max(k_cache.shape[1], 1)
    pages = prefix_len // page_size
    if prefix_len % page_size or pages > block_table.shape[1]:
        raise ValueError(f"{_OP}: prefix_len must be a multiple of the page size {page_size} within block_table, got "
                         f"{prefix_len}")
    _check_prefix(block_table, seq_lens, k_cache, max_seqlen_k, prefix_len, max_seqlen_q)
    out = torch.empty(*q.shape[:2], v_cache.shape[3], dtype=q.dtype, device=q.device) if out is None else out
    options = {"max_seqlen_q": max_seqlen_q, "softcap": softcap, "backend": backend}
    if not pages or not len(q):
        return paged_attention(q, k_cache, v_cache, block_table, seq_lens, max_seqlen_k, softmax_scale, out=out,
                               **options)
    rows, lse = torch.empty_like(out), torch.empty(q.shape[1], len(q), dtype=torch.float32, device=q.device)
    ends = torch.arange(2, dtype=torch.int32, device=q.device) * len(q)
    used = torch.full((1,), prefix_len, dtype=torch.int32, device=q.device)
    unified_attention_op.run(
        rows, lse, q=q, k=k_cache, v=v_cache, cu_seqlens_q=ends, seqlens_k=used, block_table=block_table[:1, :pages],
        max_seqlen_q=len(q), max_seqlen_k=prefix_len, softcap=softcap,
        softmax_scale=max(q.shape[2], 1) ** -0.5 if softmax_scale is None else softmax_scale,
        backend="triton" if backend == "hip" else backend)
    rest, rest_lse = paged_attention(q, k_cache, v_cache, block_table[:, pages:],
                                     seq_lens.clamp_min(prefix_len) - prefix_len,  # INT_MIN less a number would wrap
                                     max(max_seqlen_k - prefix_len, 0), softmax_scale, return_lse=True, **options)
    merge_attn_states(out, rows, lse, rest, rest_lse, backend=backend)
    return out
