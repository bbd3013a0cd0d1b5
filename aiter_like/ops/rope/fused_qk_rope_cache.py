# SPDX-License-Identifier: MIT
"""RMSNorm of q and k, rotary position embedding and the KV cache's write in one kernel.

Kernels: csrc/rope/fused_qk_rope_cache.hip, ops/rope/triton/fused_qk_rope_cache.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule, tune_shapes
from aiter_like.ops.rope.rope import DTYPES, INTEGERS, check_flags, check_table, rotated, triton_space

__all__ = ["fused_qk_norm_rope_cache_pts_quant_shuffle", "fused_qk_rope_reshape_and_cache"]

_OP = "fused_qk_rope_cache"
_NAMES = paged_cache.Names(_OP, "k", "v")
_LAYOUTS = {(4, 4): "rows", (5, 4): "columns", (5, 5): "shuffled"}  # by the ranks of K and V


def _fused_ref(q_out: Tensor, k_out: Tensor | None, v_out: Tensor | None, key_cache: Tensor, value_cache: Tensor,
               q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor,
               sin: Tensor, positions: Tensor, offsets: Tensor | None, slot_mapping: Tensor, k_scale: Tensor | None,
               v_scale: Tensor | None, epsilon: float, rotate_style: int, reuse_freqs_front_part: bool,
               layout: str) -> None:
    """In torch, in fp32: the cache is written from the values before they are rounded for `k_out`."""
    rows = positions if offsets is None else positions + offsets
    angles = [table.flatten(0, -2)[rows, None].float() for table in (cos, sin)]  # [tokens, 1, width]
    found = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        x = x.float()
        if weight is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight.float()
        found.append(rotated(x, *angles, rotate_style, reuse_freqs_front_part, False, False))
    for out, x in zip((q_out, k_out, v_out), (*found, v)):
        if out is not None:
            out.copy_(x)
    kept = [x if scale is None else x * (1 / scale) for x, scale in ((found[1], k_scale), (v.float(), v_scale))]
    is_fp8 = key_cache.dtype.itemsize == 1
    kept = [quant_rule.rounded(x, key_cache.dtype) if is_fp8 else x.to(key_cache.dtype) for x in kept]
    paged_cache.put(key_cache, value_cache, *kept, slot_mapping)


def _variant(dtype: torch.dtype, table_dtype: torch.dtype, is_fp8: bool, head_dim: int, has_norm: bool,
             is_shared: bool, vec: int, threads: int, share: int) -> Instance:
    parts = (dtypes.name(dtype), f"table_{dtypes.name(table_dtype)}", *(["fp8"] if is_fp8 else []), f"d{head_dim}",
             *(["norm"] if has_norm else []), *([] if is_shared else ["whole"]), f"v{vec}", f"t{threads}", f"s{share}")
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table_dtype],
        "CACHE": "fp8" if is_fp8 else elements.CPP[dtype], "HEAD_DIM": head_dim, "HAS_NORM": int(has_norm),
        "IS_SHARED": int(is_shared), "VEC": vec, "THREADS": threads, "SHARE": share})


def _vec(rotary_dim: int, tables: Sequence[Tensor], heads: Sequence[Tensor | None]) -> int:
    """Elements of an access: of 16 bytes, or fewer where pairs, heads or rows of the tables lie closer."""
    given = [tensor for tensor in heads if tensor is not None]
    steps = [step for tensor in (*given, *tables)
             for size, step in zip(tensor.shape[:-1], tensor.stride()) if size > 1]
    return math.gcd(16 // given[0].element_size(), given[0].shape[-1] // 2, rotary_dim // 2, *steps)


def _instance(q_out: Tensor, k_out: Tensor | None, v_out: Tensor | None, key_cache: Tensor, value_cache: Tensor,
              q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor,
              sin: Tensor, positions: Tensor, offsets: Tensor | None, slot_mapping: Tensor, k_scale: Tensor | None,
              v_scale: Tensor | None, epsilon: float, rotate_style: int, reuse_freqs_front_part: bool,
              layout: str, *, threads: int | None = None, share: int = 4) -> Instance:
    rotary_dim = cos.shape[-1] * (2 if reuse_freqs_front_part else 1)
    vec = _vec(rotary_dim, (cos, sin), (q, k, v, q_out, k_out, v_out))
    threads = threads or (64 if layout == "rows" else 128)  # more for a tile of V
    return _variant(q.dtype, cos.dtype, key_cache.dtype != q.dtype, q.shape[-1], q_weight is not None,
                    reuse_freqs_front_part, vec, threads, share)


@compile_ops("rope/fused_qk_rope_cache.hip", gen_func=_instance, prebuild=[
    _variant(torch.bfloat16, torch.bfloat16, is_fp8, 128, has_norm, True, 8, 64, 4) for is_fp8 in (False, True)
    for has_norm in (False, True)])
def _fused_qk_rope_cache_hip(
        q_out: Tensor, k_out: Tensor | None, v_out: Tensor | None, key_cache: Tensor, value_cache: Tensor, q: Tensor,
        k: Tensor, v: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor,
        positions: Tensor, offsets: Tensor | None, slot_mapping: Tensor, k_scale: Tensor | None,
        v_scale: Tensor | None, epsilon: float, rotate_style: int, reuse_freqs_front_part: bool,
        layout: str) -> None: ...


def _check(q_out: Tensor, k_out: Tensor | None, v_out: Tensor | None, key_cache: Tensor, value_cache: Tensor,
           q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor,
           positions: Tensor, offsets: Tensor | None, slot_mapping: Tensor, k_scale: Tensor | None,
           v_scale: Tensor | None, epsilon: float, rotate_style: int, reuse_freqs_front_part: bool,
           layout: str) -> object:
    check.tensor(_OP, "q", q, rank=3, dtypes=DTYPES)
    tokens, _, head_dim = q.shape
    check.tensor(_OP, "k", k, dtypes=(q.dtype,), shape=(tokens, None, head_dim), device=q.device)
    check.tensor(_OP, "v", v, dtypes=(q.dtype,), shape=k.shape, device=q.device)
    for name, tensor, like in (("q_out", q_out, q), ("k_out", k_out, k), ("v_out", v_out, v)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=(q.dtype,), shape=like.shape, device=q.device)
    for name, tensor in (("q_weight", q_weight), ("k_weight", k_weight)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=(q.dtype,), shape=(head_dim,), device=q.device)
    check_flags(_OP, rotate_style, reuse_freqs_front_part, False)
    check_table(_OP, "cos", cos, q, head_dim, min(tokens, 1), reuse_freqs_front_part)
    check.tensor(_OP, "sin", sin, dtypes=(cos.dtype,), shape=cos.shape, device=q.device)
    for name, tensor in (("positions", positions), ("offsets", offsets)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=INTEGERS, shape=(tokens,), device=q.device, last_contiguous=False)
    paged_cache.check_caches(_NAMES, layout, key_cache, value_cache, k, v)
    paged_cache.check_slots(_OP, slot_mapping, tokens, q.device)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is not None:
            check.tensor(_OP, name, scale, dtypes=(torch.float32,), device=q.device)
            if scale.numel() != 1:
                raise ValueError(f"{_OP}: {name} must have 1 element, got shape {tuple(scale.shape)}")
    check.real(_OP, "epsilon", epsilon, low=0.0)
    target = target_of(q.device)
    refusal = quant_rule.refusal(target, key_cache.dtype)
    if refusal:
        raise TypeError(f"{_OP}: key_cache: {refusal}")
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache)):
        check.tensor(_OP, name, tensor, dtypes=(q.dtype, dtypes.fp8_of(target.arch)), last_contiguous=False)
    check.tensor(_OP, "value_cache", value_cache, dtypes=(key_cache.dtype,), last_contiguous=False)
    return SKIP if tokens == 0 or head_dim == 0 else None


def _hip_refusal(target: Target, q_out: Tensor, k_out: Tensor | None, v_out: Tensor | None, key_cache: Tensor,
                     value_cache: Tensor, q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor | None,
                     k_weight: Tensor | None, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor | None,
                     slot_mapping: Tensor, k_scale: Tensor | None, v_scale: Tensor | None, epsilon: float,
                     rotate_style: int, reuse_freqs_front_part: bool, layout: str) -> str | None:
    """Heads of an even size that the lanes of a wave take, two accesses each."""
    head_dim = q.shape[-1]
    if head_dim % 2:
        return f"head dimension must be even, got {head_dim}"
    rotary_dim = cos.shape[-1] * (2 if reuse_freqs_front_part else 1)
    vec = _vec(rotary_dim, (cos, sin), (q, k, v, q_out, k_out, v_out))
    lanes = 1 << (head_dim // (2 * vec) - 1).bit_length()
    if lanes > target.wave_size:
        return (f"head dimension at most {2 * vec * target.wave_size} where strides and rotated part allow accesses of "
                f"{vec}, got {head_dim}")
    if q.shape[0] * (q.shape[1] + 2 * k.shape[1]) * lanes >= 2**31:
        return f"too many heads for one launch: {q.shape[0]} tokens of {q.shape[1]} + 2 · {k.shape[1]}"
    return paged_cache.too_many_slots(key_cache.shape[0], paged_cache.page_size_of(key_cache))


def _triton_refusal(target: Target, q_out: Tensor, *_: object) -> str | None:
    return f"head dimension at most 512, got {q_out.shape[-1]}" if q_out.shape[-1] > 512 else None


def _tune_key(q_out: Tensor, k_out: Tensor | None, v_out: Tensor | None, key_cache: Tensor, value_cache: Tensor,
              q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor,
              *rest: Any) -> dict[str, int | str]:
    is_shared, layout = rest[-2:]
    return {"tokens": q.shape[0], "heads": q.shape[1], "kv_heads": k.shape[1], "head_dim": q.shape[2],
            "rotary_dim": cos.shape[-1] * (2 if is_shared else 1), "page_size": paged_cache.page_size_of(key_cache),
            "layout": layout, "has_norm": q_weight is not None, "dtype": dtypes.name(q.dtype),
            "cache_dtype": dtypes.name(key_cache.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    """As prefill fills pages, one after the other, wherever they are; k is also wanted by itself where it has no norm.
    """
    random, has_norm = tune_shapes.normal(device, seed, key["dtype"]), key["has_norm"]
    tokens, heads, kv_heads, head_dim, page_size = (
        key[name] for name in ("tokens", "heads", "kv_heads", "head_dim", "page_size"))
    blocks = -(-tokens // page_size)
    dtype = dtypes.DTYPES[key["cache_dtype"]]
    caches = paged_cache.zeros(key["layout"], blocks, page_size, kv_heads, head_dim, dtype, device)
    q, k, v = random(tokens, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), 1)
    weights = [random(head_dim) if has_norm else None for _ in "qk"]
    cos, sin = random(2, tokens, key["rotary_dim"] // 2)
    index = torch.arange(tokens, device=device)
    pages = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).to(device)
    slots = pages[index // page_size] * page_size + index % page_size
    scale = torch.ones(1, device=device) if dtype.itemsize == 1 else None
    outs = torch.empty(q.shape, dtype=q.dtype, device=device), None if has_norm else torch.empty_like(k), None
    return (*outs, *caches, q, k, v, *weights, cos, sin, index, None, slots, scale, scale, 1e-6, 0, True,
            key["layout"])


def _traffic(q_out: Tensor, k_out: Tensor | None, v_out: Tensor | None, key_cache: Tensor, value_cache: Tensor,
             *rest: Any) -> tuple[int, int]:
    """Of the caches, what the tokens write."""
    k = rest[1]
    others = sum(arg.nbytes for arg in (q_out, k_out, v_out, *rest) if isinstance(arg, Tensor))
    return others + 2 * k.numel() * key_cache.element_size(), 0


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A GPU's own heads into whole rows and into packs, as they are and as fp8; not in latent attention."""
    if model.kv_lora_rank:
        return
    for layout in ("rows", "shuffled"):
        for cache_dtype in (model.dtype, tune_shapes.fp8_name()):
            yield {"tokens": tokens, "heads": model.num_heads // tp, "kv_heads": max(model.num_kv_heads // tp, 1),
                   "head_dim": model.head_dim, "rotary_dim": model.head_dim, "page_size": 16, "layout": layout,
                   "has_norm": int(model.qk_norm), "dtype": model.dtype, "cache_dtype": cache_dtype}


