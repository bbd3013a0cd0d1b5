# SPDX-License-Identifier: MIT
"""Writing paged KV caches with scales made on the way, per token or per block, and head. Kernels: csrc/kv_cache/."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule

__all__ = ["reshape_and_cache_with_block_quant", "reshape_and_cache_with_pertoken_quant"]

_NAMES = paged_cache.Names("reshape_and_cache_with_pertoken_quant")
_MAX_BLOCK_ROWS = 2**23  # a workgroup for each, and for keys and values
_BLOCK_NAMES = paged_cache.Names("reshape_and_cache_with_block_quant")


def pertoken_quant_ref(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor,
                       key: Tensor, value: Tensor, slot_mapping: Tensor, layout: str) -> None:
    """In torch, with the kernel's rounding."""
    num_blocks, page_size = key_cache.shape[0], paged_cache.page_size_of(key_cache)
    tokens, block, offset = paged_cache.places(slot_mapping, page_size, num_blocks)
    rows = []
    for x, cache, stored in ((key, key_cache, k_dequant_scales), (value, value_cache, v_dequant_scales)):
        scale = quant_rule.row_scales(x.float(), cache.dtype)
        rows.append(quant_rule.quantised(x.float(), scale, cache.dtype))
        if layout == "shuffled":
            stored[block, :, offset] = scale[tokens, :, 0]
        else:
            stored[:, block * page_size + offset] = scale[tokens, :, 0].T
    paged_cache.put(key_cache, value_cache, *rows, slot_mapping)


def _instance(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor,
              key: Tensor, value: Tensor, slot_mapping: Tensor, layout: str) -> Instance:
    return _variant(key.dtype, key_cache.dtype, max(key.shape[2], value.shape[2]))


