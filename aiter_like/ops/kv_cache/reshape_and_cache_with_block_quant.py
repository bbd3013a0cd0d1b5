# SPDX-License-Identifier: MIT
"""Writing paged KV caches with scales made on the way, per block and head.

Kernel: csrc/kv_cache/reshape_and_cache_with_block_quant.hip.
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

__all__ = ["reshape_and_cache_with_block_quant", "reshape_and_cache_with_block_quant_for_asm_pa"]

_NAMES = paged_cache.Names("reshape_and_cache_with_block_quant")
_MAX_ROWS = 2**23  # a row has a workgroup for keys and one for values


class ReshapeAndCacheWithBlockQuantCall(NamedTuple):
    """One call of reshape_and_cache_with_block_quant.

    Attributes:
        key_cache, value_cache: read and written, of fp8 or int8.
        k_dequant_scales, v_dequant_scales: read and written, [heads, blocks], or [blocks, heads] in the layout
            "shuffled".
        slot_mapping: the place of each of the first tokens.
        layout: "columns" or "shuffled" (ops/common/paged_cache.py).
        pages_per_scale: pages that follow one another in the caches and are one block of the scales.
        is_truncated: int8 is cut off towards zero, not rounded.
    """

    key_cache: Tensor
    value_cache: Tensor
    k_dequant_scales: Annotated[Tensor, "_ _", torch.float32, STRIDED]
    v_dequant_scales: Annotated[Tensor, "_ _", torch.float32, STRIDED]
    key: Annotated[Tensor, "batch seq_len heads _", elements.FLOATS]
    value: Annotated[Tensor, "batch seq_len heads _", "key"]
    slot_mapping: Annotated[Tensor, "_", elements.INTEGERS]
    layout: str = "columns"
    pages_per_scale: int = 1
    is_truncated: bool = False

    @property
    def block_shape(self) -> tuple[int, int]:
        """Blocks that have a scale, and tokens of each."""
        return (self.key_cache.shape[0] // self.pages_per_scale,
                self.pages_per_scale * paged_cache.page_size_of(self.key_cache))


def block_quant_ref(call: ReshapeAndCacheWithBlockQuantCall) -> None:
    """In torch, run by run, with the kernel's rounding."""
    # Each order makes the dimensions of a block's pages heads, pages, tokens and elements.
    orders = {"key": (1, 0, 3, 2, 4), "columns": (1, 0, 3, 2), "shuffled": (1, 0, 2, 4, 3)}
    planes = ((call.key, call.key_cache, call.k_dequant_scales, orders["key"]),
              (call.value, call.value_cache, call.v_dequant_scales, orders[call.layout]))
    seq_len, shape, pages = call.key.shape[1], call.block_shape, call.pages_per_scale
    for token, block, offsets in _runs(call.slot_mapping, seq_len, *shape):
        batch, position = divmod(token, seq_len)
        for x, cache, scale_of, order in planes:
            tokens = x[batch, position:position + len(offsets)].float().transpose(0, 1)  # [num_heads, tokens, dims]
            stored = scale_of[block] if call.layout == "shuffled" else scale_of[:, block]  # [num_heads]
            view = cache[block * pages:(block + 1) * pages].permute(order)
            rows = view.clone(memory_format=torch.contiguous_format).view(len(tokens), shape[1], -1)
            scale = quant_rule.row_scales(tokens.flatten(1), cache.dtype)[:, 0]
            if offsets[0]:
                scale = torch.maximum(scale, stored)  # NaN wins
                scaled = _settled(call, rows[:, :offsets[0]].float() * (stored / scale)[:, None, None])
                grown = scale != stored
                paged_cache.as_bytes(rows)[grown, :offsets[0]] = paged_cache.as_bytes(scaled)[grown]
            stored.copy_(scale)
            quantised = _settled(call, tokens * (1 / scale)[:, None, None])
            paged_cache.as_bytes(rows)[:, offsets] = paged_cache.as_bytes(quantised)
            view.copy_(rows.view(view.shape))


