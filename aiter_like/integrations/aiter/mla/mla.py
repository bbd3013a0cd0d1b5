# SPDX-License-Identifier: MIT
"""AITER's Triton functions of latent attention, which take a table of pages, and the plan of a next step."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.dispatch.public import public
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import check_pages


@aiter("aiter.ops.triton.[attention.]mla", callers="V")
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


@aiter("aiter aiter.ops.attention")
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


decode_update_mla_metadata_v1 = public("decode_update_mla_metadata_v1", decode_update_mla_metadata_v1)
