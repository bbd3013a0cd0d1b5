# SPDX-License-Identifier: MIT
"""The ck kernels' tiles for at most 16 rows times weights of 8 or 4 bits, of which a workgroup has few bytes: which one
serves a shape that no row was tuned for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from aiter_like.device import arch_facts
from aiter_like.ops.gemm import tiles

ROWS = 16
TILES = ("t16x64_w1x1x4", "t16x32_w1x1x4", "t16x16_w1x1x4")
_COLUMNS = 16  # The narrowest tile has so many.
_DEPTH = 1024  # Each of those that share the depth has two steps at least.


def chosen(n: int, k: int, band: int = 0) -> tuple[str, int]:
    """The tile and the splits, as did best by the cycle model (version 2): as many columns as leave a CU three
    workgroups. With 64, 32 and 16 columns 1 × 14336 × 4096 takes 12.9, 11.1 and 10.5 µs in 4 bits with groups of 128,
    and 18.0, 17.1 and 17.1 in fp8; 1 × 28672 × 8192 in 4 bits 33.1, 32.9 and 34.1. A second kernel costs more than
    splits gain where the workgroups fill half of the CUs: 1 × 4096 × 4096 takes 6.4 µs, and 7.0 in two splits.

    band: rows of a shuffled b that lie together, of which a tile has whole ones.
    """
    cus, columns = arch_facts("gfx942")["cu_num"], max(band, _COLUMNS)
    while columns < 64 and n // (2 * columns) >= 2.9 * cus:
        columns *= 2
    splits = max(1, min(cus // math.ceil(n / columns), k // _DEPTH, max(tiles.SPLITS)))
    return f"t16x{columns}_w1x1x4", 1 << splits.bit_length() - 1


def or_tiles(m: int, n: int, k: int, tile: str | None, splits: int | None, band: int = 0,
             **sizes: Any) -> tuple[str, int]:
    """`chosen` for few rows and tiles.chosen for more, but for what is given."""
    if tile is None and splits is None and m <= ROWS:
        return chosen(n, k, band)
    return tiles.chosen(m, n, k, tile, splits, **sizes)


def cost(m: int, n: int, k: int, tile: str | None, splits: int | None, band: int = 0, *, element_bytes: int,
         names: tuple[str, ...]) -> float:
    """The expected cost of a trial of the tuner, by the counts of tiles.py."""
    tile, splits = or_tiles(m, n, k, tile, splits, band, element_bytes=element_bytes, names=names)
    return tiles.clocks(m, n, k, tiles.parse(tile, (*names, *TILES)), splits, element_bytes=element_bytes, names=names)


def space(m: int, n: int, k: int, names: tuple[str, ...], element_bytes: int = 2,
          band: int = 0) -> Iterator[dict[str, Any]]:
    """Settings that the tuner tries: these tiles for few rows, those of `names` for more."""
    if m > ROWS:
        return tiles.space(m, n, k, names, element_bytes)
    return ({"tile": tile, "splits": splits} for tile in TILES if tiles.parse(tile, TILES).block_n >= band
            for splits in tiles.SPLITS if splits == 1 or k >= splits * _DEPTH and n < 2**27)
