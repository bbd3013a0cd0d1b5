# SPDX-License-Identifier: MIT
"""The tiles of the ck products and what each costs by counts: which one serves a shape that no row was tuned for."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiter_like.device import Facts, arch_facts
from aiter_like.dispatch.rounding import rounded_up
from aiter_like.traced import answered

SPLITS = (1, 2, 4, 8, 16)


class Tile(NamedTuple):
    """A workgroup's part of out and how its waves share it."""

    block_m: int
    block_n: int
    waves_m: int
    waves_n: int
    waves_k: int

    def macros(self) -> dict[str, int]:
        """The sizes as macros of the sources."""
        return {name.upper(): size for name, size in self._asdict().items()}


_SMALL = ("t128x64_w2x2x1", "t64x64_w2x2x1", "t32x64_w1x2x2", "t16x64_w1x1x4")
TILES = ("t256x128_w4x2x1", "t128x128_w2x2x1", *_SMALL)
"""Names of the builds, t<rows>x<columns>_w<waves along rows>x<along columns>x<along the depth>. A wave has at most
64 × 64, whose sums take 64 registers; LDS holds two workgroups or more of all but the first and the last."""

PIPELINED = ("t256x256_w1x4x1", "t224x256_w1x4x1", "t192x256_w1x4x1", "t128x128_w1x4x1", *_SMALL)
"""Tiles of the products by MainLoop (csrc/gemm/gemm_pipeline.h), whose waves have up to 256 × 64. The columns are each
wave's own, so that shuffled weights are read once; 224 × 256 fills 304 CUs with out of 4096 × 4096."""

_SCALED_SMALL = ("t64x128_w1x4x1", "t64x64_w2x2x1", "t32x64_w1x2x2", "t16x64_w1x1x4")
SCALED = ("t128x128_w2x2x1", "t128x64_w2x2x1", *_SCALED_SMALL)
SCALED_SHUFFLED = ("t128x128_w1x4x1", *_SCALED_SMALL)
"""Tiles of the products by ScaledLoop (csrc/gemm/gemm_scaled_pipeline.h), two workgroups on a CU. Waves have 64 × 64
where weights take room in LDS, else 128 × 32, which read shuffled weights once."""

SMALLEST = Tile(16, 64, 1, 1, 4)


class Clocks(NamedTuple):
    """What `clocks` counts with; configs/gfx942/gemm.toml says of each number what it is and where it is from."""

    flops: int
    l2_bytes: float
    waiting_bytes: float
    hbm_bytes: float
    busy_pipelined: float
    busy: float
    busy_alone: float
    arrival: int
    start: int
    start_pipelined: int
    element: float
    second_kernel: int
    step_scaled: int
    alone_scaled: float
    groups_of_few_rows: float


@functools.cache
def parse(name: str, names: tuple[str, ...] = TILES) -> Tile:
    """The tile of a name, one of `names`.

    Raises:
        ValueError: there is no such tile.
    """
    if name not in names:
        raise ValueError(f"gemm: tile must be one of {', '.join(names)}, got {name!r}")
    return Tile(*map(int, re.findall(r"\d+", name)))


def macros(op: str, m: int, n: int, tile: str, splits: int, names: tuple[str, ...]) -> dict[str, int]:
    """Macros of a tile of `names`, and of splits of the depth of a product [m, n].

    Raises:
        ValueError: there is no such tile, or not that many splits.
    """
    if splits < 1 or splits > 1 and m * n >= 2**31:
        raise ValueError(f"{op}: splits must be at least 1, and 1 where out has 2^31 elements, got {splits}")
    return {**parse(tile, names).macros(), "SPLITS": splits}


def depth(tile: Tile, element_bytes: int = 2) -> int:
    """The depth of a step, in elements."""
    return 128 // element_bytes * tile.waves_k


def count(m: int, n: int, tile: Tile) -> int:
    """Tiles of out."""
    return math.ceil(m / tile.block_m) * math.ceil(n / tile.block_n)


def is_useful(m: int, n: int, k: int, tile: str, splits: int, element_bytes: int = 2) -> bool:
    """Whether each split has work, and out has rows and columns for at least half of the tile or there is none less."""
    sizes = parse(tile, TILES + PIPELINED + SCALED + SCALED_SHUFFLED)
    has_rows = sizes.block_m == SMALLEST.block_m or m > sizes.block_m // 2
    return has_rows and (splits == 1 or k >= 2 * splits * depth(sizes, element_bytes) and m * n < 2**31)