def _self_check(device: torch.device) -> list[tuple]:
    """With and without norm, whole rows and packed ones, as they are and as fp8."""
    generator = torch.Generator().manual_seed(0)
    one = torch.ones(1, device=device)
    cases = []
    for has_norm, is_fp8, layout in ((True, True, "shuffled"), (False, False, "rows"), (True, False, "columns")):
        qkv = torch.randn(9, 6, 64, generator=generator).to(device, torch.bfloat16)
        q, k, v = qkv.split((4, 1, 1), 1)
        dtype = dtypes.fp8_of(target_of(device).arch) if is_fp8 else qkv.dtype
        caches = paged_cache.zeros(layout, 2, 16, 1, 64, dtype, device)
        weights = [torch.rand(64, generator=generator).to(device, torch.bfloat16) if has_norm else None for _ in "qk"]
        cos, sin = torch.rand(2, 20, 32, generator=generator).to(device, torch.bfloat16)
        index = torch.arange(9, device=device)
        cases.append((torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *caches, q, k, v, *weights, cos,
                      sin, index + 3, None, index * 3, one, one, 1e-6, 0, True, layout))
    return cases


_fused_qk_rope_cache = Op(
    _OP, reference=_fused_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "heads", "kv_heads", "head_dim", "rotary_dim", "page_size", "layout", "has_norm", "dtype",
                 "cache_dtype"),
    round_field="tokens", writes=("q_out", "k_out", "v_out", "key_cache", "value_cache"), self_check=_self_check,
    tuning=Tuning(_tune_case, _traffic, _tune_shapes),
    backends=(Backend("hip", _fused_qk_rope_cache_hip, refusal=_hip_refusal, space=lambda *_: [
                  {"threads": threads, "share": share} for threads in (64, 128, 256) for share in (1, 4, 8)]),
              Backend("triton", "ops.rope.triton.fused_qk_rope_cache:fused_qk_rope_cache",
                      refusal=_triton_refusal, space=triton_space),
              Backend("torch", _fused_ref)))


