# SPDX-License-Identifier: MIT
"""Writing paged KV caches. Kernels: csrc/kv_cache/; the layouts: csrc/include/aiter_like/kv_cache.h."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule
from aiter_like.ops.kv_cache import parts

__all__ = ["concat_and_cache_mla", "reshape_and_cache", "reshape_and_cache_flash"]

_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")
_MAX_ACCESSES = 2**31 - 1  # accesses of one launch
_TOKEN_GROUP = 64  # reshape_and_cache.hip rounds tokens up to it
_NAMES = paged_cache.Names("reshape_and_cache")
_MLA_NAMES = paged_cache.Names("reshape_and_cache", "kv_c", "k_pe", "kv_cache[..., :kv_lora_rank]",
                               "kv_cache[..., kv_lora_rank:]", "scale", "scale")


class ReshapeAndCacheCall(NamedTuple):
    """One call of reshape_and_cache.

    Attributes:
        key_cache, value_cache: in `layout`; only the slots that `slot_mapping` names are written.
        slot_mapping: the place of each of the first tokens.
        kv_cache_dtype: "auto" copies; "fp8" or "fp8_e4m3" quantises to the device's fp8.
        k_scale, v_scale: 1 fp32 element, what an element of the cache counts; None: 1.
        layout: "rows", "mla", "columns" or "shuffled" (ops/common/paged_cache.py).
    """

    key_cache: Tensor
    value_cache: Tensor
    key: Annotated[Tensor, "tokens heads _"]
    value: Annotated[Tensor, "tokens heads _", "key"]
    slot_mapping: Annotated[Tensor, "_", elements.INTEGERS]
    kv_cache_dtype: str = "auto"
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    layout: str = "rows"


def reshape_and_cache_ref(call: ReshapeAndCacheCall) -> None:
    """In torch, with the kernel's rounding: x · (1 / scale) in fp32, saturated, to nearest even."""
    key, value = call.key, call.value
    if call.kv_cache_dtype != "auto":
        kind = dtypes.fp8_of(target_of(key.device).arch)
        one = torch.ones(1, device=key.device, dtype=torch.float32)
        key, value = (
            quant_rule.quantised(x.float(), (one if scale is None else scale).view(1), kind).view(call.key_cache.dtype)
            for x, scale in ((key, call.k_scale), (value, call.v_scale)))
    paged_cache.put(call.key_cache, call.value_cache, key, value, call.slot_mapping)


def _instance(call: ReshapeAndCacheCall) -> Instance:
    dtype = call.key.dtype
    if call.kv_cache_dtype == "auto":
        bits = 8 * dtype.itemsize
        return Instance(f"copy{bits}", {"SOURCE": f"uint{bits}_t", "CACHE": f"uint{bits}_t"})
    return Instance(f"{dtypes.name(dtype)}_fp8", {"SOURCE": elements.CPP[dtype], "CACHE": "fp8"})


@compile_ops("kv_cache/reshape_and_cache.hip", gen_func=_instance)
def _reshape_and_cache_hip(call: ReshapeAndCacheCall) -> None: ...


def _check_dtypes(names: paged_cache.Names, call: ReshapeAndCacheCall) -> None:
    """The caches hold the dtype of `key`, or fp8, also as bytes."""
    check.choice(names.op, "kv_cache_dtype", call.kv_cache_dtype, _CACHE_DTYPES)
    if call.kv_cache_dtype == "auto":
        paged_cache.check_fp8(names.op, names.key, call.key, elements.FLOATS)
        check.tensor(names.op, names.key_cache, call.key_cache, dtypes=(call.key.dtype,), last_contiguous=False)
    else:
        check.tensor(names.op, names.key, call.key, dtypes=elements.FLOATS, last_contiguous=False)
        paged_cache.check_fp8(names.op, names.key_cache, call.key_cache, (torch.uint8,))
    check.tensor(names.op, names.value_cache, call.value_cache, dtypes=(call.key_cache.dtype,), last_contiguous=False)


