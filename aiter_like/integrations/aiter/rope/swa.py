# SPDX-License-Identifier: MIT
"""AITER's fusion of norm, rotation and a sliding window's cache for keys that are values at once. Named by
names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.ops.common import elements

_NAME = "fused_reduce_qk_norm_rope_swa_write"


def fused_reduce_qk_norm_rope_swa_write(
        q: Tensor, kv: Tensor, q_norm_weight: Tensor | None, kv_norm_weight: Tensor | None, q_rms_eps: float,
        kv_rms_eps: float, rope_head_dim: int, cos_cache: Tensor, sin_cache: Tensor, positions: Tensor,
        q_out: Tensor | None = None, is_neox: bool = False, write_indices: Tensor | None = None,
        batch_id_per_token: Tensor | None = None, state_slot_mapping: Tensor | None = None,
        swa_kv: Tensor | None = None, win: int = 128, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """`rms_norm` of each query head, of the sum of its parts by `moe_sum`, and of `kv`, whose last elements are turned;
    in fp32, rounded once. `kv` is written, and its rows go into a ring of `win` tokens for each sequence.

    Args:
        q: [tokens, heads · dim] bf16|fp16|fp32, or parts of it [parts, tokens, heads · dim].
        kv: [tokens, dim], written.
        q_norm_weight, kv_norm_weight: [dim]; None: ones.
        q_rms_eps, kv_rms_eps: added to the mean squares.
        rope_head_dim: elements that are turned, a head's last.
        cos_cache, sin_cache: [max_position, 1, 1, rope_head_dim / 2].
        positions: [tokens] integers.
        q_out: [tokens, heads, dim], written; None: a new one of `dtype`.
        is_neox: pairs are elements i and i + rope_head_dim / 2; else 2i and 2i + 1.
        write_indices: [tokens] int32 tokens, below 0 for none: with the ring's arguments only these rows of `kv` change
            and go there.
        batch_id_per_token: [≥ tokens] integers, the sequence of each.
        state_slot_mapping: [sequences] integers, the ring of each.
        swa_kv: [rings, win, dim], dtype of `kv`, contiguous; written where it and the three before are given.
        win: tokens of a ring; a token goes to its position modulo that.

    Returns:
        The queries.
    """
    check.tensor(_NAME, "kv", kv, rank=2, dtypes=elements.FLOATS)
    (tokens, dim), device = kv.shape, kv.device
    check.tensor(_NAME, "q", q, dtypes=elements.FLOATS, device=device)
    if q.ndim not in (2, 3) or q.shape[-2] != tokens or not dim or q.shape[-1] % dim:
        raise ValueError(f"{_NAME}: q must be [{tokens}, heads · {dim}] or parts of that, got shape {tuple(q.shape)}")
    check.integer(_NAME, "rope_head_dim", rope_head_dim, 2, dim)
    check.tensor(_NAME, "cos_cache", cos_cache, dtypes=elements.FLOATS, device=device)
    if not cos_cache.ndim or cos_cache.shape[-1] != rope_head_dim // 2:
        raise ValueError(f"{_NAME}: cos_cache must have {rope_head_dim // 2} columns, got shape "
                         f"{tuple(cos_cache.shape)}")
    check.tensor(_NAME, "positions", positions, dtypes=elements.INTEGERS, shape=(tokens,), device=device)
    heads = q.shape[-1] // dim
    if q_out is None:
        q_out = torch.empty(tokens, heads, dim, dtype=dtype, device=device)
    check.tensor(_NAME, "q_out", q_out, dtypes=elements.FLOATS, shape=(tokens, heads, dim), device=device)
    ring = (write_indices, batch_id_per_token, state_slot_mapping, swa_kv)
    has_ring = all(each is not None for each in ring)
    if has_ring:
        _check_ring(kv, *ring, win)
    if not tokens:
        return q_out
    wide_q = _normed(q, q_norm_weight, q_rms_eps, (tokens, heads, dim))
    wide_kv = _normed(kv, kv_norm_weight, kv_rms_eps, (tokens, 1, dim))
    aiter_like.rope_cached_thd_positions_2c_fwd_inplace(wide_q, wide_kv, cos_cache, sin_cache, positions,
                                                        0 if is_neox else 1, True, True)
    q_out.copy_(wide_q)
    new = wide_kv[:, 0].to(kv.dtype)
    if has_ring:
        new = _written(new, kv, positions, *ring, win)
    kv.copy_(new)
    return q_out


def _check_ring(kv: Tensor, write_indices: Tensor, batch_ids: Tensor, slots: Tensor, swa_kv: Tensor, win: int) -> None:
    tokens, dim = kv.shape
    check.integer(_NAME, "win", win, 1)
    check.tensor(_NAME, "write_indices", write_indices, dtypes=elements.INTEGERS, shape=(tokens,), device=kv.device)
    check.tensor(_NAME, "batch_id_per_token", batch_ids, rank=1, dtypes=elements.INTEGERS, device=kv.device)
    if len(batch_ids) < tokens:
        raise ValueError(f"{_NAME}: batch_id_per_token must have at least {tokens} elements, got {len(batch_ids)}")
    check.tensor(_NAME, "state_slot_mapping", slots, rank=1, dtypes=elements.INTEGERS, device=kv.device)
    check.tensor(_NAME, "swa_kv", swa_kv, dtypes=(kv.dtype,), shape=(None, win, dim), device=kv.device)
    if dim % 2:
        raise ValueError(f"{_NAME}: swa_kv must have an even number of columns, got {dim}")


def _normed(x: Tensor, weight: Tensor | None, epsilon: float, shape: tuple[int, int, int]) -> Tensor:
    """Heads in fp32, [tokens, heads, dim]."""
    if x.ndim == 3:
        whole = torch.empty(x.shape[1:], dtype=torch.float32, device=x.device)
        aiter_like.moe_sum(x.transpose(0, 1), whole)
    else:
        whole = x.float()
    weight = torch.ones(shape[2], device=x.device, dtype=torch.float32) if weight is None else weight.float()
    return aiter_like.rms_norm(whole.view(shape), weight, epsilon)


def _written(new: Tensor, kv: Tensor, positions: Tensor, write_indices: Tensor, batch_ids: Tensor, slots: Tensor,
             swa_kv: Tensor, win: int) -> Tensor:
    """Puts the rows that are listed into their rings; what `kv` holds afterwards, where others are as they were."""
    is_row = (write_indices >= 0) & (write_indices < len(kv))
    source = write_indices.long().where(is_row, 0)
    ring = slots[batch_ids[source].long().clamp(0, max(len(slots) - 1, 0))].long()
    place = (ring * win + positions[source].long() % win).where(is_row & (ring >= 0) & (ring < len(swa_kv)), -1)
    first, last = new[source].chunk(2, -1)
    aiter_like.concat_and_cache_mla(first, last, swa_kv, place, "auto", None)
    is_listed = torch.zeros(len(kv), dtype=torch.int32, device=kv.device).index_add_(0, source, is_row.int())
    return new.where(is_listed[:, None] > 0, kv)
