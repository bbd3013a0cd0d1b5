# SPDX-License-Identifier: MIT
"""Paged KV caches as csrc/include/aiter_like/kv_cache.h has them: checks, and writing in torch. Read by the families
that write caches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.ops.common import elements, quant_rule

RANKS = {"rows": (4, 4), "mla": (4, 4), "columns": (5, 4), "shuffled": (5, 5)}
"""Layout → dimensions of K and V."""

_MIN_LANES, _MAX_LANES = 8, 1024  # lanes of a row to quantise; fewer would only make more builds
_LANES_OF_LAUNCH = 2**30


class Names(NamedTuple):
    """Names of the arguments in messages: those of the public function."""

    op: str
    key: str = "key"
    value: str = "value"
    key_cache: str = "key_cache"
    value_cache: str = "value_cache"
    k_scale: str = "k_scale"
    v_scale: str = "v_scale"


def places(slot_mapping: Tensor, page_size: int, num_blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens that have a place, and their block and offset; slots outside the cache have none."""
    slots = slot_mapping.long()
    tokens = ((slots >= 0) & (slots < num_blocks * page_size)).nonzero().squeeze(-1)
    return tokens, slots[tokens] // page_size, slots[tokens] % page_size


def as_bytes(tensor: Tensor) -> Tensor:
    """fp8 as bytes, which torch can index; everything else as it is."""
    return tensor.view(torch.uint8) if tensor.dtype in elements.FP8 else tensor


