# SPDX-License-Identifier: MIT
"""AITER's Triton decoding over latents whose newest token is not turned yet. Named by names.txt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import as_int32

_NAME = "decode_attention_fwd_grouped_rope"
_HALVES = (torch.bfloat16, torch.float16)


def decode_attention_fwd_grouped_rope(
        q: Tensor, k_buffer: Tensor, v_buffer: Tensor, o: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
        k_pe_tokens: Tensor | None, kv_lora_rank: int, rotary_dim: int | None, cos_sin_cache: Tensor | None,
        positions: Tensor | None, attn_logits: Tensor | None, num_kv_splits: int, sm_scale: float,
        logit_cap: float | None = 0.0, use_rope: bool | None = False, is_neox_style: bool | None = False,
        config: dict[str, Any] | None = None) -> None:
    """`mla_decode_fwd` of one token of each sequence, into `o`. With `use_rope` the queries' last elements and those of
    each sequence's last key are turned first, and that key's go to `k_pe_tokens`; the cache stays as it is: the last
    keys are attended to apart, and `merge_state` adds them.

    Args:
        q: [batch, num_heads, kv_lora_rank + pe] bf16|fp16.
        k_buffer: [tokens, 1, kv_lora_rank + pe], dtype of `q`.
        v_buffer: [tokens, 1, kv_lora_rank]: the first elements of the keys, which are read there.
        o: [batch, num_heads, kv_lora_rank], dtype of `q`; written.
        kv_indptr: [batch + 1] int32: the tokens of each sequence in `kv_indices`.
        kv_indices: integers, rows of `k_buffer`.
        k_pe_tokens: [batch, pe], dtype of `q`, written for each sequence that has a key; with `use_rope`.
        kv_lora_rank: elements of a latent.
        rotary_dim: elements of a head's `pe` that are turned, the first ones.
        cos_sin_cache: [max_position, rotary_dim], cosines and then sines.
        positions: [batch] or [batch, 1] integers.
        attn_logits, num_kv_splits, config: memory and shape of AITER's kernels; of no meaning, and not written.
        sm_scale: of the scores.
        logit_cap: above 0, scores become logit_cap · tanh(score / logit_cap).
        is_neox_style: pairs are elements i and i + rotary_dim / 2; else 2i and 2i + 1.
    """
    check.tensor(_NAME, "q", q, rank=3, dtypes=_HALVES)
    batch, heads, dim = q.shape
    check.integer(_NAME, "kv_lora_rank", kv_lora_rank, 1, max(dim - 1, 1))
    check.tensor(_NAME, "k_buffer", k_buffer, dtypes=(q.dtype,), shape=(None, 1, dim), device=q.device)
    check.tensor(_NAME, "v_buffer", v_buffer, dtypes=(q.dtype,), shape=(len(k_buffer), 1, kv_lora_rank),
                 device=q.device)
    check.tensor(_NAME, "o", o, dtypes=(q.dtype,), shape=(batch, heads, kv_lora_rank), device=q.device)
    check.tensor(_NAME, "kv_indptr", kv_indptr, dtypes=(torch.int32,), shape=(batch + 1,), device=q.device)
    check.tensor(_NAME, "kv_indices", kv_indices, rank=1, dtypes=elements.INTEGERS, device=q.device)
    rows = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    options = {"sm_scale": sm_scale, "logit_cap": logit_cap or 0.0, "return_lse": True}
    chosen = as_int32(kv_indices)
    if not use_rope:
        aiter_like.mla_decode_fwd(q, k_buffer[:, None], o, rows, kv_indptr, chosen, None, 1, **options)
        return
    _check_rope(q, kv_lora_rank, k_pe_tokens, rotary_dim, cos_sin_cache, positions)
    if not batch:
        return
    has_key = kv_indptr.diff() > 0
    place = (kv_indptr[1:] - 1).clamp(min=0).long()
    entry = chosen[place] if len(chosen) else torch.full_like(place, -1, dtype=torch.int32)
    has_key = has_key & (entry >= 0) & (entry < len(k_buffer))
    newest = k_buffer[entry.long().where(has_key, 0), 0] if len(k_buffer) else q.new_zeros(batch, dim)
    turned_q, turned_k = _turned(q[..., kv_lora_rank:], newest[:, None, kv_lora_rank:], cos_sin_cache, positions,
                                 is_neox_style)
    k_pe_tokens.copy_(torch.where(has_key[:, None], turned_k[:, 0], k_pe_tokens))
    q = torch.cat((q[..., :kv_lora_rank], turned_q), -1)
    newest = torch.cat((newest[:, :kv_lora_rank], turned_k[:, 0]), -1)
    is_last = torch.zeros(len(chosen), dtype=torch.int32, device=q.device).index_add_(0, place, has_key.int()) \
        if len(chosen) else chosen
    parts = []
    for cache, starts, entries in ((k_buffer, kv_indptr, chosen.where(is_last == 0, -1)),
                                   (newest[:, None], rows, rows[:-1].where(has_key, -1))):
        out = torch.empty_like(o, memory_format=torch.contiguous_format)
        _, lse = aiter_like.mla_decode_fwd(q, cache[:, None], out, rows, starts, entries, None, 1, **options)
        parts += [out, lse]
    o.copy_(aiter_like.merge_state(*parts)[0])


def _check_rope(q: Tensor, rank: int, k_pe_tokens: Tensor | None, rotary_dim: int | None, cache: Tensor | None,
                positions: Tensor | None) -> None:
    batch, _, dim = q.shape
    check.integer(_NAME, "rotary_dim", rotary_dim, 2, dim - rank)
    check.tensor(_NAME, "k_pe_tokens", k_pe_tokens, dtypes=(q.dtype,), shape=(batch, dim - rank), device=q.device)
    check.tensor(_NAME, "cos_sin_cache", cache, dtypes=elements.FLOATS, shape=(None, rotary_dim), device=q.device)
    check.tensor(_NAME, "positions", positions, dtypes=elements.INTEGERS, device=q.device, last_contiguous=False)
    if positions.numel() != batch:
        raise ValueError(f"{_NAME}: positions must have {batch} elements, one for each sequence, got shape "
                         f"{tuple(positions.shape)}")


def _turned(q: Tensor, k: Tensor, cache: Tensor, positions: Tensor, is_neox: bool | None) -> tuple[Tensor, Tensor]:
    """Both turned, with products rounded where the table has the dtype of `q`, as AITER's kernel does."""
    cos, sin = (each.contiguous() for each in cache.chunk(2, -1))
    positions, style = positions.reshape(-1), 0 if is_neox else 1
    q, k = q.contiguous(), k.contiguous()
    if cache.dtype == q.dtype:
        return aiter_like.rope_rounded(q, k, cos, sin, positions, None, style)
    return aiter_like.rope_cached_thd_positions_2c_fwd_inplace(q, k, cos, sin, positions, style, True, False)
