# SPDX-License-Identifier: MIT
"""AITER's Triton functions of latent attention, which take a table of pages, and the plan of a next step. Named by
names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.dispatch.public import public
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32, check_pages


def mla_prefill_fwd(q: Tensor, kv_buffer: Tensor, out: Tensor, cu_seqlens_q: Tensor, seqused_k: Tensor,
                    max_seqlen_kv: int, block_tables: Tensor, softmax_scale: float, kv_lora_rank: int,
                    qk_rope_head_dim: int, causal: bool, q_descale: Tensor | None, kv_descale: Tensor | None,
                    out_scale: Tensor | None = None, shuffled_kv_cache: bool = False) -> None:
    """`mla_decode_fwd` here, with the keys of a sequence in one part: whole prompts fill a device by their rows."""
    _attend("mla_prefill_fwd", 1, q, kv_buffer, out, cu_seqlens_q, seqused_k, max_seqlen_kv, block_tables,
            softmax_scale, (kv_lora_rank, qk_rope_head_dim), causal, (q_descale, kv_descale, out_scale),
            shuffled_kv_cache=shuffled_kv_cache)


def mla_decode_fwd(q: Tensor, kv_buffer: Tensor, out: Tensor, cu_seqlens_q: Tensor, seqused_k: Tensor,
                   max_seqlen_kv: int, block_tables: Tensor, softmax_scale: float, kv_lora_rank: int,
                   qk_rope_head_dim: int, causal: bool, q_descale: Tensor | None, kv_descale: Tensor | None,
                   q_scales: Tensor | None = None, out_scale: Tensor | None = None, shuffled_kv_cache: bool = False,
                   skip_reduce: bool = False) -> None:
    """`aiter_like.mla_decode_fwd` of sequences whose pages stand in a table, into `out`.

    Args:
        q: [tokens, num_heads, 576] bf16|fp16|fp8.
        kv_buffer: [pages, page_size, 1, 576], dtype of `q` or the device's fp8.
        out: [tokens, num_heads, 512] bf16|fp16, or fp8 with `out_scale`, by which the result is divided; written.
        cu_seqlens_q: [batch + 1] int32, the rows of each sequence in `q`.
        seqused_k: [batch] int32: its keys.
        max_seqlen_kv: not less than the largest of them; of no meaning here.
        block_tables: [batch, pages of a sequence] int32.
        softmax_scale: of the scores.
        kv_lora_rank, qk_rope_head_dim: 512 and 64.
        causal: a query sees no later key.
        q_descale, kv_descale: 1 fp32 element, of fp8 `q` and `kv_buffer`.
        q_scales: None, with shuffled_kv_cache and skip_reduce False: what they ask for belongs to other devices.
        out_scale: 1 fp32 element; None: 1.

    Raises:
        UnsupportedError: a shuffled cache, scales of blocks of q, or partial results.
    """
    _attend("mla_decode_fwd", None, q, kv_buffer, out, cu_seqlens_q, seqused_k, max_seqlen_kv, block_tables,
            softmax_scale, (kv_lora_rank, qk_rope_head_dim), causal, (q_descale, kv_descale, out_scale),
            shuffled_kv_cache=shuffled_kv_cache, q_scales=q_scales is not None, skip_reduce=skip_reduce)


def unified_attention_sparse_mla(q: Tensor, kv: Tensor, out: Tensor, cu_seqlens_q: Tensor, max_seqlen_q: int,
                                 seqused_k: Tensor, max_seqlen_k: int, softmax_scale: float, topk_indices: Tensor,
                                 block_table: Tensor, kv_lora_rank: int) -> None:
    """`aiter_like.mla_decode_fwd` of tokens that are each a sequence of chosen keys, into `out`.

    Args:
        q: [tokens, num_heads, 576] bf16|fp16.
        kv: [pages, page_size, 1, 576], dtype of `q`, whose tokens are evenly spaced.
        out: [tokens, num_heads, 512], dtype of `q`; written.
        softmax_scale: of the scores.
        topk_indices: [tokens, keys] int32: tokens of the cache, page · page_size + offset; others, as −1, are none.
        kv_lora_rank: 512.
        cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, block_table: of no meaning, since `topk_indices` says all.
    """
    op = "unified_attention_sparse_mla"
    check.tensor(op, "q", q, rank=3)
    check.tensor(op, "kv", kv, rank=4, device=q.device)
    check.tensor(op, "topk_indices", topk_indices, dtypes=(torch.int32,), shape=(len(q), None), device=q.device)
    check.tensor(op, "out", out, shape=(*q.shape[:2], kv_lora_rank), device=q.device)
    if kv.shape[1] > 1 and kv.stride(0) != kv.shape[1] * kv.stride(1):
        raise ValueError(f"{op}: kv must have evenly spaced tokens, got shape {tuple(kv.shape)}, strides {kv.stride()}")
    tokens, (heads, dim) = kv.shape[0] * kv.shape[1], kv.shape[2:]
    cache = kv.as_strided((tokens, 1, heads, dim), (kv.stride(1), kv.stride(1), *kv.stride()[2:]))
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    aiter_like.mla_decode_fwd(q, cache, out, starts, starts * topk_indices.shape[1], topk_indices.reshape(-1), None, 1,
                              1, heads, softmax_scale)


def _attend(op: str, splits: int | None, q: Tensor, kv_buffer: Tensor, out: Tensor, cu_seqlens_q: Tensor,
            seqused_k: Tensor, max_seqlen_kv: int, block_tables: Tensor, softmax_scale: float, sizes: tuple[int, int],
            causal: bool, scales: tuple[Tensor | None, Tensor | None, Tensor | None], **asked: bool) -> None:
    reasons = {name: "not supported" for name, is_asked in asked.items() if is_asked}
    if reasons:
        raise UnsupportedError(f"{op}: no backend supports {', '.join(reasons)}", op, reasons)
    check.tensor(op, "q", q, rank=3)
    check.tensor(op, "kv_buffer", kv_buffer, rank=4, device=q.device)
    check.tensor(op, "cu_seqlens_q", cu_seqlens_q, rank=1, dtypes=(torch.int32,), device=q.device)
    batch = len(cu_seqlens_q) - 1
    check.tensor(op, "seqused_k", seqused_k, dtypes=elements.INTEGERS, shape=(batch,), device=q.device)
    check.tensor(op, "block_tables", block_tables, dtypes=(torch.int32,), shape=(batch, None), device=q.device,
                 last_contiguous=False)
    rank, pe = sizes
    if q.shape[2] != rank + pe:
        raise ValueError(f"{op}: q must have heads of kv_lora_rank + qk_rope_head_dim = {rank + pe} elements, got "
                         f"{q.shape[2]}")
    is_narrow = out.dtype in elements.FP8
    check.tensor(op, "out", out, shape=(*q.shape[:2], rank), device=q.device)
    if is_narrow and scales[2] is None:
        raise ValueError(f"{op}: out_scale must be given with out of {out.dtype}")
    wide = torch.empty(out.shape, dtype=torch.bfloat16, device=q.device) if is_narrow else out
    page_size = kv_buffer.shape[1]
    check_pages(op, block_tables, seqused_k, kv_buffer, None, ("block_tables",))
    indptr, indices, last = _listed(block_tables, seqused_k, page_size)
    aiter_like.mla_decode_fwd(
        q, kv_buffer, wide, cu_seqlens_q, indptr, indices, last, max(len(q), 1), page_size, kv_buffer.shape[2],
        softmax_scale, num_kv_splits=splits, q_scale=scales[0], kv_scale=scales[1], causal=causal)
    if is_narrow:
        aiter_like.static_per_tensor_quant(out, wide, scales[2].reshape(1))
    elif scales[2] is not None:
        out.div_(scales[2])


def _listed(tables: Tensor, lengths: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pages of all sequences one behind the other, where each one's begin, and the keys in its last page; the host
    does not look at the lengths. What follows the last page is −1.
    """
    lengths = lengths.clamp(0, tables.shape[1] * page_size)
    pages = (lengths + page_size - 1) // page_size
    ends = pages.cumsum(0)
    place = torch.arange(tables.numel(), device=tables.device)
    sequence = torch.searchsorted(ends, place, right=True).clamp(max=max(len(ends) - 1, 0))
    column = place - (ends - pages)[sequence]
    is_page = place < ends[-1:] if len(ends) else place < 0
    listed = tables[sequence, column.where(is_page, 0)].where(is_page, -1)
    starts = torch.cat((ends.new_zeros(1), ends)).to(torch.int32)
    return starts, listed.contiguous(), (lengths - (pages - 1).clamp(min=0) * page_size).to(torch.int32)


