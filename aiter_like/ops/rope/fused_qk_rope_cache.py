# SPDX-License-Identifier: MIT
"""RMSNorm of q and k, rotary position embedding and the KV cache's write in one kernel.

Kernels: csrc/rope/fused_qk_rope_cache.hip, ops/rope/triton/fused_qk_rope_cache.py. The public function with norms is in
ops/rope/fused_qk_norm_rope_cache.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.addresses import refuse_overlap
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule, tune_shapes, vectors
from aiter_like.ops.rope import parts

__all__ = ["fused_qk_rope_reshape_and_cache"]

_OP = "fused_qk_rope_cache"
_NAMES = paged_cache.Names(_OP, "k", "v")
_IN_VECTORS = ("q_out", "k_out", "v_out", "q", "k", "v", "q_weight", "k_weight", "cos", "sin")
_LAYOUTS = {(4, 4): "rows", (5, 4): "columns", (5, 5): "shuffled"}  # by the ranks of K and V


class FusedQkRopeCacheCall(NamedTuple):
    """One call of fused_qk_rope_cache. `q` is [tokens, heads, head_dim], `k` and `v` [tokens, kv_heads, head_dim].

    Attributes:
        q_out: written, like `q`; so are `k_out` and `v_out`, where they are given.
        key_cache: written with `value_cache`, in `layout`; both have the dtype of `q` or are fp8.
        q_weight: [head_dim], of the RMSNorm before the rotation; None: no norm. `k_weight` likewise.
        cos: a table with a row for each position; `sin` likewise.
        positions: [tokens], rows of the tables; `offsets` are added to them.
        slot_mapping: [tokens], the place of each token in the caches.
        k_scale: 1 element, what an element of the cache counts; None: 1. `v_scale` likewise.
        rotate_style: 0 pairs elements i and i + rotary_dim / 2, 1 elements 2i and 2i + 1.
        reuse_freqs_front_part: a row of the tables has a value per pair, not one per rotated element.
        layout: "rows", "columns" or "shuffled" (ops/common/paged_cache.py).
    """

    q_out: Tensor
    k_out: Tensor | None
    v_out: Tensor | None
    key_cache: Tensor
    value_cache: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    cos: Tensor
    sin: Tensor
    positions: Tensor
    offsets: Tensor | None
    slot_mapping: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    epsilon: float = 0.0
    rotate_style: int = 0
    reuse_freqs_front_part: bool = True
    layout: str = "rows"

    @property
    def rotary_dim(self) -> int:
        """The elements of a head that are rotated."""
        return self.cos.shape[-1] * (2 if self.reuse_freqs_front_part else 1)

    @property
    def is_fp8(self) -> bool:
        """The caches hold fp8."""
        return self.key_cache.dtype.itemsize == 1

    @property
    def page_size(self) -> int:
        """The tokens of a block of the caches."""
        return paged_cache.page_size_of(self.key_cache)

    @property
    def vec(self) -> int:
        """Elements of an access: 16 bytes of them, or fewer where pairs, heads or rows of the tables lie closer."""
        heads = [x for x in (self.q, self.k, self.v, self.q_out, self.k_out, self.v_out) if x is not None]
        steps = [step for tensor in (*heads, self.cos, self.sin)
                 for size, step in zip(tensor.shape[:-1], tensor.stride()) if size > 1]
        return math.gcd(16 // self.q.element_size(), self.q.shape[-1] // 2, self.rotary_dim // 2, *steps)


def _fused_ref(call: FusedQkRopeCacheCall) -> None:
    """In torch, in fp32: the cache is written from the values before they are rounded for `k_out`."""
    rows = call.positions if call.offsets is None else call.positions + call.offsets
    angles = [parts.table_rows(table, rows, torch.float32)[:, None] for table in (call.cos, call.sin)]
    found = []
    for x, weight in ((call.q, call.q_weight), (call.k, call.k_weight)):
        x = x.float()
        if weight is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + call.epsilon) * weight.float()
        found.append(parts.rotated(x, *angles, call.rotate_style, call.reuse_freqs_front_part, False, False))
    for out, x in zip((call.q_out, call.k_out, call.v_out), (*found, call.v)):
        if out is not None:
            out.copy_(x)
    kept = [x if scale is None else x * (1 / scale)
            for x, scale in ((found[1], call.k_scale), (call.v.float(), call.v_scale))]
    dtype = call.key_cache.dtype
    kept = [quant_rule.rounded(x, dtype) if call.is_fp8 else x.to(dtype) for x in kept]
    paged_cache.put(call.key_cache, call.value_cache, *kept, call.slot_mapping)


def _instance(call: FusedQkRopeCacheCall, *, threads: int | None = None, share: int = 4) -> Instance:
    dtype, table_dtype, head_dim = call.q.dtype, call.cos.dtype, call.q.shape[-1]
    is_fp8, has_norm = call.key_cache.dtype != dtype, call.q_weight is not None
    is_shared, vec = call.reuse_freqs_front_part, call.vec
    threads = threads or (64 if call.layout == "rows" else 128)  # more for a tile of V
    name = (dtypes.name(dtype), f"table_{dtypes.name(table_dtype)}", *(["fp8"] if is_fp8 else []), f"d{head_dim}",
            *(["norm"] if has_norm else []), *([] if is_shared else ["whole"]), f"v{vec}", f"t{threads}", f"s{share}")
    return Instance("_".join(name), {
        "ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table_dtype],
        "CACHE": "fp8" if is_fp8 else elements.CPP[dtype], "HEAD_DIM": head_dim, "HAS_NORM": int(has_norm),
        "IS_SHARED": int(is_shared), "VEC": vec, "THREADS": threads, "SHARE": share})


def _prebuild() -> list[FusedQkRopeCacheCall]:
    """Heads of 128 in bf16 into whole rows, with and without norm, as they are and as fp8."""
    x, index = torch.empty(1, 1, 128, dtype=torch.bfloat16), torch.empty(1, dtype=torch.int64)
    cos = x[0, :, :64]
    calls = []
    for dtype, weight in itertools.product((x.dtype, torch.float8_e4m3fn), (None, x[0, 0])):
        cache = torch.empty(1, 1, 1, 128, dtype=dtype)
        calls.append(FusedQkRopeCacheCall(x, x, x, cache, value_cache=cache, q=x, k=x, v=x, q_weight=weight,
                                          k_weight=weight, cos=cos, sin=cos, positions=index, offsets=None,
                                          slot_mapping=index))
    return calls


@compile_ops("rope/fused_qk_rope_cache.hip", gen_func=_instance, prebuild=_prebuild)
def _fused_qk_rope_cache_hip(call: FusedQkRopeCacheCall) -> None: ...


def _check(call: FusedQkRopeCacheCall) -> object:
    q, k = call.q, call.k
    check.tensor(_OP, "q", q, rank=3, dtypes=elements.FLOATS)
    tokens, _, head_dim = q.shape
    check.tensor(_OP, "k", k, dtypes=(q.dtype,), shape=(tokens, None, head_dim), device=q.device)
    check.tensor(_OP, "v", call.v, dtypes=(q.dtype,), shape=k.shape, device=q.device)
    for name, tensor, like in (("q_out", call.q_out, q), ("k_out", call.k_out, k), ("v_out", call.v_out, call.v)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=(q.dtype,), shape=like.shape, device=q.device)
    for name, tensor in (("q_weight", call.q_weight), ("k_weight", call.k_weight)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=(q.dtype,), shape=(head_dim,), device=q.device)
    parts.check_flags(_OP, call.rotate_style, call.reuse_freqs_front_part, False)
    parts.check_table(_OP, "cos", call.cos, q, head_dim, min(tokens, 1), call.reuse_freqs_front_part)
    check.tensor(_OP, "sin", call.sin, dtypes=(call.cos.dtype,), shape=call.cos.shape, device=q.device)
    for name, tensor in (("positions", call.positions), ("offsets", call.offsets)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=elements.INTEGERS, shape=(tokens,), device=q.device,
                         last_contiguous=False)
    paged_cache.check_caches(_NAMES, call.layout, call.key_cache, call.value_cache, k, call.v)
    paged_cache.check_slots(_OP, call.slot_mapping, tokens, q.device)
    for name, scale in (("k_scale", call.k_scale), ("v_scale", call.v_scale)):
        paged_cache.check_scale(_OP, name, scale, q.device)
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    target = target_of(q.device)
    refusal = quant_rule.refusal(target, call.key_cache.dtype)
    if refusal:
        raise TypeError(f"{_OP}: key_cache: {refusal}")
    for name, tensor in (("key_cache", call.key_cache), ("value_cache", call.value_cache)):
        check.tensor(_OP, name, tensor, dtypes=(q.dtype, dtypes.fp8_of(target.arch)), last_contiguous=False)
    check.tensor(_OP, "value_cache", call.value_cache, dtypes=(call.key_cache.dtype,), last_contiguous=False)
    return SKIP if tokens == 0 or head_dim == 0 else None


def _hip_refusal(target: Target, call: FusedQkRopeCacheCall) -> str | None:
    """Heads have an even size, and the lanes of a wave take one with two accesses each."""
    (tokens, heads, head_dim), kv_heads, vec = call.q.shape, call.k.shape[1], call.vec
    if head_dim % 2:
        return f"head dimension must be even, got {head_dim}"
    lanes = 1 << (head_dim // (2 * vec) - 1).bit_length()
    if lanes > target.wave_size:
        return (f"head dimension at most {2 * vec * target.wave_size} where strides and rotated part allow accesses of "
                f"{vec}, got {head_dim}")
    if tokens * (heads + 2 * kv_heads) * lanes >= 2**31:
        return f"too many heads for one launch: {tokens} tokens of {heads} + 2 · {kv_heads}"
    return paged_cache.too_many_slots(call.key_cache.shape[0], call.page_size)


def _hip_space(target: Target, call: FusedQkRopeCacheCall) -> list[dict[str, int]]:
    return [{"threads": threads, "share": share} for threads in (64, 128, 256) for share in (1, 4, 8)]


def _triton_refusal(target: Target, call: FusedQkRopeCacheCall) -> str | None:
    head_dim, limit = call.q_out.shape[-1], parts.MAX_HEAD_DIM
    return f"head dimension at most {limit}, got {head_dim}" if head_dim > limit else None


def _tune_key(call: FusedQkRopeCacheCall) -> dict[str, int | str]:
    return {"tokens": call.q.shape[0], "heads": call.q.shape[1], "kv_heads": call.k.shape[1],
            "head_dim": call.q.shape[2], "rotary_dim": call.rotary_dim, "page_size": call.page_size,
            "layout": call.layout, "has_norm": call.q_weight is not None, "dtype": dtypes.name(call.q.dtype),
            "cache_dtype": dtypes.name(call.key_cache.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> FusedQkRopeCacheCall:
    """Tokens fill one page after the other, as in prefill, and pages lie in random order; without norms `k_out` is
    written too.
    """
    random, has_norm = tune_shapes.normal(device, seed, key["dtype"]), key["has_norm"]
    tokens, heads, kv_heads, head_dim, page_size = (
        key[name] for name in ("tokens", "heads", "kv_heads", "head_dim", "page_size"))
    blocks = -(-tokens // page_size)
    dtype = dtypes.DTYPES[key["cache_dtype"]]
    keys, values = paged_cache.zeros(key["layout"], blocks, page_size, kv_heads, head_dim, dtype, device)
    q, k, v = random(tokens, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), 1)
    q_weight, k_weight = (random(head_dim) if has_norm else None for _ in "qk")
    cos, sin = random(2, tokens, key["rotary_dim"] // 2)
    index = torch.arange(tokens, device=device)
    pages = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).to(device)
    scale = torch.ones(1, device=device) if dtype.itemsize == 1 else None
    return FusedQkRopeCacheCall(
        torch.empty(q.shape, dtype=q.dtype, device=device), None if has_norm else torch.empty_like(k), None, keys,
        value_cache=values, q=q, k=k, v=v, q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin, positions=index,
        offsets=None, slot_mapping=pages[index // page_size] * page_size + index % page_size, k_scale=scale,
        v_scale=scale, epsilon=1e-6, layout=key["layout"])


def _traffic(call: FusedQkRopeCacheCall) -> tuple[int, int]:
    """Of the caches, only what the tokens write."""
    others = sum(tensor.nbytes for name, tensor in call._asdict().items()
                 if isinstance(tensor, Tensor) and name not in ("key_cache", "value_cache"))
    return others + 2 * call.k.numel() * call.key_cache.element_size(), 0


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A GPU's own heads into whole rows and into packs, as they are and as fp8; not in latent attention."""
    if model.kv_lora_rank:
        return
    for layout in ("rows", "shuffled"):
        for cache_dtype in (model.dtype, tune_shapes.fp8_name()):
            yield {"tokens": tokens, "heads": model.num_heads // tp, "kv_heads": max(model.num_kv_heads // tp, 1),
                   "head_dim": model.head_dim, "rotary_dim": model.head_dim, "page_size": 16, "layout": layout,
                   "has_norm": int(model.qk_norm), "dtype": model.dtype, "cache_dtype": cache_dtype}


