# SPDX-License-Identifier: MIT
"""AITER's fusion of norm, rotation and cache writes for models whose attention chooses its keys by an index: the heads
of attention and those of the index side by side in one projection.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.dispatch.public import public
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements, quant_rule
from aiter_like.ops.rope import parts
from aiter_like.ops.rope.fused_qk_rope_cache import FusedQkRopeCacheCall, fused_qk_rope_cache

_NAME = "fused_qknorm_idxrqknorm"
_HEAD_DIM = 128
_FP8 = ("fp8", "fp8_e4m3", "fp8_e4m3_unit", "fp8_e4m3_static")


class _Part(NamedTuple):
    """Queries and keys of one kind, [tokens, heads, 128], and what norms them."""

    q: Tensor
    k: Tensor
    q_weight: Tensor
    k_weight: Tensor
    q_out: Tensor


@aiter("aiter aiter.ops.fused_qknorm_idxrqknorm", callers="V S")
def fused_qknorm_idxrqknorm(
        qkv: Tensor, q_norm_weight: Tensor, k_norm_weight: Tensor, cos_sin_cache: Tensor, positions: Tensor,
        num_heads: int, num_kv_heads: int, rotary_dim: int, eps: float, index_q_norm_weight: Tensor | None = None,
        index_k_norm_weight: Tensor | None = None, num_index_heads: int = 0, slot_mapping: Tensor | None = None,
        kv_cache_k: Tensor | None = None, kv_cache_v: Tensor | None = None, index_cache: Tensor | None = None,
        block_size: int = 0, q_out: Tensor | None = None, index_q_out: Tensor | None = None,
        index_slot_mapping: Tensor | None = None, kv_cache_dtype: str = "auto", index_cache_dtype: str | None = None,
        k_scale: Tensor | None = None, v_scale: Tensor | None = None, asm_layout: bool = False,
        skip_index_branch: bool = False) -> None:
    """RMSNorm with Gemma's weights, to which 1 is added, and rotary embedding (NeoX) of the first `rotary_dim` elements
    of each head of q, k and of the index's queries and its only key, in fp32 and rounded once. Without caches all where
    they stand in `qkv`; with them queries there or in `q_out` and `index_q_out`, the rest in the caches alone.

    Args:
        qkv: [num_tokens, (num_heads + 2 · num_kv_heads + num_index_heads + 1) · 128], without an index less those.
        cos_sin_cache: [max_position, rotary_dim], cosines and then sines.
        kv_cache_k, kv_cache_v: [num_blocks, block_size, num_kv_heads, 128]; with `asm_layout` the shuffled caches of
            `reshape_and_cache`.
        index_cache: [num_blocks · block_size, 128], of any number of dimensions, contiguous.
        kv_cache_dtype: "auto", "fp8_e4m3_unit" (a scale of 1), "fp8_e4m3_static" (`k_scale` and `v_scale`, fp32 of 1
            element, as of `reshape_and_cache`), "fp8" or "fp8_e4m3", whose scales per token and head are written to
            `k_scale` and `v_scale` as by `reshape_and_cache_with_pertoken_quant`.
        index_cache_dtype: "auto" or "fp8" (a scale of 1); None: as `kv_cache_dtype`.
        index_q_out: of `qkv`'s dtype, or fp8 (a scale of 1, saturated).
        index_slot_mapping: None: `slot_mapping`.
        skip_index_branch: the index's heads stay as they are; its weights and cache are not looked at.
    """
    check.tensor(_NAME, "qkv", qkv, rank=2, dtypes=elements.FLOATS)
    for name, number, low in (("num_heads", num_heads, 1), ("num_kv_heads", num_kv_heads, 1),
                              ("num_index_heads", num_index_heads, 0)):
        check.integer(_NAME, name, number, low)
    has_index, tokens = num_index_heads > 0, qkv.shape[0]
    counts = [num_heads, num_kv_heads, num_kv_heads, *((num_index_heads, 1) if has_index else ())]
    check.tensor(_NAME, "qkv", qkv, shape=(tokens, sum(counts) * _HEAD_DIM))
    check.tensor(_NAME, "cos_sin_cache", cos_sin_cache, shape=(None, rotary_dim), dtypes=elements.FLOATS,
                 device=qkv.device)
    check.choice(_NAME, "kv_cache_dtype", kv_cache_dtype, ("auto", *_FP8))
    index_dtype = index_cache_dtype or kv_cache_dtype
    check.choice(_NAME, "index_cache_dtype", index_dtype, ("auto", *_FP8))
    positions = _of_tokens("positions", positions, qkv)
    parts.check_positions(_NAME, "positions", positions, None, cos_sin_cache)
    q, k, v, *rest = qkv.unflatten(1, (-1, _HEAD_DIM)).split(counts, 1)
    main = _part(qkv, "", q, k, q_norm_weight, k_norm_weight, q_out)
    check.flag(_NAME, "skip_index_branch", skip_index_branch)
    index = None
    if has_index and not skip_index_branch:
        index = _part(qkv, "index_", *rest, index_q_norm_weight, index_k_norm_weight, index_q_out)
    cos, sin = cos_sin_cache.chunk(2, -1)
    shared = {"cos": cos, "sin": sin, "positions": positions, "offsets": None, "epsilon": eps}
    if kv_cache_k is None and kv_cache_v is None:
        for part in (main, index) if index else (main,):
            _norm_rope(part, shared, part.k)
        return
    slots = _of_tokens("slot_mapping", slot_mapping, qkv)
    caches = [_cache(name, cache, qkv, num_kv_heads, block_size, kv_cache_dtype, asm_layout)
              for name, cache in (("kv_cache_k", kv_cache_k), ("kv_cache_v", kv_cache_v))]
    has_scales, is_static = kv_cache_dtype in ("fp8", "fp8_e4m3"), kv_cache_dtype == "fp8_e4m3_static"
    blocks = caches[0].shape[0]
    check.tensor(_NAME, "kv_cache_v", caches[1], shape=(blocks, *[None] * (caches[1].ndim - 1)))
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if is_static:
            check.tensor(_NAME, name, scale, dtypes=(torch.float32,), device=qkv.device, last_contiguous=False)
            if scale.numel() != 1:
                raise ValueError(f"{_NAME}: {name} must have 1 element, got shape {tuple(scale.shape)}")
        else:
            _check_scale(name, scale, has_scales, asm_layout, (blocks, num_kv_heads, block_size), qkv)
    if index:
        index_slots = slots if index_slot_mapping is None else _of_tokens("index_slot_mapping", index_slot_mapping, qkv)
        rows = _index_rows(index_cache, qkv, block_size, blocks, index_dtype)
        index_k = _norm_rope(index, shared, torch.empty_like(index.k))
        aiter_like.concat_and_cache_mla(
            *index_k[:, 0].chunk(2, -1), rows, index_slots, "auto" if index_dtype == "auto" else "fp8", None)
    new_k = _norm_rope(main, shared, torch.empty_like(main.k))
    if has_scales:
        aiter_like.reshape_and_cache_with_pertoken_quant(
            new_k, v, *_packed(*caches, asm_layout), k_scale, v_scale, slots, asm_layout)
        return
    kind = "auto" if kv_cache_dtype == "auto" else "fp8"
    scales = (k_scale.reshape(1), v_scale.reshape(1)) if is_static else (None, None)
    if asm_layout:
        aiter_like.reshape_and_cache(new_k, v, *caches, slots, kind, *scales, True)
    else:
        aiter_like.reshape_and_cache_flash(new_k, v, *caches, slots, kind, *scales)


def _part(qkv: Tensor, prefix: str, q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None,
          out: Tensor | None) -> _Part:
    for name, weight in (("q_norm_weight", q_weight), ("k_norm_weight", k_weight)):
        check.tensor(_NAME, prefix + name, weight, shape=(_HEAD_DIM,), dtypes=(qkv.dtype,), device=qkv.device)
    if out is not None:
        kinds = (qkv.dtype, dtypes.fp8_of(target_of(qkv.device).arch)) if prefix else (qkv.dtype,)
        check.tensor(_NAME, f"{prefix}q_out", out, dtypes=kinds, device=qkv.device)
        if out.numel() != q.numel() or not out.is_contiguous():
            raise ValueError(f"{_NAME}: {prefix}q_out must be contiguous with {q.numel()} elements, got shape "
                             f"{tuple(out.shape)}, strides {out.stride()}")
    return _Part(q, k, q_weight.float() + 1, k_weight.float() + 1, q if out is None else out.view(q.shape))


def _norm_rope(part: _Part, shared: dict, k_out: Tensor) -> Tensor:
    """Norm and rotation of queries into `q_out` and of keys into `k_out`, which is returned; no token has a slot. The
    weights, 1 more, would lose half of their bits in 16; in fp32 the heads have to be, too.
    """
    q, k = (x.to(torch.float32, copy=True) for x in (part.q, part.k))
    keys, values = k.new_empty(2, 1, 1, *k.shape[1:])
    fused_qk_rope_cache(FusedQkRopeCacheCall(
        q, k, None, keys, value_cache=values, q=q, k=k, v=torch.zeros_like(k), q_weight=part.q_weight,
        k_weight=part.k_weight, slot_mapping=shared["positions"][:0], **shared))
    part.q_out.copy_(quant_rule.rounded(q, part.q_out.dtype) if part.q_out.dtype in elements.FP8 else q)
    return k_out.copy_(k)


def _of_tokens(name: str, tensor: Tensor | None, qkv: Tensor) -> Tensor:
    """The elements of the tokens, at least so many."""
    check.tensor(_NAME, name, tensor, rank=1, dtypes=elements.INTEGERS, device=qkv.device)
    if len(tensor) < len(qkv):
        raise ValueError(f"{_NAME}: {name} must have at least {len(qkv)} elements, one for each token, got "
                         f"{len(tensor)}")
    return tensor[:len(qkv)]


def _stored(name: str, cache: Tensor | None, qkv: Tensor, kind: str) -> Tensor:
    """`cache` in the dtype that `kind` says; bytes as the device's fp8."""
    fp8 = dtypes.fp8_of(target_of(qkv.device).arch)
    check.tensor(_NAME, name, cache, dtypes=(qkv.dtype,) if kind == "auto" else (fp8, torch.uint8), device=qkv.device)
    return dtypes.viewed(cache, fp8) if cache.dtype == torch.uint8 else cache