def decode_attention_fwd(
        q: Tensor, k_buffer: Tensor, v_buffer: Tensor, o: Tensor, lse: Tensor, req_to_token: Tensor, b_seq_len: Tensor,
        attn_logits: Tensor | None, num_kv_splits: int, sm_scale: float, page_size: int = 1, logit_cap: float = 0.0,
        k_scale: Tensor | None = None, v_scale: Tensor | None = None) -> None:
    """Decoding of one token of each sequence over pages that stand in a table: `aiter_like.mla_decode_fwd` where the
    values are the first elements of the only head's keys, in their memory, else `flash_attn_with_kvcache`.

    Args:
        q: [batch, num_heads, dim] bf16|fp16.
        k_buffer: [tokens, num_kv_heads, dim] or [pages, page_size, num_kv_heads, dim], evenly spaced tokens, dtype of
            `q`, of latents also the device's fp8.
        v_buffer: likewise, with the elements of a value.
        o: [batch, num_heads, elements of a value], dtype of `q`; written.
        lse: [batch, num_heads] fp32; written: the log-sum-exp of the scores.
        req_to_token: [batch, pages of a sequence] int32: its pages.
        b_seq_len: [batch] integers: its keys.
        attn_logits, num_kv_splits: memory and shape of AITER's kernels; of no meaning, and not written.
        sm_scale: of the scores.
        page_size: tokens of a page.
        logit_cap: above 0, scores become logit_cap · tanh(score / logit_cap).
        k_scale, v_scale: 1 fp32 element, of fp8 latents, both the same; else of no meaning.
    """
    op = "decode_attention_fwd"
    check.tensor(op, "q", q, rank=3)
    batch, heads, dim = q.shape
    check.integer(op, "page_size", page_size, 1)
    keys, values = (_pages(op, name, cache, page_size, q)
                    for name, cache in (("k_buffer", k_buffer), ("v_buffer", v_buffer)))
    check.tensor(op, "req_to_token", req_to_token, dtypes=(torch.int32,), shape=(batch, None), device=q.device)
    check.tensor(op, "b_seq_len", b_seq_len, dtypes=elements.INTEGERS, shape=(batch,), device=q.device)
    check.tensor(op, "o", o, dtypes=(q.dtype,), shape=(batch, heads, values.shape[3]), device=q.device)
    check.tensor(op, "lse", lse, dtypes=(torch.float32,), shape=(batch, heads), device=q.device,
                 last_contiguous=False)
    check_pages(op, req_to_token, b_seq_len, keys, None, ("req_to_token",))
    is_latent = keys.shape[2] == 1 and values.shape[3] < dim and (
        keys.data_ptr() == values.data_ptr() and keys.stride() == values.stride())
    if is_latent:
        if v_scale is not k_scale and not (k_scale is not None and v_scale is not None
                                           and k_scale.data_ptr() == v_scale.data_ptr()):
            raise ValueError(f"{op}: v_scale must be k_scale where the values are in the keys' memory")
        starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
        pages = _listed(req_to_token, b_seq_len, page_size)
        found = aiter_like.mla_decode_fwd(q, keys, o, starts, *pages, 1, page_size, 1, sm_scale, logit_cap or 0.0,
                                          kv_scale=k_scale, return_lse=True)[1]
    else:
        for name, cache in (("k_buffer", keys), ("v_buffer", values)):
            check.tensor(op, name, cache, dtypes=(q.dtype,))
        out, sums = aiter_like.flash_attn_with_kvcache(
            q[:, None], keys, values, cache_seqlens=as_int32(b_seq_len), softmax_scale=sm_scale,
            softcap=logit_cap or 0.0, return_softmax_lse=True, page_table=req_to_token)
        o.copy_(out[:, 0])
        found = sums[..., 0]
    lse.copy_(found)


