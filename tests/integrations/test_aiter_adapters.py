# SPDX-License-Identifier: MIT
"""AITER's functions that have other parameters here: what they hand on."""

import pytest
import torch
from seeded import numbers

import aiter_like as aiter

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fnuz
pytestmark = pytest.mark.usefixtures("in_torch")


def test_norms_of_queries_and_keys_in_groups():
    q, k, weight, k_weight = numbers(4, 256), numbers(4, 64, seed=1), numbers(256, seed=2), numbers(64, seed=3)
    found = [torch.zeros(4, 256).to(FP8), torch.zeros(4, 2), torch.zeros_like(q), torch.zeros_like(k)]
    expected = [one.clone() for one in found]
    aiter.fused_qk_rmsnorm_group_quant(found[0], found[1], q, weight, 1e-6, found[2], found[3], None, k, k_weight,
                                       transpose_scale=True)
    aiter.fused_qk_rmsnorm_quant(expected[0], expected[1], q, weight, 1e-6, expected[2], expected[3], None, k, k_weight,
                                 quant_type=aiter.QuantType.per_1x128, group_size=128, transpose_scale=True)
    for one, other in zip(found, expected):
        assert torch.equal(one.float(), other.float()) and one.float().any()
    plain = torch.zeros_like(q)
    aiter.fused_qk_rmsnorm_group_quant(q=q, q_weight=weight, q_out_unquantized=plain, gemma_norm=True)
    torch.testing.assert_close(plain, aiter.rms_norm(q, weight + 1, 1e-6))
    with pytest.raises(ValueError, match="^fused_qk_rmsnorm_group_quant: q_out_unquantized must be given"):
        aiter.fused_qk_rmsnorm_group_quant(q_out_quantized=found[0], q=q, q_weight=weight)


def test_norms_of_queries_by_token():
    q, residual, weight = numbers(4, 256), numbers(4, 256, seed=1), numbers(256, seed=2)
    found = [torch.zeros(4, 256).to(FP8), torch.zeros(4, 1), torch.zeros_like(q)]
    aiter.fused_qk_rmsnorm_per_token_quant(found[0], found[1], q, weight, 1e-6, q_res_out=found[2], q_residual=residual)
    assert torch.equal(found[2], q + residual)
    expected = aiter.rms_norm(q + residual, weight, 1e-6).float()
    torch.testing.assert_close(found[0].float() * found[1], expected, rtol=0.07, atol=float(found[1].max()))