def _cache(name: str, cache: Tensor | None, qkv: Tensor, heads: int, block_size: int, kind: str,
           is_shuffled: bool) -> Tensor:
    check.integer(_NAME, "block_size", block_size, 1)
    cache = _stored(name, cache, qkv, kind)
    x = 16 // cache.element_size()
    if is_shuffled and block_size % x:
        raise ValueError(f"{_NAME}: block_size must be a multiple of {x} with asm_layout, got {block_size}")
    shape = (None, block_size, heads, _HEAD_DIM)
    if is_shuffled:
        shape = (None, heads, _HEAD_DIM // x, block_size, x) if name == "kv_cache_k" else (
            None, heads, block_size // x, _HEAD_DIM, x)
    check.tensor(_NAME, name, cache, shape=shape)
    return cache


def _check_scale(name: str, scale: Tensor | None, is_written: bool, is_shuffled: bool, shape: tuple[int, int, int],
                 qkv: Tensor) -> None:
    if not is_written:
        if scale is not None:
            raise ValueError(f"{_NAME}: {name} must be None with this kv_cache_dtype, got a tensor")
        return
    blocks, heads, block_size = shape
    check.tensor(_NAME, name, scale, dtypes=(torch.float32,), shape=shape if is_shuffled else (heads, None),
                 device=qkv.device)
    if not is_shuffled and scale.shape[1] < blocks * block_size:
        raise ValueError(f"{_NAME}: {name} must have at least {blocks * block_size} columns, one for each slot, got "
                         f"{scale.shape[1]}")


def _index_rows(index_cache: Tensor | None, qkv: Tensor, block_size: int, blocks: int, kind: str) -> Tensor:
    """[blocks, block_size, 128]."""
    cache = _stored("index_cache", index_cache, qkv, kind)
    if not cache.is_contiguous() or cache.numel() % (block_size * _HEAD_DIM) or (
            cache.numel() < blocks * block_size * _HEAD_DIM):
        raise ValueError(f"{_NAME}: index_cache must be contiguous with {_HEAD_DIM} elements for each slot of the "
                         f"caches, got shape {tuple(cache.shape)}, strides {cache.stride()}")
    return cache.view(-1, block_size, _HEAD_DIM)


def _packed(keys: Tensor, values: Tensor, is_shuffled: bool) -> tuple[Tensor, Tensor]:
    """Caches of rows as packed ones by their strides."""
    if is_shuffled:
        return keys, values
    return keys.unflatten(3, (-1, 16)).permute(0, 2, 3, 1, 4), values.permute(0, 2, 3, 1)


fused_qknorm_idxrqknorm = public(_NAME, fused_qknorm_idxrqknorm)
