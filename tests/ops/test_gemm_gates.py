# SPDX-License-Identifier: MIT
"""What the compiler makes of the tiles of csrc/gemm, by their metadata and the simulator's counters."""

import pytest
import torch
from kernel_gates import (
    COMPILERS,
    READ_TB_PER_S,
    check_fit,
    counted,
    modelled,
    modelled_us,
    passes_of_mfma,
    step_between,
)

from aiter_like.ops.gemm import gemm_a8w8, gemm_a16w16, gemm_weight_only, tiles
from aiter_like.ops.gemm.gemm_a8w8 import GemmA8w8Call
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.gemm.gemm_weight_only import GemmWeightOnlyCall
from aiter_like.ops.layout.shuffle_weight import shuffle_weight

pytestmark = pytest.mark.rotating

WORKGROUPS = {"t256x256_w1x4x1": 1, "t224x256_w1x4x1": 1, "t192x256_w1x4x1": 1, "t128x128_w1x4x1": 2,
              "t256x128_w4x2x1": 1, "t128x128_w2x2x1": 2, "t128x64_w2x2x1": 2, "t64x64_w2x2x1": 4, "t32x64_w1x2x2": 2,
              "t16x64_w1x1x4": 1}
"""Of a CU: as many as LDS holds, which registers must allow."""

MATRIX_BUSY = 0.6
"""Of the modelled time of a product in the tile for large ones, 16 steps deep, start and end included: the least."""

JITS = (gemm_a16w16._gemm_a16w16_ck, gemm_a16w16._gemm_a16w16_hip, gemm_a8w8._gemm_a8w8_ck)
STEP_CLK, MFMA_CLK, LDS_READ_CLK, ADDRESS_CLK, STEP_BYTES = 4351, 4096, 1024, 2048, 65536
"""Of a step of 256 × 256 × 128 bytes on a CU: at most, and of the matrix units exactly. 16 clk of the address unit for
each load of 1024 bytes; STEP_BYTES is what the tile needs at least."""
PLAIN_LDS_READ_CLK = 1280
"""Where the right operand comes from LDS, too: 256 + 64 rows for each wave."""


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


def test_every_tile_is_listed():
    assert set(WORKGROUPS) == set(tiles.TILES + tiles.PIPELINED)


@pytest.mark.parametrize("is_shuffled", (False, True), ids=("rows", "shuffled"))
@pytest.mark.parametrize("tile", tiles.PIPELINED)
def test_registers_and_banks(tile_of, tile, is_shuffled):
    tile_of(tile)
    one = call(300, 256, 512)
    if is_shuffled:
        one = one._replace(b=shuffle_weight(one.b), is_shuffled=True)
    check_fit(counted(gemm_a16w16._gemm_a16w16, one), WORKGROUPS[tile])


@pytest.mark.parametrize("dtype, band", ((torch.float8_e4m3fnuz, 0), (torch.int8, 16)), ids=str)
@pytest.mark.parametrize("tile", tiles.PIPELINED)
def test_registers_and_banks_in_8_bits(tile_of, tile, dtype, band):
    """As many workgroups as in 16 bits; shuffled weights, which take registers in place of LDS, too."""
    tile_of(tile)
    one = call_of_8_bits(300, 256, 1024, dtype, band)
    check_fit(counted(gemm_a8w8._gemm_a8w8, one), WORKGROUPS[tile])


