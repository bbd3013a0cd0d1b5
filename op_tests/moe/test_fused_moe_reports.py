# SPDX-License-Identifier: MIT
"""Layers of experts that other libraries were reported to compute wrongly, to refuse or to read outside of: each is
served by a kernel, gives what float64 gives, and the checkers find no access out of bounds."""

import pytest
import torch
from layers import FORMS, check, expected, layer
from test_fused_moe import dtype_of, served, tokens_of

import aiter_like
from aiter_like import explain

pytestmark = pytest.mark.rotating


def by_kernels(hidden, one, weights, ids):
    """fused_moe by what the dispatcher chooses, which is no reference."""
    given = (hidden, one.w1, one.w2, weights, ids)
    found = [each.backend for each in explain(aiter_like.fused_moe, *given, **one.options) if each.op == "moe_gemm"]
    assert len(found) == 2 and "torch" not in found, found
    return aiter_like.fused_moe(*given, **one.options)


@pytest.mark.parametrize("backend", ("ck", "triton"))
@pytest.mark.parametrize("tokens", (304, 336))
def test_block_scales_of_304_and_336_tokens(device, backend, tokens):
    """Numbers of rows that are no multiple of a tile's."""
    one = layer(device, "fp8 blocks", experts=8, k=256, inner=128)
    hidden, weights, ids = tokens_of(device, tokens, 8, 2, 256, 1)
    out = served(backend, hidden, one.w1, one.w2, weights, ids, **one.options)
    check(out, *expected(one, hidden, weights, ids), one.eight_bits)


@pytest.mark.parametrize("tokens", (1, 40))
@pytest.mark.parametrize("form", ("bf16", "fp8 blocks", "int4 groups", "mxfp4"))
def test_288_experts(device, form, tokens):
    """No power of two; most have no token."""
    one = layer(device, form, experts=288, k=128, inner=64)
    hidden, weights, ids = tokens_of(device, tokens, 288, 8, 128, 1)
    check(by_kernels(hidden, one, weights, ids), *expected(one, hidden, weights, ids), one.eight_bits)


def test_routing_to_288_experts(device):
    """Scores, groups and sorting: the experts of the reference, and each pair in exactly one place of its expert."""
    logits = torch.randn(9, 288, generator=torch.Generator().manual_seed(2)).to(device)
    bias = torch.rand(288, generator=torch.Generator().manual_seed(3)).to(device) / 4
    found = []
    for backend in (None, "torch"):
        weights, ids = logits.new_empty(9, 8), torch.empty(9, 8, dtype=torch.int32, device=device)
        aiter_like.biased_grouped_topk(logits, bias, weights, ids, 8, 4, True, 2.5, backend=backend)
        found.append((ids.sort(1).values, weights.sum(1)))
    assert torch.equal(found[0][0], found[1][0]) and torch.allclose(found[0][1], found[1][1])
    sorted_ids, _, experts, valid, _ = aiter_like.moe_sorting(ids, weights, 288, 16, torch.bfloat16, 16)
    numbers = sorted_ids[:int(valid[0])]
    is_pair = (numbers & 0xFFFFFF) < 9
    token, slot = (numbers & 0xFFFFFF)[is_pair].long(), (numbers >> 24)[is_pair].long()
    assert sorted((token * 8 + slot).tolist()) == list(range(72))
    assert torch.equal(experts.repeat_interleave(16)[:len(numbers)][is_pair], ids[token, slot])


PLAIN, GROUPED = ((136, 72), (360, 360), (200, 24)), ((192, 64), (320, 192), (128, 64))
"""k and inner that tiles do not divide, as 192 and 360 of Qwen3-235B and GPT-OSS on 8 GPUs; of forms with groups, and
of words that are shuffled, as many whole ones."""


@pytest.mark.parametrize("size, tokens", ((0, 1), (1, 70), (2, 5)))
@pytest.mark.parametrize("form", FORMS)
def test_sizes_that_no_tile_divides(device, form, size, tokens):
    """Elsewhere a compiled kernel "does not support this GEMM problem", or reads behind the last row; of one token and
    of odd numbers of them, too."""
    k, inner = (GROUPED if form in ("int4 groups", "int4 aiter", "int4 words", "mxfp4") else PLAIN)[size]
    one = layer(device, form, experts=4, k=k, inner=inner)
    hidden, weights, ids = tokens_of(device, tokens, 4, 2, k, 1, dtype_of(form))
    check(by_kernels(hidden, one, weights, ids), *expected(one, hidden, weights, ids), one.eight_bits)
