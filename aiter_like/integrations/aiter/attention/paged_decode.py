# SPDX-License-Identifier: MIT
"""AITER's calls of decoding that differ from `paged_attention_rocm` in their arguments only: on the operator
paged_attention, which shares its work out itself and reads no plan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.device import default_target
from aiter_like.enums import QuantType
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.attention.paged_attention_entries import (
    Called,
    check_block_size,
    integers_of,
    paged_caches,
    run_paged,
)

_MOST_KEYS = 2**30
_MOST_SPLITS = 8


@aiter("aiter.ops.triton.gluon.pa_decode_gluon", callers="V S", stays=True)
def get_recommended_splits(num_sequences: int, num_kv_heads: int, split_kv_blocks: int = 1) -> int:
    """Partitions for which callers of `pa_decode_gluon` allocate: two of all heads for each CU, 8 at most."""
    op = "get_recommended_splits"
    for name, value in (("num_sequences", num_sequences), ("num_kv_heads", num_kv_heads),
                        ("split_kv_blocks", split_kv_blocks)):
        check.integer(op, name, value, low=1)
    programs = num_sequences * num_kv_heads * split_kv_blocks
    return min(-(-2 * default_target().cu_num // programs) * split_kv_blocks, _MOST_SPLITS)


@aiter("aiter.ops.triton.gluon.pa_decode_gluon aiter.ops.attention torch.ops.aiter", callers="V S")
def pa_decode_gluon(
        output: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, context_lengths: Tensor,
        block_tables: Tensor, softmax_scale: float, query_length: int, max_context_partition_num: int,
        context_partition_size: int = 256, compute_type: torch.dtype = torch.bfloat16,
        query_scale: Tensor | None = None, key_scale: Tensor | None = None, value_scale: Tensor | None = None,
        exp_sums: Tensor | None = None, max_logits: Tensor | None = None, temporary_output: Tensor | None = None,
        alibi_slopes: Tensor | None = None, sinks: Tensor | None = None, sliding_window: int = 0,
        ps: bool = True) -> None:
    """Decoding of `query_length` tokens per sequence over packed or shuffled pages; AITER's bounds (4 tokens, 64 rows
    of a KV head, pages of 16, 64 or 1024 keys) do not hold here.

    Args:
        key_cache, value_cache: pages that only one of them has are left out: vLLM lets the values' view begin inside of
            the keys'.
        context_lengths, block_tables: what lies behind the sequences that `query` has is not read.
        max_context_partition_num, context_partition_size, compute_type, exp_sums, max_logits, temporary_output, ps:
            partitions and memory of AITER's kernels; of no meaning.
        query_scale: fp32, one number or [rows, num_heads(, 1)].
        key_scale, value_scale: fp32, one number or [num_blocks, num_kv_heads, block_size(, 1)], of a cache of bytes.
        alibi_slopes: [num_heads] fp32; they count here, while AITER's kernels leave them out.
        sinks: [num_heads] of any float dtype: one more score in the denominator.
        sliding_window: a query sees so many keys, its own included; below 1: all.
    """
    op = "pa_decode_gluon"
    check.tensor(op, "query", query, rank=3)
    check.tensor(op, "key_cache", key_cache, rank=5)
    check.tensor(op, "value_cache", value_cache)
    check.integer(op, "query_length", query_length, low=1)
    check.integer(op, "sliding_window", sliding_window, low=-2**30)
    layout, pages = "packed" if value_cache.ndim == 4 else "shuffled", min(len(key_cache), len(value_cache))
    k, v = paged_caches(op, query, key_cache[:pages], value_cache[:pages], layout, "fp8")
    batch = len(query) // query_length
    table = integers_of(op, "block_tables", block_tables, 2)[:batch]
    lengths = integers_of(op, "context_lengths", context_lengths)[:batch]
    if query_scale is not None:
        check.tensor(op, "query_scale", query_scale, dtypes=(torch.float32,), device=query.device)
        query_scale = query_scale.squeeze(-1) if query_scale.ndim == 3 else query_scale
    if sinks is not None:
        check.tensor(op, "sinks", sinks, dtypes=(torch.float32, torch.bfloat16, torch.float16), device=query.device)
        sinks = sinks.float()
    run_paged(op, output, query, k, v, table, lengths, None, key_scale, value_scale, None,
              Called("key_scale", "value_scale", lengths="context_lengths", longest=""), q_scale=query_scale,
              alibi_slopes=alibi_slopes, sink=sinks, max_seqlen_q=query_length,
              max_seqlen_k=min(table.shape[1] * k.shape[1], _MOST_KEYS), softmax_scale=softmax_scale,
              window_left=max(sliding_window, 0) - 1)


@aiter("aiter aiter.ops.attention")
def pa_fwd_naive(
        query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
        k_dequant_scales: Tensor | None, v_dequant_scales: Tensor | None, max_seq_len: int, num_kv_heads: int,
        scale_s: float, scale_k: Any, scale_v: Any, block_size: int, quant_algo: int,
        out: Tensor | None = None) -> Tensor:
    """Decoding of one token per sequence over packed pages.

    Args:
        k_dequant_scales, v_dequant_scales: fp32 [num_kv_heads, slots], of a cache of bytes where `quant_algo` is not 0;
            without elements: none.
        max_seq_len: of no meaning: how long sequences may be follows from `block_tables`.
        scale_k, scale_v: of no meaning, as in AITER.
        quant_algo: 0: a cache of bytes is not scaled.
    """
    op = "pa_fwd_naive"
    check.tensor(op, "query", query, rank=3)
    check.integer(op, "quant_algo", quant_algo, low=0)
    k, v = paged_caches(op, query, key_cache, value_cache, "packed", "fp8")
    check_block_size(op, block_size, k)
    if num_kv_heads != k.shape[2]:
        raise ValueError(f"{op}: num_kv_heads must be that of key_cache, {k.shape[2]}, got {num_kv_heads!r}")
    scales = [None if quant_algo == 0 or scale is None or scale.numel() == 0 else scale
              for scale in (k_dequant_scales, v_dequant_scales)]
    table = integers_of(op, "block_tables", block_tables, 2)
    if out is None:
        out = torch.empty(*query.shape[:2], v.shape[3], dtype=query.dtype, device=query.device)
    return run_paged(op, out, query, k, v, table, context_lens, None, *scales, None,
                     Called("k_dequant_scales", "v_dequant_scales", longest=""), softmax_scale=scale_s,
                     max_seqlen_k=min(table.shape[1] * k.shape[1], _MOST_KEYS))


@aiter("aiter aiter.ops.attention")
def pa_persistent_fwd(
        Q: Tensor, K: Tensor, V: Tensor, output: Tensor, max_qlen: int, qo_indptr: Tensor | None, kv_indptr: Tensor,
        kv_indices: Tensor, context_lens: Tensor, work_indptr: Tensor | None, work_info: Tensor | None,
        reduce_indptr: Tensor | None, reduce_final_map: Tensor | None, reduce_partial_map: Tensor | None,
        K_QScale: Tensor | None = None, V_QScale: Tensor | None = None, softmax_scale: float | None = None,
        mask: int = 0, quant_type: QuantType = QuantType.per_Token) -> tuple[Tensor, Tensor]:
    """Decoding over shuffled pages that are listed one sequence after the other, into `output`.

    Args:
        kv_indptr: [≥ batch + 1] int32: where the pages of a sequence begin in `kv_indices`; it has as many as its
            `context_lens` keys fill.
        work_indptr, work_info, reduce_indptr, reduce_final_map, reduce_partial_map: of no meaning here: the plan of
            `get_pa_metadata_v1` is for kernels that do not plan themselves.
        K_QScale, V_QScale: fp32, one number, [num_blocks, num_kv_heads, block_size(, 1)] or [num_blocks, num_kv_heads],
            of a cache of bytes.
        softmax_scale: default 1 / sqrt(head_dim of V).
        mask: 1: the tokens of a sequence are causal among one another; 0: each of them sees all keys.
        quant_type: of no meaning: the shapes of the scales say it.

    Returns:
        fp32 [0, 1, num_heads, head_dim of V], as there are no partial results; fp32 [rows, num_heads], the
        log-sum-exps of all rows, of which AITER writes those of sequences that its plan cuts.
    """
    op = "pa_persistent_fwd"
    check.tensor(op, "output", output, rank=3)
    lse = torch.empty(*output.shape[:2], dtype=torch.float32, device=output.device)
    _run_shuffled(op, output, Q, K, V, (kv_indptr, kv_indices, context_lens, qo_indptr), (K_QScale, V_QScale), max_qlen,
                  softmax_scale, mask, lse.t())
    return torch.empty(0, 1, *output.shape[1:], dtype=torch.float32, device=output.device), lse


@aiter("aiter aiter.ops.attention")
def pa_ps_fwd_asm(
        Q: Tensor, K: Tensor, V: Tensor, kv_indptr: Tensor, kv_page_indices: Tensor, context_lens: Tensor,
        softmax_scale: float, max_qlen: int = 1, K_QScale: Tensor | None = None, V_QScale: Tensor | None = None,
        out_: Tensor | None = None, qo_indptr: Tensor | None = None, work_indptr: Tensor | None = None,
        work_info: Tensor | None = None, splitData: Tensor | None = None, splitLse: Tensor | None = None,
        mask: int = 0, high_precision: int | None = 1, kernelName: str | None = None,
        quant_type: QuantType | None = QuantType.per_Token) -> Tensor:
    """`pa_persistent_fwd` without its sum of partial results, into `out_` or a new tensor.

    Args:
        work_indptr, work_info, splitData, splitLse: as `work_indptr`, `work_info`, `split_o` and `split_lse` for
            `pa_decode_bf16_asm`.
        high_precision, kernelName: of no meaning: sums are always fp32, and none of AITER's kernels runs here.
    """
    op = "pa_ps_fwd_asm"
    check.tensor(op, "Q", Q, rank=3)
    check.tensor(op, "V", V, rank=5)
    if out_ is None:
        out_ = torch.empty(*Q.shape[:2], V.shape[3], dtype=Q.dtype, device=Q.device)
    parts = _checked_parts(op, work_indptr, work_info, splitData, splitLse, out_, ("splitData", "splitLse"))
    _run_shuffled(op, out_, Q, K, V, (kv_indptr, kv_page_indices, context_lens, qo_indptr), (K_QScale, V_QScale),
                  max_qlen, softmax_scale, mask)
    if parts is not None:
        _write_parts(out_, *parts, max_qlen)
    return out_


@aiter("aiter aiter.ops.attention")
def pa_reduce_v1(
        partial_output: Tensor, partial_lse: Tensor, reduce_indptr: Tensor, reduce_final_map: Tensor | None,
        reduce_partial_map: Tensor, max_seqlen_q: int, final_output: Tensor, final_lse: Tensor | None = None,
        num_kv_splits: int = 0) -> None:
    """`mla_reduce_v1` in another order."""
    aiter_like.mla_reduce_v1(partial_output, partial_lse, reduce_indptr, reduce_final_map, reduce_partial_map,
                             max_seqlen_q, num_kv_splits, final_output, final_lse)


@aiter("aiter aiter.ops.attention")
def pa_decode_bf16_asm(
        Q: Tensor, K: Tensor, V: Tensor, kv_indices: Tensor, context_lens: Tensor, softmax_scale: float,
        kv_indptr: Tensor, gqa: int = 8, mtp: int = 0, query_scale: Tensor | None = None,
        key_scale: Tensor | None = None, value_scale: Tensor | None = None, qo_indptr: Tensor | None = None,
        work_indptr: Tensor | None = None, work_info: Tensor | None = None, split_o: Tensor | None = None,
        split_lse: Tensor | None = None, sink: Tensor | None = None, out: Tensor | None = None,
        kernelName: str | None = None) -> Tensor:
    """Decoding of `mtp` + 1 tokens per sequence over shuffled pages that are listed one sequence after the other; of
    AITER's a call of gfx1250 for heads of 64 columns and pages of 256 keys, here one of any device and size.

    Args:
        Q: [rows, num_heads, head_dim], or further dimensions that are these in order, fp8|int8|bf16|fp16.
        kv_indptr: as for `pa_persistent_fwd`.
        gqa: heads of Q for each one of K.
        work_indptr, work_info: a plan. Where it is given with `split_o` and `split_lse`, both are written so that the
            sum of a sequence's partial results is its rows of `out`, which are complete without it.
        sink: [num_heads] fp32: one more score in the denominator.
        out: bf16 of Q's shape; default: a new one.
    """
    op = "pa_decode_bf16_asm"
    check.integer(op, "gqa", gqa, low=1)
    check.integer(op, "mtp", mtp, low=0)
    check.tensor(op, "Q", Q)
    check.tensor(op, "K", K, rank=5)
    heads = K.shape[1] * gqa
    if Q.ndim < 3 or not Q.is_contiguous() or not heads * Q.shape[-1] or Q.numel() % (heads * Q.shape[-1]):
        raise ValueError(f"{op}: Q must be contiguous, with {K.shape[1]} · {gqa} heads, got shape {tuple(Q.shape)}")
    q = Q.view(-1, heads, Q.shape[-1])
    k, v = paged_caches(op, q, K, V, "shuffled", "fp8", ("Q", "K", "V"))
    if out is None:
        out = torch.empty(Q.shape, dtype=torch.bfloat16, device=Q.device)
    check.tensor(op, "out", out, dtypes=(torch.bfloat16,), shape=tuple(Q.shape), device=Q.device)
    if not out.is_contiguous():
        raise ValueError(f"{op}: out must be contiguous, got strides {out.stride()}")
    rows = out.view(q.shape)
    parts = _checked_parts(op, work_indptr, work_info, split_o, split_lse, rows, ("split_o", "split_lse"))
    _run_listed(op, rows, q, k, v, (kv_indptr, kv_indices, context_lens, qo_indptr), (key_scale, value_scale),
                ("key_scale", "value_scale"), q_scale=query_scale, sink=sink, max_seqlen_q=mtp + 1,
                softmax_scale=softmax_scale)
    if parts is not None:
        _write_parts(rows, *parts, mtp + 1)
    return out


def _run_shuffled(op: str, out: Tensor, q: Tensor, k: Any, v: Any, lists: tuple[Any, Any, Any, Any],
                  scales: tuple[Any, Any], max_qlen: int, softmax_scale: float | None, mask: int,
                  lse: Tensor | None = None) -> None:
    """Runs the operator over shuffled pages; lists: see _run_listed."""
    check.tensor(op, "Q", q, rank=3)
    check.integer(op, "max_qlen", max_qlen, low=1)
    check.integer(op, "mask", mask, low=0, high=1)
    k, v = paged_caches(op, q, k, v, "shuffled", "fp8", ("Q", "K", "V"))
    tree = None
    if not mask and max_qlen > 1:
        tree = torch.ones((), dtype=torch.bool, device=q.device).expand(max_qlen, max_qlen)
    _run_listed(op, out, q, k, v, lists, tuple(_of_pages(scale, k) for scale in scales), ("K_QScale", "V_QScale"),
                max_seqlen_q=max_qlen, tree_mask=tree, lse=lse,
                softmax_scale=max(v.shape[3], 1) ** -0.5 if softmax_scale is None else softmax_scale)


def _run_listed(op: str, out: Tensor, q: Tensor, k: Tensor, v: Tensor, lists: tuple[Any, Any, Any, Any],
                scales: tuple[Any, Any], names: tuple[str, str], **options: Any) -> None:
    """Runs the operator over pages listed one sequence after the other.

    lists: kv_indptr, kv_indices, context_lens and qo_indptr.
    """
    lengths = integers_of(op, "context_lens", lists[2])
    starts, pages = integers_of(op, "kv_indptr", lists[0]), integers_of(op, "kv_indices", lists[1])
    size, batch, rows = k.shape[1], len(lengths), lists[3]
    if len(starts) <= batch:  # checked here, since the operator is given a part of it
        raise ValueError(f"{op}: kv_indptr must have at least {batch + 1} elements, got {len(starts)}")
    starts = starts[:batch + 1]
    if rows is not None:
        rows = integers_of(op, "qo_indptr", rows)
        if len(rows) <= batch:
            raise ValueError(f"{op}: qo_indptr must have at least {batch + 1} elements, got {len(rows)}")
        rows = rows[:batch + 1]
    check.tensor(op, "context_lens", lengths, device=starts.device)
    last = lengths - (starts.diff() - 1) * size  # keys of the last page
    called = Called(*names, table="kv_indices", longest="")
    run_paged(op, out, q, k, v, pages, last, None, *scales, None, called, page_starts=starts, cu_seqlens_q=rows,
              max_seqlen_k=min(len(pages) * size, _MOST_KEYS), **options)


def _of_pages(scale: Any, k: Tensor) -> Any:
    """A scale per page and KV head as one per key; others as they are."""
    pages, size, heads = k.shape[:3]
    if isinstance(scale, Tensor) and tuple(scale.shape) == (pages, heads) and scale.numel() > 1:
        return scale[:, :, None].expand(pages, heads, size)
    return scale


def _checked_parts(op: str, work_indptr: Any, work_info: Any, split_o: Any, split_lse: Any, out: Tensor,
                   names: tuple[str, str]) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """What _write_parts takes; None where not all of it is given.

    Raises:
        TypeError, ValueError: a tensor is of another kind or shape.
    """
    if any(one is None for one in (work_indptr, work_info, split_o, split_lse)):
        return None
    for name, tensor, dtype in (("work_indptr", work_indptr, torch.int32), ("work_info", work_info, torch.int32),
                                (names[0], split_o, torch.float32), (names[1], split_lse, torch.float32)):
        check.tensor(op, name, tensor, dtypes=(dtype,), device=out.device)
    check.tensor(op, "work_indptr", work_indptr, rank=1)
    if len(work_indptr) < 2:
        raise ValueError(f"{op}: work_indptr must have an element more than there are parts, got {len(work_indptr)}")
    check.tensor(op, "work_info", work_info, shape=(None, 8))
    count = split_o.shape[0]
    check.tensor(op, names[0], split_o, shape=(count, 1, *out.shape[1:]))
    check.tensor(op, names[1], split_lse, shape=(count, 1, out.shape[1], 1))
    return work_indptr, work_info, split_o, split_lse


def _write_parts(out: Tensor, work_indptr: Tensor, work_info: Tensor, split_o: Tensor, split_lse: Tensor,
                 max_rows: int) -> None:
    """Each partial result of a sequence becomes its rows of `out`, all of them with the same weight."""
    if not len(out):
        return
    count = len(split_o)
    is_item = torch.arange(len(work_info), device=out.device) < work_indptr[-1:]
    nth = torch.arange(max_rows, device=out.device)
    first, begin, end = (work_info[:, column, None] for column in (1, 2, 3))
    place, row = first + nth, begin + nth  # [items, max_rows]
    is_row = is_item[:, None] & (first >= 0) & (row < end) & (place < count) & (row < len(out))
    source = torch.full((count + 1,), -1, dtype=torch.int64, device=out.device)
    source[torch.where(is_row, place, count).flatten()] = torch.where(is_row, row, -1).long().flatten()
    source = source[:count, None, None, None]
    is_part = source >= 0
    rows = out[source.flatten().clamp(min=0)][:, None].float()
    split_o.copy_(torch.where(is_part, rows, split_o))
    split_lse.copy_(torch.where(is_part, torch.zeros_like(split_lse), split_lse))