def large_call(name: str, depth_bytes: int, m: int = 256, n: int = 256):
    """The operator's stub and a call of it."""
    if name.startswith("bf16"):
        one = call(m, n, depth_bytes // 2)
        if name == "bf16 shuffled":
            one = one._replace(b=shuffle_weight(one.b), is_shuffled=True)
        return gemm_a16w16._gemm_a16w16, one
    dtype = torch.float8_e4m3fnuz if name.startswith("fp8") else torch.int8
    return gemm_a8w8._gemm_a8w8, call_of_8_bits(m, n, depth_bytes, dtype, 16)


LARGE = ("bf16 shuffled", "bf16", "fp8 shuffled", "int8 shuffled")


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", LARGE)
def test_what_a_step_of_256_by_256_takes(tile_of, compiled_by, compiler, name):
    """Between two depths: counts of the step, exact; nothing but matrix instructions and little beside them."""
    tile_of("t256x256_w1x4x1")
    compiled_by(compiler, *JITS)
    launches = [counted(*large_call(name, steps * 128)) for steps in (3, 4)]
    for launch in launches:
        check_fit(launch, 1)
    of_step = step_between(*launches)
    matrix = of_step("mfma")
    assert matrix * passes_of_mfma(launches[0]) == MFMA_CLK  # a pass has 4 clk; on four SIMDs
    assert of_step("ds", "lds_clk", "ds_read") <= (LDS_READ_CLK if "shuffled" in name else PLAIN_LDS_READ_CLK)
    assert of_step("mubuf") * 16 <= ADDRESS_CLK
    assert of_step("mubuf", "global_bytes") <= 1.05 * STEP_BYTES
    assert of_step("valu") <= matrix / 4 and of_step("barrier") == 4 * 2


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", LARGE)
def test_modelled_clk_of_a_step_of_256_by_256(tile_of, compiled_by, compiler, name):
    """One tile for each CU, at two depths."""
    tile_of("t256x256_w1x4x1")
    compiled_by(compiler, *JITS)
    spent = []
    for steps in (8, 12):
        (launch,) = modelled(*large_call(name, steps * 128, 4096, 4864))
        spent.append(launch["modelled_clk"])
    assert MFMA_CLK <= (spent[1] - spent[0]) / 4 <= STEP_CLK


def test_modelled_share_of_the_matrix_units(tile_of):
    tile_of("t128x128_w1x4x1")
    (launch,) = modelled(gemm_a16w16._gemm_a16w16, call(4096, 4864, 1024))
    assert launch["busy"]["matrix"] > MATRIX_BUSY


PER_MFMA = {("int8", 0): 1.8, ("int8", 64): 2.6, ("int4", 128): 2.8, ("int4", 32): 5.5, ("fp8", 128): 2.4}
"""Other vector instructions, those of memory included, for one MFMA: at most, in a step of the tile for large products
that makes 16-bit numbers of weights and scales the products of each group. In the last one clang 19 moves products
between two kinds of registers, clang 22 needs 3.7."""

MFMA_PASSES = 4  # of v_mfma_f32_16x16x16_bf16


@pytest.mark.parametrize("tile, weights, group_size", (
    *(("t128x128_w2x2x1", *one) for one in PER_MFMA), ("t256x128_w4x2x1", "int4", 32), ("t64x64_w2x2x1", "int4", 128),
    ("t16x64_w1x1x4", "int4", 128), ("t32x64_w1x2x2", "int8", 64), ("t16x64_w1x1x4", "fp8", 128)))
def test_weights_of_few_bits(tile_of, tile, weights, group_size):
    tile_of(tile)

    def launch(k: int) -> dict:
        is_fp8, generator = weights == "fp8", torch.Generator().manual_seed(0)
        bits, scale_rows = 4 if weights == "int4" else 8, 128 if is_fp8 else 1
        b = torch.randint(-128, 128, (256, k * bits // 8), generator=generator, dtype=torch.int8)
        if is_fp8:
            b = b.to(torch.float8_e4m3fnuz)
        scale = torch.ones(256 // scale_rows, k // group_size if group_size else 1)
        one = GemmWeightOnlyCall(torch.empty(256, 256, dtype=torch.bfloat16),
                                 torch.randn(256, k, generator=generator).bfloat16(), b, scale, bits=bits,
                                 group_size=group_size, scale_rows=scale_rows)
        return counted(gemm_weight_only._gemm_weight_only, one)

    long = launch(1024)
    workgroups = 1 if group_size == 32 else WORKGROUPS[tile]
    check_fit(long, workgroups)
    if tile == "t128x128_w2x2x1":
        short = launch(512)
        vector, passes = (long["totals"][name] - short["totals"][name] for name in ("vector_instructions",
                                                                                     "mfma_passes"))
        mfma = passes / MFMA_PASSES
        assert (vector - mfma) / mfma <= PER_MFMA[weights, group_size]


READ_SHARE = 0.85
"""Of READ_TB_PER_S, what the kernel for few rows reaches at least, start and end included, where the weights are 64 MB
or more."""


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("m", (1, 8, 16))
def test_modelled_share_of_the_read_rate(simulated, compiled_by, compiler, m):
    compiled_by(compiler, *JITS)
    for n, k in ((8192, 4096), (4096, 8192), (28672, 4096)):
        assert read_tb_per_s(m, n, k) > READ_SHARE * READ_TB_PER_S


def read_tb_per_s(m: int, n: int, k: int) -> float:
    a, b, out = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((m, k), (n, k), (m, n)))
    return b.nbytes / modelled_us(gemm_a16w16._gemm_a16w16, GemmA16w16Call(out, a, b), "hip") / 1e6


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("m", (1, 8, 16))
@pytest.mark.parametrize("activation", ("none", "silu_and_mul"))
def test_registers_and_banks_of_few_rows(simulated, compiled_by, compiler, m, activation):
    compiled_by(compiler, *JITS)
    one = call(m, 128, 4096)._replace(activation=activation)
    one = one._replace(out=one.out[:, :64].contiguous()) if activation != "none" else one
    check_fit(counted(gemm_a16w16._gemm_a16w16, one, "hip"), 2 if activation == "none" else 1)
