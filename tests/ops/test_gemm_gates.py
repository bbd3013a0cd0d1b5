# SPDX-License-Identifier: MIT
"""What the compiler makes of the tiles of csrc/gemm, by their metadata and the simulator's counters."""

from __future__ import annotations

import pytest
import torch

from aiter_like import device as devices
from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.ops.gemm import gemm_a8w8, gemm_a16w16, gemm_weight_only, tiles
from aiter_like.ops.gemm.gemm_a8w8 import GemmA8w8Call
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.gemm.gemm_weight_only import GemmWeightOnlyCall
from aiter_like.ops.layout.shuffle_weight import shuffle_weight

OPERATORS = ("gemm_a16w16", "gemm_a8w8", "gemm_weight_only")

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
        for name in OPERATORS:
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


PER_MFMA = {("int8", 0): 1.8, ("int8", 64): 2.6, ("int4", 128): 2.8, ("int4", 32): 5.5}
"""Other vector instructions, those of memory included, for one MFMA: at most, in a step of the tile for large products
that makes 16-bit numbers of weights and scales the products of each group. In the last one clang 19 moves products
between two kinds of registers, clang 22 needs 3.7."""

MFMA_PASSES = 4  # of v_mfma_f32_16x16x16_bf16


@pytest.mark.parametrize("tile, weights, group_size", (
    *(("t128x128_w2x2x1", *one) for one in PER_MFMA), ("t256x128_w4x2x1", "int4", 32), ("t64x64_w2x2x1", "int4", 128),
    ("t16x64_w1x1x4", "int4", 128), ("t16x64_w1x1x4", "int8", 0)))
def test_weights_of_few_bits(tile_of, tile, weights, group_size):
    tile_of(tile)

    def launch(k: int) -> dict:
        bits, generator = int(weights[3:]), torch.Generator().manual_seed(0)
        b = torch.randint(-128, 128, (256, k * bits // 8), generator=generator, dtype=torch.int8)
        scale = torch.ones(256, k // group_size if group_size else 1)
        one = GemmWeightOnlyCall(torch.empty(256, 256, dtype=torch.bfloat16),
                                 torch.randn(256, k, generator=generator).bfloat16(), b, scale, bits=bits,
                                 group_size=group_size)
        with sim.enabled(counters=True) as session:
            gemm_weight_only._gemm_weight_only(one, backend="ck")
        return session.launches[0]

    long = launch(1024)
    workgroups = 1 if group_size == 32 else WORKGROUPS[tile]
    assert long["occupancy"]["workgroups_per_cu"] >= workgroups
    assert long["private_bytes"] == 0 and long["totals"]["lds_conflict_clk"] == 0
    if tile == "t128x128_w2x2x1":
        short = launch(512)
        vector, passes = (long["totals"][name] - short["totals"][name] for name in ("vector_instructions",
                                                                                     "mfma_passes"))
        mfma = passes / MFMA_PASSES
        assert (vector - mfma) / mfma <= PER_MFMA[weights, group_size]
