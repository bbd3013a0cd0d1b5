# SPDX-License-Identifier: MIT
"""Routing: experts and weights of every rule against float64, ties, special values, bad input."""

import math

import benching
import pytest
import torch

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

BACKENDS = ("hip", "triton")
F32, I32 = torch.float32, torch.int32
DTYPES = (torch.bfloat16, torch.float16, F32)


def outputs(device, tokens, k):
    """Poisoned, in rows that are further apart than they are long."""
    weights = torch.full((tokens, k + 5), torch.nan, device=device)[:, :k]
    return weights, torch.full((tokens, k + 5), -7, dtype=I32, device=device)[:, :k]


def score(x, kind):
    """Of a row of logits in float64."""
    if kind == "softmax":
        powers = [math.exp(one - max(x)) for one in x]
        return [one / sum(powers) for one in powers]
    if kind == "sigmoid":
        return [1 / (1 + math.exp(-one)) for one in x]
    return [math.sqrt(math.log1p(math.exp(-abs(one))) + max(one, 0)) for one in x]


def routed(x, k, kind, bias=None, groups=1, best=1, sum_of_two=False, renormalise=True, scale=1.0):
    """(experts, weights) of a row, the best first and of equal ones the lowest."""
    scores = score(x, kind)
    choice = x if bias is None else [one + more for one, more in zip(scores, bias)]
    size = len(x) // groups
    worth = [sum(sorted(choice[g * size:(g + 1) * size])[-2 if sum_of_two else -1:]) for g in range(groups)]
    kept = sorted(range(groups), key=lambda g: (-worth[g], g))[:best]
    experts = sorted((e for e in range(len(x)) if e // size in kept), key=lambda e: (-choice[e], e))[:k]
    weights = [scores[e] for e in experts]
    total = sum(weights) if renormalise else 1
    return experts, [one / total * scale for one in weights]


def compare(weights, ids, gating, k, kind, **rule):
    for row, weight, index in zip(gating.double().tolist(), weights.tolist(), ids.tolist()):
        experts, wanted = routed(row, k, kind, **rule)
        assert index[:k] == experts
        assert weight[:k] == pytest.approx(wanted, rel=3e-6, abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens, experts, k, renormalise", ((1, 8, 2, True), (5, 60, 4, False), (7, 64, 6, True),
                                                             (3, 257, 16, True), (2, 1024, 8, False), (2, 5, 5, True)))
def test_softmax(device, run, backend, dtype, tokens, experts, k, renormalise):
    gating = strided_like(torch.randn(tokens, experts, device=device).to(dtype), (10, 0))
    weights, ids = outputs(device, tokens, k)
    run(backend, aiter_like.topk_softmax, weights, ids, None, gating, renormalise)
    compare(weights, ids, gating, k, "softmax", renormalise=renormalise)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_experts(device, run, backend):
    gating = torch.randn(4, 66, device=device)
    weights, ids = outputs(device, 4, 8)
    run(backend, aiter_like.topk_softmax, weights, ids, None, gating, True, 2, "sigmoid")
    compare(weights, ids, gating[:, :64], 6, "softmax")
    assert ids[:, 6:].tolist() == [[64, 65]] * 4
    again = outputs(device, 4, 8)[1]
    run(backend, aiter_like.topk_softmax, weights, again[:, :6], None, gating, True, 2)
    assert torch.equal(again[:, :6], ids[:, :6]) and (again[:, 6:] == -7).all()
    torch.testing.assert_close(weights[:, 6:], gating[:, 64:].sigmoid())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ("softmax", "sigmoid", "sqrtsoftplus"))