def _cases(device: torch.device) -> dict[str, FusedQkRopeCacheCall]:
    """With and without norm, whole rows and packed ones, as they are and as fp8."""
    generator = torch.Generator().manual_seed(0)
    one = torch.ones(1, device=device)
    calls = {}
    for has_norm, is_fp8, layout in ((True, True, "shuffled"), (False, False, "rows"), (True, False, "columns")):
        qkv = torch.randn(9, 6, 64, generator=generator).to(device, torch.bfloat16)
        q, k, v = qkv.split((4, 1, 1), 1)
        dtype = dtypes.fp8_of(target_of(device).arch) if is_fp8 else qkv.dtype
        keys, values = paged_cache.zeros(layout, 2, 16, 1, 64, dtype, device)
        q_weight, k_weight = (torch.rand(64, generator=generator).to(device, torch.bfloat16) if has_norm else None
                              for _ in "qk")
        cos, sin = torch.rand(2, 20, 32, generator=generator).to(device, torch.bfloat16)
        index = torch.arange(9, device=device)
        calls[f"{layout}{' fp8' * is_fp8}{' with norm' * has_norm}"] = FusedQkRopeCacheCall(
            torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), keys, value_cache=values, q=q, k=k, v=v,
            q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin, positions=index + 3, offsets=None,
            slot_mapping=index * 3, k_scale=one, v_scale=one, epsilon=1e-6, layout=layout)
    return calls


