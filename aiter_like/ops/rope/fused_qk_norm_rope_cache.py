# SPDX-License-Identifier: MIT
"""The operator fused_qk_rope_cache (ops/rope/fused_qk_rope_cache.py) as AITER calls it for models that norm q and k."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.rope import parts
from aiter_like.ops.rope.fused_qk_rope_cache import FusedQkRopeCacheCall, fused_qk_rope_cache

__all__ = ["fused_qk_norm_rope_cache_pts_quant_shuffle"]


def fused_qk_norm_rope_cache_pts_quant_shuffle(
        qkv: Tensor, qw: Tensor, kw: Tensor, cos_sin: Tensor, positions: Tensor, num_tokens: int, num_heads_q: int,
        num_heads_k: int, num_heads_v: int, head_size: int, is_neox_style: bool, eps: float, q_out: Tensor,
        k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, per_tensor_k_scale: Tensor,
        per_tensor_v_scale: Tensor, k_out: Tensor | None, v_out: Tensor | None, return_kv: bool,
        use_shuffle_layout: bool, block_size: int, x: int, rotary_dim: int = 0, *,
        backend: str | None = None) -> None:
    """RMSNorm of q and k heads, rotary position embedding, and the write of k and v into a paged cache:
    `q_out = rope(norm(q) · qw)`; `k = rope(norm(k) · kw)` and `v` into the cache, in fp8 `round(x · (1 / scale))`.

    Args:
        qkv: [num_tokens, (num_heads_q + num_heads_k + num_heads_v) · head_size] bf16|fp16|fp32, contiguous rows.
        qw, kw: [head_size], dtype of `qkv`.
        cos_sin: [max_position, rotary_dim]: cosines, then sines, of a position's pairs; or flat.
        positions: [num_tokens] int32|int64: rows of `cos_sin`.
        num_tokens, num_heads_q, num_heads_k, num_heads_v, head_size: the sizes; as many heads of v as of k.
        is_neox_style: True: pairs (i, i + rotary_dim / 2); False: pairs (2i, 2i + 1).
        eps: added to the mean of squares; finite, ≥ 0.
        q_out: [num_tokens, num_heads_q, head_size], or flat heads; dtype of `qkv`; written.
        k_cache: dtype of `qkv` or the device's fp8; written: [slots, num_heads_k, head_size], or
            [num_blocks, block_size, num_heads_k, head_size] of any strides; with `use_shuffle_layout`
            [num_blocks, num_heads_k, head_size / x, block_size, x], or a view of those bytes as the former.
        v_cache: likewise; with `use_shuffle_layout` [num_blocks, num_heads_k, block_size / x, head_size, x].
        slot_mapping: [≤ num_tokens] int32|int64.
        per_tensor_k_scale, per_tensor_v_scale: 1 fp32 element; read where the cache is fp8. On the CPU, as AITER has
            it, its present value counts; on the device, the one that it has when the kernel runs.
        k_out, v_out, return_kv: with `return_kv` written: k and v as they are before quantisation, like `q_out`; or of
            the dtype of an fp8 `k_cache` what the cache gets, [num_tokens, num_heads_k, head_size]; or None.
        use_shuffle_layout, block_size, x: the packed caches, in blocks of so many tokens, `x` elements in 16 bytes.
        rotary_dim: rotated elements of a head, its first; 0: all.

    Notes:
        fp32 throughout, each result rounded to nearest even once, the cache's from the fp32 value; fp8 saturates. The
        scales stay on the device: no synchronisation. A slot outside the cache is skipped. Deterministic.

    Source: AITER's function of this name.
    """
    name = "fused_qk_norm_rope_cache_pts_quant_shuffle"
    for argument, number in (("num_tokens", num_tokens), ("num_heads_q", num_heads_q), ("num_heads_k", num_heads_k),
                             ("num_heads_v", num_heads_v), ("head_size", head_size), ("rotary_dim", rotary_dim),
                             ("block_size", block_size), ("x", x)):
        check.integer(name, argument, number, 0)
    if rotary_dim % 2 or rotary_dim > head_size:
        raise ValueError(f"{name}: rotary_dim must be even and at most head_size {head_size}, got {rotary_dim}")
    if num_heads_v != num_heads_k:
        raise ValueError(f"{name}: num_heads_v must be num_heads_k, {num_heads_k}, got {num_heads_v}")
    counts = (num_heads_q, num_heads_k, num_heads_v)
    rotary_dim = rotary_dim or head_size
    keys, values = k_cache, v_cache
    if use_shuffle_layout:
        heads = (num_heads_k, head_size // x, block_size, x), (num_heads_k, block_size // x, head_size, x)
        keys, values = (_viewed(name, argument, tensor, (tensor.shape[0], *shape)) for argument, tensor, shape in (
            ("k_cache", k_cache, heads[0]), ("v_cache", v_cache, heads[1])))
    elif k_cache.ndim == 3:
        keys, values = k_cache.unsqueeze(1), v_cache.unsqueeze(1)
    q, k, v = _viewed(name, "qkv", qkv, (num_tokens, sum(counts), head_size)).split(counts, 1)
    k_out, v_out = (k_out, v_out) if return_kv else (None, None)
    outs = [None if out is None else _viewed(name, argument, out, (num_tokens, count, head_size))
            for argument, out, count in zip(("q_out", "k_out", "v_out"), (q_out, k_out, v_out), counts)]
    check.tensor(name, "cos_sin", cos_sin, device=qkv.device)
    if num_tokens and not cos_sin.numel():
        raise ValueError(f"{name}: cos_sin must have a row for each position, got shape {tuple(cos_sin.shape)}")
    cos, sin = _viewed(name, "cos_sin", cos_sin, (-1, rotary_dim)).chunk(2, -1)
    parts.check_positions(name, "positions", positions, None, cos)
    found = (None, None) if keys.dtype == qkv.dtype else (
        _placed(per_tensor_k_scale, qkv), _placed(per_tensor_v_scale, qkv))
    call = FusedQkRopeCacheCall(
        *outs, keys, value_cache=values, q=q, k=k, v=v, q_weight=qw, k_weight=kw, cos=cos, sin=sin,
        positions=positions, offsets=None, slot_mapping=slot_mapping, k_scale=found[0], v_scale=found[1], epsilon=eps,
        rotate_style=0 if is_neox_style else 1, layout=parts.layout_of(name, {"k_cache": keys, "v_cache": values}))
    is_as_cached = keys.dtype != qkv.dtype and None not in (k_out, v_out) and (
        k_out.dtype == v_out.dtype == keys.dtype)
    if not is_as_cached:
        fused_qk_rope_cache(call, backend=backend)
        return
    call = call._replace(k_out=None, v_out=None)
    fused_qk_rope_cache(call, backend=backend)
    slots = torch.arange(num_tokens, device=qkv.device)  # the results are a cache, too: a page of a slot for each token
    fused_qk_rope_cache(call._replace(key_cache=outs[1][:, None], value_cache=outs[2][:, None], slot_mapping=slots,
                                      layout="rows"), backend=backend)


def _placed(scale: Tensor, like: Tensor) -> Tensor:
    """A scale on the device of `like`: one on the CPU is written by a kernel, which a graph can hold."""
    if isinstance(scale, Tensor) and scale.is_cpu and not like.is_cpu and scale.numel() == 1:
        return torch.full_like(scale, scale.item(), device=like.device)
    return scale


def _viewed(name: str, argument: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {argument} must be a tensor, got {type(tensor).__name__}")
    try:
        return tensor.view(shape)
    except RuntimeError:  # another number of elements, or strides that no view can express
        raise ValueError(f"{name}: {argument} must be a view of {shape}, got shape {tuple(tensor.shape)}, strides "
                         f"{tensor.stride()}") from None