@pytest.mark.parametrize("bias_dtype", (None, *DTYPES), ids=str)
def test_scores_and_bias(device, run, backend, kind, bias_dtype):
    gating = torch.randn(6, 130, device=device) * 4
    bias = None if bias_dtype is None else torch.randn(130, device=device).to(bias_dtype)
    weights, ids = outputs(device, 6, 7)
    run(backend, aiter_like.topk_gating, weights, ids, gating, bias, True, 2.5, kind)
    compare(weights, ids, gating, 7, kind, bias=None if bias is None else bias.double().tolist(), scale=2.5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sigmoid(device, run, backend):
    gating = torch.randn(3, 16, device=device).bfloat16()
    weights, ids = outputs(device, 3, 1)
    run(backend, aiter_like.topk_sigmoid, weights, ids, gating)
    compare(weights, ids, gating, 1, "sigmoid", renormalise=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("experts, groups, best, k", ((256, 8, 4, 8), (96, 32, 5, 6), (60, 3, 2, 4), (12, 12, 7, 7)))
def test_groups(device, run, backend, experts, groups, best, k):
    gating, bias = torch.randn(5, experts, device=device), torch.randn(experts, device=device)
    weights, ids = outputs(device, 5, k)
    run(backend, aiter_like.biased_grouped_topk, gating, bias, weights, ids, groups, best, True, 2.5)
    rule = {"groups": groups, "best": best}
    compare(weights, ids, gating, k, "sigmoid", bias=bias.tolist(), sum_of_two=True, scale=2.5, **rule)
    for is_softmax in (True, False):
        run(backend, aiter_like.grouped_topk, gating, weights, ids, groups, best, False, is_softmax, 0.5)
        compare(weights, ids, gating, k, "softmax" if is_softmax else "sigmoid", renormalise=False, scale=0.5, **rule)


@pytest.mark.parametrize("backend", BACKENDS)
def test_moe_fused_gate(device, run, backend):
    gating, bias = torch.randn(5, 128, device=device), torch.randn(128, device=device)
    weights, ids = outputs(device, 5, 9)
    assert run(backend, aiter_like.moe_fused_gate, gating, bias, weights, ids, 8, 4, 9, 1, 2.5)[0] is weights
    compare(weights, ids, gating, 8, "sigmoid", bias=bias.tolist(), groups=8, best=4, sum_of_two=True)
    assert ids[:, 8].tolist() == [128] * 5 and weights[:, 8].tolist() == pytest.approx([0.4] * 5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fused_topk(device, run, backend):
    gating = torch.randn(9, 64, device=device).bfloat16()
    weights, ids = run(backend, aiter_like.fused_topk, torch.empty(9, 3, device=device), gating, 4, True)
    assert (weights.dtype, ids.dtype) == (F32, I32)
    compare(weights, ids, gating, 4, "softmax")


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_go_to_the_lowest_expert(device, run, backend):
    gating = torch.zeros(3, 200, device=device)
    gating[1, 150:] = 1
    gating[2, ::2] = -0.0
    weights, ids = outputs(device, 3, 4)
    run(backend, aiter_like.topk_softmax, weights, ids, None, gating, True)
    assert ids.tolist() == [[0, 1, 2, 3], [150, 151, 152, 153], [0, 1, 2, 3]]
    run(backend, aiter_like.grouped_topk, gating[:, :192], weights, ids, 3, 1, True)
    assert ids.tolist() == [[0, 1, 2, 3], [150, 151, 152, 153], [0, 1, 2, 3]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    """A NaN comes last and weighs nothing, an infinity takes all, several share."""
    nan, inf = math.nan, math.inf
    gating = torch.tensor([[nan, 1.0, nan, 0.0], [inf, 0.0, inf, 1.0], [nan, nan, nan, nan], [-inf, -inf, -inf, -inf],
                           [-inf, 5.0, nan, -inf]], device=device)
    weights, ids = outputs(device, 5, 3)
    run(backend, aiter_like.topk_softmax, weights, ids, None, gating, False)
    assert ids.tolist() == [[1, 3, 0], [0, 2, 3], [0, 1, 2], [0, 1, 2], [1, 0, 3]]
    e = 1 / (1 + math.exp(-1))
    wanted = [[e, 1 - e, 0], [0.5, 0.5, 0], [0, 0, 0], [0.25, 0.25, 0.25], [1, 0, 0]]
    torch.testing.assert_close(weights.cpu(), torch.tensor(wanted))
    run(backend, aiter_like.topk_gating, weights, ids, gating, None, True)
    assert ids[2].tolist() == [0, 1, 2] and weights[2].tolist() == [0, 0, 0] and not weights.isnan().any()
    bias = torch.tensor([9.0, 0.0, 0.0, nan], device=device)
    run(backend, aiter_like.biased_grouped_topk, gating, bias, weights, ids, 2, 2, True)
    assert ids[1].tolist() == [0, 2, 1] and not weights.isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ("softmax", "sigmoid"))
def test_shared_experts_of_topk_gating(device, run, backend, kind):
    """Weights of more columns than are written, as vLLM has them where experts are divided, and indices of k."""
    tokens, k, shared = 5, 3, 2
    gating = torch.randn(tokens, 16 + shared, device=device)
    full, ids = torch.full((tokens, 8), 3.0, device=device), torch.full((tokens, 6), 9, dtype=I32, device=device)
    run(backend, aiter_like.topk_gating, full[:, :k + shared + 1], ids[:, :k], gating, None, True, 2.0, kind, shared)
    for row, chosen, x in zip(full.tolist(), ids.tolist(), gating.tolist()):
        experts, expected = routed(x[:16], k, kind, scale=2.0)
        assert chosen == [*experts, 9, 9, 9] and row[k + shared:] == [3.0] * 3
        assert row[:k + shared] == pytest.approx([*expected, *score(x[16:], "sigmoid")], rel=1e-5)
    if kind == "softmax":
        other = torch.zeros_like(full)
        run(backend, aiter_like.topk_softmax, other[:, :k + shared + 1], ids[:, :k], None, gating, True, shared)
        assert torch.allclose(other[:, k:k + shared], full[:, k:k + shared]) and not other[:, k + shared:].any()
    with pytest.raises(ValueError, match="topk_gating: topk_indices must have shape"):
        aiter_like.topk_gating(full[:, :k], ids[:, :k + 1], gating, num_shared_experts=shared)
    with pytest.raises(ValueError, match="topk_gating: num_shared_experts must be"):
        aiter_like.topk_gating(full[:, :k], ids[:, :k], gating, num_shared_experts=-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_bit_for_bit_and_touches_nothing_else(device, run, backend):
    gating = torch.randn(33, 96, device=device)
    full = torch.full((33, 12), 3.0, device=device)
    ids = torch.full((33, 12), 9, dtype=I32, device=device)
    seen = []
    for _ in range(2):
        run(backend, aiter_like.topk_softmax, full[:, :8], ids[:, :8], None, gating, True)
        seen.append(full.clone())
    assert torch.equal(*seen) and (full[:, 8:] == 3).all() and (ids[:, 8:] == 9).all()


def test_what_torch_serves(device):
    """More experts or places than the kernels hold."""
    gating = torch.randn(2, 1100, device=device)
    weights, ids = outputs(device, 2, 4)
    aiter_like.topk_softmax(weights, ids, None, gating, True)
    compare(weights, ids, gating, 4, "softmax")
    for backend in BACKENDS:
        with pytest.raises(UnsupportedError, match="at most 1024 experts, got 1100"):
            aiter_like.topk_softmax(weights, ids, None, gating, True, backend=backend)


def test_bad_input_is_named(device):
    gating, bias = torch.randn(4, 16, device=device), torch.randn(16, device=device)
    weights, ids = outputs(device, 4, 4)
    with pytest.raises(TypeError, match="topk_indices must have dtype torch.int32, got torch.int64"):
        aiter_like.topk_softmax(weights, ids.long(), None, gating, True)
    with pytest.raises(ValueError, match="shared_expert_scoring_func must be"):
        aiter_like.topk_softmax(weights, ids, None, gating, True, 0, "softmax")
    with pytest.raises(ValueError, match="num_expert_group must divide the 16 experts, got 3"):
        aiter_like.grouped_topk(gating, weights, ids, 3, 1, True)
    with pytest.raises(ValueError, match="their experts are at least 4, got 1 groups of 2"):
        aiter_like.grouped_topk(gating, weights, ids, 8, 1, True)
    with pytest.raises(ValueError, match="correction_bias must have shape"):
        aiter_like.biased_grouped_topk(gating, bias[:8], weights, ids, 4, 2, True)
    with pytest.raises(ValueError, match="score_func must be"):
        aiter_like.topk_gating(weights, ids, gating, score_func="tanh")
    assert weights.isnan().all() and (ids == -7).all(), "nothing was written"
    aiter_like.topk_softmax(weights[:0], ids[:0], None, gating[:0], True)


def bench() -> None:
    """The rules of Mixtral's kind and of DeepSeek's, beside probabilities and torch.topk."""
    def peers(call):
        return {"softmax, topk": lambda: call.gating.softmax(1).topk(call.ids.shape[1])}

    benching.of("topk_gating", "tokens experts k groups", (
        (tokens, *rule) for rule in ((128, 8, 1), (256, 8, 8)) for tokens in (1, 64, 4096)), beside=peers, dtype="fp32")
