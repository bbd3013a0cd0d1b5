# SPDX-License-Identifier: MIT
"""AITER's fusion of what a sparse attention's indexer does to a step's queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.dispatch.public import public
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements
from aiter_like.ops.rope import parts

_NAME = "indexer_qk_rope_quant_and_cache"
_HALVES = (torch.bfloat16, torch.float16)


@aiter("aiter aiter.ops.cache", callers="S")
def indexer_qk_rope_quant_and_cache(
        q: Tensor, q_out: Tensor, weights: Tensor, weights_out: Tensor, k: Tensor, kv_cache: Tensor,
        slot_mapping: Tensor, norm_weight: Tensor, norm_bias: Tensor, positions: Tensor, cos_cache: Tensor,
        sin_cache: Tensor, epsilon: float, quant_block_size: int, scale_fmt: str, weights_scale: float,
        preshuffle: bool = False, is_neox: bool = True, compute_all_q_rope: bool = False) -> None:
    """The indexer's queries turned and quantised, its keys normed, turned and quantised into their cache, and each
    head's weight times the scale of its query: `layer_norm`, `rotary_embedding_fwd` and `indexer_k_quant_and_cache`
    one after the other, each rounded to the dtype of `q` as those are.

    Args:
        q: [tokens, heads, head_dim] bf16|fp16; tokens are those that `k` and `slot_mapping` both have, other tensors
            may have more.
        q_out: [tokens, heads, head_dim], the device's fp8; written.
        weights: [tokens, heads], dtype of `q`.
        weights_out: [tokens, heads] fp32; written: weight · scale of the query · `weights_scale`.
        k: [tokens, head_dim], dtype of `q`.
        kv_cache: as of `indexer_k_quant_and_cache`; written.
        slot_mapping: [tokens] integers; of a token without one, -1, nothing goes into the cache.
        norm_weight, norm_bias: [head_dim] fp32.
        positions: [tokens] integers.
        cos_cache, sin_cache: [positions, rotary_dim / 2], dtype of `q`; the first rotary_dim elements are turned.
        epsilon: of the norm.
        quant_block_size: head_dim, whose elements share a scale.
        scale_fmt: "ue8m0": scales are powers of two; "": they are not.
        weights_scale: see `weights_out`.
        preshuffle: keys lie in tiles.
        is_neox: pairs are elements i and i + rotary_dim / 2; else 2i and 2i + 1.
        compute_all_q_rope: queries and weights of tokens without a slot are written too; they always are.
    """
    check.flag(_NAME, "compute_all_q_rope", compute_all_q_rope)
    tokens = _checked(q, q_out, weights, weights_out, k, slot_mapping)
    heads, head_dim = q.shape[1:]
    for name, tensor in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        check.tensor(_NAME, name, tensor, dtypes=(torch.float32,), shape=(head_dim,), device=q.device)
    check.tensor(_NAME, "cos_cache", cos_cache, dtypes=(q.dtype,), rank=2, device=q.device)
    check.tensor(_NAME, "sin_cache", sin_cache, dtypes=(q.dtype,), shape=tuple(cos_cache.shape), device=q.device)
    if 2 * cos_cache.shape[1] > head_dim:
        raise ValueError(f"{_NAME}: cos_cache must have at most head_dim / 2 = {head_dim // 2} columns, got "
                         f"{cos_cache.shape[1]}")
    check.tensor(_NAME, "positions", positions, rank=1, dtypes=elements.INTEGERS, device=q.device)
    _at_least("positions", positions, tokens)
    parts.check_positions(_NAME, "positions", positions[:tokens], None, cos_cache)
    check.integer(_NAME, "quant_block_size", quant_block_size, head_dim, head_dim)
    check.choice(_NAME, "scale_fmt", scale_fmt, ("ue8m0", ""))
    check.real(_NAME, "weights_scale", weights_scale)
    keys = aiter_like.layer_norm(k[:tokens], norm_weight, norm_bias, epsilon)
    queries = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device).copy_(q[:tokens])
    aiter_like.rotary_embedding_fwd(positions[:tokens], queries, keys[:, None], head_dim, cos_cache, sin_cache, is_neox,
                                    False)
    kind = dtypes.fp8_of(target_of(q.device).arch)
    rows = torch.empty(tokens * heads, 1, head_dim + 4, dtype=kind, device=q.device)  # a cache whose pages are rows
    places = torch.arange(tokens * heads, device=q.device)
    aiter_like.indexer_k_quant_and_cache(queries.view(-1, head_dim), rows, places, head_dim, scale_fmt)
    aiter_like.indexer_k_quant_and_cache(keys, kv_cache, slot_mapping[:tokens], head_dim, scale_fmt, preshuffle)
    q_out[:tokens] = rows[:, 0, :head_dim].view(tokens, heads, head_dim)
    scales = rows[:, 0, head_dim:].contiguous().view(torch.float32).view(tokens, heads)
    weights_out[:tokens] = weights[:tokens].float() * scales * weights_scale


def _checked(q: Tensor, q_out: Tensor, weights: Tensor, weights_out: Tensor, k: Tensor, slot_mapping: Tensor) -> int:
    """The number of tokens."""
    check.tensor(_NAME, "q", q, rank=3, dtypes=_HALVES, last_contiguous=False)
    _, heads, head_dim = q.shape
    check.tensor(_NAME, "k", k, dtypes=(q.dtype,), shape=(None, head_dim), device=q.device)
    check.tensor(_NAME, "slot_mapping", slot_mapping, rank=1, dtypes=elements.INTEGERS, device=q.device)
    tokens = min(len(k), len(slot_mapping))
    kind = dtypes.fp8_of(target_of(q.device).arch)
    for name, tensor, dtype, shape in (("q_out", q_out, kind, (None, heads, head_dim)),
                                       ("weights", weights, q.dtype, (None, heads)),
                                       ("weights_out", weights_out, torch.float32, (None, heads))):
        check.tensor(_NAME, name, tensor, dtypes=(dtype,), shape=shape, device=q.device, last_contiguous=False)
        _at_least(name, tensor, tokens)
    _at_least("q", q, tokens)
    return tokens


def _at_least(name: str, tensor: Tensor, tokens: int) -> None:
    if len(tensor) < tokens:
        raise ValueError(f"{_NAME}: {name} must have at least {tokens} rows, one for each token, got {len(tensor)}")


indexer_qk_rope_quant_and_cache = public(_NAME, indexer_qk_rope_quant_and_cache)