def _settled(call: ReshapeAndCacheWithBlockQuantCall, x: Tensor) -> Tensor:
    return quant_rule.rounded(x.trunc() if call.is_truncated else x, call.key_cache.dtype)


def _runs(slot_mapping: Tensor, seq_len: int, num_blocks: int, block_size: int) -> list[tuple[int, int, list[int]]]:
    """The runs: tokens that follow one another in a sequence and go to one block, as (first token, block, offsets)."""
    runs: list[tuple[int, int, list[int]]] = []
    last = None
    for token, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size) if 0 <= slot < num_blocks * block_size else (None, 0)
        if block is not None and block == last and token % seq_len:
            runs[-1][2].append(offset)
        elif block is not None:
            runs.append((token, block, [offset]))
        last = block
    return runs


def _instance(call: ReshapeAndCacheWithBlockQuantCall) -> Instance:
    instance = parts.instance_of(call.key.dtype, call.key_cache.dtype)
    name = instance.name + "_truncated" * call.is_truncated
    return Instance(name, {**instance.defines, "IS_TRUNCATED": int(call.is_truncated)})


@compile_ops("kv_cache/reshape_and_cache_with_block_quant.hip", gen_func=_instance)
def _reshape_and_cache_with_block_quant_hip(call: ReshapeAndCacheWithBlockQuantCall) -> None: ...


def _check(call: ReshapeAndCacheWithBlockQuantCall) -> object:
    op, key = _NAMES.op, call.key
    parts.check_quantised(_NAMES, call.key_cache, call.value_cache, key, call.value, call.layout, rank=4)
    paged_cache.check_slots(op, call.slot_mapping, key.shape[0] * key.shape[1], key.device)
    check.integer(op, "pages_per_scale", call.pages_per_scale, low=1)
    if call.is_truncated and call.key_cache.dtype != torch.int8:
        raise ValueError(f"{op}: is_truncated must be False unless key_cache has dtype torch.int8, got "
                         f"{call.key_cache.dtype}")
    if call.key_cache.shape[0] % call.pages_per_scale:
        raise ValueError(f"{op}: key_cache must have a multiple of {call.pages_per_scale} pages, which share a scale, "
                         f"got shape {tuple(call.key_cache.shape)}")
    shape = (call.block_shape[0], key.shape[2])[::1 if call.layout == "shuffled" else -1]
    for name in ("k_dequant_scales", "v_dequant_scales"):
        check.tensor(op, name, getattr(call, name), shape=shape, last_contiguous=False)
    return SKIP if paged_cache.writes_nothing(call) else None


def _hip_refusal(target: Target, call: ReshapeAndCacheWithBlockQuantCall) -> str | None:
    rows, block_size = call.slot_mapping.shape[0] * call.key.shape[2], call.block_shape[1]
    if rows >= _MAX_ROWS:
        return f"less than {_MAX_ROWS} heads of tokens fit one launch, got {rows}"
    size = block_size * max(call.key.shape[3], call.value.shape[3])
    if block_size >= 2**24 or size >= 2**31:
        return f"blocks of less than {2**24} tokens and {2**31} elements of a head, got {block_size} and {size}"
    return paged_cache.too_many_slots(*call.block_shape)


def _cases(device: torch.device) -> dict[str, ReshapeAndCacheWithBlockQuantCall]:
    """Every element and scale of small caches: each layout and dtype; blocks are begun, so that nothing old is read."""
    generator = torch.Generator().manual_seed(0)
    slots, calls = torch.cat((torch.arange(16, 32), torch.arange(16))).to(device), {}
    for dtype in elements.FLOATS:
        key, value = (torch.randn(1, 32, 2, 32, generator=generator).to(device, dtype) for _ in range(2))
        for cache_dtype in (dtypes.fp8_of(target_of(device).arch), torch.int8):
            for layout in ("columns", "shuffled"):
                caches = paged_cache.zeros(layout, 2, 16, 2, 32, cache_dtype, device)
                scales = [torch.zeros(2, 2, device=device) for _ in range(2)]
                calls[f"{dtypes.name(dtype)} {dtypes.name(cache_dtype)} {layout}"] = ReshapeAndCacheWithBlockQuantCall(
                    *caches, *scales, key=key, value=value, slot_mapping=slots, layout=layout)
    rounded = next(call for call in calls.values() if call.key_cache.dtype == torch.int8)
    calls["truncated"] = rounded._replace(is_truncated=True)
    return calls