def _pages(op: str, name: str, cache: Tensor, page_size: int, q: Tensor) -> Tensor:
    """[pages, page_size, heads, elements] of a cache whose tokens are evenly spaced."""
    if not isinstance(cache, Tensor) or cache.ndim not in (3, 4):
        check.tensor(op, name, cache, rank=4)
    check.tensor(op, name, cache, device=q.device)
    if cache.ndim == 4 and cache.shape[1] == page_size:
        return cache
    if cache.ndim == 4:
        if cache.shape[1] > 1 and cache.stride(0) != cache.shape[1] * cache.stride(1):
            raise ValueError(f"{op}: {name} must have evenly spaced tokens, got shape {tuple(cache.shape)}, strides "
                             f"{cache.stride()}")
        step = cache.stride(1) if cache.shape[1] > 1 else cache.stride(0)
        cache = cache.as_strided((cache.shape[0] * cache.shape[1], *cache.shape[2:]), (step, *cache.stride()[2:]))
    pages, step = cache.shape[0] // page_size, cache.stride(0)
    return cache.as_strided((pages, page_size, *cache.shape[1:]), (page_size * step, step, *cache.stride()[1:]))


def csr_to_dense_block_table(kv_indices: Tensor, kv_indptr: Tensor, dense_table: Tensor, max_ctx: int, bs: int) -> None:
    """Lists of pages one behind the other as a table, by torch; the host does not look at the lengths.

    Args:
        kv_indices: [entries] integers.
        kv_indptr: [≥ bs + 1] integers, where the pages of each sequence begin.
        dense_table: [≥ bs, columns]; of the first `bs` rows as many columns are written as a sequence has pages, at
            most those below `max_ctx`.
    """
    op = "csr_to_dense_block_table"
    check.tensor(op, "kv_indices", kv_indices, rank=1, dtypes=elements.INTEGERS)
    check.tensor(op, "kv_indptr", kv_indptr, rank=1, dtypes=elements.INTEGERS, device=kv_indices.device)
    check.tensor(op, "dense_table", dense_table, rank=2, dtypes=elements.INTEGERS, device=kv_indices.device)
    check.integer(op, "max_ctx", max_ctx, 0)
    check.integer(op, "bs", bs, 0, min(len(dense_table), max(len(kv_indptr) - 1, 0)))
    table = dense_table[:bs, :max_ctx]
    if not len(kv_indices) or not table.numel():
        return
    place = torch.arange(table.shape[1], device=table.device) + kv_indptr[:bs, None]
    is_page = (place < kv_indptr[1:bs + 1, None]) & (place < len(kv_indices)) & (place >= 0)
    table.copy_(torch.where(is_page, kv_indices[place.clamp(0, len(kv_indices) - 1)].to(table.dtype), table))


