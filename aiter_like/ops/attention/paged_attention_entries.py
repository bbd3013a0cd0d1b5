# SPDX-License-Identifier: MIT
"""AITER's entries of decoding over pages of rows, each a thin edge of paged_attention.py's operator: layouts become
views, scales views of [num_pages, page_size, num_kv_heads], windows counts of earlier keys. Those of packed pages stand
in paged_attention_packed.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.ops.attention.paged_attention import checked_views, paged_attention_op
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall, workspace_bytes
from aiter_like.ops.common import contents

__all__ = ["paged_attention_decode", "paged_attention_ragged", "paged_attention_v1"]

_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")


class Called(NamedTuple):
    """Names of the arguments in messages: those of the public function.

    Attributes:
        longest: what bounds the keys of a sequence; "": only its pages do.
        most: what bounds the rows of a sequence.
    """

    k_scale: str = "k_scale"
    v_scale: str = "v_scale"
    table: str = "block_tables"
    lengths: str = "context_lens"
    longest: str = "max_context_len"
    starts: str = "kv_indptr"
    rows: str = "qo_indptr"
    most: str = "max_qlen"


_CALLED = Called()


def paged_caches(op: str, q: Any, k: Any, v: Any, layout: str, kv_cache_dtype: str,
                 names: tuple[str, str, str] = ("query", "key_cache", "value_cache")) -> tuple[Tensor, Tensor]:
    """With the operator's axes; bytes under an fp8 name are fp8 of the device."""
    check.choice(op, "kv_cache_dtype", kv_cache_dtype, _CACHE_DTYPES)
    k, v = checked_views(op, q, k, v, layout, names)
    if kv_cache_dtype != "auto" and k.dtype == torch.uint8:
        fp8 = dtypes.fp8_of(target_of(k.device).arch)
        k, v = k.view(fp8), v.view(fp8)
    return k, v


def _scale(op: str, name: str, scale: Any, k: Tensor) -> Tensor | None:
    """A scale of a cache of bytes in one of AITER's forms: one number; [num_pages, num_kv_heads, page_size], also with
    a further dimension of 1; [slots, num_kv_heads]; [num_kv_heads, slots]. None for a cache of 16 bits.

    Raises:
        TypeError, ValueError: it has another form.
    """
    if scale is None or k.element_size() > 1:
        return None
    check.tensor(op, name, scale, dtypes=(torch.float32,), device=k.device, last_contiguous=False)
    pages, size, heads = k.shape[:3]
    shape = tuple(scale.shape)
    if scale.numel() == 1:
        return scale.reshape(1)
    if shape in ((pages, heads, size), (pages, heads, size, 1)):
        return scale.reshape(pages, heads, size).transpose(1, 2)
    if shape == (pages * size, heads):
        return scale.unflatten(0, (pages, size))
    if shape == (heads, pages * size):
        return scale.unflatten(1, (pages, size)).permute(1, 2, 0)
    raise ValueError(f"{op}: {name} must have 1 element or shape ({pages}, {heads}, {size}), ({pages * size}, {heads}) "
                     f"or ({heads}, {pages * size}), got {shape}")


def integers_of(op: str, name: str, tensor: Any, rank: int = 1) -> Tensor:
    """Lengths and numbers of pages, which some callers have in 64 bits."""
    check.tensor(op, name, tensor, rank=rank, dtypes=contents.INTEGERS)
    return tensor


def run_paged(op: str, out: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor | None,
         workspace: Any = None, k_scale: Any = None, v_scale: Any = None, backend: str | None = None,
         called: Called = _CALLED, **options: Any) -> Tensor:
    """Runs the operator. A workspace that is too small, since AITER's kernels plan otherwise, is left alone. options:
    further fields of the call, `lse` among them.
    """
    check.tensor(op, "query", q, rank=3)
    lse = options.pop("lse", None)
    options |= {"k_scale": _scale(op, called.k_scale, k_scale, k), "v_scale": _scale(op, called.v_scale, v_scale, k)}
    table, lengths = _checked_contents(op, q, k, table, lengths, called, options)
    if workspace is not None:
        check.tensor(op, "workspace_buffer", workspace, device=q.device)
        is_memory = workspace.is_contiguous() and (torch.compiler.is_compiling() or not workspace.is_neg())
        flat = workspace.reshape(-1).view(torch.uint8) if is_memory else None
        call = PagedAttentionCall(out, None, q, k, v, table, lengths, **options)
        is_asked = flat is not None and not torch.compiler.is_compiling()  # a compiler knows no addresses
        if is_asked and k.shape[2] and flat.numel() >= workspace_bytes(call) and flat.data_ptr() % 4 == 0:
            options["workspace"] = flat
    paged_attention_op.run(out, lse, q=q, k=k, v=v, block_table=table, seqlens_k=lengths, backend=backend, **options)
    return out


