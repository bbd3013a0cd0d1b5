# SPDX-License-Identifier: MIT
"""Shared by the writers of caches that make scales on the way: kernel instances and checks."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.jit import Instance
from aiter_like.ops.common import elements, paged_cache


def instance_of(dtype: torch.dtype, cache_dtype: torch.dtype) -> Instance:
    """The instance for tokens and caches of these dtypes; the architecture decides which fp8 it is."""
    name = "i8" if cache_dtype == torch.int8 else "fp8"
    return Instance(f"{dtypes.name(dtype)}_{name}",
                    {"SOURCE": elements.CPP[dtype], "CACHE": elements.CPP[cache_dtype]})


def layout_of(op: str, asm_layout: bool) -> str:
    """The layout of a cache with packed keys.

    Raises:
        TypeError: `asm_layout` is no bool; 0 and 1 are none.
    """
    check.flag(op, "asm_layout", asm_layout)
    return "shuffled" if asm_layout else "columns"


def check_quantised(names: paged_cache.Names, key_cache: Tensor, value_cache: Tensor, key: Tensor, value: Tensor,
                    layout: str, rank: int = 3) -> None:
    """Tokens of `rank` dimensions fit caches of fp8 or int8 with packed keys."""
    check.choice(names.op, "layout", layout, ("columns", "shuffled"))
    paged_cache.check_caches(names, layout, key_cache, value_cache, key, value, rank)
    paged_cache.check_fp8(names.op, "key_cache", key_cache, (torch.int8,))
    check.tensor(names.op, "value_cache", value_cache, dtypes=(key_cache.dtype,), last_contiguous=False)


def as_shuffled(value_cache: Tensor, key_cache: Tensor) -> Tensor:
    """The view [blocks, heads, page_size / x, head_dim, x] of a dense value cache that is shaped [blocks, heads,
    head_dim, page_size]; any other as it is. AITER's kernels read the page's size and x from the key cache, whatever
    V's shape is.
    """
    ranks = [cache.ndim if isinstance(cache, Tensor) else 0 for cache in (value_cache, key_cache)]
    if ranks != [4, 5] or not value_cache.is_contiguous():
        return value_cache
    page_size, x = key_cache.shape[3:]
    blocks, heads, head_dim, tokens = value_cache.shape
    if tokens != page_size or x == 0 or page_size % x:
        return value_cache
    return value_cache.view(blocks, heads, page_size // x, head_dim, x)
