# SPDX-License-Identifier: MIT
"""Attention over a contiguous KV cache: flash_attn_with_kvcache. The operators behind it:
ops/attention/flash_attn_fwd.py, and ops/kv_cache/reshape_and_cache.py where keys are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.dispatch import Op
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.checks import read_window
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.ops.attention.kvcache_append import (
    OP,
    Cache,
    appending,
    check_new,
    check_places,
    read_cache,
    rotated,
    without_padding,
)
from aiter_like.ops.attention.unified_attention import unified_attention_op
from aiter_like.ops.common.contents import check_lengths, check_values

__all__ = ["flash_attn_with_kvcache"]


def flash_attn_with_kvcache(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
        qv: Tensor | None = None, cache_seqlens: Tensor | int | None = None, softmax_scale: float | None = None,
        causal: bool = True, window_size: Sequence[int] | None = (-1, -1), attention_chunk: int = 0,
        softcap: float = 0.0, num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0,
        q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
        max_seqlen_q: int | None = None, return_softmax_lse: bool = False, page_table: Tensor | None = None,
        cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None, rotary_seqlens: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k_new: Tensor | None = None, *, rotary_interleaved: bool = True, workspace: Tensor | None = None,
        out: Tensor | None = None, backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of new queries over the keys of a cache, with new keys appended first if given. Like `flash_attn_func`:

    `out = softmax(softmax_scale · q kᵀ + mask) v` over the first cache_seqlens + seqlen_new keys of each sequence; the
    last query stands at the last of them.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim] bf16|fp16, or the device's e4m3 with such caches; with `cu_seqlens_q`
            [total_q, num_heads, head_dim].
        k_cache, v_cache: [batch, seqlen_k, num_kv_heads, head_dim or head_dim_v], dtype of `q`, last dimension
            contiguous; with `cache_batch_idx` more sequences, with `page_table` [num_pages, page_size, …].
        k, v: [batch, seqlen_new, …] or with `cu_seqlens_k_new` [total_new, …], written to the caches behind their keys;
            None: nothing is. A key for which there is no room is left out.
        qv: None: it belongs to latent attention.
        cache_seqlens: keys in the cache before the call, those before `cache_leftpad` included, int32 [batch] or one
            number for all; None: all there is room for.
        causal: the diagonal ends at each sequence's last key.
        attention_chunk: 0: a window limits the keys.
        softcap: scores become softcap · tanh(score / softcap); 0: they do not.
        num_splits: as in `flash_attn_func`; without effect with pages.
        pack_gqa, sm_margin: hints without effect.
        q_descale, k_descale, v_descale: fp32 [1], with fp8 tensors: what the elements are multiplied by.
        max_seqlen_q: with `cu_seqlens_q` not less than the longest sequence of `q`; rows beyond are not computed.
        return_softmax_lse: also return the log-sum-exp of the scores.
        page_table: int32 [batch, pages]: the pages of each sequence; only those with keys are read, and those
            that get new keys have none of another sequence.
        cache_batch_idx: int32 [batch]: the sequence of the caches that belongs to each of `q`; different ones with `k`.
        cache_leftpad: int32 [batch]: the first key of each sequence; those before it do not exist.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2] bf16|fp16|fp32: `k` is rotated at the positions where it
            goes in the cache, `q` at the same ones, without mask and window at the first of them; all are rows of the
            tables.
        rotary_seqlens: int32 [batch]: the first position instead of `cache_seqlens`.
        cu_seqlens_q, cu_seqlens_k_new: int32 [batch + 1]: `q`, or `k` and `v`, have the sequences one after the other.
        rotary_interleaved: elements 2i and 2i + 1 are a pair; False: i and i + rotary_dim / 2.
        workspace: as in `flash_attn_func`; not with pages.
        out: shaped as `q` with head_dim_v, its sequences one behind the other in memory; default: new, bf16 for fp8.
        backend: of the attention: "hip", "ck", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`, or with `return_softmax_lse` the pair `out`, lse: [batch, num_heads, seqlen_q], with `cu_seqlens_q`
        [num_heads, total_q], fp32, natural logarithm. A row of a sequence without keys is 0 and −inf, rows behind the
        last sequence of `cu_seqlens_q` are not written. With `k` and `v` the caches are written too.

    Notes:
        Sums and rounding are those of `flash_attn_func`. On a GPU what is outside of its bounds is clamped (lengths,
        pages that are read) or left out (places of new keys), a row whose position is not in the tables becomes NaN:
        memory outside is never touched. page_table, cache_batch_idx, cache_leftpad and cu_seqlens_q take the kernels of
        `unified_attention`, which round to nearest even: caches are its pages, with `cache_leftpad` of one key each,
        which costs a table of 4 bytes per key. Rotation and appending are kernels of their own: they write q and k
        once more.

    Source: Dao, FlashAttention; AITER's `flash_attn_with_kvcache`.
    """
    _refuse(attention_chunk=attention_chunk, qv=qv)
    check.tensor(OP, "q", q, rank=4 if cu_seqlens_q is None else 3)
    check.flag(OP, "return_softmax_lse", return_softmax_lse)
    check.integer(OP, "num_splits", num_splits, 0)
    left, right, sink_size = read_window(OP, window_size, causal)
    batch = len(q) if cu_seqlens_q is None else _batch_of(cu_seqlens_q, q, max_seqlen_q)
    cache = read_cache(k_cache, v_cache, page_table, cache_batch_idx, batch, q.device)
    lengths = _read_lengths(cache_seqlens, batch, cache.capacity, q.device)
    if k is not None or v is not None or cu_seqlens_k_new is not None:
        check_new(k, v, cache, cu_seqlens_k_new, batch)
    if rotary_cos is not None or rotary_sin is not None or rotary_seqlens is not None:
        first = lengths if rotary_seqlens is None else _read_lengths(rotary_seqlens, batch, None, q.device)
        q, k = rotated(q, k, rotary_cos, rotary_sin, first, cu_seqlens_q, cu_seqlens_k_new,
                       rotary_interleaved, is_all_at_first=(left, right) == (-1, -1),
                       name="cache_seqlens" if rotary_seqlens is None else "rotary_seqlens")
    added, before = None, lengths
    if k is not None:
        added = appending(k, v, cache, lengths, cu_seqlens_k_new, (k_descale, v_descale), batch)
        lengths = added.lengths
    check_places(cache, (before, lengths), cache_leftpad, batch)
    seqlen_q = q.shape[1] if cu_seqlens_q is None else max_seqlen_q
    if seqlen_q <= right + 1:  # the limit is behind the last key: decoding needs no causal mask
        right = -1
    if out is None:
        dtype = torch.bfloat16 if q.element_size() == 1 else q.dtype
        out = torch.empty(*q.shape[:-1], v_cache.shape[3], dtype=dtype, device=q.device)
    scale = max(q.shape[-1], 1) ** -0.5 if softmax_scale is None else softmax_scale
    options = {"max_seqlen_q": seqlen_q, "softmax_scale": scale, "window_left": left, "window_right": right,
               "sink_size": sink_size, "softcap": softcap, "q_descale": q_descale, "k_descale": k_descale,
               "v_descale": v_descale}
    if cache.table is None and cache_leftpad is None and cu_seqlens_q is None:
        op, call, lse = _rows(out, q, cache, lengths, return_softmax_lse, workspace=workspace, num_splits=num_splits,
                              **options)
    else:
        if cache_leftpad is not None:
            cache, lengths = without_padding(cache, lengths, cache_leftpad, batch)
        op, call, lse = _pages(out, q, cache, lengths, cu_seqlens_q, return_softmax_lse, **options)
    if added is not None:
        op.prepare(**call, backend=backend)  # nothing is written where the attention would be refused
        added.write()
    op.run(**call, backend=backend)
    if lse is not None and op is unified_attention_op and cu_seqlens_q is None:
        lse = lse.unflatten(1, (batch, seqlen_q)).transpose(0, 1)
    return (out, lse) if return_softmax_lse else out