def decode_update_mla_metadata_v1(
        seqlens_qo_indptr: Tensor, seqlens_kv_indptr: Tensor, kv_last_page_lens: Tensor, num_heads_per_head_k: int,
        num_heads_k: int, is_causal: bool, work_metadata_ptrs: Tensor, work_info_set: Tensor, work_indptr: Tensor,
        reduce_indptr: Tensor, reduce_final_map: Tensor, reduce_partial_map: Tensor, page_size: int = 1,
        kv_granularity: int = 16, max_seqlen_qo: int = 1, dtype_q: torch.dtype = torch.bfloat16,
        dtype_kv: torch.dtype = torch.bfloat16, num_reject_tokens: Tensor | None = None) -> None:
    """`get_mla_metadata_v1` of the next step, in which each sequence that has query tokens has one: the plan is made
    anew of `seqlens_kv_indptr`, where AITER's kernel moves the ends of the last one.

    Args:
        seqlens_kv_indptr: int32, where the pages of a sequence begin, those of the new step.
        max_seqlen_qo, num_reject_tokens: of the last plan, which is not looked at; of no meaning.
        The others: see `get_mla_metadata_v1`.
    """
    op = "decode_update_mla_metadata_v1"
    check.tensor(op, "seqlens_qo_indptr", seqlens_qo_indptr, rank=1, dtypes=(torch.int32,))
    if not len(seqlens_qo_indptr):
        raise ValueError(f"{op}: seqlens_qo_indptr must have at least 1 element, got shape (0,)")
    starts = torch.zeros_like(seqlens_qo_indptr)
    torch.cumsum(seqlens_qo_indptr.diff().clamp(0, 1), 0, out=starts[1:])
    aiter_like.get_mla_metadata_v1(
        starts, seqlens_kv_indptr, kv_last_page_lens, num_heads_per_head_k, num_heads_k, is_causal, work_metadata_ptrs,
        work_info_set, work_indptr, reduce_indptr, reduce_final_map, reduce_partial_map, page_size, kv_granularity,
        max_seqlen_qo=1, dtype_q=dtype_q, dtype_kv=dtype_kv)


decode_attention_fwd = public("decode_attention_fwd", decode_attention_fwd)
decode_update_mla_metadata_v1 = public("decode_update_mla_metadata_v1", decode_update_mla_metadata_v1)
