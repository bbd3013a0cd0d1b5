# SPDX-License-Identifier: MIT
"""What the compilers make of the tiles of csrc/gemm/gemm_a8w8_blockscale.hip, by their metadata and the simulator's
counters.
"""

import pytest
import torch
from kernel_gates import COMPILERS, check_fit, counted, modelled, modelled_us, passes_of_mfma, step_between

from aiter_like.ops.gemm import few_rows, tiles
from aiter_like.ops.gemm import gemm_a8w8_blockscale as operator

pytestmark = pytest.mark.rotating

WORKGROUPS = {"t128x128_w2x2x1": 2, "t128x128_w1x4x1": 2, "t128x64_w2x2x1": 2, "t64x128_w1x4x1": 2, "t64x64_w2x2x1": 4,
              "t32x64_w1x2x2": 2, **dict.fromkeys(few_rows.TILES, 1)}
"""Of a CU: as many as LDS holds where the weights go through it, or two, which registers must allow."""

BUILDS = tuple((tile, is_shuffled) for is_shuffled, names in ((False, tiles.SCALED), (True, tiles.SCALED_SHUFFLED))
               for tile in dict.fromkeys((*names, *few_rows.TILES)))
NAMES, OPERATOR = operator.CK_TILES, operator._gemm_a8w8_blockscale
PIPELINED = tuple(one for one in BUILDS if tiles.is_pipelined(tiles.parse(one[0], NAMES)))
ROWS, SHUFFLED = ("t128x128_w2x2x1", False), ("t128x128_w1x4x1", True)

VALU_PER_MFMA = 4.75
"""Beside an MFMA of 32 clk, which hides seven: at most. Two of them scale and add; clang 19 has more than clang 22."""

LDS_CLK = {("t128x128_w2x2x1", False): 768, ("t128x128_w1x4x1", True): 640}
"""Of a step of 128 × 128 × 128 on a CU, in which MFMA takes 1024 clk: reads of 128 bytes a clock, and writes."""

MFMA_CLK, STEP_CLK = 2048, 2200
"""Of a step of two workgroups of 128 × 128 × 128 on a CU: of the matrix units exactly, and modelled at most."""

PUBLISHED_US = {(16384, 7168, 2304): 521.6, (8192, 4608, 7168): 566.0, (4096, 4608, 7168): 314.0,
                (1024, 17408, 5120): 243.6, (16, 25600, 5120): 36.6, (1, 3072, 6144): 12.2}
MODELLED_US = {(16384, 7168, 2304): 301.0, (8192, 4608, 7168): 256.0, (4096, 4608, 7168): 127.0,
               (1024, 17408, 5120): 97.0, (16, 25600, 5120): 36.5, (1, 3072, 6144): 7.8}
"""At 2100 MHz, by the tile that the operator chooses for weights as they are: at most. Published: AITER's CK kernels as
it tuned them, on an MI300X; for 16 rows the two are the same."""


TURN_US = 3.0
"""Of the launch that turns scales by rows, modelled: at most."""


def call(m: int, n: int, k: int, is_preshuffled: bool) -> operator.GemmA8w8BlockscaleCall:
    return operator.GemmA8w8BlockscaleKey(m, n, k, is_preshuffled).make(torch.device("cpu"), 0)


def empty_call(m: int, n: int, k: int, is_preshuffled: bool = False) -> operator.GemmA8w8BlockscaleCall:
    """For the cycle model, which reads no values."""
    a, b = (torch.empty(rows, k, dtype=torch.float8_e4m3fnuz) for rows in (m, n))
    a_scale = torch.empty(operator.blocks(k), m).t()
    return operator.GemmA8w8BlockscaleCall(torch.empty(m, n, dtype=torch.bfloat16), a, b, a_scale,
                                           torch.empty(operator.blocks(n), operator.blocks(k)), is_preshuffled)


def test_every_tile_is_listed():
    assert set(WORKGROUPS) == {tile for tile, _ in BUILDS}


@pytest.mark.parametrize("tile, is_preshuffled", [one for one in BUILDS if one not in PIPELINED])
def test_registers_and_banks_of_the_plain_loop(tile_of, tile, is_preshuffled):
    tile_of(tile)
    check_fit(counted(OPERATOR, call(300, 256, 512, is_preshuffled)), WORKGROUPS[tile])


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("tile, is_preshuffled", PIPELINED)
def test_what_a_pipelined_step_takes(tile_of, compiled_by, compiler, tile, is_preshuffled):
    """Between two depths: counts of the step of one workgroup, exact; no packed instruction beside MFMA."""
    tile_of(tile)
    compiled_by(compiler, operator._gemm_a8w8_blockscale_ck)
    sizes = tiles.parse(tile, NAMES)
    launches = [counted(OPERATOR, call(*sizes[:2], 128 * steps, is_preshuffled)) for steps in (3, 4)]
    for launch in launches:
        check_fit(launch, WORKGROUPS[tile])
    of_step = step_between(*launches)
    matrix = of_step("mfma")
    # A pass has 4 clk; on four SIMDs.
    assert matrix * passes_of_mfma(launches[0]) == sizes.block_m * sizes.block_n // 16
    assert of_step("valu") <= VALU_PER_MFMA * matrix and of_step("valu", text="v_pk_") == 0
    assert of_step("barrier") == 4 * 2
    reads_of_weights = sizes.waves_m if is_preshuffled else 1
    # A wave loads the scale of a row for two lanes, and that of its columns for all.
    scales = 4 * (2 * sizes.waves_n * sizes.block_m + 64 * sizes.waves_m * sizes.waves_n)
    operands = 128 * (sizes.block_m + reads_of_weights * sizes.block_n)
    assert of_step("mubuf", "global_bytes") == operands + scales
    if (tile, is_preshuffled) in LDS_CLK:
        assert of_step("ds", "lds_clk") <= LDS_CLK[tile, is_preshuffled]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("tile, is_preshuffled", (ROWS, SHUFFLED))
def test_modelled_clk_of_a_step(tile_of, compiled_by, compiler, tile, is_preshuffled):
    """Two workgroups on each CU, at two depths."""
    tile_of(tile)
    compiled_by(compiler, operator._gemm_a8w8_blockscale_ck)
    spent = []
    for steps in (8, 16):
        (launch,) = modelled(OPERATOR, empty_call(2048, 4864, 128 * steps, is_preshuffled))
        spent.append(launch["modelled_clk"])
    assert MFMA_CLK <= (spent[1] - spent[0]) / 8 <= STEP_CLK


@pytest.mark.parametrize("shape", PUBLISHED_US, ids=str)
def test_modelled_time_beside_published(tile_of, shape):
    assert modelled_us(OPERATOR, empty_call(*shape)) <= MODELLED_US[shape]


def test_scales_by_rows_cost_a_short_launch(tile_of):
    """Of many rows they are turned before the product, which then takes what it takes with scales by blocks."""
    tile_of(ROWS[0])
    one = empty_call(2048, 4864, 1024)
    (by_blocks,), (turning, by_rows) = (
        [launch["modelled_us"] for launch in modelled(OPERATOR, one._replace(a_scale=a_scale))]
        for a_scale in (one.a_scale, one.a_scale.contiguous()))
    assert turning <= TURN_US and by_rows <= 1.01 * by_blocks