flash_attn_fwd.public.append(flash_attn_with_kvcache)


def _refuse(attention_chunk: int, qv: Tensor | None) -> None:
    reasons = {"attention_chunk": "a window limits the keys"} if attention_chunk else {}
    if qv is not None:
        reasons["qv"] = "it belongs to latent attention"
    if reasons:
        raise UnsupportedError(f"{OP}: no backend supports "
                               + "; ".join(f"{name} ({instead})" for name, instead in reasons.items()), OP, reasons)


def _batch_of(cu_seqlens_q: Tensor, q: Tensor, max_seqlen_q: int | None) -> int:
    """Sequences of packed queries.

    Raises:
        TypeError, ValueError: cu_seqlens_q or max_seqlen_q are not what they must be.
    """
    check.tensor(OP, "cu_seqlens_q", cu_seqlens_q, rank=1, dtypes=(torch.int32,), device=q.device)
    check.integer(OP, "max_seqlen_q", max_seqlen_q, 0)
    check_lengths(OP, "cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    if len(cu_seqlens_q) < 2 and len(q):
        raise ValueError(f"{OP}: cu_seqlens_q must name the sequences of q's {len(q)} rows, got shape "
                         f"{tuple(cu_seqlens_q.shape)}")
    return max(len(cu_seqlens_q) - 1, 0)


def _read_lengths(lengths: Tensor | int | None, batch: int, most: int | None, device: torch.device) -> Tensor | int:
    """Keys of each sequence, int32 [batch], or a number for all; most: None: `lengths` are first positions."""
    name = "rotary_seqlens" if most is None else "cache_seqlens"
    if most is None or isinstance(lengths, Tensor):
        check.tensor(OP, name, lengths, dtypes=(torch.int32,), shape=(batch,), device=device)
        check_values(OP, name, lengths, 0, check.INT32_MAX if most is None else most)
        return lengths
    if lengths is None:
        return most
    check.integer(OP, name, lengths, 0, most)
    return lengths


def _rows(out: Tensor, q: Tensor, cache: Cache, lengths: Tensor | int, has_lse: bool,
          **options: Any) -> tuple[Op, dict[str, Any], Tensor | None]:
    """Contiguous caches: the operator, the fields of its call, of which `options` are a part, and the LSE."""
    (batch, seqlen_q, num_heads, _), k, v = q.shape, cache.k, cache.v
    if isinstance(lengths, int):
        k, v, lengths = k[:, :lengths], v[:, :lengths], None
    lse = torch.empty(batch, num_heads, seqlen_q, device=q.device, dtype=torch.float32) if has_lse else None
    return flash_attn_fwd, {"out": out, "lse": lse, "q": q, "k": k, "v": v, "seqlens_k": lengths,
                            "max_seqlen_k": k.shape[1], **options}, lse


def _pages(out: Tensor, q: Tensor, cache: Cache, lengths: Tensor | int, cu_seqlens_q: Tensor | None, has_lse: bool,
           **options: Any) -> tuple[Op, dict[str, Any], Tensor | None]:
    """Pages: as `_rows`; the LSE is [num_heads, rows].

    Raises:
        ValueError: `out` is no tensor of rows.
    """
    device, rows_q, rows_out, starts, seqlen_q = q.device, q, out, cu_seqlens_q, options["max_seqlen_q"]
    batch = len(q) if starts is None else len(starts) - 1
    if starts is None:
        starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * seqlen_q
        rows_q = q.flatten(0, 1)
        check.tensor(OP, "out", out, shape=(*q.shape[:-1], cache.v.shape[3]))
        if out.numel() and out.stride(0) != seqlen_q * out.stride(1) and batch > 1:
            raise ValueError(f"{OP}: out must have its sequences one behind the other, got strides {out.stride()}")
        rows_out = out.flatten(0, 1)
    table = torch.arange(batch, dtype=torch.int32, device=device)[:, None] if cache.table is None else cache.table
    longest = lengths if isinstance(lengths, int) else cache.capacity
    if isinstance(lengths, int):
        lengths = torch.full((batch,), lengths, dtype=torch.int32, device=device)
    lse = torch.empty(q.shape[-2], len(rows_q), device=device, dtype=torch.float32) if has_lse else None
    return unified_attention_op, {
        "out": rows_out, "lse": lse, "q": rows_q, "k": cache.k, "v": cache.v, "cu_seqlens_q": starts,
        "seqlens_k": lengths, "block_table": table, "max_seqlen_k": longest, **options}, lse
