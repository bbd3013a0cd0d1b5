# SPDX-License-Identifier: MIT
"""What the compilers make of the tiles of csrc/moe/moe_gemm.hip, by metadata and the simulator's counters, and its
modelled time beside that of one product.
"""

import pytest
import torch
from kernel_gates import COMPILERS, check_fit, counted, modelled_us

from aiter_like.ops.gemm import gemm_a8w8_blockscale, gemm_a16w16
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.moe import moe_gemm_ck
from aiter_like.ops.moe.moe_gemm import moe_gemm
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.moe_gemm_cases import sorted_case

pytestmark = pytest.mark.rotating

DTYPES = {"bf16": torch.bfloat16, "int8": torch.int8, "blocks": torch.float8_e4m3fnuz}

WORKGROUPS = {
    "t256x256_w1x4x1": (1, 1), "t128x256_w1x4x1": (1, 2), "t128x128_w1x4x1": (2, 2), "t128x128_w2x2x1": (2, 2),
    "t64x256_w1x4x1": (1, 2), "t64x128_w1x4x1": (2, 3), "t64x64_w2x2x1": (4, 4), "t32x128_w1x4x1": (3, 4),
    "t32x64_w1x2x2": (2, 4), "t16x64_w1x1x4": (1, 2)}
"""Of a CU at least, of weights as they are and of shuffled ones, which take no LDS. That of 16 rows has two steps under
way: two workgroups take less time with them than three with one (21.5 and 23.1 us modelled).
"""

BUILDS = (*(("bf16", tile, True, "silu_and_mul") for tile in moe_gemm_ck.PLAIN),
          *(("bf16", tile, False, "silu_and_mul") for tile in moe_gemm_ck.PLAIN[:2]),
          ("int8", moe_gemm_ck.PLAIN[2], False, "none"),
          *(("blocks", tile, True, "silu_and_mul") for tile in moe_gemm_ck.SCALED_SHUFFLED),
          ("blocks", moe_gemm_ck.SCALED[0], False, "silu_and_mul"))
LARGE = tuple(one for one in BUILDS if WORKGROUPS[one[1]][0] == 1 and one[1] != "t16x64_w1x1x4" or one[1:3] in (
    ("t128x128_w2x2x1", False), ("t128x128_w1x4x1", True)) and one[0] == "blocks")
"""Those that need most of the registers, by the older compiler, too."""

OF_DENSE = 0.9
"""Of the modelled rate of one product as large in the same tile: at least, with 8 experts whose last blocks are not
full."""


def call(form: str, shuffled: bool, activation: str, block: int, tokens: int = 150, n: int = 512,
         k: int | None = None) -> MoeGemmCall:
    """Of 4 experts, each token having 2, or of 8 of the model."""
    dtype, experts = DTYPES[form], 4 if tokens < 1000 else 8
    k = k or 1024 // dtype.itemsize
    numbers, weights, of_blocks, valid = sorted_case(torch.device("cpu"), tokens, 2, experts, block)
    scales = {}
    if form == "int8":
        scales = {"a_scale": torch.ones(tokens), "b_scale": torch.ones(experts, n)}
    if form == "blocks":
        scales = {"a_scale": torch.ones(k // 128, tokens).t(), "b_scale": torch.ones(experts, n // 128, k // 128),
                  "group_size": 128}
    columns = n // 2 if activation.endswith("_and_mul") else n
    return MoeGemmCall(torch.empty(2 * tokens, columns, dtype=torch.bfloat16), torch.zeros(tokens, k, dtype=dtype),
                       torch.zeros(experts, n, k, dtype=dtype), of_blocks, sorted_ids=numbers, valid=valid,
                       weights=weights, slots=2, block=block, activation=activation, is_shuffled=shuffled, **scales)


def test_every_tile_is_listed():
    assert set(WORKGROUPS) == {*moe_gemm_ck.PLAIN, *moe_gemm_ck.SCALED, *moe_gemm_ck.SCALED_SHUFFLED}


@pytest.mark.parametrize("form, tile, shuffled, activation, compiler",
                         (*((*one, COMPILERS[1]) for one in BUILDS), *((*one, COMPILERS[0]) for one in LARGE)))
def test_registers_and_banks(tile_of, compiled_by, form, tile, shuffled, activation, compiler):
    """No scratch memory, no bank conflicts, and as many workgroups of a CU as LDS holds, or two."""
    tile_of(tile)
    compiled_by(compiler, moe_gemm_ck.moe_gemm_ck)
    check_fit(counted(moe_gemm, call(form, shuffled, activation, 256)), WORKGROUPS[tile][shuffled])


@pytest.mark.parametrize("form, tile, block", (("bf16", "t256x256_w1x4x1", 256), ("bf16", "t128x128_w1x4x1", 128),
                                               ("blocks", "t128x128_w1x4x1", 128)))
def test_modelled_rate_beside_one_product(tile_of, form, tile, block):
    """Gates of 4096 tokens with 8 experts, each token having 2, by the work that the tokens need, not their padding."""
    tile_of(tile)
    tokens, n, k = 4096, 4096, 2048
    if form == "bf16":
        dense, (a, b) = gemm_a16w16._gemm_a16w16, (torch.empty(rows, k).bfloat16() for rows in (2 * tokens, n))
        one = GemmA16w16Call(torch.empty(2 * tokens, n, dtype=torch.bfloat16), a, b, is_shuffled=True)
    else:
        dense = gemm_a8w8_blockscale._gemm_a8w8_blockscale
        one = gemm_a8w8_blockscale.GemmA8w8BlockscaleKey(2 * tokens, n, k, True).make(torch.device("cpu"), 0)
    mine = modelled_us(moe_gemm, call(form, True, "silu_and_mul", block, tokens, n, k))
    assert modelled_us(dense, one) / mine >= OF_DENSE
