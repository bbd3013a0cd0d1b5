# SPDX-License-Identifier: MIT
"""RMSNorm of q and k, rotary position embedding and the KV cache's write in one kernel (csrc/rope/, ops/rope/triton/).

The public function with norms is in ops/rope/fused_qk_norm_rope_cache.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.dispatch.addresses import refuse_overlap
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, tune_shapes, vectors
from aiter_like.ops.rope import parts

__all__ = ["fused_qk_rope_reshape_and_cache"]

_OP = "fused_qk_rope_cache"
_NAMES = paged_cache.Names(_OP, "k", "v")
_IN_VECTORS = ("q_out", "k_out", "v_out", "q", "k", "v", "q_weight", "k_weight", "cos", "sin")


class FusedQkRopeCacheCall(NamedTuple):
    """One call of fused_qk_rope_cache.

    Attributes:
        key_cache, value_cache: in `layout`; they have the dtype of `q` or are fp8.
        q_weight, k_weight: of the RMSNorm before the rotation; None: no norm.
        cos, sin: tables with a row for each position.
        positions: rows of the tables; `offsets` are added to them.
        slot_mapping: [≤ tokens], the place of each token in the caches.
        k_scale, v_scale: 1 element, what an element of the cache counts; None: 1.
        rotate_style: 0 pairs elements i and i + rotary_dim / 2, 1 elements 2i and 2i + 1.
        reuse_freqs_front_part: a row of the tables has a value per pair, not one per rotated element.
        layout: "rows", "columns" or "shuffled" (ops/common/paged_cache.py).
    """

    q_out: Annotated[Tensor, "tokens heads head_dim", "q"]
    k_out: Annotated[Tensor | None, "tokens kv_heads head_dim", "q"]
    v_out: Annotated[Tensor | None, "tokens kv_heads head_dim", "q"]
    key_cache: Annotated[Tensor, "*key_cache", STRIDED]
    value_cache: Annotated[Tensor, "*value_cache", "key_cache", STRIDED]
    q: Annotated[Tensor, "tokens heads head_dim", elements.FLOATS]
    k: Annotated[Tensor, "tokens kv_heads head_dim", "q"]
    v: Annotated[Tensor, "tokens kv_heads head_dim", "q"]
    q_weight: Annotated[Tensor | None, "head_dim", "q"]
    k_weight: Annotated[Tensor | None, "head_dim", "q"]
    cos: Annotated[Tensor, "*cos", elements.FLOATS]
    sin: Annotated[Tensor, "*sin", "cos"]
    positions: Annotated[Tensor, "tokens", elements.INTEGERS, STRIDED]
    offsets: Annotated[Tensor | None, "tokens", elements.INTEGERS, STRIDED]
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
        steps = parts.steps(self.q, self.k, self.v, self.q_out, self.k_out, self.v_out, self.cos, self.sin)
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
    kept = [parts.stored(x, scale, call.key_cache.dtype)
            for x, scale in ((found[1], call.k_scale), (call.v.float(), call.v_scale))]
    paged_cache.put(call.key_cache, call.value_cache, *kept, call.slot_mapping)


def _instance(call: FusedQkRopeCacheCall, *, threads: int | None = None, share: int = 4) -> Instance:
    dtype, table_dtype, head_dim = call.q.dtype, call.cos.dtype, call.q.shape[-1]
    has_norm, is_shared, vec = call.q_weight is not None, call.reuse_freqs_front_part, call.vec
    threads = threads or (64 if call.layout == "rows" else 128)  # more for a tile of V
    name = (f"{dtypes.name(dtype)}_table_{dtypes.name(table_dtype)}{'_fp8' * call.is_fp8}_d{head_dim}"
            f"{'_norm' * has_norm}{'' if is_shared else '_whole'}_v{vec}_t{threads}_s{share}")
    return Instance(name, {
        "ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table_dtype],
        "CACHE": elements.CPP[call.key_cache.dtype], "HEAD_DIM": head_dim, "HAS_NORM": int(has_norm),
        "IS_SHARED": int(is_shared), "VEC": vec, "THREADS": threads, "SHARE": share})


def _prebuild() -> list[FusedQkRopeCacheCall]:
    """Heads of 128 in bf16 into whole rows, with and without norm, as they are and as fp8."""
    keys = (FusedQkRopeCacheKey(1, 1, 1, 128, 128, 1, "rows", has_norm, "bf16", cache_dtype)
            for cache_dtype, has_norm in itertools.product(("bf16", "fp8_e4m3fn"), (False, True)))
    return [key.make(torch.device("cpu"), 0) for key in keys]


@compile_ops("rope/fused_qk_rope_cache.hip", gen_func=_instance, prebuild=_prebuild)
def _fused_qk_rope_cache_hip(call: FusedQkRopeCacheCall) -> None: ...


def _check(call: FusedQkRopeCacheCall) -> object:
    (tokens, _, head_dim), device = call.q.shape, call.q.device
    check.choice(_OP, "rotate_style", call.rotate_style, (0, 1))
    parts.check_table(_OP, "cos", call.cos, call.sin, head_dim, min(tokens, 1), call.reuse_freqs_front_part)
    paged_cache.check_caches(_NAMES, call.layout, call.key_cache, call.value_cache, call.k, call.v)
    paged_cache.check_slots(_OP, call.slot_mapping, tokens, device)
    paged_cache.check_scale(_OP, "k_scale", call.k_scale, device)
    paged_cache.check_scale(_OP, "v_scale", call.v_scale, device)
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    paged_cache.check_fp8(_OP, "key_cache", call.key_cache, (call.q.dtype,))
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


def _triton_refusal(target: Target, call: FusedQkRopeCacheCall) -> str | None:
    head_dim, limit = call.q_out.shape[-1], parts.MAX_HEAD_DIM
    return f"head dimension at most {limit}, got {head_dim}" if head_dim > limit else None


class FusedQkRopeCacheKey(NamedTuple):
    """The fields that a tuned row of fused_qk_rope_cache is chosen by."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    page_size: int
    layout: str
    has_norm: bool
    dtype: str
    cache_dtype: str

    @classmethod
    def of(cls, call: FusedQkRopeCacheCall) -> FusedQkRopeCacheKey:
        tokens, heads, head_dim = call.q.shape
        return cls(tokens, heads, call.k.shape[1], head_dim, call.rotary_dim, call.page_size, call.layout,
                   call.q_weight is not None, dtypes.name(call.q.dtype), dtypes.name(call.key_cache.dtype))

    def make(self, device: torch.device, seed: int, *, has_kv_out: bool = False) -> FusedQkRopeCacheCall:
        """Tokens fill pages as in prefill; without norms `k_out` is written too."""
        random, dtype = tune_shapes.normal(device, seed, self.dtype), tune_shapes.dtype_on(device, self.cache_dtype)
        blocks, slots = parts.prefill_slots(self.tokens, self.page_size, device, seed)
        keys, values = paged_cache.zeros(self.layout, blocks, self.page_size, self.kv_heads, self.head_dim, dtype,
                                         device)
        q, k, v = random(self.tokens, self.heads + 2 * self.kv_heads, self.head_dim).split(
            (self.heads, self.kv_heads, self.kv_heads), 1)
        q_weight, k_weight = (random(self.head_dim) if self.has_norm else None for _ in "qk")
        cos, sin = random(2, self.tokens, self.rotary_dim // 2)
        scale = torch.ones(1, device=device) if dtype.itemsize == 1 else None
        return FusedQkRopeCacheCall(
            torch.empty(q.shape, dtype=q.dtype, device=device),
            torch.empty_like(k) if has_kv_out or not self.has_norm else None,
            torch.empty_like(v) if has_kv_out else None, keys, values, q, k, v, q_weight, k_weight, cos, sin,
            torch.arange(self.tokens, device=device), None, slots, scale, scale, epsilon=1e-6, layout=self.layout)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[FusedQkRopeCacheKey]:
        """A GPU's own heads into whole rows and into packs, as they are and as fp8; not in latent attention."""
        if not model.kv_lora_rank:
            for layout, dtype in itertools.product(("rows", "shuffled"), (model.dtype, tune_shapes.fp8_name())):
                yield cls(tokens, model.num_heads // tp, max(model.num_kv_heads // tp, 1), model.head_dim,
                          model.head_dim, 16, layout, int(model.qk_norm), model.dtype, dtype)


def _traffic(call: FusedQkRopeCacheCall) -> tuple[int, int]:
    return parts.traffic(call, 2 * call.k.numel() * call.key_cache.element_size(), "key_cache", "value_cache")


fused_qk_rope_cache = Op(
    _OP, call=FusedQkRopeCacheCall, reference=_fused_ref, check=_check, key=FusedQkRopeCacheKey, traffic=_traffic,
    round_field="tokens", writes=("q_out", "k_out", "v_out", "key_cache", "value_cache"),
    cases={name: (FusedQkRopeCacheKey(9, 4, 1, 64, 64, *others), {"has_kv_out": True}) for name, others in (
        ("shuffled fp8 with norm", (16, "shuffled", True, "bf16", "fp8")),
        ("rows", (4, "rows", False, "bf16", "bf16")), ("columns with norm", (4, "columns", True, "bf16", "bf16")))},
    in_place={"q_out": ("q",), "k_out": ("k",)},
    backends=(Backend("hip", _fused_qk_rope_cache_hip, refusal=_hip_refusal,
                      space=tune_shapes.every(threads=(64, 128, 256), share=(1, 4, 8)),
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
    """Rotary position embedding of q and k, and the write of k and v into a paged cache:
    `q_out = rope(q)`, `k_out = rope(k)`, `key_cache[slot] = round(rope(k) · (1 / k_scale))`, `value_cache[slot] =
    round(v · (1 / v_scale))`.

    Args:
        q: [num_tokens, num_heads, head_dim] bf16|fp16|fp32, last dimension contiguous.
        k, v: [num_tokens, num_kv_heads, head_dim], dtype of `q`.
        key_cache: dtype of `q` or the device's fp8: [num_blocks, page_size, num_kv_heads, head_dim] with
            `flash_layout`, else [num_blocks, num_kv_heads, head_dim / x, page_size, x]; any strides; written.
        value_cache: as `key_cache` with `flash_layout`, else [num_blocks, num_kv_heads, head_dim, page_size] or
            [num_blocks, num_kv_heads, page_size / x, head_dim, x]; written.
        slot_mapping: int32|int64, a slot per token; those beyond num_tokens are not read.
        pos: [num_tokens] int32|int64: rows of `cos` and `sin`.
        cos, sin: [max_position, head_dim / 2] or [max_position, head_dim], or with two dimensions of 1 between.
        k_scale, v_scale, apply_scale: 1 fp32 element that fp8 is divided by; None, or `apply_scale` False: 1.
        is_neox: True: pairs (i, i + head_dim / 2); False: pairs (2i, 2i + 1).
        flash_layout: which layout the caches have.
        offs: [num_tokens] int32|int64 added to `pos`, or None.
        q_out, k_out: like `q` and `k`, which they may be; written; default: new tensors.
        output_zeros, zeros_out: True, or the tensor for them: zeros like `q` are returned too.
        upcast_operand: without effect: the rotation is always in fp32.

    Returns: q_out, k_out, key_cache, value_cache, and zeros_out where asked for.

    Notes:
        fp32 throughout, each result rounded to nearest even once, the cache's from the fp32 value; fp8 saturates. A
        slot outside the cache is skipped. Deterministic.

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
    layout = parts.layout_of(name, {"key_cache": key_cache, "value_cache": value_cache})
    if (layout == "rows") != flash_layout:
        raise ValueError(f"{name}: flash_layout is {flash_layout}, but key_cache has shape {tuple(key_cache.shape)}")
    q_out = torch.empty_like(q, memory_format=torch.contiguous_format) if q_out is None else q_out
    k_out = torch.empty_like(k, memory_format=torch.contiguous_format) if k_out is None else k_out
    if zeros_out is not None:
        refuse_overlap(name, "zeros_out", zeros_out, q_out=q_out, k_out=k_out, key_cache=key_cache,
                       value_cache=value_cache)
    found = (k_scale, v_scale) if apply_scale else (None, None)
    fused_qk_rope_cache.run(q_out, k_out, None, key_cache, value_cache, q, k, v, None, None, cos, sin, pos, offs,
                            slot_mapping[:q.shape[0]], *found, rotate_style=0 if is_neox else 1, layout=layout,
                            reuse_freqs_front_part=2 * cos.shape[-1] == q.shape[-1], backend=backend)
    if zeros_out is None and not output_zeros:
        return q_out, k_out, key_cache, value_cache
    return q_out, k_out, key_cache, value_cache, torch.zeros_like(q_out) if zeros_out is None else zeros_out.zero_()