def fused_qk_rope_reshape_and_cache(
        q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, pos: Tensor,
        cos: Tensor, sin: Tensor, k_scale: Tensor | None, v_scale: Tensor | None, is_neox: bool, flash_layout: bool,
        apply_scale: bool = True, offs: Tensor | None = None, q_out: Tensor | None = None,
        k_out: Tensor | None = None, output_zeros: bool = True, zeros_out: Tensor | None = None,
        upcast_operand: bool = False, *, backend: str | None = None) -> tuple[Tensor, ...]:
    """Rotary position embedding of q and k, and the write of k and v into a paged cache.

    `q_out = rope(q)`, `k_out = rope(k)`, `key_cache[slot] = round(rope(k) · (1 / k_scale))`, `value_cache[slot] =
    round(v · (1 / v_scale))`.

    Args:
        q: [num_tokens, num_heads, head_dim] bf16|fp16|fp32, last dimension contiguous.
        k: [num_tokens, num_kv_heads, head_dim], dtype of `q`.
        v: like `k`.
        key_cache: dtype of `q` or the device's fp8: [num_blocks, page_size, num_kv_heads, head_dim] with
            `flash_layout`, else [num_blocks, num_kv_heads, head_dim / x, page_size, x]; any strides; written.
        value_cache: as `key_cache` with `flash_layout`, else [num_blocks, num_kv_heads, head_dim, page_size] or
            [num_blocks, num_kv_heads, page_size / x, head_dim, x]; written.
        slot_mapping: int32|int64, a slot per token; those beyond num_tokens are not read.
        pos: [num_tokens] int32|int64: rows of `cos` and `sin`.
        cos: [max_position, head_dim / 2] or [max_position, head_dim], or with two dimensions of 1 between.
        sin: like `cos`.
        k_scale: 1 fp32 element or None.
        v_scale: 1 fp32 element or None.
        is_neox: True: pairs (i, i + head_dim / 2); False: pairs (2i, 2i + 1).
        flash_layout: which layout the caches have.
        apply_scale: False: the scales are not read.
        offs: [num_tokens] int32|int64 added to `pos`, or None.
        q_out: like `q`, written; default: a new tensor. It may be `q`.
        k_out: like `k`, written; default: a new tensor. It may be `k`.
        output_zeros: True: a tensor of zeros like `q` is returned too.
        zeros_out: the tensor for them; it also asks for them.
        upcast_operand: without effect: the rotation is always in fp32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        q_out, k_out, key_cache, value_cache, and zeros_out where asked for.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        fp32 throughout, each result rounded to nearest even once, the cache's from the fp32 value; fp8 saturates. A
        slot outside the cache is skipped. Deterministic; can be captured in a graph.

    Source: AITER's Triton function of this name.
    """
    name = "fused_qk_rope_reshape_and_cache"
    for argument, tensor in (("q", q), ("key_cache", key_cache), ("cos", cos), ("slot_mapping", slot_mapping)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: {argument} must be a tensor, got {type(tensor).__name__}")
    layout = _layout(name, key_cache, value_cache)
    if (layout == "rows") != flash_layout:
        raise ValueError(f"{name}: flash_layout is {flash_layout}, but key_cache has shape {tuple(key_cache.shape)}")
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if q_out is None else q_out
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device) if k_out is None else k_out
    found = (k_scale, v_scale) if apply_scale else (None, None)
    _fused_qk_rope_cache(q_out, k_out, None, key_cache, value_cache, q, k, v, None, None, cos, sin, pos, offs,
                         slot_mapping[:q.shape[0]], *found, 0.0, 0 if is_neox else 1,
                         2 * cos.shape[-1] == q.shape[-1], layout, backend=backend)
    if zeros_out is None and not output_zeros:
        return q_out, k_out, key_cache, value_cache
    return q_out, k_out, key_cache, value_cache, torch.zeros_like(q_out) if zeros_out is None else zeros_out.zero_()


