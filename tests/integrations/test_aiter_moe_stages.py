# SPDX-License-Identifier: MIT
"""AITER's get_2stage_cfgs: a layer by the functions that it returns, in the blocks that it names, beside float64."""

import pytest
import torch
from test_aiter_experts import BF16, EXPERTS, FP8, I8, INNER, LIMITS, SLOTS, TOKENS, K, Problem, error, random

import aiter_like as aiter
from aiter_like import dtypes
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter import names as aiter_names

pytestmark = [pytest.mark.rotating, pytest.mark.usefixtures("simulated")]

SERVED = {row.name: row.value for row in aiter_names.table() if row.section == "moe"}


def described(rows, weights, kind, activation=ActivationType.Silu, **others):
    """The description of test_aiter_experts.py's layers."""
    return SERVED["get_2stage_cfgs"](TOKENS, K, INNER, EXPERTS, SLOTS, BF16, rows, weights, kind, True, activation,
                                     False, 0, 0, **others)


def computed(metadata, one, quant, scales=(None, None), biases=(None, None)):
    """Both stages of a layer, as AITER's fused_moe calls them; `quant` of a stage's rows."""
    ids, weights, experts, valid, out = aiter.moe_sorting(one.ids, one.weights, EXPERTS, K, BF16, metadata.block_m)
    a1, a1_scale = quant(one.x)
    a2 = torch.empty(TOKENS, SLOTS, INNER, dtype=BF16)
    matrices = (one.w1, one.w2)
    assert metadata.stage1(a1, *matrices, ids, experts, valid, a2, SLOTS, block_m=metadata.block_m, a1_scale=a1_scale,
                           w1_scale=scales[0], sorted_weights=None, bias1=biases[0]) is a2
    a2, a2_scale = quant(a2.view(-1, INNER))
    metadata.stage2(a2.view(TOKENS, SLOTS, -1), *matrices, ids, experts, valid, out, SLOTS, block_m=metadata.block_m,
                    w2_scale=scales[1], a2_scale=a2_scale, sorted_weights=weights, bias2=biases[1])
    return out


QUANT = {
    QuantType.No: lambda x: (x, None), QuantType.per_Token: lambda x: aiter.per_token_quant_hip(x, None, FP8),
    QuantType.per_1x128: lambda x: aiter.per_group_quant_hip(x, None, FP8, 128)}


@pytest.mark.parametrize("is_shuffled", (False, True))
@pytest.mark.parametrize("kind", (QuantType.per_Token, QuantType.per_1x128), ids=str)
def test_rows_that_keep_their_16_bits_beside_fp8(kind, is_shuffled):
    """Nothing is rounded but the results of the stages."""
    one, metadata = Problem(FP8, kind=kind), described(BF16, FP8, kind)
    if is_shuffled:
        one.w1, one.w2 = one.shuffled
    out = computed(metadata, one, QUANT[QuantType.No], (one.scale1, one.scale2))
    assert error(out, one.expected()) < LIMITS[BF16] < LIMITS[FP8]


@pytest.mark.parametrize("rows", (FP8, BF16), ids=str)
def test_words_of_int4(rows):
    """As AITER's callers make them of int8."""
    one, kind = Problem(), QuantType.per_Token
    one.pack_into_words()
    out = computed(described(rows, torch.uint32, kind), one, QUANT[kind if rows == FP8 else QuantType.No],
                   (one.scale1, one.scale2))
    assert error(out, one.expected()) < LIMITS[rows]


@pytest.mark.parametrize(("dtype", "kind"), ((BF16, QuantType.No), (FP8, QuantType.per_Token),
                                             (FP8, QuantType.per_1x128)), ids=str)
def test_stages(dtype, kind):
    one, metadata = Problem(dtype, kind=kind), described(dtype, dtype, kind)
    assert (metadata.block_m, metadata.ksplit, metadata.run_1stage) == (16, 0, False)
    out = computed(metadata, one, QUANT[kind], (one.scale1, one.scale2))
    assert error(out, one.expected()) < LIMITS[dtype]
    assert described(dtype, dtype, kind) is metadata, "one description of a layer"


def test_weights_of_four_bits_with_gates_among_each_other():
    """Rows stay in 16 bits; with biases, as GPT-OSS has them, the same as fused_moe."""
    one = Problem()
    one.w1, one.w2 = (torch.randint(0, 256, (EXPERTS, n, k // 2), generator=torch.Generator().manual_seed(n)).byte()
                      for n, k in ((2 * INNER, K), (K, INNER)))
    scales = [torch.full((EXPERTS, n, k // 32), 120, dtype=torch.uint8) for n, k in ((2 * INNER, K), (K, INNER))]
    biases = random(EXPERTS, 2 * INNER), random(EXPERTS, K)
    metadata = described(BF16, dtypes.fp4x2, QuantType.per_1x32, ActivationType.Swiglu, gate_mode="interleave",
                         has_stage2_bias=True)
    assert metadata.has_bias and metadata.stage2_has_bias
    out = computed(metadata, one, QUANT[QuantType.No], scales, biases)
    wanted = aiter.fused_moe(one.x, one.w1, one.w2, one.weights, one.ids, None, ActivationType.Swiglu,
                             QuantType.per_1x32, False, *scales, gate_mode="interleave", bias1=biases[0],
                             bias2=biases[1])
    assert error(out, wanted.double()) < LIMITS[BF16]


def test_blocks_grow_with_the_rows_of_an_expert():
    blocks = [SERVED["get_2stage_cfgs"](tokens, 4096, 14336, 8, 2, BF16, BF16, BF16, 0, True, 0, False, 0, 0).block_m
              for tokens in (1, 64, 1024, 16384)]
    assert blocks == [16, 32, 128, 256]


@pytest.mark.parametrize(("rows", "weights", "kind", "words"), (
    (dtypes.fp4x2, dtypes.fp4x2, QuantType.per_1x32, "q_dtype_a must be torch.bfloat16"),
    (I8, FP8, QuantType.per_Token, "q_dtype_a must be torch.float8_e4m3fnuz or torch.bfloat16"),
    (BF16, BF16, QuantType.per_Token, "is not served"),
    (I8, torch.uint32, QuantType.per_Token, "q_dtype_a must be .*torch.float8_e4m3fnuz or torch.bfloat16")),
    ids=("fp4 rows", "int8 beside fp8", "scales of 16 bits", "words"))
def test_what_no_product_takes(rows, weights, kind, words):
    with pytest.raises(UnsupportedError, match=words):
        described(rows, weights, kind)
