# SPDX-License-Identifier: MIT
"""AITER's Triton functions of prompts whose first keys lie in packed pages and whose new ones do not yet. Named by
names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.paged_attention_entries import Called, paged_caches, run_paged
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32, check_pages

_PREFILL = "context_attention_fwd"
_CHUNKED = "chunked_prefill_paged_decode"
_HALVES = (torch.bfloat16, torch.float16)
_FP8 = ("fp8", "fp8_e4m3", "fp8e4m3")


def context_attention_fwd(
        q: Tensor, k: Tensor, v: Tensor, o: Tensor, kv_cache_dtype: str, k_cache: Tensor, v_cache: Tensor,
        b_loc: Tensor, b_start_loc: Tensor, b_seq_len: Tensor, max_input_len: int, k_scale: Tensor | float,
        v_scale: Tensor | float, alibi_slopes: Tensor | None = None, sliding_window: int | None = None,
        sm_scale: float | None = None, skip_decode: bool = False) -> None:
    """Causal attention of new tokens to the keys of their sequence in packed pages and to themselves, into `o`: the
    keys of all sequences are put one behind the other, then `flash_attn_varlen_func` reads them. The host waits for
    the lengths.

    Args:
        q, o: [tokens, num_heads, head_dim] bf16|fp16.
        k, v: [tokens, num_kv_heads, head_dim], dtype of `q`: the new keys, which the pages do not have.
        kv_cache_dtype: "auto" for pages in the dtype of `q`; "fp8", "fp8_e4m3" or "fp8e4m3" for fp8 or bytes.
        k_cache: [num_blocks, num_kv_heads, head_dim / x, block_size, x], any x.
        v_cache: [num_blocks, num_kv_heads, head_dim, block_size].
        b_loc: [batch, blocks] integers: the blocks of each sequence; what is none becomes the nearest on a GPU, where
            nobody looks.
        b_start_loc: [batch + 1] integers: its new tokens in `q`.
        b_seq_len: [batch] integers: all of its keys, the new ones last.
        max_input_len: not less than the most new tokens of a sequence.
        k_scale, v_scale: one number, of fp8 pages.
        alibi_slopes: [num_heads] fp32.
        sliding_window: a query sees so many keys, its own included; None or below 1: all.
        sm_scale: of the scores; None: 1 / sqrt(head_dim).
        skip_decode: the row of a sequence that has one new token is not written.

    Raises:
        UnsupportedError: alibi_slopes together with sliding_window, of which AITER's kernel drops the latter.
    """
    if alibi_slopes is not None and _window(_PREFILL, sliding_window) >= 0:
        raise UnsupportedError(f"{_PREFILL}: no backend supports alibi_slopes with sliding_window", _PREFILL)
    rows, sequences = _checked(_PREFILL, ("q", "k", "v", "o"), (q, k, v, o), (k_cache, v_cache),
                               (b_loc, b_start_loc, b_seq_len), ("b_loc", "b_start_loc", "b_seq_len"), kv_cache_dtype)
    check.flag(_PREFILL, "skip_decode", skip_decode)
    if not len(b_seq_len) or not len(q):
        return
    starts, lengths = sequences
    keys, values, ends = _gathered(rows, (k, v), b_loc, starts, lengths, (k_scale, v_scale), False)
    is_kept = starts.diff() != 1 if skip_decode else None
    window = _window(_PREFILL, sliding_window)
    _attend(q, keys, values, o, (starts, ends), max_input_len, alibi_slopes, window, sm_scale, is_kept)


def chunked_prefill_paged_decode(
        query: Tensor, key: Tensor, value: Tensor, output: Tensor, kv_cache_dtype: str, key_cache: Tensor,
        value_cache: Tensor, block_table: Tensor, query_start_loc: Tensor, seq_lens: Tensor, max_query_len: int,
        k_scale: Tensor | float, v_scale: Tensor | float, alibi_slopes: Tensor | None = None,
        sliding_window: int | None = None, sm_scale: float | None = None) -> None:
    """`context_attention_fwd` of sequences of which those with one new token have it in their pages, too: its own key
    is read there. Where all have one, `paged_attention` decodes.

    Args:
        query, key, value, output, key_cache, value_cache, block_table, query_start_loc, seq_lens, max_query_len: there
            q, k, v, o, k_cache, v_cache, b_loc, b_start_loc, b_seq_len and max_input_len.
        kv_cache_dtype, k_scale, v_scale, alibi_slopes, sliding_window: as there; the last two may come together.
        sm_scale: None: 1 / sqrt(head_dim), as AITER's documentation has it; its code takes the number of heads.
    """
    op = _CHUNKED
    rows, sequences = _checked(op, ("query", "key", "value", "output"), (query, key, value, output),
                               (key_cache, value_cache), (block_table, query_start_loc, seq_lens),
                               ("block_table", "query_start_loc", "seq_lens"), kv_cache_dtype)
    window = _window(op, sliding_window)
    check.integer(op, "max_query_len", max_query_len, 1)
    if not len(seq_lens) or not len(query):
        return
    starts, lengths = sequences
    if max_query_len == 1 and len(query) == len(seq_lens):
        k, v = paged_caches(op, query, *rows, "packed", "auto", ("query", "key_cache", "value_cache"))
        scales = [_number(scale, query) for scale in (k_scale, v_scale)]
        run_paged(op, output, query, k, v, block_table, seq_lens, None, *scales,
                  called=Called(table="block_table", lengths="seq_lens", longest=""),
                  alibi_slopes=alibi_slopes, max_seqlen_q=1, max_seqlen_k=block_table.shape[1] * k.shape[1],
                  softmax_scale=max(query.shape[2], 1) ** -0.5 if sm_scale is None else sm_scale, window_left=window)
        return
    keys, values, ends = _gathered(rows, (key, value), block_table, starts, lengths, (k_scale, v_scale), True)
    _attend(query, keys, values, output, (starts, ends), max_query_len, alibi_slopes, window, sm_scale, None)


def _checked(op: str, names: tuple[str, ...], new: tuple[Tensor, ...], pages: tuple[Tensor, Tensor],
             where: tuple[Tensor, ...], where_names: tuple[str, ...], kind: str
             ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The pages, bytes as fp8; starts and lengths in 32 bits."""
    q, k, v, o = new
    check.tensor(op, names[0], q, rank=3, dtypes=_HALVES)
    dim, device = q.shape[2], q.device
    check.tensor(op, names[1], k, dtypes=(q.dtype,), shape=(len(q), None, dim), device=device)
    check.tensor(op, names[2], v, dtypes=(q.dtype,), shape=k.shape, device=device)
    check.tensor(op, names[3], o, dtypes=(q.dtype,), shape=q.shape, device=device)
    check.choice(op, "kv_cache_dtype", kind, ("auto", *_FP8))
    fp8 = dtypes.fp8_of(target_of(device).arch)
    prefix = "k_cache", "v_cache"
    if op == _CHUNKED:
        prefix = "key_cache", "value_cache"
    for name, cache, rank in zip(prefix, pages, (5, 4), strict=True):
        check.tensor(op, name, cache, rank=rank, dtypes=(q.dtype,) if kind == "auto" else (fp8, torch.uint8),
                     device=device, last_contiguous=False)
    blocks, heads, parts, size, x = pages[0].shape
    if heads != k.shape[1] or parts * x != dim:
        raise ValueError(f"{op}: {prefix[0]} must have {k.shape[1]} heads of {dim} elements, got shape "
                         f"{tuple(pages[0].shape)}")
    check.tensor(op, prefix[1], pages[1], dtypes=(pages[0].dtype,), shape=(blocks, heads, dim, size),
                 last_contiguous=False)
    table, starts, lengths = where
    check.tensor(op, where_names[2], lengths, rank=1, dtypes=elements.INTEGERS, device=device)
    check.tensor(op, where_names[0], table, dtypes=elements.INTEGERS, shape=(len(lengths), None), device=device,
                 last_contiguous=False)
    check.tensor(op, where_names[1], starts, dtypes=elements.INTEGERS, shape=(len(lengths) + 1,), device=device)
    if check.is_on_host(starts) and (int(starts[0]) != 0 or int(starts[-1]) != len(q) or bool((starts.diff() < 0).any())
                                     or bool((lengths < starts.diff()).any())):
        raise ValueError(f"{op}: {where_names[1]} must rise from 0 to {len(q)}, by no more than {where_names[2]}, got "
                         f"{starts.tolist()[:20]} and {lengths.tolist()[:20]}")
    if check.is_on_host(starts):
        stored = _stored(starts, lengths, op == _CHUNKED)
        check_pages(op, table, stored, pages[0].transpose(1, 3), None, where_names[:1])
    return tuple(cache.view(fp8) if cache.dtype == torch.uint8 else cache for cache in pages), (
        as_int32(starts), as_int32(lengths))