_block_quant = Op(
    "reshape_and_cache_with_block_quant", call=ReshapeAndCacheWithBlockQuantCall, reference=block_quant_ref,
    check=_check, cases=_cases, writes=("key_cache", "value_cache", "k_dequant_scales", "v_dequant_scales"),
    backends=(Backend("hip", _reshape_and_cache_with_block_quant_hip, refusal=_hip_refusal),
              Backend("torch", block_quant_ref)))


def reshape_and_cache_with_block_quant(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
        v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool, *, is_truncated: bool = False,
        backend: str | None = None) -> None:
    """Quantises tokens with a scale for each block and head. Like `reshape_and_cache_with_pertoken_quant` otherwise.

    A run is what follows one another in a sequence and goes to one block: `scale = max(amax(|run|), 2^-110) / largest`,
    for a run that does not begin its block at least the block's scale so far; when that grows, the slots before the run
    become `round(q · (old / scale))`. Stored is `round(x · (1 / scale))`.

    Args:
        key: [batch, seq_len, num_heads, head_dim] bf16|fp16|fp32, last dimension contiguous.
        value: [batch, seq_len, num_heads, value_dim], dtype of `key`, last dimension contiguous.
        value_cache: [num_blocks, num_heads, value_dim, page_size], dtype of `key_cache`, any strides; with `asm_layout`
            [num_blocks, num_heads, page_size / x, value_dim, x].
        k_dequant_scales: [num_heads, num_blocks] fp32, read and written; with `asm_layout` [num_blocks, num_heads].
        slot_mapping: [≤ batch · seq_len] int64|int32, `block · page_size + offset`; ascending within a run.
        is_truncated: int8 is cut off towards zero, as AITER's kernels have it, not rounded to the nearest.

    Returns: Nothing: caches and scales are written.

    Notes:
        A slot below 0, and one beyond the cache, is skipped and ends a run. Two runs of one call in one block, and two
        tokens with one slot: undefined. A NaN makes the block's scale NaN.
    """
    _block_quant.run(key_cache, value_cache, k_dequant_scales, v_dequant_scales, key=key, value=value,
                     slot_mapping=slot_mapping, layout=parts.layout_of(_NAMES.op, asm_layout),
                     is_truncated=is_truncated, backend=backend)


def reshape_and_cache_with_block_quant_for_asm_pa(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
        v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool, ori_block_size: int = 128, *,
        is_truncated: bool = False, backend: str | None = None) -> None:
    """Quantises with a scale for `ori_block_size` tokens, whole pages. Like `reshape_and_cache_with_block_quant`.

    Args:
        k_dequant_scales: [num_heads, num_blocks · page_size / ori_block_size] fp32, read and written; with `asm_layout`
            [num_blocks · page_size / ori_block_size, num_heads].
        ori_block_size: tokens that share a scale, a multiple of page_size.
    """
    op, layout = _NAMES.op, parts.layout_of(_NAMES.op, asm_layout)
    check.tensor(op, "key_cache", key_cache, rank=5, last_contiguous=False)
    check.integer(op, "ori_block_size", ori_block_size, low=1)
    page_size = paged_cache.page_size_of(key_cache)
    if page_size == 0 or ori_block_size % page_size:
        raise ValueError(f"{op}: ori_block_size must be a multiple of the page size, {page_size}, got {ori_block_size}")
    _block_quant.run(key_cache, value_cache, k_dequant_scales, v_dequant_scales, key=key, value=value,
                     slot_mapping=slot_mapping, layout=layout, pages_per_scale=ori_block_size // page_size,
                     is_truncated=is_truncated, backend=backend)