fused_qk_rope_cache = Op(
    _OP, call=FusedQkRopeCacheCall, reference=_fused_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "heads", "kv_heads", "head_dim", "rotary_dim", "page_size", "layout", "has_norm", "dtype",
                 "cache_dtype"),
    round_field="tokens", writes=("q_out", "k_out", "v_out", "key_cache", "value_cache"), cases=_cases,
    tuning=Tuning(_tune_case, _traffic, _tune_shapes),
    in_place={"q_out": ("q",), "k_out": ("k",)},
    backends=(Backend("hip", _fused_qk_rope_cache_hip, refusal=_hip_refusal, space=_hip_space,
                      address_refusal=vectors.begin_at(lambda call: dict.fromkeys(_IN_VECTORS, call.vec))),
              Backend("triton", "ops.rope.triton.fused_qk_rope_cache:fused_qk_rope_cache",
                      refusal=_triton_refusal, space=parts.triton_space),
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
    parts.has_rank(name, "q", q, 3)
    parts.has_rank(name, "slot_mapping", slot_mapping, 1)
    for argument, tensor in (("key_cache", key_cache), ("value_cache", value_cache), ("cos", cos)):
        check.tensor(name, argument, tensor, last_contiguous=False)
    if cos.ndim < 2:
        raise ValueError(f"{name}: cos must be a table of rows, got shape {tuple(cos.shape)}")
    parts.check_positions(name, "pos", pos, offs, cos, "offs")
    check.flag(name, "output_zeros", output_zeros)
    if zeros_out is not None:
        check.dense(name, "zeros_out", zeros_out)
        if zeros_out.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name}: zeros_out must not require grad, unless under torch.no_grad()")
    layout = layout_of(name, {"key_cache": key_cache, "value_cache": value_cache})
    if (layout == "rows") != flash_layout:
        raise ValueError(f"{name}: flash_layout is {flash_layout}, but key_cache has shape {tuple(key_cache.shape)}")
    q_out = torch.empty_like(q, memory_format=torch.contiguous_format) if q_out is None else q_out
    k_out = torch.empty_like(k, memory_format=torch.contiguous_format) if k_out is None else k_out
    if zeros_out is not None:
        refuse_overlap(name, "zeros_out", zeros_out, q_out=q_out, k_out=k_out, key_cache=key_cache,
                       value_cache=value_cache)
    found = (k_scale, v_scale) if apply_scale else (None, None)
    fused_qk_rope_cache.run(q_out, k_out, None, key_cache, value_cache=value_cache, q=q, k=k, v=v, q_weight=None,
                            k_weight=None, cos=cos, sin=sin, positions=pos, offsets=offs,
                            slot_mapping=slot_mapping[:q.shape[0]], k_scale=found[0], v_scale=found[1],
                            rotate_style=0 if is_neox else 1, reuse_freqs_front_part=2 * cos.shape[-1] == q.shape[-1],
                            layout=layout, backend=backend)
    if zeros_out is None and not output_zeros:
        return q_out, k_out, key_cache, value_cache
    return q_out, k_out, key_cache, value_cache, torch.zeros_like(q_out) if zeros_out is None else zeros_out.zero_()


def layout_of(name: str, caches: Mapping[str, Tensor]) -> str:
    """The layout that caches of these ranks have; `name` is the public function's, the keys are its parameters'.

    Raises:
        ValueError: none has them.
    """
    ranks = tuple(cache.ndim for cache in caches.values())
    if ranks not in _LAYOUTS:
        shapes = " and ".join(str(tuple(cache.shape)) for cache in caches.values())
        raise ValueError(f"{name}: {' and '.join(caches)} must have 4 and 4, 5 and 4, or 5 and 5 dimensions, got "
                         f"shapes {shapes}")
    return _LAYOUTS[ranks]
