# SPDX-License-Identifier: MIT
"""Writing paged KV caches with scales made on the way, per token and head.

Kernel: csrc/kv_cache/reshape_and_cache_with_pertoken_quant.hip.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule
from aiter_like.ops.kv_cache import parts

__all__ = ["reshape_and_cache_with_pertoken_quant"]

_NAMES = paged_cache.Names("reshape_and_cache_with_pertoken_quant")


class ReshapeAndCacheWithPertokenQuantCall(NamedTuple):
    """One call of reshape_and_cache_with_pertoken_quant.

    Attributes:
        key_cache, value_cache: of fp8 or int8; only the slots that `slot_mapping` names are written.
        k_dequant_scales, v_dequant_scales: [heads, ≥ slots], or [blocks, heads, page_size] in the layout "shuffled".
        slot_mapping: the place of each of the first tokens.
        layout: "columns" or "shuffled" (ops/common/paged_cache.py).
    """

    key_cache: Tensor
    value_cache: Tensor
    k_dequant_scales: Annotated[Tensor, "*k _", torch.float32, STRIDED]
    v_dequant_scales: Annotated[Tensor, "*v _", torch.float32, STRIDED]
    key: Annotated[Tensor, "tokens heads _", elements.FLOATS]
    value: Annotated[Tensor, "tokens heads _", "key"]
    slot_mapping: Annotated[Tensor, "_", elements.INTEGERS]
    layout: str = "columns"


def pertoken_quant_ref(call: ReshapeAndCacheWithPertokenQuantCall) -> None:
    """In torch, with the kernel's rounding."""
    num_blocks, page_size = call.key_cache.shape[0], paged_cache.page_size_of(call.key_cache)
    tokens, block, offset = paged_cache.places(call.slot_mapping, page_size, num_blocks)
    rows = []
    for x, cache, stored in ((call.key, call.key_cache, call.k_dequant_scales),
                             (call.value, call.value_cache, call.v_dequant_scales)):
        scale = quant_rule.row_scales(x.float(), cache.dtype)
        rows.append(quant_rule.quantised(x.float(), scale, cache.dtype))
        if call.layout == "shuffled":
            stored[block, :, offset] = scale[tokens, :, 0]
        else:
            stored[:, block * page_size + offset] = scale[tokens, :, 0].T
    paged_cache.put(call.key_cache, call.value_cache, *rows, call.slot_mapping)


def _instance(call: ReshapeAndCacheWithPertokenQuantCall) -> Instance:
    lanes = paged_cache.lanes_of(call.key.dtype, max(call.key.shape[2], call.value.shape[2]))
    instance = parts.instance_of(call.key.dtype, call.key_cache.dtype)
    return Instance(f"{instance.name}_l{lanes}", {**instance.defines, "LANES": lanes})


@compile_ops("kv_cache/reshape_and_cache_with_pertoken_quant.hip", gen_func=_instance)
def _reshape_and_cache_with_pertoken_quant_hip(call: ReshapeAndCacheWithPertokenQuantCall) -> None: ...


def _check(call: ReshapeAndCacheWithPertokenQuantCall) -> object:
    op, key, key_cache = _NAMES.op, call.key, call.key_cache
    parts.check_quantised(_NAMES, key_cache, call.value_cache, key, call.value, call.layout)
    paged_cache.check_slots(op, call.slot_mapping, key.shape[0], key.device)
    blocks, page_size, heads = key_cache.shape[0], paged_cache.page_size_of(key_cache), key.shape[1]
    shape = (blocks, heads, page_size) if call.layout == "shuffled" else (heads, None)
    for name in ("k_dequant_scales", "v_dequant_scales"):
        scales = getattr(call, name)
        check.tensor(op, name, scales, shape=shape, last_contiguous=False)
        if call.layout == "columns" and scales.shape[1] < blocks * page_size:
            raise ValueError(f"{op}: {name} must have a column for each of {blocks * page_size} slots, got shape "
                             f"{tuple(scales.shape)}")
    return SKIP if paged_cache.writes_nothing(call) else None


def _hip_refusal(target: Target, call: ReshapeAndCacheWithPertokenQuantCall) -> str | None:
    key, size = call.key, max(call.key.shape[2], call.value.shape[2])
    return (paged_cache.too_many_rows("heads", key.dtype, size, call.slot_mapping.shape[0] * key.shape[1])
            or paged_cache.too_many_slots(call.key_cache.shape[0], paged_cache.page_size_of(call.key_cache)))


def _cases(device: torch.device) -> dict[str, ReshapeAndCacheWithPertokenQuantCall]:
    """Every element and scale of small caches: each layout, dtype and number of lanes, which are an instance each."""
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(32, generator=generator).to(device)
    calls = {}
    for dtype in elements.FLOATS:
        for dim in (64, 128, 256, 512, 1024):
            key, value = (torch.randn(32, 2, dim, generator=generator).to(device, dtype) for _ in range(2))
            for cache_dtype in (dtypes.fp8_of(target_of(device).arch), torch.int8):
                for layout, scale_shape in (("columns", (2, 32)), ("shuffled", (2, 2, 16))):
                    caches = paged_cache.zeros(layout, 2, 16, 2, dim, cache_dtype, device)
                    scales = [torch.zeros(scale_shape, device=device) for _ in range(2)]
                    calls[f"{dtypes.name(dtype)} {dtypes.name(cache_dtype)} {dim} {layout}"] = (
                        ReshapeAndCacheWithPertokenQuantCall(*caches, *scales, key=key, value=value,
                                                             slot_mapping=slots, layout=layout))
    return calls


_pertoken_quant = Op(
    "reshape_and_cache_with_pertoken_quant", call=ReshapeAndCacheWithPertokenQuantCall, reference=pertoken_quant_ref,
    check=_check, cases=_cases, writes=("key_cache", "value_cache", "k_dequant_scales", "v_dequant_scales"),
    backends=(Backend("hip", _reshape_and_cache_with_pertoken_quant_hip, refusal=_hip_refusal),
              Backend("torch", pertoken_quant_ref)))


def reshape_and_cache_with_pertoken_quant(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
        v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool, *, backend: str | None = None) -> None:
    """Quantises each head of each token and writes it and its scale into its slot. Like `reshape_and_cache` otherwise.

    `scale = max(amax(|x|), 2^-110) / largest`, stored is `round(x · (1 / scale))`.

    Args:
        key: [num_tokens, num_heads, head_dim] bf16|fp16|fp32, last dimension contiguous.
        key_cache: [num_blocks, num_heads, head_dim / x, page_size, x], the device's e4m3 or int8, any strides; x is a
            power of two, 16.
        k_dequant_scales: [num_heads, ≥ num_blocks · page_size] fp32, written; with `asm_layout`
            [num_blocks, num_heads, page_size].
        v_dequant_scales: the same for the values.

    Returns: Nothing: caches and scales are written, and in them only the slots that are named.

    Notes:
        A slot below 0, and one beyond the cache, is skipped. Two tokens with one slot: undefined which stays. Zeros
        have the scale 2^-110 / largest; NaN in a head makes its scale NaN, an infinity infinite (elements: fp8 NaN
        where NaN or infinite, int8 0). 64-bit addresses.
    """
    layout = parts.layout_of(_NAMES.op, asm_layout)
    value_cache = parts.as_shuffled(value_cache, key_cache) if asm_layout else value_cache
    _pertoken_quant.run(key_cache, value_cache, k_dequant_scales, v_dequant_scales, key=key, value=value,
                        slot_mapping=slot_mapping, layout=layout, backend=backend)