def put(key_cache: Tensor, value_cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Writes rows that have the cache's dtype (or its bytes) to their slots, in any layout."""
    num_blocks, page_size = key_cache.shape[0], page_size_of(key_cache)
    tokens, block, offset = places(slot_mapping, page_size, num_blocks)
    key_cache, value_cache, key, value = as_bytes(key_cache), as_bytes(value_cache), as_bytes(key), as_bytes(value)
    if key_cache.ndim == 4:
        key_cache[block, offset] = key[tokens]
        value_cache[block, offset] = value[tokens]
        return
    pack = key_cache.shape[4]
    key_cache[block, :, :, offset] = key[tokens].unflatten(-1, (-1, pack))
    if value_cache.ndim == 4:
        value_cache[block, :, :, offset] = value[tokens]
    else:
        pack = value_cache.shape[4]
        value_cache[block, :, offset // pack, :, offset % pack] = value[tokens]


def page_size_of(key_cache: Tensor) -> int:
    """Tokens of a block."""
    return key_cache.shape[1 if key_cache.ndim == 4 else 3]


def zeros(layout: str, blocks: int, page_size: int, heads: int, head_dim: int, dtype: torch.dtype,
          device: torch.device) -> list[Tensor]:
    """New caches of K and V, in packs of 16 bytes."""
    x = 16 // dtype.itemsize
    packed = blocks, heads, head_dim // x, page_size, x
    shapes = {"rows": ((blocks, page_size, heads, head_dim),) * 2,
              "columns": (packed, (blocks, heads, head_dim, page_size)),
              "shuffled": (packed, (blocks, heads, page_size // x, head_dim, x))}[layout]
    return [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]


def check_caches(names: Names, layout: str, key_cache: Tensor, value_cache: Tensor, key: Tensor, value: Tensor,
                 rank: int = 3) -> None:
    """`key` and `value` [num_tokens, num_heads, …], or with another first dimension, fit the caches of `layout`."""
    op = names.op
    check.choice(op, "layout", layout, tuple(RANKS))
    check.tensor(op, names.key, key, rank=rank)
    check.tensor(op, names.value, value, dtypes=(key.dtype,), shape=(*key.shape[:-1], None), device=key.device)
    for name, tensor, dims in zip((names.key_cache, names.value_cache), (key_cache, value_cache), RANKS[layout]):
        check.tensor(op, name, tensor, rank=dims, device=key.device, last_contiguous=False)
    (heads, key_dim), value_dim = key.shape[-2:], value.shape[-1]
    blocks, page_size = key_cache.shape[0], page_size_of(key_cache)
    check_pages(op, names.key_cache, key_cache, page_size)
    if key_cache.ndim == 4:
        shapes = (blocks, page_size, heads, key_dim), (blocks, page_size, heads, value_dim)
    else:
        pack = _pack(op, names.key_cache, key_cache, "head_dim", key_dim)
        shapes = (blocks, heads, key_dim // pack, page_size, pack), (blocks, heads, value_dim, page_size)
        if value_cache.ndim == 5:
            pack = _pack(op, names.value_cache, value_cache, "page size", page_size)
            shapes = shapes[0], (blocks, heads, page_size // pack, value_dim, pack)
    check.tensor(op, names.key_cache, key_cache, shape=shapes[0], last_contiguous=False)
    check.tensor(op, names.value_cache, value_cache, shape=shapes[1], last_contiguous=False)


def check_pages(op: str, name: str, cache: Tensor, page_size: int) -> None:
    """A page holds a token."""
    if page_size == 0:
        raise ValueError(f"{op}: {name} must have pages of at least 1 token, got shape {tuple(cache.shape)}")


def _pack(op: str, name: str, cache: Tensor, what: str, size: int) -> int:
    """The innermost dimension of a packed cache."""
    pack = cache.shape[4]
    if pack < 1 or pack & (pack - 1) or size % pack:
        raise ValueError(f"{op}: the last dimension of {name} must be a power of two that divides the {what} {size}, "
                         f"got shape {tuple(cache.shape)}")
    return pack


def check_slots(op: str, slot_mapping: Tensor, num_tokens: int, device: torch.device) -> None:
    """At most `num_tokens` slots."""
    check.tensor(op, "slot_mapping", slot_mapping, rank=1, dtypes=elements.INTEGERS, device=device)
    if slot_mapping.shape[0] > num_tokens:
        raise ValueError(f"{op}: slot_mapping must have at most {num_tokens} elements, one for each token, got "
                         f"{slot_mapping.shape[0]}")


def check_scale(op: str, name: str, scale: Tensor | None, device: torch.device) -> None:
    """One fp32 element, or None."""
    if scale is None:
        return
    check.tensor(op, name, scale, dtypes=(torch.float32,), device=device)
    if scale.numel() != 1:
        raise ValueError(f"{op}: {name} must have 1 element, got shape {tuple(scale.shape)}")


def writes_nothing(call: Any) -> bool:
    """A call with `key`, `value`, caches and `slot_mapping` has no token, no slot or no elements."""
    return 0 in (call.slot_mapping.numel(), call.key_cache.numel() + call.value_cache.numel(),
                 call.key.numel() + call.value.numel())


def too_many_slots(num_blocks: int, page_size: int) -> str | None:
    """Why the kernels cannot take a cache: they number its slots with 32 bits."""
    slots = num_blocks * page_size
    return f"a cache has at most {2**31 - 1} slots, got {slots}" if slots >= 2**31 else None


def check_fp8(op: str, name: str, cache: Tensor, others: tuple[torch.dtype, ...]) -> None:
    """fp8 of the device, or one of `others`."""
    target = target_of(cache.device)
    refusal = quant_rule.refusal(target, cache.dtype)
    if refusal:
        raise TypeError(f"{op}: {name}: {refusal}")
    check.tensor(op, name, cache, dtypes=(dtypes.fp8_of(target.arch), *others), last_contiguous=False)


def lanes_of(dtype: torch.dtype, size: int) -> int:
    """Lanes that hold `size` elements, 16 bytes each: a power of two."""
    return max(_MIN_LANES, 1 << max(-(-size * dtype.itemsize // 16) - 1, 0).bit_length())


def too_many_rows(what: str, dtype: torch.dtype, size: int, rows: int) -> str | None:
    """Why a launch cannot quantise `rows` rows of `size` elements, which are the arguments' `what`."""
    lanes = lanes_of(dtype, size)
    if lanes > _MAX_LANES:
        return f"{what} of at most {_MAX_LANES * 16 // dtype.itemsize} elements, got {size}"
    limit = _LANES_OF_LAUNCH // lanes
    return f"less than {limit} {what} of {size} elements fit one launch, got {rows}" if rows >= limit else None
