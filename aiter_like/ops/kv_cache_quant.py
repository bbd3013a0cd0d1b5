# SPDX-License-Identifier: MIT
"""Writing paged KV caches with scales made on the way: a scale per token and head. Kernels: csrc/kv_cache/."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes, kv_layout, scales
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops

__all__ = ["reshape_and_cache_with_pertoken_quant"]

_NAMES = kv_layout.Names("reshape_and_cache_with_pertoken_quant")


def pertoken_quant_ref(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor,
                       key: Tensor, value: Tensor, slot_mapping: Tensor, layout: str) -> None:
    """In torch, with the kernel's rounding."""
    num_blocks, page_size = key_cache.shape[0], kv_layout.page_size_of(key_cache)
    tokens, block, offset = kv_layout.places(slot_mapping, page_size, num_blocks)
    rows = []
    for x, cache, stored in ((key, key_cache, k_dequant_scales), (value, value_cache, v_dequant_scales)):
        scale = scales.of(x.float(), cache.dtype)
        rows.append(scales.quantised(x.float(), scale, cache.dtype))
        if layout == "shuffled":
            stored[block, :, offset] = scale[tokens, :, 0]
        else:
            stored[:, block * page_size + offset] = scale[tokens, :, 0].T
    kv_layout.put(key_cache, value_cache, *rows, slot_mapping)


def _instance(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor,
              key: Tensor, value: Tensor, slot_mapping: Tensor, layout: str) -> Instance:
    return _variant(key.dtype, key_cache.dtype, max(key.shape[2], value.shape[2]))