def space(m: int, n: int, k: int, names: tuple[str, ...] = TILES, element_bytes: int = 2) -> Iterator[dict[str, Any]]:
    """Settings that the tuner tries: every tile of `names`, with the splits that leave each a step of its own."""
    return ({"tile": tile, "splits": splits} for tile in names for splits in SPLITS
            if is_useful(m, n, k, tile, splits, element_bytes))


def is_pipelined(tile: Tile) -> bool:
    """Whether MainLoop has the pipelined loop for it."""
    wave_m, wave_n = tile.block_m // tile.waves_m, tile.block_n // tile.waves_n
    return tile.waves_k == 1 and wave_m >= 64 and wave_m % 32 == 0 and wave_n % 32 == 0


def clocks(facts: Facts, m: int, n: int, k: int, tile: Tile, splits: int, element_bytes: int = 2, batch: int = 1,
           names: tuple[str, ...] = TILES, lds_bytes: int | None = None) -> float:
    """Clocks of a product, or of `batch` of them, by counts: no measurement, and no model of it either. Elements have
    `element_bytes`; the result has 16 bits. names: PIPELINED for the products by MainLoop, SCALED or SCALED_SHUFFLED
    for those by ScaledLoop. lds_bytes: of a workgroup; default: of both operands of a step."""
    is_scaled = names in (SCALED, SCALED_SHUFFLED)
    model, cus = facts.model("gemm.tiles", Clocks), facts.cu_num
    step = depth(tile, element_bytes)
    step_bytes = (tile.block_m + tile.block_n) * step * element_bytes
    groups = batch * count(m, n, tile) * splits
    resident = min(facts.lds_bytes // (lds_bytes or step_bytes), math.ceil(groups / cus))  # workgroups of a CU
    busy, start = model.busy if resident > 1 else model.busy_alone, model.start
    if (is_scaled or names is PIPELINED) and is_pipelined(tile):
        busy, start = model.busy_pipelined, model.start_pipelined + model.element * tile.block_m * tile.block_n
    flops = model.flops * 2 / element_bytes
    mfma = 2 * tile.block_m * tile.block_n * step / flops / busy
    waits = (model.arrival + step_bytes / model.waiting_bytes) / resident
    if is_scaled:  # in the plain loop MFMA waits for the operands: their times add up
        waits = ((model.step_scaled + model.alone_scaled * mfma) / resident if is_pipelined(tile) else mfma + waits)
    steps = math.ceil(math.ceil(k / splits) / step)
    total = math.ceil(groups / (resident * cus)) * resident * (
        steps * max(mfma, step_bytes / model.l2_bytes, waits) + start / resident)
    total = max(total, batch * ((m * k + n * k) * element_bytes + m * n * 2) / model.hbm_bytes)
    if splits > 1:
        total += model.second_kernel + (2 * splits * 4 + 2) * batch * m * n / model.hbm_bytes
    return total


@answered
def cheapest(m: int, n: int, k: int, *, tile: str | None = None, splits: int | None = None, element_bytes: int = 2,
             batch: int = 1, names: tuple[str, ...] = TILES) -> tuple[str, int]:
    """(tile, splits) with the least clocks, of those that have the given ones, for `m` rounded up as tuned rows are.
    The tile is one of `names`.
    """
    return _cheapest(rounded_up(m), n, k, tile, splits, element_bytes, batch, names)


def chosen(m: int, n: int, k: int, tile: str | None, splits: int | None, **sizes: Any) -> tuple[str, int]:
    """The given ones where both are: a tuned row names them; else what `cheapest` finds."""
    if tile is not None and splits is not None:
        return tile, splits
    return cheapest(m, n, k, tile=tile, splits=splits, **sizes)


@functools.lru_cache(4096)
def _cheapest(m: int, n: int, k: int, tile: str | None, splits: int | None, element_bytes: int, batch: int,
              names: tuple[str, ...]) -> tuple[str, int]:
    if tile is not None:
        parse(tile, names)
    found = [(name, parts) for name in names if tile in (None, name)
             for parts in (SPLITS if splits is None else (splits,))
             if parts == splits or is_useful(m, n, k, name, parts, element_bytes)]
    if not found:
        found = [(tile or "t16x64_w1x1x4", splits or 1)]
    facts = arch_facts("gfx942")
    return min(found, key=lambda one: clocks(facts, m, n, k, parse(one[0], names), one[1], element_bytes, batch, names))
