# SPDX-License-Identifier: MIT
"""SGLang's AITER path of experts without SGLang: its calls, as recorded from version 0.5.23, by AITER's names.

Keywords, dtypes and layouts are SGLang's: of AiterRunnerCore.run, which passes every keyword in each form of weights,
of the routing before it, and of the sum in its Triton experts. Each call runs on the simulated MI300X and is compared
with float64.
"""

from typing import Any

import pytest
import torch
from seeded import random
from torch import Tensor

import aiter_like as aiter
from aiter_like.enums import ActivationType, QuantType
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.testing import relative_l2

pytestmark = pytest.mark.usefixtures("simulated")

BF16, FP8, I32 = torch.bfloat16, torch.float8_e4m3fnuz, torch.int32
TOKENS, EXPERTS, SLOTS, HIDDEN, INNER = 11, 8, 2, 256, 128
fused_moe = next(row.value for row in aiter_names.table() if row.name == "fused_moe")
fused_topk = next(row.value for row in aiter_names.table() if row.name == "fused_topk")


def run(x: Tensor, weights: Tensor, ids: Tensor, w13: Tensor, w2: Tensor, quant_type: QuantType = QuantType.No,
        scales: tuple[Tensor | None, Tensor | None] = (None, None), biases: tuple[Tensor | None, Tensor | None] = (
            None, None), expert_mask: Tensor | None = None, activation: ActivationType = ActivationType.Silu,
        first: bool = False, **extra: Any) -> Tensor:
    """AiterRunnerCore.run: all by keyword, what a form does not have as None or 0. The gate mode is the default of
    SGLANG_USE_AITER_MOE_GU_ITLV, whatever the order of the rows, as AITER looks at it for weights of 4 bits alone."""
    return fused_moe(
        hidden_states=x, w1=w13, w2=w2, topk_weight=weights.to(torch.float32), topk_ids=ids.to(I32),
        quant_type=quant_type, activation=activation, w1_scale=scales[0], w2_scale=scales[1], a1_scale=None,
        a2_scale=None, bias1=biases[0], bias2=biases[1], expert_mask=expert_mask, doweight_stage1=first, hidden_pad=0,
        intermediate_pad=0, **{"gate_mode": "interleave"} | extra)


def shuffled(weight: Tensor) -> Tensor:
    """process_weights_after_loading: shuffled data in the parameter, which gets the mark."""
    parameter = torch.nn.Parameter(weight.clone(), requires_grad=False)
    parameter.data = aiter.shuffle_weight(weight.contiguous(), (16, 16))
    parameter.is_shuffled = True
    return parameter


