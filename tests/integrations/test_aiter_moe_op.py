# SPDX-License-Identifier: MIT
"""AITER's Triton products of experts' matrices against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.moe import op

TOKENS, EXPERTS, SLOTS, DEPTH, COLUMNS = 9, 5, 2, 64, 32
FP8 = torch.float8_e4m3fnuz
REST = (None,) * 3  # the caller's lists


def numbers(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def chosen():
    """Experts [tokens, slots], and their weights."""
    ids = torch.rand(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(7)).topk(SLOTS).indices
    return ids, numbers(TOKENS, SLOTS, seed=8).softmax(-1)


def products(a, b, ids):
    """[tokens, slots, n]."""
    a = a.double()[:, None] if len(a) == len(ids) else a.double().view(*ids.shape, -1)
    return torch.einsum("tsk,tsnk->tsn", a.expand(-1, ids.shape[1], -1), b.double()[ids])


def close(got, expected, tolerance=1e-2):
    torch.testing.assert_close(got.double(), expected.view(got.shape), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weighs", (False, True))
@pytest.mark.parametrize("of_pairs", (False, True))
def test_product(simulated, chosen, weighs, of_pairs):
    ids, weights = chosen
    rows, top_k = (TOKENS * SLOTS, 1) if of_pairs else (TOKENS, SLOTS)
    a, b = numbers(rows, DEPTH), numbers(EXPERTS, COLUMNS, DEPTH, seed=1) / 8
    out = torch.zeros(TOKENS, SLOTS, COLUMNS).bfloat16()
    op.fused_moe(a, b, out, None, None, None, weights, ids, *REST, weighs, top_k, None, False, False, False,
                           config={"BLOCK_SIZE_M": 64})
    close(out, products(a, b, ids) * (weights.double()[..., None] if weighs else 1))


@pytest.mark.parametrize("weighs", (False, True))
def test_activations(simulated, chosen, weighs):
    """GELU is left out where rows are weighed."""
    ids, weights = chosen
    a, b = numbers(TOKENS, DEPTH), numbers(EXPERTS, COLUMNS, DEPTH, seed=1) / 8
    expected = products(a, b, ids) * (weights.double()[..., None] if weighs else 1)
    out = torch.zeros(TOKENS * SLOTS, COLUMNS // 2).bfloat16()
    op.fused_moe_silu(a, b, out, None, None, None, weights, ids, *REST, weighs, SLOTS, None, False, False,
                                False)
    gate, up = expected.chunk(2, -1)
    close(out, F.silu(gate) * up)
    close(op.torch_silu_and_mul_ref(expected.flatten(0, 1)), F.silu(gate) * up, 1e-6)
    out = torch.zeros(TOKENS, SLOTS, COLUMNS).bfloat16()
    op.fused_moe_gelu(a, b, out, None, None, weights, ids, *REST, weighs, SLOTS, None, False, False)
    close(out, expected if weighs else F.gelu(expected, approximate="tanh"))


def test_weights_of_8_bits(simulated, chosen):
    ids, weights = chosen
    a, out = numbers(TOKENS, DEPTH), torch.zeros(TOKENS, SLOTS, COLUMNS).bfloat16()
    narrow = torch.randint(-127, 128, (EXPERTS, COLUMNS, DEPTH), dtype=torch.int8,
                           generator=torch.Generator().manual_seed(2))
    scale = numbers(EXPERTS, COLUMNS, seed=3, dtype=torch.float32).abs() / 500
    op.fused_moe(a, narrow, out, None, scale, None, weights, ids, *REST, False, SLOTS, None, False, True,
                           False)
    close(out, products(a, narrow.double() * scale.double()[..., None], ids))
    narrow, scale = (numbers(EXPERTS, COLUMNS, DEPTH, seed=4) / 4).to(FP8), torch.rand(EXPERTS) + 0.5
    op.fused_moe(a, narrow, out, None, scale, None, weights, ids, *REST, False, SLOTS, None, True, False,
                           False)
    close(out, products(a, narrow.double() * scale.double()[:, None, None], ids), 0.2)


def test_scales_of_blocks(simulated, chosen):
    ids, weights = chosen
    a, b = numbers(TOKENS, 256).to(FP8), numbers(EXPERTS, 128, 256, seed=1).to(FP8)
    a_scale, b_scale = torch.rand(TOKENS, 2) + 0.5, torch.rand(EXPERTS, 1, 2) + 0.5
    out = torch.zeros(TOKENS, SLOTS, 128).bfloat16()
    op.fused_moe(a, b, out, a_scale, b_scale, None, weights, ids, *REST, True, SLOTS, None, True, False,
                           False, [128, 128])
    wide = a.double() * a_scale.double().repeat_interleave(128, 1)
    full = b.double() * b_scale.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    close(out, products(wide, full, ids) * weights.double()[..., None], 0.05)


@pytest.mark.parametrize("weighs", (False, True))
def test_layer(simulated, chosen, weighs):
    ids, weights = chosen
    a, w1, w2 = numbers(TOKENS, DEPTH), numbers(EXPERTS, 64, DEPTH, seed=1) / 8, numbers(EXPERTS, DEPTH, 32, seed=2) / 4
    out = torch.zeros(TOKENS, SLOTS, DEPTH).bfloat16()
    assert op.e2e_moe(a, w1, w2, None, out, None, None, None, weights, None, ids, None, None, weighs, SLOTS,
                                False, False) is out
    gate, up = products(a, w1, ids).chunk(2, -1)
    inner = (F.silu(gate) * up).bfloat16()
    close(out, products(inner.flatten(0, 1), w2, ids) * (weights.double()[..., None] if weighs else 1), 0.02)


def test_names_what_does_not_fit(chosen):
    ids, weights = chosen
    a, b, out = numbers(TOKENS, DEPTH), numbers(EXPERTS, COLUMNS, DEPTH), torch.zeros(TOKENS, SLOTS, COLUMNS).bfloat16()

    def call(*, a=a, out=out, top_k=SLOTS, kinds=(False, False, False), shape=None):
        op.fused_moe(a, b, out, None, None, None, weights, ids, *REST, False, top_k, None, *kinds, shape)

    for message, error, options in (
            ("A must have 9 rows with top_k 2, or 18 with top_k 1, got 9 and 1", ValueError, {"top_k": 1}),
            ("C must be contiguous", ValueError, {"out": out.transpose(0, 1)}),
            ("use_fp8_w8a8 and use_int8_w8a16 must not both", ValueError, {"kinds": (True, True, False)}),
            ("B_scale must be a tensor, got None", TypeError, {"kinds": (False, True, False)}),
            ("use_int4_w4a16 is not served", UnsupportedError, {"kinds": (False, False, True)}),
            (r"block_shape \[0, 64\] is not served", UnsupportedError, {"shape": [0, 64]})):
        with pytest.raises(error, match=f"fused_moe: {message}"):
            call(**options)


def test_what_only_describes():
    assert op.get_optimal_moe_config_func(torch.bfloat16, use_fp8_w8a8=True)(4)["BLOCK_SIZE_M"] == 64
    assert op.moe_set_use_persistent_kernel(True) is op.moe_set_padding_size(128) is None
    language = pytest.importorskip("triton.language")
    assert op.torch_to_triton_dtype[torch.bfloat16] == language.bfloat16
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = op.nothing
