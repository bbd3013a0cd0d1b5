# SPDX-License-Identifier: MIT
"""What the compiler makes of the tiles of csrc/gemm, by their metadata and the simulator's counters."""

from __future__ import annotations

import pytest
import torch

from aiter_like import device as devices
from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.ops.gemm import gemm_a8w8, gemm_a16w16, tiles
from aiter_like.ops.gemm.gemm_a8w8 import GemmA8w8Call
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.layout.shuffle_weight import shuffle_weight

WORKGROUPS = {"t256x128_w4x2x1": 1, "t128x128_w2x2x1": 2, "t128x64_w2x2x1": 2, "t64x64_w2x2x1": 4, "t32x64_w1x2x2": 2,
              "t16x64_w1x1x4": 1}
"""Of a CU: as many as LDS holds, which registers must allow."""

MATRIX_BUSY = 0.43
"""Of the modelled time of a product in the tile for large ones, 16 steps deep, start and end included: the least."""


def call(m: int, n: int, k: int) -> GemmA16w16Call:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (m, n))
    return GemmA16w16Call(torch.empty(m, n, dtype=torch.bfloat16), a, b)


def call_of_8_bits(m: int, n: int, k: int, dtype: torch.dtype, band: int) -> GemmA8w8Call:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-8, 8, (rows, k), generator=generator).float().to(dtype) for rows in (m, n))
    if band:
        b = shuffle_weight(b, (band, 16))
    return GemmA8w8Call(torch.empty(m, n, dtype=torch.bfloat16), a, b, torch.ones(m), torch.ones(n), band=band)


@pytest.fixture
def tile_of(monkeypatch):
    """Makes the operator take a tile, on the simulated device."""
    devices.use_simulator(True)

    def choose(tile: str) -> None:
        monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, 1))
        reset()

    def reset() -> None:
        for name in ("gemm_a16w16", "gemm_a8w8"):
            OPS[name].reset()

    yield choose
    monkeypatch.undo()
    reset()
    devices.reset()


def test_every_tile_is_listed():
    assert set(WORKGROUPS) == set(tiles.TILES)


@pytest.mark.parametrize("tile", tiles.TILES)
def test_registers_and_banks(tile_of, tile):
    tile_of(tile)
    one = call(300, 256, 512)
    with sim.enabled(counters=True) as session:
        gemm_a16w16._gemm_a16w16(one, backend="ck")
    (launch,) = session.launches
    assert launch["occupancy"]["workgroups_per_cu"] >= WORKGROUPS[tile]
    assert launch["private_bytes"] == 0 and launch["totals"]["lds_conflict_clk"] == 0


@pytest.mark.parametrize("dtype, band", ((torch.float8_e4m3fnuz, 0), (torch.int8, 16)), ids=str)
@pytest.mark.parametrize("tile", tiles.TILES)
def test_registers_and_banks_in_8_bits(tile_of, tile, dtype, band):
    """As many workgroups as in 16 bits; shuffled weights, which take registers in place of LDS, too."""
    tile_of(tile)
    one = call_of_8_bits(300, 256, 1024, dtype, band)
    with sim.enabled(counters=True) as session:
        gemm_a8w8._gemm_a8w8(one, backend="ck")
    (launch,) = session.launches
    assert launch["occupancy"]["workgroups_per_cu"] >= WORKGROUPS[tile]
    assert launch["private_bytes"] == 0 and launch["totals"]["lds_conflict_clk"] == 0


def test_modelled_share_of_the_matrix_units(tile_of):
    tile_of("t128x128_w2x2x1")
    with sim.enabled(model="sample") as session:
        gemm_a16w16._gemm_a16w16(call(4096, 4864, 1024), backend="ck")
    (launch,) = session.modelled
    assert launch["busy"]["matrix"] > MATRIX_BUSY