def routed(count: int = EXPERTS, slots: int = SLOTS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.rand(TOKENS, count, generator=generator).topk(slots, 1).indices
    return random(TOKENS, HIDDEN).to(BF16), torch.rand(TOKENS, slots, generator=generator), ids.int()


def layer64(x: Tensor, weights: Tensor, ids: Tensor, w13: Tensor, w2: Tensor, gate: Any = None,
            first: bool = False) -> Tensor:
    """Experts whose id is none of w13's have no part."""
    out = torch.zeros(len(x), w2.shape[1], dtype=torch.float64)
    for token, slot in ((token, slot) for token in range(len(x)) for slot in range(ids.shape[1])):
        expert, weight = int(ids[token, slot]), weights[token, slot].double()
        if 0 <= expert < len(w13):
            both = w13[expert].double() @ x[token].double() * (weight if first else 1.0)
            inner = torch.nn.functional.silu(both[:INNER]) * both[INNER:] if gate is None else gate(expert, both)
            out[token] += w2[expert].double() @ inner * (1.0 if first else weight)
    return out


def matrices() -> tuple[Tensor, Tensor]:
    return (random(EXPERTS, 2 * INNER, HIDDEN, scale=HIDDEN**-0.5).to(BF16),
            random(EXPERTS, HIDDEN, INNER, scale=INNER**-0.5).to(BF16))


def test_sixteen_bits():
    """UnquantizedFusedMoEMethod: shuffled parameters with the mark, no scales."""
    w13, w2 = matrices()
    out = run(*routed(), shuffled(w13), shuffled(w2))
    assert out.dtype == BF16 and relative_l2(out, layer64(*routed(), w13, w2)) < 2**-7


@pytest.mark.parametrize("kind", ("mask", "sink"))
def test_experts_of_a_rank(kind):
    """Expert parallelism: a mask of all experts; or, after DeepEP, ids of this rank's experts, where the last of the
    mask is the sink of slots that are elsewhere."""
    w13, w2 = matrices()
    local = slice(2, 5)
    w13, w2 = w13[local].contiguous(), w2[local].contiguous()
    x, weights, ids = routed()
    here = torch.where((ids >= 2) & (ids < 5), ids - 2, -1)
    if kind == "mask":
        mask = torch.zeros(EXPERTS, dtype=I32)
        mask[local] = 1
    else:
        mask = torch.tensor([1, 1, 1, 0], dtype=I32)
        ids = torch.where(here == -1, torch.full_like(here, 3), here)
    out = run(x, weights, ids, shuffled(w13), shuffled(w2), expert_mask=mask)
    wanted = layer64(x, weights, here, w13, w2)
    assert relative_l2(out, wanted) < 2**-7 and (out[wanted.abs().sum(1) == 0] == 0).all()


@pytest.mark.parametrize("quant_type", (QuantType.per_Token, QuantType.per_128x128), ids=str)
def test_fp8(quant_type):
    """Fp8MoEMethod and compressed-tensors: a scale per row, [experts, rows, 1], or per block."""
    wide, stored, scales = [], [], []
    for w in matrices():
        if quant_type == QuantType.per_Token:
            scale = w.float().abs().amax(2, keepdim=True) / 240
            spread = scale
        else:
            scale = w.float().unflatten(2, (-1, 128)).unflatten(1, (-1, 128)).abs().amax((2, 4)) / 240
            spread = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        narrow = (w.float() / spread).to(FP8)
        wide.append(narrow.double() * spread.double())
        stored.append(shuffled(narrow))
        scales.append(scale)
    out = run(*routed(), *stored, quant_type, tuple(scales))
    assert relative_l2(out, layer64(*routed(), *wide)) < 0.06  # rows are rounded to 3 bits twice


def test_one_expert_weighted_before_the_activation():
    """Llama 4: apply_router_weight_on_input, as doweight_stage1."""
    w13, w2 = matrices()
    x, weights, ids = routed(slots=1)
    out = run(x, weights, ids, shuffled(w13), shuffled(w2), first=True)
    assert relative_l2(out, layer64(x, weights, ids, w13, w2, first=True)) < 2**-7


def test_biases_and_the_limit_of_gates():
    """Of swiglu, in fp32."""
    w13, w2 = matrices()
    bias13, bias2 = random(EXPERTS, 2 * INNER), torch.zeros(EXPERTS, HIDDEN)

    def gate(expert: int, both: Tensor) -> Tensor:
        both = both + bias13[expert].double()
        glu, up = both[:INNER].clamp(max=6), both[INNER:].clamp(-6, 6)
        return glu * (1.702 * glu).sigmoid() * (up + 1)

    out = run(*routed(), w13, w2, biases=(bias13, bias2), activation=ActivationType.Swiglu, swiglu_limit=6.0)
    assert relative_l2(out, layer64(*routed(), w13, w2, gate)) < 2**-7


def test_tokens_of_other_ranks_behind_those_that_came():
    """MORI: a buffer for the most tokens, how many of them count on the device, and the dtype of the result."""
    w13, w2 = matrices()
    x, weights, ids = routed()
    x[7:] = torch.nan
    out = run(x, weights, ids, shuffled(w13), shuffled(w2), num_local_tokens=torch.tensor([7], dtype=I32), dtype=BF16)
    assert relative_l2(out[:7], layer64(x[:7], weights[:7], ids[:7], w13, w2)) < 2**-7


# ---- routing, and the sum of SGLang's own experts


def test_fused_topk():
    logits = random(TOKENS, EXPERTS).to(BF16)
    weights, ids = fused_topk(hidden_states=random(TOKENS, HIDDEN).to(BF16), gating_output=logits, topk=3,
                              renormalize=True)
    best = logits.double().softmax(1).topk(3, 1)
    torch.testing.assert_close(weights.double(), best.values / best.values.sum(1, keepdim=True), rtol=1e-5, atol=1e-6)
    assert torch.equal(logits.gather(1, ids.long()), logits.gather(1, best.indices)) and ids.dtype == I32


@pytest.mark.parametrize("bias_dtype", (torch.float32, BF16), ids=str)
def test_biased_grouped_topk(bias_dtype):
    """biased_grouped_topk_gpu: logits in fp32, all positional, outputs made by SGLang."""
    logits, bias = random(TOKENS, 32), random(32, seed=1).to(bias_dtype)
    weights, ids = torch.empty(TOKENS, 4), torch.empty(TOKENS, 4, dtype=I32)
    aiter.biased_grouped_topk(logits.to(dtype=torch.float32), bias, weights, ids, 8, 4, True, 2.5)
    scores = logits.double().sigmoid()
    biased = scores + bias.double()
    groups = biased.unflatten(1, (8, 4)).topk(2, 2).values.sum(2).topk(4, 1).indices
    is_in = torch.zeros(TOKENS, 8, dtype=torch.bool).scatter(1, groups, True).repeat_interleave(4, 1)
    best = biased.masked_fill(~is_in, -torch.inf).topk(4, 1).indices
    assert torch.equal(ids.long().sort(1).values, best.sort(1).values)
    chosen = scores.gather(1, ids.long())
    torch.testing.assert_close(weights.double(), chosen / chosen.sum(1, keepdim=True) * 2.5, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("slots", (2, 8))
def test_moe_sum(slots):
    """fused_experts_impl: rows of all slots into a part of the result."""
    cache, out = random(TOKENS * slots, HIDDEN).to(BF16), torch.full((TOKENS + 3, HIDDEN), 9.0, dtype=BF16)
    aiter.moe_sum(cache.view(TOKENS, slots, HIDDEN), out[1:TOKENS + 1])
    assert relative_l2(out[1:TOKENS + 1], cache.view(TOKENS, slots, HIDDEN).double().sum(1)) < 2**-8
    assert (out[[0, TOKENS + 1, TOKENS + 2]] == 9).all()