def _window(op: str, sliding_window: int | None) -> int:
    """How many keys before its own a query sees; −1: all."""
    if sliding_window is None:
        return -1
    check.integer(op, "sliding_window", sliding_window)
    return max(sliding_window, 0) - 1


def _number(scale: Tensor | float, q: Tensor) -> Tensor:
    return torch.as_tensor(scale, dtype=torch.float32, device=q.device).reshape(1)


def _stored(starts: Tensor, lengths: Tensor, has_single: bool) -> Tensor:
    """How many keys of each sequence the pages have."""
    fresh = starts.diff()
    return lengths - (fresh.where(fresh != 1, 0) if has_single else fresh)


def _gathered(pages: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], table: Tensor, starts: Tensor, lengths: Tensor,
              scales: tuple[Tensor | float, Tensor | float], has_single: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values of all sequences [keys, num_kv_heads, head_dim], and where each one's begin. has_single: the
    pages have the token of a sequence that has one new token.
    """
    ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)))
    total, size = int(ends[-1]), pages[0].shape[3]
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths, output_size=total)
    place = torch.arange(total, device=lengths.device) - ends[sequence]
    stored = _stored(starts, lengths, has_single)
    is_stored = (place < stored[sequence])[:, None, None]
    column = (place // size).clamp(max=max(table.shape[1] - 1, 0))
    block = table[sequence, column].long().clamp(0, max(len(pages[0]) - 1, 0)) if table.shape[1] else place * 0
    row = (starts[sequence] + place - stored[sequence]).clamp(0, len(new[0]) - 1)
    found = []
    for cache, one, scale in zip(pages, new, scales, strict=True):
        raw = cache if cache.dtype == one.dtype else cache.view(torch.uint8)  # torch picks no fp8 on every device
        old = (raw[block, :, :, place % size].flatten(2) if raw.ndim == 5 else raw[block, :, :, place % size])
        if raw is not cache:
            old = (old.contiguous().view(cache.dtype).float() * _number(scale, one)).to(one.dtype)
        found.append(torch.where(is_stored, old, one[row]))
    return *found, ends


def _attend(q: Tensor, keys: Tensor, values: Tensor, out: Tensor, starts: tuple[Tensor, Tensor], longest: int,
            slopes: Tensor | None, window: int, scale: float | None, is_kept: Tensor | None) -> None:
    """`flash_attn_varlen_func` into `out`, or into the rows of the sequences that are kept."""
    found = aiter_like.flash_attn_varlen_func(
        q, keys, values, *starts, longest, len(keys), softmax_scale=scale, causal=True, window_size=(window, 0),
        alibi_slopes=slopes, out=out if is_kept is None else None)
    if is_kept is not None:
        kept = torch.repeat_interleave(is_kept, starts[0].diff(), output_size=len(q))
        out.copy_(torch.where(kept[:, None, None], found, out))
