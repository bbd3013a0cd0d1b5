# SPDX-License-Identifier: MIT
"""The sparse-attention indexer's cache: [num_blocks, page_size, width] bytes, a block's fp8 keys, then their scales.

Read by the operators that write it and gather from it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.common import paged_cache

TILE = 16
"""The tokens of a tile of the preshuffled keys, and the elements of each."""


def key_index(block: Tensor, offset: Tensor, head_dim: int, preshuffle: bool) -> Tensor:
    """The place in its block of each element of tokens at these offsets: [tokens, head_dim]."""
    dim = torch.arange(head_dim, device=block.device)
    offset = offset[:, None]
    if not preshuffle:
        return offset * head_dim + dim
    return (offset // TILE * TILE * head_dim + dim // TILE * TILE * TILE + offset % TILE * TILE + dim % TILE)


def scale_index(offset: Tensor, page_size: int, head_dim: int, groups: int) -> Tensor:
    """The place in its block of each byte of the tokens' scales: [tokens, 4 · groups]."""
    return page_size * head_dim + offset[:, None] * 4 * groups + torch.arange(4 * groups, device=offset.device)


def blocks_of(kv_cache: Tensor) -> Tensor:
    """The cache's bytes, a row per block."""
    num_blocks, page_size, width = kv_cache.shape
    return paged_cache.as_bytes(kv_cache).as_strided((num_blocks, page_size * width), (kv_cache.stride(0), 1))


def check_cache(op: str, kv_cache: Tensor, head_dim: int, groups: int, preshuffle: bool,
                device: torch.device) -> None:
    """Keys and scales fit the blocks, each of which is contiguous."""
    check.flag(op, "preshuffle", preshuffle)
    check.tensor(op, "kv_cache", kv_cache, rank=3, device=device)
    paged_cache.check_fp8(op, "kv_cache", kv_cache, (torch.uint8,))
    page_size, width = kv_cache.shape[1:]
    if width < head_dim + 4 * groups:
        raise ValueError(f"{op}: kv_cache must have at least {head_dim + 4 * groups} bytes per token, for {head_dim} "
                         f"elements and {groups} scales, got {width}")
    if page_size == 0 or page_size * head_dim % 4 or (kv_cache.shape[0] > 1 and kv_cache.stride(0) % 4):
        raise ValueError(f"{op}: kv_cache must have scales at multiples of 4 bytes, got shape {tuple(kv_cache.shape)}, "
                         f"strides {kv_cache.stride()}")
    if page_size > 1 and kv_cache.stride(1) != width:
        raise ValueError(f"{op}: kv_cache must be contiguous within a block, got strides {kv_cache.stride()}")
    if preshuffle and (page_size % TILE or head_dim % TILE):
        raise ValueError(f"{op}: preshuffle needs a page size and head_dim that are multiples of {TILE}, got "
                         f"{page_size} and {head_dim}")
