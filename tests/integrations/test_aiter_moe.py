# SPDX-License-Identifier: MIT
"""AITER's product of a router with the choice of one expert, its experts of every token, and activations with the bias
of each row's expert, against torch."""

from __future__ import annotations

import pytest
import torch

import aiter_like as aiter
from aiter_like import sim
from aiter_like.enums import QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.moe.fused_moe import fused_moe_dp_share_expert, routing_sigmoid_top1
from aiter_like.integrations.aiter.others import adapters


def router(tokens=11, hidden=128, experts=48):
    """Small integers: products are exact, and several experts have a score of 1."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-2, 3, shape, generator=generator).bfloat16() for shape in ((tokens, hidden),
                                                                                      (hidden, experts)))
    return x, w, torch.sigmoid(x.float() @ w.float())


@pytest.mark.parametrize("backend", ("torch", "hip", "triton"))
@pytest.mark.parametrize("is_shared", (False, True))
def test_routing(backend, is_shared):
    x, w, scores = router()
    assert ((scores == 1).sum(1) > 1).any()
    if backend == "hip":  # whose product wants the weights of an expert side by side
        w = w.t().contiguous().t()
    with sim.enabled(), aiter.use_backend(backend):
        for explanation in aiter.explain(routing_sigmoid_top1, x, w, 1, is_shared):
            assert explanation.backend == backend, str(explanation)
        ids, weights = routing_sigmoid_top1(x[None], w, 1, is_shared)
    assert ids.dtype == torch.int32 and weights.dtype == torch.float32 and ids.shape == (11, 1 + is_shared)
    assert torch.equal(ids[:, 0].long(), scores.argmax(1))
    torch.testing.assert_close(weights[:, 0], scores.amax(1), rtol=1e-5, atol=1e-6)
    assert not is_shared or (ids[:, 1] == 48).all() and (weights[:, 1] == 1).all()


def test_edges():
    x, w, _ = router()
    ids, weights = routing_sigmoid_top1(x[:0], w, 1)
    assert ids.shape == weights.shape == (0, 1)
    for message, kind, arguments in (
            ("topk must be 1", ValueError, (x, w, 2)), ("w must have shape", ValueError, (x, w.t(), 1)),
            ("w must have dtype", TypeError, (x, w.float(), 1)), ("x must have dtype", TypeError, (x.float(), w, 1))):
        with pytest.raises(kind, match=f"^routing_sigmoid_top1: {message}"):
            routing_sigmoid_top1(*arguments)


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