def _variant(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> Instance:
    lanes = kv_layout.lanes_of(dtype, head_dim)
    name, cache = ("i8", "int8_t") if cache_dtype == torch.int8 else ("fp8", "fp8")
    return Instance(f"{dtypes.name(dtype)}_{name}_l{lanes}",
                    {"SOURCE": kv_layout.ELEMENTS[dtype], "CACHE": cache, "LANES": lanes})


def _prebuilt() -> list[Instance]:
    return [_variant(torch.bfloat16, cache_dtype, 128) for cache_dtype in (torch.float8_e4m3fn, torch.int8)]


@compile_ops("kv_cache/reshape_and_cache_with_pertoken_quant.hip", gen_func=_instance, prebuild=_prebuilt)
def _reshape_and_cache_with_pertoken_quant_hip(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
                                               v_dequant_scales: Tensor, key: Tensor, value: Tensor,
                                               slot_mapping: Tensor, layout: str) -> None: ...


def _check(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor, key: Tensor,
           value: Tensor, slot_mapping: Tensor, layout: str) -> object:
    op = _NAMES.op
    check.choice(op, "layout", layout, ("columns", "shuffled"))
    kv_layout.check_caches(_NAMES, layout, key_cache, value_cache, key, value)
    check.tensor(op, "key", key, dtypes=kv_layout.FLOATS)
    kv_layout.check_fp8(op, "key_cache", key_cache, (torch.int8,))
    check.tensor(op, "value_cache", value_cache, dtypes=(key_cache.dtype,), last_contiguous=False)
    kv_layout.check_slots(op, slot_mapping, key.shape[0], key.device)
    blocks, page_size, heads = key_cache.shape[0], kv_layout.page_size_of(key_cache), key.shape[1]
    for name, tensor in (("k_dequant_scales", k_dequant_scales), ("v_dequant_scales", v_dequant_scales)):
        shape = (blocks, heads, page_size) if layout == "shuffled" else (heads, None)
        check.tensor(op, name, tensor, dtypes=(torch.float32,), shape=shape, device=key.device, last_contiguous=False)
        if layout == "columns" and tensor.shape[1] < blocks * page_size:
            raise ValueError(f"{op}: {name} must have a column for each of {blocks * page_size} slots, got shape "
                             f"{tuple(tensor.shape)}")
    is_empty = 0 in (slot_mapping.numel(), key_cache.numel() + value_cache.numel(), key.numel() + value.numel())
    return SKIP if is_empty else None


def _hip_unsupported(target: Target, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
                     v_dequant_scales: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor,
                     layout: str) -> str | None:
    size = max(key.shape[2], value.shape[2])
    return (kv_layout.too_many_rows("heads", key.dtype, size, slot_mapping.shape[0] * key.shape[1])
            or kv_layout.too_many_slots(key_cache.shape[0], kv_layout.page_size_of(key_cache)))


def _self_check(device: torch.device) -> list[tuple]:
    """Every element and scale of small caches: each layout and dtype."""
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(32, generator=generator).to(device)
    cases = []
    for dtype in kv_layout.FLOATS:
        for dim in (32, 64, 128, 256):
            key, value = (torch.randn(32, 2, dim, generator=generator).to(device, dtype) for _ in range(2))
            for cache_dtype in (dtypes.fp8(target_of(device).arch), torch.int8):
                packed = (2, 2, dim // 16, 16, 16)
                for layout, shape, scale_shape in (("columns", (2, 2, dim, 16), (2, 32)),
                                                   ("shuffled", (2, 2, 1, dim, 16), (2, 2, 16))):
                    caches = [torch.zeros(size, dtype=cache_dtype, device=device) for size in (packed, shape)]
                    made = [torch.zeros(scale_shape, device=device) for _ in range(2)]
                    cases.append((*caches, *made, key, value, slots, layout))
    return cases


_pertoken_quant = Op(
    "reshape_and_cache_with_pertoken_quant", reference=pertoken_quant_ref, check=_check, self_check=_self_check,
    writes=("key_cache", "value_cache", "k_dequant_scales", "v_dequant_scales"),
    backends=(Backend("hip", _reshape_and_cache_with_pertoken_quant_hip, unsupported=_hip_unsupported),
              Backend("torch", pertoken_quant_ref)))


def reshape_and_cache_with_pertoken_quant(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
        v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool, *, backend: str | None = None) -> None:
    """Quantises each head of each token and writes it, and its scale, into its slot of a paged cache with packed keys.

    `scale = max(amax(|x|), 2^-110) / largest`, stored is `round(x · (1 / scale))`.

    Args:
        key: [num_tokens, num_heads, head_dim] bf16|fp16|fp32, last dimension contiguous.
        value: [num_tokens, num_heads, value_dim], dtype of `key`, last dimension contiguous.
        key_cache: [num_blocks, num_heads, head_dim / x, page_size, x], the device's e4m3 or int8, any strides; x is a
            power of two, 16.
        value_cache: [num_blocks, num_heads, value_dim, page_size], dtype of `key_cache`, any strides; with `asm_layout`
            [num_blocks, num_heads, page_size / x, value_dim, x].
        k_dequant_scales: [num_heads, ≥ num_blocks · page_size] fp32, written; with `asm_layout`
            [num_blocks, num_heads, page_size].
        v_dequant_scales: the same for the values.
        slot_mapping: [≤ num_tokens] int64|int32, `block · page_size + offset` of each of the first tokens.
        asm_layout: the shuffled value cache.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing: caches and scales are written, and in them only the slots that are named.

    Raises:
        TypeError: an argument is of another kind or dtype; an fp8 cache is of another device's format.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        A slot below 0, and one beyond the cache, is skipped. Two tokens with one slot: undefined which stays. Zeros
        have the scale 2^-110 / largest; NaN in a head makes its scale NaN, an infinity infinite (elements: fp8 NaN
        where NaN or infinite, int8 0). 64-bit addresses; can be captured in a graph.

    Source: AITER's `reshape_and_cache_with_pertoken_quant`.
    """
    check.flag(_NAMES.op, "asm_layout", asm_layout)
    _pertoken_quant(key_cache, value_cache, k_dequant_scales, v_dequant_scales, key, value, slot_mapping,
                    "shuffled" if asm_layout else "columns", backend=backend)