def _checked_contents(op: str, q: Tensor, k: Tensor, table: Tensor, lengths: Tensor | None, called: Called,
                      options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Pages and lengths in 32 bits, as are the starts in `options` then."""
    longest = options["max_seqlen_k"] if called.longest else None
    starts, rows, most = (options.get(name) for name in ("page_starts", "cu_seqlens_q", "max_seqlen_q"))
    integers_of(op, called.table, table, 2 if starts is None else 1)
    if lengths is not None or starts is None:
        integers_of(op, called.lengths, lengths)
    if starts is None:
        contents.check_pages(op, table, lengths, k, longest, (called.table, called.longest))
    else:
        names = (called.starts, called.table, called.lengths, called.longest)
        contents.check_page_list(op, starts, table, lengths, k, longest, names)
        options["page_starts"] = contents.as_int32(starts)
    if rows is not None:
        check.tensor(op, called.rows, rows, rank=1, dtypes=contents.INTEGERS, device=q.device)
        check.integer(op, called.most, most, low=0)
        if len(rows) == len(table if starts is None else starts[1:]):
            contents.check_values(op, called.rows, rows, 0, max(len(q) - most, 0), "name rows")
        else:
            contents.check_lengths(op, called.rows, rows, len(q), most, called.most)
        options["cu_seqlens_q"] = contents.as_int32(rows)
    return contents.as_int32(table), None if lengths is None else contents.as_int32(lengths)


def longest_of(op: str, name: str, value: Any) -> int:
    """A bound of lengths; a tensor of one element counts as its number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = int(value)
    check.integer(op, name, value, low=0)
    return value


def paged_attention_v1(
        out: Tensor, workspace_buffer: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float,
        block_tables: Tensor, cu_query_lens: Tensor | None, context_lens: Tensor, max_context_len: int,
        alibi_slopes: Tensor | None, kv_cache_dtype: str, kv_cache_layout: str, logits_soft_cap: float,
        k_scale: Tensor | None, v_scale: Tensor | None, fp8_out_scale: Tensor | None = None, partition_size: int = 256,
        mtp: int = 1, sliding_window: int = 0, *, backend: str | None = None) -> Tensor:
    """Decoding over pages: `out = softmax(scale · q kᵀ) v`. Like `paged_attention`.

    Args:
        out: [rows, num_heads, head_dim], written.
        workspace_buffer: memory for partial sums; where it is too small for this library's, torch allocates.
        query: [rows, num_heads, head_dim] bf16|fp16, `mtp` rows of each sequence.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim] ("NHD") or [num_blocks, num_kv_heads,
            block_size, head_dim] ("HND"), dtype of `query`, fp8, int8, or uint8 that is fp8; strides free but for the
            last.
        scale: of the scores.
        block_tables: [seqs, blocks] int32.
        cu_query_lens: [seqs + 1] or [seqs] int32: where the rows of each sequence begin; None: every mtp rows.
        context_lens: [seqs] int32: keys of each sequence.
        max_context_len: not less than the longest.
        kv_cache_dtype: "auto", "fp8" or "fp8_e4m3".
        kv_cache_layout: "NHD" or "HND".
        logits_soft_cap: 0, or the limit that tanh keeps scores below.
        k_scale, v_scale: fp32, one number or one per key and head, of a cache of bytes; else of no meaning.
        fp8_out_scale: fp32 [1]: an fp8 `out` is divided by it.
        partition_size: of AITER's kernels; of no meaning here.
        mtp: the most rows of a sequence.
        sliding_window: a query sees so many keys, its own included; 0: all.
    """
    op = "paged_attention_v1"
    check.choice(op, "kv_cache_layout", kv_cache_layout, ("NHD", "HND"))
    check.integer(op, "mtp", mtp, low=0)
    check.integer(op, "sliding_window", sliding_window, low=0)
    k, v = paged_caches(op, query, key_cache, value_cache, kv_cache_layout, kv_cache_dtype)
    return run_paged(op, out, query, k, v, block_tables, context_lens, workspace_buffer, k_scale, v_scale, backend,
                     Called(rows="cu_query_lens", most="mtp"), cu_seqlens_q=cu_query_lens,
                     alibi_slopes=alibi_slopes, out_scale=fp8_out_scale, max_seqlen_q=mtp,
                     max_seqlen_k=longest_of(op, "max_context_len", max_context_len), softmax_scale=scale,
                     window_left=sliding_window - 1, softcap=logits_soft_cap)


def paged_attention_ragged(
        out: Tensor, workspace_buffer: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float,
        kv_indptr: Tensor, kv_page_indices: Tensor, kv_last_page_lens: Tensor | None, block_size: int,
        max_num_partitions: int, alibi_slopes: Tensor | None, kv_cache_dtype: str, kv_cache_layout: str,
        logits_soft_cap: float, k_scale: Tensor | None, v_scale: Tensor | None, fp8_out_scale: Tensor | None = None,
        partition_size: int = 256, mtp: int = 1, *, backend: str | None = None) -> Tensor:
    """Decoding over pages that are listed one sequence after the other. Like `paged_attention_v1`.

    Args:
        query: [seqs · mtp, num_heads, head_dim] bf16|fp16.
        kv_indptr: [seqs + 1] int32: the blocks of each sequence in `kv_page_indices`; one without gives zeros.
        kv_page_indices: int32: numbers of blocks.
        kv_last_page_lens: [≥ seqs] int32: keys in the last block of each sequence; None: all. Not read where block_size
            is 1.
        block_size: of the caches; a pool of tokens has blocks of one key.
        max_num_partitions: with `partition_size` a bound of the longest sequence.
        partition_size: keys of a partition.
        mtp: rows of each sequence.
    """
    op = "paged_attention_ragged"
    check.choice(op, "kv_cache_layout", kv_cache_layout, ("NHD", "HND"))
    check.integer(op, "mtp", mtp, low=0)
    k, v = paged_caches(op, query, key_cache, value_cache, kv_cache_layout, kv_cache_dtype)
    check_block_size(op, block_size, k)
    for name, value in (("max_num_partitions", max_num_partitions), ("partition_size", partition_size)):
        check.integer(op, name, value, low=0, high=2**20)
    starts, last = integers_of(op, "kv_indptr", kv_indptr), None
    if kv_last_page_lens is not None and block_size > 1:
        last = integers_of(op, "kv_last_page_lens", kv_last_page_lens)
        check.tensor(op, "kv_last_page_lens", last, rank=1, device=query.device)
        if len(last) < len(starts) - 1:  # checked here, since the operator is given a part of it
            raise ValueError(f"{op}: kv_last_page_lens must have an element for each sequence, {len(starts) - 1}, got "
                             f"{len(last)}")
        last = last[:max(len(starts) - 1, 0)]
    called = Called(table="kv_page_indices", lengths="kv_last_page_lens", longest="max_num_partitions · partition_size")
    return run_paged(op, out, query, k, v, kv_page_indices, last, workspace_buffer, k_scale, v_scale, backend, called,
                     page_starts=starts,
                     alibi_slopes=alibi_slopes, out_scale=fp8_out_scale, max_seqlen_q=mtp, softmax_scale=scale,
                     softcap=logits_soft_cap, max_seqlen_k=min(max_num_partitions * partition_size, 2**30))


def check_block_size(op: str, block_size: int, k: Tensor) -> None:
    if block_size != k.shape[1]:
        raise ValueError(f"{op}: block_size must be that of key_cache, {k.shape[1]}, got {block_size!r}")


def paged_attention_decode(
        output: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, seq_lens: Tensor, block_tables: Tensor,
        attn_scale: float, max_seq_len: int, compute_type: Any, k_scale: Tensor | None, v_scale: Tensor | None,
        num_seq_partitions: int = 0, alibi_slopes: Tensor | None = None, *, backend: str | None = None) -> None:
    """Decoding of one query per sequence: `output = softmax(attn_scale · q kᵀ) v`. Like `paged_attention`.

    Args:
        output: [seqs, num_heads, head_dim], written.
        query: [seqs, num_heads, head_dim] bf16|fp16|fp8|int8.
        key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_dim], dtype of `query`, fp8 or int8.
        seq_lens: [seqs] int32|int64: keys of each sequence.
        block_tables: [seqs, blocks] int32|int64.
        attn_scale: of the scores.
        max_seq_len: not less than the longest sequence; a tensor of one element counts as its number.
        compute_type: of no meaning: the dtype of `query` says it, bf16 for bytes.
        k_scale, v_scale: fp32, one number or [num_blocks, num_kv_heads, block_size(, 1)], of a cache of bytes. One
            number may be on the CPU.
        num_seq_partitions: of no meaning here.

    Source: AITER's Triton function of this name.
    """
    op = "paged_attention_decode"
    k, v = paged_caches(op, query, key_cache, value_cache, "HND", "auto")
    scales = [scale.to(query.device) if isinstance(scale, Tensor) and scale.numel() == 1 else scale
              for scale in (k_scale, v_scale)]
    run_paged(op, output, query, k, v, block_tables, seq_lens, None, *scales, backend,
              Called(lengths="seq_lens", longest="max_seq_len"), alibi_slopes=alibi_slopes, softmax_scale=attn_scale,
              max_seqlen_k=longest_of(op, "max_seq_len", max_seq_len))


paged_attention_op.public += [paged_attention_decode, paged_attention_ragged, paged_attention_v1]