def _check(call: ReshapeAndCacheCall) -> object:
    names, key = _MLA_NAMES if call.layout == "mla" else _NAMES, call.key
    paged_cache.check_caches(names, call.layout, call.key_cache, call.value_cache, key, call.value)
    _check_dtypes(names, call)
    paged_cache.check_slots(names.op, call.slot_mapping, key.shape[0], key.device)
    paged_cache.check_scale(names.op, names.k_scale, call.k_scale, key.device)
    paged_cache.check_scale(names.op, names.v_scale, call.v_scale, key.device)
    return SKIP if paged_cache.writes_nothing(call) else None


def _hip_refusal(target: Target, call: ReshapeAndCacheCall) -> str | None:
    tokens, heads, key_dim = call.slot_mapping.shape[0] + _TOKEN_GROUP, *call.key.shape[1:]
    accesses = tokens * heads * max(key_dim, call.value.shape[2])
    if accesses > _MAX_ACCESSES:
        return f"at most {_MAX_ACCESSES} elements of key or value fit one launch, got {accesses}"
    return paged_cache.too_many_slots(call.key_cache.shape[0], paged_cache.page_size_of(call.key_cache))


def _cases(device: torch.device) -> dict[str, ReshapeAndCacheCall]:
    """Every element of small caches: each layout, copied and as fp8."""
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(32, generator=generator).to(device)
    scale = torch.tensor([0.5], device=device)
    fp8 = dtypes.fp8_of(target_of(device).arch)
    calls = {}
    for dtype in (*elements.FLOATS, fp8):
        key, value = (torch.randn(32, 2, 32, generator=generator).to(device, dtype) for _ in range(2))
        for kind, cache_dtype in (("auto", dtype), ("fp8", fp8))[:1 if dtype == fp8 else 2]:
            for layout in ("rows", "columns", "shuffled"):
                caches = paged_cache.zeros(layout, 2, 16, 2, 32, cache_dtype, device)
                calls[f"{dtypes.name(dtype)} {kind} {layout}"] = ReshapeAndCacheCall(
                    *caches, key, value, slot_mapping=slots, kv_cache_dtype=kind, k_scale=scale, v_scale=scale,
                    layout=layout)
    return calls


_reshape_and_cache = Op(
    "reshape_and_cache", call=ReshapeAndCacheCall, reference=reshape_and_cache_ref, check=_check,
    writes=("key_cache", "value_cache"), cases=_cases,
    backends=(Backend("hip", _reshape_and_cache_hip, refusal=_hip_refusal), Backend("torch", reshape_and_cache_ref)))


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor,
                      kv_cache_dtype: str, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
                      asm_layout: bool = False, *, backend: str | None = None) -> None:
    """Writes the keys and values of tokens into their slots of a paged cache with packed keys.

    `cache[slot // page_size][…, slot % page_size, …] = x`, or `round(x · (1 / scale))` in an fp8 cache.

    Args:
        key: [num_tokens, num_heads, head_dim] bf16|fp16|fp32 ("auto": also fp8), last dimension contiguous.
        value: [num_tokens, num_heads, value_dim], dtype of `key`, last dimension contiguous.
        key_cache: [num_blocks, num_heads, head_dim / x, page_size, x], any strides; x is a power of two, 16 bytes.
        value_cache: [num_blocks, num_heads, value_dim, page_size], dtype of `key_cache`, any strides; with `asm_layout`
            [num_blocks, num_heads, page_size / x, value_dim, x], or a dense tensor of the other shape for those bytes.
        slot_mapping: [≤ num_tokens] int64|int32, `block · page_size + offset` of each of the first tokens.
        kv_cache_dtype: "auto": caches have the dtype of what is written; "fp8" or "fp8_e4m3": the device's e4m3, or
            uint8 for its bytes.
        k_scale: 1 fp32 element, the keys' dequantisation scale; None: 1. Not read with "auto".
        v_scale: the same for the values.
        asm_layout: the shuffled value cache.

    Returns: Nothing: caches are written, and in them only the slots that are named.

    Raises:
        TypeError: an fp8 cache is of another device's format.

    Notes:
        A slot below 0, and one beyond the cache, is skipped: nothing is written for its token, nor outside the cache.
        Two tokens with one slot: which of them stays is undefined. fp8 saturates, NaN stays NaN; with scale 0 zeros
        become NaN and all else ±largest. 64-bit addresses.
    """
    layout = parts.layout_of(_NAMES.op, asm_layout)
    value_cache = parts.as_shuffled(value_cache, key_cache) if asm_layout else value_cache
    _reshape_and_cache.run(key_cache, value_cache, key, value, slot_mapping=slot_mapping, kv_cache_dtype=kv_cache_dtype,
                           k_scale=k_scale, v_scale=v_scale, layout=layout, backend=backend)