def fused_qk_norm_rope_cache_pts_quant_shuffle(
        qkv: Tensor, qw: Tensor, kw: Tensor, cos_sin: Tensor, positions: Tensor, num_tokens: int, num_heads_q: int,
        num_heads_k: int, num_heads_v: int, head_size: int, is_neox_style: bool, eps: float, q_out: Tensor,
        k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, per_tensor_k_scale: Tensor,
        per_tensor_v_scale: Tensor, k_out: Tensor | None, v_out: Tensor | None, return_kv: bool,
        use_shuffle_layout: bool, block_size: int, x: int, rotary_dim: int = 0, *,
        backend: str | None = None) -> None:
    """RMSNorm of q and k heads, rotary position embedding, and the write of k and v into a paged cache.

    `q_out = rope(norm(q) · qw)`; `k = rope(norm(k) · kw)` and `v` into the cache, in fp8 `round(x · (1 / scale))`.

    Args:
        qkv: [num_tokens, (num_heads_q + num_heads_k + num_heads_v) · head_size] bf16|fp16|fp32, contiguous rows.
        qw: [head_size], dtype of `qkv`.
        kw: like `qw`.
        cos_sin: [max_position, rotary_dim]: cosines, then sines, of a position's pairs; or flat.
        positions: [num_tokens] int32|int64: rows of `cos_sin`.
        num_tokens: tokens.
        num_heads_q: heads of q.
        num_heads_k: heads of k.
        num_heads_v: heads of v; as many.
        head_size: elements of a head.
        is_neox_style: True: pairs (i, i + rotary_dim / 2); False: pairs (2i, 2i + 1).
        eps: added to the mean of squares; finite, ≥ 0.
        q_out: [num_tokens, num_heads_q, head_size], or flat heads; dtype of `qkv`; written.
        k_cache: dtype of `qkv` or the device's fp8; written: [slots, num_heads_k, head_size], or
            [num_blocks, block_size, num_heads_k, head_size] of any strides; with `use_shuffle_layout`
            [num_blocks, num_heads_k, head_size / x, block_size, x], or a view of those bytes as the former.
        v_cache: likewise; with `use_shuffle_layout` [num_blocks, num_heads_k, block_size / x, head_size, x].
        slot_mapping: [≤ num_tokens] int32|int64.
        per_tensor_k_scale: 1 fp32 element on the device; read where the cache is fp8.
        per_tensor_v_scale: the same for v.
        k_out: with `return_kv`: k as it is before quantisation, like `q_out`; written. Or None.
        v_out: the same for v.
        return_kv: whether `k_out` and `v_out` are written.
        use_shuffle_layout: the packed caches.
        block_size: tokens of a block of the packed caches.
        x: elements in 16 bytes of the packed caches.
        rotary_dim: rotated elements of a head, its first; 0: all.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `q_out`, the caches, and with `return_kv` `k_out` and `v_out` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        fp32 throughout, each result rounded to nearest even once, the cache's from the fp32 value; fp8 saturates. The
        scales stay on the device: no synchronisation. A slot outside the cache is skipped. Deterministic; can be
        captured in a graph.

    Source: AITER's function of this name.
    """
    name = "fused_qk_norm_rope_cache_pts_quant_shuffle"
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
    split = _viewed(name, "qkv", qkv, (num_tokens, sum(counts), head_size)).split(counts, 1)
    outs = [None if out is None else _viewed(name, argument, out, (num_tokens, count, head_size))
            for argument, out, count in zip(("q_out", "k_out", "v_out"), (
                q_out, k_out if return_kv else None, v_out if return_kv else None), counts)]
    cos, sin = _viewed(name, "cos_sin", cos_sin, (-1, rotary_dim)).chunk(2, -1)
    found = (None, None) if keys.dtype == qkv.dtype else (per_tensor_k_scale, per_tensor_v_scale)
    _fused_qk_rope_cache(*outs, keys, values, *split, qw, kw, cos, sin, positions, None, slot_mapping, *found, eps,
                         0 if is_neox_style else 1, True, _layout(name, keys, values), backend=backend)


def _layout(name: str, key_cache: Tensor, value_cache: Tensor) -> str:
    ranks = key_cache.ndim, value_cache.ndim
    if ranks not in _LAYOUTS:
        raise ValueError(f"{name}: the caches must have 4 and 4, 5 and 4, or 5 and 5 dimensions, got shapes "
                         f"{tuple(key_cache.shape)} and {tuple(value_cache.shape)}")
    return _LAYOUTS[ranks]


def _viewed(name: str, argument: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {argument} must be a tensor, got {type(tensor).__name__}")
    try:
        return tensor.view(shape)
    except RuntimeError:  # another number of elements, or strides that no view can express
        raise ValueError(f"{name}: {argument} must be a view of {shape}, got shape {tuple(tensor.shape)}, strides "
                         f"{tensor.stride()}") from None
