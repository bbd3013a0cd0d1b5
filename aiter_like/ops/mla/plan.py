# SPDX-License-Identifier: MIT
"""Sizes of a plan of latent attention, and the memory that it takes: all known from shapes, never from lengths.

A plan lays the blocks of keys of all sequences on a line and cuts it into equal parts, one for each place in the
launch: one long sequence among many short ones then keeps no CU waiting. Which parts a sequence has is found on the
device (csrc/mla/mla_metadata.hip, triton/mla_metadata.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from aiter_like.device import Target, facts_of

BLOCK_KEYS = 64
"""Keys of which a plan makes a block, where pages are not larger."""

LEAST_BLOCKS = 2  # blocks of a part: a shorter one gains less than adding up its rows costs
OVERHEAD = 1  # blocks that the rows of a sequence cost besides its keys: loads of q, stores of out
_MOST_ROWS = 64  # rows of a tile: fp32 sums of 64 × 512 are half of a CU's registers, and all of an SM's
_MOST_TILES = 32  # above, sequences have rows enough to fill a device, and their keys are not split


class Sizes(NamedTuple):
    """Sizes of a plan.

    Attributes:
        num_parts: parts of the line; the launch has one program for each of them and tile of rows.
        num_items: pieces of sequences in all parts together, at most.
        num_slots: pieces of sequences that have more than one, at most; 0 where none can have more.
        num_tiles: sequences.
        block_pages: pages of a block.
        is_even: each sequence is cut into `num_kv_splits` parts of its own.
    """

    num_parts: int
    num_items: int
    num_slots: int
    num_tiles: int
    block_pages: int
    is_even: bool


def rows_of_tile(rows: int) -> int:
    """Rows of a tile of scores: heads of query tokens."""
    return 16 if rows <= 16 else 32 if rows <= 32 else _MOST_ROWS


def tiles_of(rows: int, least: int = 16) -> int:
    """Tiles of the rows of a sequence, of at least `least` rows."""
    return max(-(-rows // max(rows_of_tile(rows), least)), 1)


def sizes_of(target: Target, batch: int, rows: int, page_size: int, num_kv_splits: int,
             entries: int | None = None, has_wide_tiles: bool = False) -> Sizes:
    """The plan of `batch` sequences of at most `rows` rows whose pages are `entries` in number, or any number.

    has_wide_tiles: the kernel's tiles have 64 rows however few there are, and fill a CU. Never more parts than without.
    """
    if tiles_of(rows) > _MOST_TILES and not num_kv_splits:
        num_kv_splits = 1
    if num_kv_splits:
        parts = max(batch * num_kv_splits, 1)
        return Sizes(parts, parts, parts if num_kv_splits > 1 else 0, batch, block_pages_of(page_size), True)
    return balanced(target, batch, rows, page_size, entries, has_wide_tiles)


def block_pages_of(page_size: int) -> int:
    """Pages of a block."""
    return -(-BLOCK_KEYS // page_size)


def balanced(target: Target, batch: int, rows: int, page_size: int, entries: int | None = None,
             has_wide_tiles: bool = False) -> Sizes:
    """The plan whose parts are equally long, whatever the lengths of the sequences."""
    tiles, block_pages = tiles_of(rows), block_pages_of(page_size)
    shared = 2 if rows <= 32 and target.platform == "cuda" and not has_wide_tiles else 1  # programs of an SM
    parts = max(target.cu_num * shared // tiles, 1)
    xcds = facts_of(target).xcds
    parts = parts // xcds * xcds if parts >= xcds else parts
    if entries is not None:
        parts = max(min(parts, -(-entries // (block_pages * LEAST_BLOCKS)) + batch), 1)
    return Sizes(parts, batch + parts - 1, max(min(batch + parts - 1, 2 * (parts - 1)), 1), batch, block_pages, False)


def workspace_bytes(sizes: Sizes, max_seqlen_q: int, num_heads: int, v_dim: int) -> int:
    """Bytes of partial results and plan together."""
    return 4 * (_floats(sizes, max_seqlen_q, num_heads, v_dim) + _integers(sizes))


def _floats(sizes: Sizes, max_seqlen_q: int, num_heads: int, v_dim: int) -> int:
    return _padded(sizes.num_slots * max_seqlen_q * num_heads * (v_dim + 1))


def _integers(sizes: Sizes) -> int:
    return sum(map(_padded, _lengths(sizes)))


def _lengths(sizes: Sizes) -> tuple[int, int, int, int, int]:
    return sizes.num_parts + 1, 8 * sizes.num_items, sizes.num_tiles + 1, 2 * sizes.num_tiles, sizes.num_slots


def _padded(numbers: int) -> int:
    """Rounds a count of 4-byte numbers up so that what follows is aligned to 16 bytes whatever the sizes: Triton has a
    kernel for each case."""
    return -(-numbers // 4) * 4


def parts_in(workspace: Tensor, rows: int, num_heads: int, v_dim: int) -> tuple[Tensor, Tensor]:
    """Partial results [rows, num_heads, v_dim] and their log-sum-exps [rows, num_heads], at the start of memory."""
    split = rows * num_heads * v_dim
    return (workspace[:split].view(rows, num_heads, v_dim),
            workspace[split:split + rows * num_heads].view(rows, num_heads))


def plan_in(workspace: Tensor, sizes: Sizes, max_seqlen_q: int, num_heads: int,
            v_dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """work_indptr, work_info, reduce_indptr, reduce_final_map and reduce_partial_map, behind the partial results."""
    integers = workspace[_floats(sizes, max_seqlen_q, num_heads, v_dim):].view(torch.int32)
    parts = [part for length in _lengths(sizes) for part in (length, -length % 4)]
    indptr, info, tiles, final_map, partial_map = integers[:sum(parts)].split(parts)[::2]
    return indptr, info.view(-1, 8), tiles, final_map.view(-1, 2), partial_map
