# SPDX-License-Identifier: MIT
"""AITER's fusions of RMSNorm, rotary position embedding, quantisation and cache writes that are compositions of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.quant.quant import per_head_quant
from aiter_like.ops.rope import parts
from aiter_like.ops.rope.fused_qk_rope_cache import FusedQkRopeCacheCall, fused_qk_rope_cache

_Quantised = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def fused_qk_norm_rope_1way(
        q: Tensor, k: Tensor, w_q: Tensor, w_k: Tensor, cos_sin: Tensor, batch_size: int, num_tokens: int,
        num_heads_q: int, num_heads_k: int, head_size: int, is_interleaved: bool, eps: float, out_q: Tensor,
        out_k: Tensor) -> None:
    """RMSNorm of each head and rotary embedding: row t of `cos_sin` [num_tokens, head_size], cosines and then sines,
    belongs to token t of each of a batch's sequences. `out_q` and `out_k` are written.
    """
    name, tokens = "fused_qk_norm_rope_1way", batch_size * num_tokens
    rows = torch.arange(num_tokens, device=q.device).repeat(batch_size)
    heads = [_viewed(name, argument, x, (tokens, count, head_size)) for argument, x, count in (
        ("q", q, num_heads_q), ("k", k, num_heads_k), ("out_q", out_q, num_heads_q), ("out_k", out_k, num_heads_k))]
    tables = _viewed(name, "cos_sin", cos_sin, (num_tokens, head_size)).chunk(2, -1)
    _norm_rope(*heads, weights=(w_q, w_k), tables=tables, rows=rows, epsilon=eps, is_neox=not is_interleaved)


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def fused_qk_norm_rope_2way(
        q0: Tensor, k0: Tensor, q1: Tensor, k1: Tensor, w_q0: Tensor, w_k0: Tensor, w_q1: Tensor, w_k1: Tensor,
        cos_sin0: Tensor, cos_sin1: Tensor, batch_size: int, num_tokens0: int, num_tokens1: int, num_heads_q: int,
        num_heads_k: int, head_size: int, is_interleaved: bool, eps: float, out_q01: Tensor, out_k01: Tensor) -> None:
    """`fused_qk_norm_rope_1way` of two streams with their own weights and tables, such as a text's and an image's: the
    tokens of the second follow those of the first in `out_q01` and `out_k01`.
    """
    name, total = "fused_qk_norm_rope_2way", num_tokens0 + num_tokens1
    outs = [_viewed(name, argument, out, (batch_size, total, count, head_size)) for argument, out, count in (
        ("out_q01", out_q01, num_heads_q), ("out_k01", out_k01, num_heads_k))]
    streams = []
    for i, (q, k, weights, cos_sin, count) in enumerate((
            (q0, k0, (w_q0, w_k0), cos_sin0, num_tokens0), (q1, k1, (w_q1, w_k1), cos_sin1, num_tokens1))):
        q = _viewed(name, f"q{i}", q, (batch_size, count, num_heads_q, head_size))
        k = _viewed(name, f"k{i}", k, (batch_size, count, num_heads_k, head_size))
        tables = _viewed(name, f"cos_sin{i}", cos_sin, (count, head_size)).chunk(2, -1)
        streams.append((q, k, weights, tables, torch.arange(count, device=q.device), slice(i * num_tokens0, None)))
    for q, k, weights, tables, rows, where in streams:
        for own_q, own_k, out_q, out_k in zip(q, k, *outs):
            _norm_rope(own_q, own_k, out_q[where][:len(rows)], out_k[where][:len(rows)], weights=weights,
                       tables=tables, rows=rows, epsilon=eps, is_neox=not is_interleaved)


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def fused_qk_norm_rope_1way_fp8_perhead_quant(
        q: Tensor, k: Tensor, w_q: Tensor, w_k: Tensor, cos_sin: Tensor, batch_size: int, num_tokens: int,
        num_heads_q: int, num_heads_k: int, head_size: int, is_interleaved: bool, eps: float,
        out_q: Tensor | None = None, out_k: Tensor | None = None) -> _Quantised:
    """`fused_qk_norm_rope_1way`, and its results in fp8 with a scale per sequence and head.

    Returns:
        q and k in fp8 [batch_size, num_tokens, heads, head_size], their scales [batch_size, heads], and both as they
        were before, empty where neither `out_q` nor `out_k` is given.
    """
    shape = batch_size, num_tokens
    outs = _outs(q, shape, (num_heads_q, num_heads_k), head_size, (out_q, out_k))
    fused_qk_norm_rope_1way(q, k, w_q, w_k, cos_sin, batch_size, num_tokens, num_heads_q, num_heads_k, head_size,
                            is_interleaved, eps, *outs)
    return _with_scales(outs, out_q is not None or out_k is not None)


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def fused_qk_norm_rope_2way_fp8_perhead_quant(
        q0: Tensor, k0: Tensor, q1: Tensor, k1: Tensor, w_q0: Tensor, w_k0: Tensor, w_q1: Tensor, w_k1: Tensor,
        cos_sin0: Tensor, cos_sin1: Tensor, batch_size: int, num_tokens0: int, num_tokens1: int, num_heads_q: int,
        num_heads_k: int, head_size: int, is_interleaved: bool, eps: float, out_q01: Tensor | None = None,
        out_k01: Tensor | None = None) -> _Quantised:
    """`fused_qk_norm_rope_2way` as `fused_qk_norm_rope_1way_fp8_perhead_quant` returns it."""
    shape = batch_size, num_tokens0 + num_tokens1
    outs = _outs(q0, shape, (num_heads_q, num_heads_k), head_size, (out_q01, out_k01))
    fused_qk_norm_rope_2way(q0, k0, q1, k1, w_q0, w_k0, w_q1, w_k1, cos_sin0, cos_sin1, batch_size, num_tokens0,
                            num_tokens1, num_heads_q, num_heads_k, head_size, is_interleaved, eps, *outs)
    return _with_scales(outs, out_q01 is not None or out_k01 is not None)


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def fused_qk_norm_rope_cache_block_quant_shuffle(
        qkv: Tensor, num_heads_q: int, num_heads_k: int, num_heads_v: int, head_dim: int, eps: float, qw: Tensor,
        kw: Tensor, cos_sin_cache: Tensor, is_neox_style: bool, pos_ids: Tensor, k_cache: Tensor, v_cache: Tensor,
        slot_mapping: Tensor, cu_q_len: Tensor, kv_cache_dtype: str, k_scale: Tensor, v_scale: Tensor,
        max_tokens_per_batch: int = 0) -> None:
    """RMSNorm and rotary embedding of q and k where they stand in `qkv`, then k and v into shuffled caches, in fp8 with
    a scale per block and head. Sequences are told apart by their blocks; `cu_q_len` is not read.
    """
    name = "fused_qk_norm_rope_cache_block_quant_shuffle"
    counts = num_heads_q, num_heads_k, num_heads_v
    q, k, v = _viewed(name, "qkv", qkv, (qkv.shape[0], sum(counts), head_dim)).split(counts, 1)
    _write(name, (q, k, v), (qw, kw), cos_sin_cache, is_neox_style, pos_ids, eps)
    if kv_cache_dtype == "auto":
        aiter_like.reshape_and_cache(k, v, k_cache, v_cache, slot_mapping, kv_cache_dtype, None, None, True)
    else:
        aiter_like.reshape_and_cache_with_block_quant(k[None], v[None], k_cache, v_cache, k_scale, v_scale,
                                                      slot_mapping, True)


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def fused_qk_norm_rope_cache_quant_shuffle(
        q: Tensor, k: Tensor, v: Tensor, num_heads_q: int, num_heads_k: int, num_heads_v: int, head_dim: int,
        eps: float, qw: Tensor, kw: Tensor, cos_sin_cache: Tensor, is_neox_style: bool, pos_ids: Tensor,
        k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, k_scale: Tensor,
        v_scale: Tensor) -> None:
    """RMSNorm and rotary embedding of q and k in place, then k and v into caches with packed keys, in fp8 with a scale
    per token and head. The layout of V is that of `v_cache`: 4 dimensions columns, 5 shuffled.
    """
    name = "fused_qk_norm_rope_cache_quant_shuffle"
    heads = [_viewed(name, argument, x, (x.shape[0], count, head_dim)) for argument, x, count in (
        ("q", q, num_heads_q), ("k", k, num_heads_k), ("v", v, num_heads_v))]
    _write(name, heads, (qw, kw), cos_sin_cache, is_neox_style, pos_ids, eps)
    if v_cache.ndim == 4 and k_cache.ndim == 5 and v_cache.shape[3] % k_cache.shape[4] == 0:
        v_cache = v_cache.unflatten(3, (-1, k_cache.shape[4])).transpose(2, 3)  # the shuffled layout by its strides
    if kv_cache_dtype == "auto":
        aiter_like.reshape_and_cache(heads[1], heads[2], k_cache, v_cache, slot_mapping, kv_cache_dtype, None, None,
                                     True)
    else:
        aiter_like.reshape_and_cache_with_pertoken_quant(heads[1], heads[2], k_cache, v_cache, k_scale, v_scale,
                                                         slot_mapping, True)


@aiter("aiter aiter.ops.fused_qk_norm_mrope_cache_quant", callers="V S")
def fused_qk_norm_mrope_3d_cache_pts_quant_shuffle(
        qkv: Tensor, qw: Tensor, kw: Tensor, cos_sin: Tensor, positions: Tensor, num_tokens: int, num_heads_q: int,
        num_heads_k: int, num_heads_v: int, head_size: int, is_neox_style: bool, mrope_section_: Sequence[int],
        is_interleaved: bool, eps: float, q_out: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor,
        per_tensor_k_scale: Tensor, per_tensor_v_scale: Tensor, k_out: Tensor | None, v_out: Tensor | None,
        return_kv: bool, use_shuffle_layout: bool, block_size: int, x: int, rotary_dim: int = 0,
        gemma_norm: bool = False) -> None:
    """`fused_qk_norm_rope_cache_pts_quant_shuffle` where a token has three positions, of time, height and width
    (`positions` [3, num_tokens]), and each pair of a head turns by one of them.

    Args:
        mrope_section_: pairs that turn by each: they follow one another or, `is_interleaved`, take turns as long as
            there are some of height and width left, the rest turning by time.
        gemma_norm: the weights are those of Gemma, to which 1 is added (in their dtype).
    """
    name = "fused_qk_norm_mrope_3d_cache_pts_quant_shuffle"
    pairs = (rotary_dim or head_size) // 2
    axes = _axes(name, mrope_section_, is_interleaved, pairs)
    table = _viewed(name, "cos_sin", cos_sin, (-1, 2 * pairs))
    rows = _viewed(name, "positions", positions, (3, num_tokens))
    parts.check_positions(name, "positions", rows, None, table)
    found = parts.table_rows(table, rows, table.dtype)  # [3, num_tokens, 2 · pairs]
    axis = torch.tensor(axes + axes, device=table.device)
    own = found.gather(0, axis.expand(1, num_tokens, -1))[0]  # [num_tokens, 2 · pairs]
    if gemma_norm:
        qw, kw = qw + 1, kw + 1
    aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle(
        qkv, qw, kw, own, torch.arange(num_tokens, device=table.device), num_tokens, num_heads_q, num_heads_k,
        num_heads_v, head_size, is_neox_style, eps, q_out, k_cache, v_cache, slot_mapping, per_tensor_k_scale,
        per_tensor_v_scale, k_out, v_out, return_kv, use_shuffle_layout, block_size, x, rotary_dim)


@aiter("aiter aiter.ops.fused_qk_norm_rope_cache_quant")
def minimax_qk_norm_rope(
        qkv: Tensor, q_weight: Tensor, k_weight: Tensor, cos_sin_cache: Tensor, positions: Tensor, *, num_heads_q: int,
        num_heads_k: int, head_dim: int, rotary_dim: int, eps: float, is_neox_style: bool, q_out: Tensor | None = None,
        k_out: Tensor | None = None, v_out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """RMSNorm of q and of k over all of their heads together, rotary embedding of each head, and a copy of v."""
    name, tokens = "minimax_qk_norm_rope", qkv.shape[0]
    widths = [count * head_dim for count in (num_heads_q, num_heads_k, num_heads_k)]
    q, k, v = _viewed(name, "qkv", qkv, (tokens, sum(widths))).split(widths, 1)
    outs = [torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
            for x, out in ((q, q_out), (k, k_out), (v, v_out))]
    for out, x, weight in ((outs[0], q, q_weight), (outs[1], k, k_weight)):
        aiter_like.rms_norm(x, weight, eps, out=out.view(x.shape))
    own_q, own_k = (out.view(tokens, -1, head_dim) for out in outs[:2])
    tables = _viewed(name, "cos_sin_cache", cos_sin_cache, (-1, rotary_dim)).chunk(2, -1)
    _norm_rope(own_q, own_k, own_q, own_k, weights=(None, None), tables=tables, rows=positions, epsilon=eps,
               is_neox=is_neox_style, v=v.view(own_k.shape), v_out=outs[2].view(own_k.shape))
    return outs[0], outs[1], outs[2]


def _write(name: str, heads: Sequence[Tensor], weights: Sequence[Tensor], cos_sin: Tensor, is_neox: bool,
           positions: Tensor, epsilon: float) -> None:
    """Norm and rotation of q and k in place."""
    q, k, v = heads
    tables = _viewed(name, "cos_sin_cache", cos_sin, (-1, cos_sin.shape[-1] if cos_sin.ndim > 1 else q.shape[-1]))
    parts.check_positions(name, "pos_ids", positions, None, tables)
    _norm_rope(q, k, q, k, weights=weights, tables=tables.chunk(2, -1), rows=positions, epsilon=epsilon,
               is_neox=is_neox, v=v)


def _norm_rope(q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, *, weights: Sequence[Tensor | None],
               tables: Sequence[Tensor], rows: Tensor, epsilon: float, is_neox: bool, v: Tensor | None = None,
               v_out: Tensor | None = None) -> None:
    """fused_qk_rope_cache of [tokens, heads, head_dim] where no token has a slot; `v` has as many heads as `k`."""
    keys, values = k.new_empty(2, 1, 1, *k.shape[1:])
    fused_qk_rope_cache(FusedQkRopeCacheCall(
        q_out, k_out, v_out, keys, value_cache=values, q=q, k=k, v=k if v is None else v, q_weight=weights[0],
        k_weight=weights[1], cos=tables[0], sin=tables[1], positions=rows, offsets=None, slot_mapping=rows[:0],
        epsilon=epsilon, rotate_style=0 if is_neox else 1))


def _axes(name: str, sections: Sequence[int], is_interleaved: bool, pairs: int) -> list[int]:
    """Of each pair, the position that it turns by."""
    sections = list(sections)
    if len(sections) != 3 or sum(sections) != pairs:
        raise ValueError(f"{name}: mrope_section_ must be three numbers whose sum is {pairs}, got {sections}")
    if not is_interleaved:
        return [axis for axis, count in enumerate(sections) for _ in range(count)]
    return [pair % 3 if pair < 3 * sections[pair % 3] else 0 for pair in range(pairs)]


def _outs(like: Tensor, shape: tuple[int, int], counts: Sequence[int], head_size: int,
          given: Sequence[Tensor | None]) -> list[Tensor]:
    """What the caller has given, or new tensors [batch, tokens, heads, head_size]."""
    return [torch.empty(*shape, count, head_size, dtype=like.dtype, device=like.device) if out is None else
            _viewed("fp8_perhead_quant", "out", out, (*shape, count, head_size)) for count, out in zip(counts, given)]


def _with_scales(outs: Sequence[Tensor], is_kept: bool) -> _Quantised:
    (q, q_scale), (k, k_scale) = map(per_head_quant, outs)
    kept = outs if is_kept else [out.new_empty(0) for out in outs]
    return q, k, q_scale, k_scale, kept[0], kept[1]


def _viewed(name: str, argument: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view, or what does not fit by its name."""
    check.tensor(name, argument, tensor, last_contiguous=False)
    try:
        return tensor.view(shape)
    except RuntimeError:  # another number of elements, or strides that no view can express
        raise ValueError(f"{name}: {argument} must be a view of {shape}, got shape {tuple(tensor.shape)}, strides "
                         f"{tensor.stride()}") from None
