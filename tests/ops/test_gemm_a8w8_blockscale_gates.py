# SPDX-License-Identifier: MIT
"""What the compiler makes of the tiles of csrc/gemm/gemm_a8w8_blockscale.hip, by their metadata and the simulator's
counters.
"""

from __future__ import annotations

import pytest
import torch

from aiter_like import device as devices
from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.ops.gemm import gemm_a8w8_blockscale as operator
from aiter_like.ops.gemm import tiles

WORKGROUPS = {"t256x128_w4x2x1": 1, "t128x128_w2x2x1": 2, "t128x64_w2x2x1": 2, "t64x64_w2x2x1": 4, "t32x64_w1x2x2": 2,
              "t16x64_w1x1x4": 1}
"""Of a CU: as many as LDS holds where the weights go through it, which registers must allow."""

MATRIX_BUSY = 0.26
"""Of the modelled time of a product in the tile for large ones, 8 steps deep, start and end included: the least."""


@pytest.fixture
def tile_of(monkeypatch):
    """Makes the operator take a tile, on the simulated device."""
    devices.use_simulator(True)

    def choose(tile: str) -> None:
        monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, 1))
        OPS["gemm_a8w8_blockscale"].reset()

    yield choose
    monkeypatch.undo()
    OPS["gemm_a8w8_blockscale"].reset()
    devices.reset()


def call(m: int, n: int, k: int, is_preshuffled: bool) -> operator.GemmA8w8BlockscaleCall:
    return operator._operands(torch.device("cpu"), 0, m, n, k, is_preshuffled)


def test_every_tile_is_listed():
    assert set(WORKGROUPS) == set(tiles.TILES)


@pytest.mark.parametrize("is_preshuffled", (False, True))
@pytest.mark.parametrize("tile", tiles.TILES)
def test_registers_and_banks(tile_of, tile, is_preshuffled):
    tile_of(tile)
    one = call(300, 256, 512, is_preshuffled)
    with sim.enabled(counters=True) as session:
        operator._gemm_a8w8_blockscale(one, backend="ck")
    (launch,) = session.launches
    assert launch["occupancy"]["workgroups_per_cu"] >= WORKGROUPS[tile]
    assert launch["private_bytes"] == 0 and launch["totals"]["lds_conflict_clk"] == 0


@pytest.mark.parametrize("is_preshuffled", (False, True))
def test_modelled_share_of_the_matrix_units(tile_of, is_preshuffled):
    tile_of("t128x128_w2x2x1")
    one = call(4096, 4864, 1024, is_preshuffled)
    with sim.enabled(model="sample") as session:
        operator._gemm_a8w8_blockscale(one, backend="ck")
    (launch,) = session.modelled
    assert launch["busy"]["matrix"] > MATRIX_BUSY