def reshape_and_cache_flash(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor,
                            kv_cache_dtype: str, k_scale: Tensor | None, v_scale: Tensor | None, *,
                            backend: str | None = None) -> None:
    """Writes into a cache of whole rows: `cache[slot // page_size, slot % page_size] = x`. Like `reshape_and_cache`.

    Args:
        key_cache: [num_blocks, page_size, num_heads, head_dim], any strides: also [B, H, bs, D] transposed, and half of
            [B, H, bs, 2 · D] that holds keys and values.
        value_cache: [num_blocks, page_size, num_heads, value_dim], any strides, its own.
    """
    _reshape_and_cache.run(key_cache, value_cache, key, value, slot_mapping=slot_mapping, kv_cache_dtype=kv_cache_dtype,
                           k_scale=k_scale, v_scale=v_scale, layout="rows", backend=backend)


def concat_and_cache_mla(kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str,
                         scale: Tensor | None, *, backend: str | None = None) -> None:
    """Writes each token's latent and rotated key into its slot of an MLA cache. Like `reshape_and_cache` otherwise.

    `kv_cache[slot // page_size, slot % page_size] = kv_c ‖ k_pe`, in an fp8 cache `round(x · (1 / scale))`.

    Args:
        kv_c: [num_tokens, kv_lora_rank] bf16|fp16|fp32 ("auto": also fp8), last dimension contiguous.
        k_pe: [num_tokens, rope_dim], dtype of `kv_c`, last dimension contiguous; [num_tokens, 1, rope_dim] too.
        kv_cache: [num_blocks, page_size, kv_lora_rank + rope_dim], any strides; [num_blocks, page_size, 1, …] too.
        scale: 1 fp32 element, the dequantisation scale; None: 1. Not read with "auto".
    """
    check.tensor("concat_and_cache_mla", "kv_c", kv_c, rank=2)
    for name, tensor, ranks in (("k_pe", k_pe, (2, 3)), ("kv_cache", kv_cache, (3, 4))):
        check.tensor("concat_and_cache_mla", name, tensor, device=kv_c.device, last_contiguous=False)
        if tensor.ndim not in ranks:
            raise ValueError(f"concat_and_cache_mla: {name} must have {ranks[0]} or {ranks[1]} dimensions, got shape "
                             f"{tuple(tensor.shape)}")
    rank = kv_c.shape[1]
    k_pe = k_pe.unsqueeze(1) if k_pe.ndim == 2 else k_pe
    cache = kv_cache.unsqueeze(2) if kv_cache.ndim == 3 else kv_cache
    _reshape_and_cache.run(cache[..., :rank], cache[..., rank:], kv_c.unsqueeze(1), k_pe, slot_mapping=slot_mapping,
                           kv_cache_dtype=kv_cache_dtype, k_scale=scale, v_scale=scale, layout="mla", backend=backend)