def _variant(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> Instance:
    lanes = paged_cache.lanes_of(dtype, head_dim)
    name, cache = ("i8", "int8_t") if cache_dtype == torch.int8 else ("fp8", "fp8")
    return Instance(f"{dtypes.name(dtype)}_{name}_l{lanes}",
                    {"SOURCE": elements.CPP[dtype], "CACHE": cache, "LANES": lanes})


def _prebuilt() -> list[Instance]:
    return [_variant(torch.bfloat16, cache_dtype, 128) for cache_dtype in (torch.float8_e4m3fn, torch.int8)]


@compile_ops("kv_cache/reshape_and_cache_with_pertoken_quant.hip", gen_func=_instance, prebuild=_prebuilt)
def _reshape_and_cache_with_pertoken_quant_hip(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
                                               v_dequant_scales: Tensor, key: Tensor, value: Tensor,
                                               slot_mapping: Tensor, layout: str) -> None: ...


def _check(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor, key: Tensor,
           value: Tensor, slot_mapping: Tensor, layout: str) -> object:
    op = _NAMES.op
    _check_quant(_NAMES, key_cache, value_cache, key, value, layout, rank=3)
    paged_cache.check_slots(op, slot_mapping, key.shape[0], key.device)
    blocks, page_size, heads = key_cache.shape[0], paged_cache.page_size_of(key_cache), key.shape[1]
    for name, tensor in (("k_dequant_scales", k_dequant_scales), ("v_dequant_scales", v_dequant_scales)):
        shape = (blocks, heads, page_size) if layout == "shuffled" else (heads, None)
        check.tensor(op, name, tensor, dtypes=(torch.float32,), shape=shape, device=key.device, last_contiguous=False)
        if layout == "columns" and tensor.shape[1] < blocks * page_size:
            raise ValueError(f"{op}: {name} must have a column for each of {blocks * page_size} slots, got shape "
                             f"{tuple(tensor.shape)}")
    is_empty = 0 in (slot_mapping.numel(), key_cache.numel() + value_cache.numel(), key.numel() + value.numel())
    return SKIP if is_empty else None


def _check_quant(names: paged_cache.Names, key_cache: Tensor, value_cache: Tensor, key: Tensor, value: Tensor,
                 layout: str, rank: int) -> None:
    """Tokens that are quantised into caches of fp8 or int8."""
    check.choice(names.op, "layout", layout, ("columns", "shuffled"))
    paged_cache.check_caches(names, layout, key_cache, value_cache, key, value, rank)
    check.tensor(names.op, "key", key, dtypes=elements.FLOATS)
    paged_cache.check_fp8(names.op, "key_cache", key_cache, (torch.int8,))
    check.tensor(names.op, "value_cache", value_cache, dtypes=(key_cache.dtype,), last_contiguous=False)


def _hip_refusal(target: Target, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
                     v_dequant_scales: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor,
                     layout: str) -> str | None:
    size = max(key.shape[2], value.shape[2])
    return (paged_cache.too_many_rows("heads", key.dtype, size, slot_mapping.shape[0] * key.shape[1])
            or paged_cache.too_many_slots(key_cache.shape[0], paged_cache.page_size_of(key_cache)))


def _self_check(device: torch.device) -> list[tuple]:
    """Every element and scale of small caches: each layout and dtype."""
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(32, generator=generator).to(device)
    cases = []
    for dtype in elements.FLOATS:
        for dim in (64, 128, 256, 512, 1024):  # an instance each
            key, value = (torch.randn(32, 2, dim, generator=generator).to(device, dtype) for _ in range(2))
            for cache_dtype in (dtypes.fp8_of(target_of(device).arch), torch.int8):
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
    backends=(Backend("hip", _reshape_and_cache_with_pertoken_quant_hip, refusal=_hip_refusal),
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


def block_quant_ref(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor,
                    key: Tensor, value: Tensor, slot_mapping: Tensor, layout: str) -> None:
    """In torch, run by run, with the kernel's rounding."""
    # Dimensions of a block: heads, tokens, elements.
    orders = {"key": (0, 2, 1, 3), "columns": (0, 2, 1), "shuffled": (0, 1, 3, 2)}
    planes = ((key, key_cache, k_dequant_scales, orders["key"]), (value, value_cache, v_dequant_scales, orders[layout]))
    shape = key_cache.shape[0], paged_cache.page_size_of(key_cache)
    for token, block, offsets in _runs(slot_mapping, key.shape[1], *shape):
        batch, position = divmod(token, key.shape[1])
        for x, cache, scale_of, order in planes:
            tokens = x[batch, position:position + len(offsets)].float().transpose(0, 1)  # [num_heads, tokens, dims]
            stored = scale_of[block] if layout == "shuffled" else scale_of[:, block]  # [num_heads]
            view = cache[block].permute(order)
            rows = view.clone(memory_format=torch.contiguous_format).view(len(tokens), shape[1], -1)
            scale = quant_rule.row_scales(tokens.flatten(1), cache.dtype)[:, 0]
            if offsets[0]:
                scale = torch.maximum(scale, stored)  # NaN wins
                scaled = quant_rule.rounded(rows[:, :offsets[0]].float() * (stored / scale)[:, None, None], cache.dtype)
                grown = scale != stored
                paged_cache.as_bytes(rows)[grown, :offsets[0]] = paged_cache.as_bytes(scaled)[grown]
            stored.copy_(scale)
            quantised = quant_rule.rounded(tokens * (1 / scale)[:, None, None], cache.dtype)
            paged_cache.as_bytes(rows)[:, offsets] = paged_cache.as_bytes(quantised)
            view.copy_(rows.view(view.shape))


def _runs(slot_mapping: Tensor, seq_len: int, num_blocks: int, page_size: int) -> list[tuple[int, int, list[int]]]:
    """Runs, tokens that follow one another in a sequence and go to one block: first token, block, offsets."""
    runs: list[tuple[int, int, list[int]]] = []
    last = None
    for token, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, page_size) if 0 <= slot < num_blocks * page_size else (None, 0)
        if block is not None and block == last and token % seq_len:
            runs[-1][2].append(offset)
        elif block is not None:
            runs.append((token, block, [offset]))
        last = block
    return runs


def _block_instance(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor,
                    key: Tensor, value: Tensor, slot_mapping: Tensor, layout: str) -> Instance:
    return _block_variant(key.dtype, key_cache.dtype)


def _block_variant(dtype: torch.dtype, cache_dtype: torch.dtype) -> Instance:
    name, cache = ("i8", "int8_t") if cache_dtype == torch.int8 else ("fp8", "fp8")
    return Instance(f"{dtypes.name(dtype)}_{name}", {"SOURCE": elements.CPP[dtype], "CACHE": cache})


def _block_prebuilt() -> list[Instance]:
    return [_block_variant(torch.bfloat16, cache_dtype) for cache_dtype in (torch.float8_e4m3fn, torch.int8)]


@compile_ops("kv_cache/reshape_and_cache_with_block_quant.hip", gen_func=_block_instance, prebuild=_block_prebuilt)
def _reshape_and_cache_with_block_quant_hip(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
                                            v_dequant_scales: Tensor, key: Tensor, value: Tensor,
                                            slot_mapping: Tensor, layout: str) -> None: ...


def _check_block(key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor, v_dequant_scales: Tensor,
                 key: Tensor, value: Tensor, slot_mapping: Tensor, layout: str) -> object:
    op = _BLOCK_NAMES.op
    _check_quant(_BLOCK_NAMES, key_cache, value_cache, key, value, layout, rank=4)
    paged_cache.check_slots(op, slot_mapping, key.shape[0] * key.shape[1], key.device)
    shape = (key_cache.shape[0], key.shape[2])[::1 if layout == "shuffled" else -1]
    for name, tensor in (("k_dequant_scales", k_dequant_scales), ("v_dequant_scales", v_dequant_scales)):
        check.tensor(op, name, tensor, dtypes=(torch.float32,), shape=shape, device=key.device, last_contiguous=False)
    is_empty = 0 in (slot_mapping.numel(), key_cache.numel() + value_cache.numel(), key.numel() + value.numel())
    return SKIP if is_empty else None


def _block_refusal(target: Target, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
                       v_dequant_scales: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor,
                       layout: str) -> str | None:
    rows, page_size = slot_mapping.shape[0] * key.shape[2], paged_cache.page_size_of(key_cache)
    if rows >= _MAX_BLOCK_ROWS:
        return f"less than {_MAX_BLOCK_ROWS} heads of tokens fit one launch, got {rows}"
    size = page_size * max(key.shape[3], value.shape[3])
    if page_size >= 2**24 or size >= 2**31:
        return f"blocks of less than {2**24} tokens and {2**31} elements of a head, got {page_size} and {size}"
    return paged_cache.too_many_slots(key_cache.shape[0], page_size)


def _block_self_check(device: torch.device) -> list[tuple]:
    """Every element and scale of small caches: each layout and dtype; blocks are begun, so that nothing old is read."""
    generator = torch.Generator().manual_seed(0)
    slots, cases = torch.cat((torch.arange(16, 32), torch.arange(16))).to(device), []
    for dtype in elements.FLOATS:
        key, value = (torch.randn(1, 32, 2, 32, generator=generator).to(device, dtype) for _ in range(2))
        for cache_dtype in (dtypes.fp8_of(target_of(device).arch), torch.int8):
            for layout, shape in (("columns", (2, 2, 32, 16)), ("shuffled", (2, 2, 1, 32, 16))):
                caches = [torch.zeros(size, dtype=cache_dtype, device=device) for size in ((2, 2, 2, 16, 16), shape)]
                made = [torch.zeros(2, 2, device=device) for _ in range(2)]
                cases.append((*caches, *made, key, value, slots, layout))
    return cases


_block_quant = Op(
    "reshape_and_cache_with_block_quant", reference=block_quant_ref, check=_check_block, self_check=_block_self_check,
    writes=("key_cache", "value_cache", "k_dequant_scales", "v_dequant_scales"),
    backends=(Backend("hip", _reshape_and_cache_with_block_quant_hip, refusal=_block_refusal),
              Backend("torch", block_quant_ref)))


def reshape_and_cache_with_block_quant(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
        v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool, *, backend: str | None = None) -> None:
    """Quantises tokens into their slots of a paged cache with packed keys, one scale for each block and head.

    A run is what follows one another in a sequence and goes to one block: `scale = max(amax(|run|), 2^-110) / largest`,
    for a run that does not begin its block at least the block's scale so far; when that grows, the slots before the run
    become `round(q · (old / scale))`. Stored is `round(x · (1 / scale))`.

    Args:
        key: [batch, seq_len, num_heads, head_dim] bf16|fp16|fp32, last dimension contiguous.
        value: [batch, seq_len, num_heads, value_dim], dtype of `key`, last dimension contiguous.
        key_cache: [num_blocks, num_heads, head_dim / x, page_size, x], the device's e4m3 or int8, any strides; x is a
            power of two, 16.
        value_cache: [num_blocks, num_heads, value_dim, page_size], dtype of `key_cache`, any strides; with `asm_layout`
            [num_blocks, num_heads, page_size / x, value_dim, x].
        k_dequant_scales: [num_heads, num_blocks] fp32, read and written; with `asm_layout` [num_blocks, num_heads].
        v_dequant_scales: the same for the values.
        slot_mapping: [≤ batch · seq_len] int64|int32, `block · page_size + offset`; ascending within a run.
        asm_layout: the shuffled value cache.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing: caches and scales are written.

    Raises:
        TypeError: an argument is of another kind or dtype; an fp8 cache is of another device's format.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        A slot below 0, and one beyond the cache, is skipped and ends a run. Two runs of one call in one block, and two
        tokens with one slot: undefined. A NaN makes the block's scale NaN. Can be captured in a graph.

    Source: AITER's `reshape_and_cache_with_block_quant`.
    """
    check.flag(_BLOCK_NAMES.op, "asm_layout", asm_layout)
    _block_quant(key_cache, value_cache, k_dequant_scales, v_dequant_scales, key, value, slot_mapping,
                 "shuffled" if asm_layout else "columns", backend=backend)
