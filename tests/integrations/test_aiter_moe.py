# SPDX-License-Identifier: MIT
"""AITER's product of a router with the choice of one expert, its experts of every token, and activations with the bias
of each row's expert, against torch."""

import pytest
import torch

import aiter_like as aiter
from aiter_like.enums import QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.moe.fused_moe import fused_moe_dp_share_expert
from aiter_like.integrations.aiter.others import adapters


@pytest.mark.parametrize("has_factors", (False, True))
def test_experts_of_every_token(simulated, has_factors):
    """Two ranks share three tokens; what they add to stays in the rows of the other."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=generator)

    x, wide = numbers(3, 128).bfloat16(), [numbers(2, 256, 128) / 8, numbers(2, 128, 128) / 8]
    quantised = [aiter.pertoken_quant(one, quant_dtype=torch.int8) for one in wide]
    factors = [numbers(2, 1, 128).abs() + 0.5, numbers(2, 1, 128).abs() + 0.5] if has_factors else [None, None]
    (w1, scale1), (w2, scale2) = [(aiter.shuffle_weight(one), scale) for one, scale in quantised]
    first = numbers(3, 128).bfloat16()
    total = first.clone()
    for rank in range(2):
        found = fused_moe_dp_share_expert(
            x, w1, w2, quant_type=QuantType.per_Token, w1_scale=scale1, w2_scale=scale2, a1_scale=factors[0],
            a2_scale=factors[1], dp_size=2, dp_rank=rank, moe_buf=total)
        assert found is total and (rank or torch.equal(total[2], first[2]))
    expected = first.double()
    for expert in range(2):
        up, down = [(one[expert] * scale[expert]).double() for one, scale in quantised]
        smooth = [one[expert].double() if has_factors else 1 for one in factors]
        gate, other = ((x.double() * smooth[0]) @ up.t()).chunk(2, 1)
        expected += ((torch.nn.functional.silu(gate) * other) * smooth[1]) @ down.t()
    torch.testing.assert_close(total.double(), expected, rtol=0.05, atol=0.03 * expected.abs().max().item())
    alone = fused_moe_dp_share_expert(x, wide[0].bfloat16(), wide[1].bfloat16(), dp_size=4, dp_rank=3)
    assert alone.shape == x.shape and not alone.any()  # the others have all of the tokens
    with pytest.raises(UnsupportedError, match="fused_moe_dp_share_expert: num_local_tokens is not served"):
        fused_moe_dp_share_expert(x, w1, w2, num_local_tokens=torch.ones(1))
    with pytest.raises(ValueError, match="fused_moe_dp_share_expert: dp_rank must be"):
        fused_moe_dp_share_expert(x, w1, w2, dp_size=2, dp_rank=2)


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64), ids=str)
@pytest.mark.parametrize("activation", ("silu", "gelu", "swiglu"))
def test_rows_of_no_expert_are_zeros(simulated, activation, dtype):
    """Whatever they hold; AITER's own function of this package leaves out the bias alone."""
    x, bias = torch.randn(5, 64).bfloat16(), torch.randn(3, 64)
    ids = torch.tensor([2, -1, 0, 3, -2**31 if dtype == torch.int32 else 2**40], dtype=dtype)
    x[1] = torch.nan
    out, plain = torch.full((5, 32), torch.nan).bfloat16(), torch.empty(5, 32).bfloat16()
    getattr(adapters, f"{activation}_and_mul_bias")(out, x, ids, bias)
    getattr(aiter, f"{activation}_and_mul_bias")(plain, x, ids.clamp(-1, 3).int(), bias)
    assert not out[[1, 3, 4]].any() and torch.equal(out[[0, 2]], plain[[0, 2]])
    assert plain[1].isnan().all() and plain[3:].any()
