# SPDX-License-Identifier: MIT
"""The ck kernels' tiles for at most 16 rows times weights of 8 or 4 bits, of which a workgroup has few bytes: which one
serves a shape that no row was tuned for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from aiter_like.device import Facts, arch_facts
from aiter_like.ops.gemm import tiles

ROWS = 16
TILES = ("t16x64_w1x1x4", "t16x32_w1x1x4", "t16x16_w1x1x4")
_COLUMNS = 16  # The narrowest tile has so many.
_DEPTH = 1024  # Each of those that share the depth has two steps at least.


def chosen(n: int, k: int, band: int = 0) -> tuple[str, int]:
    """The tile and the splits: as many columns as leave a CU some workgroups (configs/gfx942/gemm.toml).

    band: rows of a shuffled b that lie together, of which a tile has whole ones.
    """
    facts, columns = arch_facts("gfx942"), max(band, _COLUMNS)
    least = facts.model("gemm.tiles", tiles.Clocks).groups_of_few_rows * facts.cu_num
    while columns < 64 and n // (2 * columns) >= least:
        columns *= 2
    splits = max(1, min(facts.cu_num // math.ceil(n / columns), k // _DEPTH, max(tiles.SPLITS)))
    return f"t16x{columns}_w1x1x4", 1 << splits.bit_length() - 1


def or_tiles(m: int, n: int, k: int, tile: str | None, splits: int | None, band: int = 0,
             **sizes: Any) -> tuple[str, int]:
    """`chosen` for few rows and tiles.chosen for more, but for what is given."""
    if tile is None and splits is None and m <= ROWS:
        return chosen(n, k, band)
    return tiles.chosen(m, n, k, tile, splits, **sizes)


def cost(facts: Facts, m: int, n: int, k: int, tile: str | None, splits: int | None, band: int = 0, *,
         element_bytes: int, names: tuple[str, ...]) -> float:
    """The expected cost of a trial of the tuner, by the counts of tiles.py."""
    tile, splits = or_tiles(m, n, k, tile, splits, band, element_bytes=element_bytes, names=names)
    return tiles.clocks(facts, m, n, k, tiles.parse(tile, (*names, *TILES)), splits, element_bytes, names=names)


def space(m: int, n: int, k: int, names: tuple[str, ...], element_bytes: int = 2,
          band: int = 0) -> Iterator[dict[str, Any]]:
    """Settings that the tuner tries: these tiles for few rows, those of `names` for more."""
    if m > ROWS:
        return tiles.space(m, n, k, names, element_bytes)
    return ({"tile": tile, "splits": splits} for tile in TILES if tiles.parse(tile, TILES).block_n >= band
            for splits in tiles.SPLITS if splits == 1 or k >= splits * _DEPTH and n < 2**27)
