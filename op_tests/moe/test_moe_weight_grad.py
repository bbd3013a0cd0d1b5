# SPDX-License-Identifier: MIT
"""moe_weight_grad: formula and kernel against float64, orders that no caller may give."""

import functools
import math

import benching
import pytest
import torch
from experts import UNTOUCHED

from aiter_like.dispatch import OPS
from aiter_like.ops.moe.moe_gemm_call import block_for
from aiter_like.ops.moe.moe_gemm_cases import sorted_case
from aiter_like.ops.moe.moe_weight_grad import MoeWeightGradCall
from aiter_like.testing import strided_like

BACKENDS = ("triton", "torch")


def random_call(device, tokens, slots, experts, block, n, k, dtype=torch.bfloat16, out_dtype=torch.bfloat16, seed=0,
                g_of_pairs=True, a_of_pairs=False):
    """One more expert than any pair has."""
    generator = torch.Generator().manual_seed(seed)
    numbers, _, of_blocks, valid = sorted_case(device, tokens, slots, experts, block, seed)
    g, a = (torch.randn(tokens * (slots if of_pairs else 1), size, generator=generator).to(device, dtype)
            for of_pairs, size in ((g_of_pairs, n), (a_of_pairs, k)))
    out = torch.full((experts + 1, n, k), UNTOUCHED, dtype=out_dtype, device=device)
    return MoeWeightGradCall(out, g, a, of_blocks, numbers, valid, tokens, slots, block)


def expected(call):
    """out in float64, and the sums of the magnitudes of its products."""
    out, sizes = torch.zeros_like(call.out, dtype=torch.float64), torch.zeros_like(call.out, dtype=torch.float64)
    for place in range(min(int(call.valid[0]), len(call.sorted_ids))):
        expert, number = int(call.experts[place // call.block]), int(call.sorted_ids[place])
        token, slot = number & 0xFFFFFF, number >> 24
        if not 0 <= expert < len(out) or not 0 <= slot < call.slots or token >= call.tokens:
            continue
        g, a = (one[token if len(one) == call.tokens else token * call.slots + slot].double()
                for one in (call.g, call.a))
        out[expert] += torch.outer(g, a)
        sizes[expert] += torch.outer(g.abs(), a.abs())
    return out, sizes


def check(call) -> None:
    wanted, sizes = expected(call)
    unit = torch.finfo(call.out.dtype).eps
    allowed = 0.51 * unit * wanted.abs() + 4 * 2.0**-24 * math.sqrt(call.tokens) * sizes + 1e-30
    assert ((call.out.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, out_dtype", ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32),
                                              (torch.bfloat16, torch.float32)), ids=str)
@pytest.mark.parametrize("tokens, slots, experts, block, n, k", (
    (1, 1, 1, 16, 16, 16), (21, 3, 5, 16, 40, 72), (70, 2, 3, 24, 37, 131), (130, 1, 2, 64, 144, 160),
    (40, 4, 9, 4, 66, 30)))
def test_sizes(device, backend, dtype, out_dtype, tokens, slots, experts, block, n, k):
    call = random_call(device, tokens, slots, experts, block, n, k, dtype, out_dtype)
    OPS["moe_weight_grad"].run(*call, backend=backend)
    check(call)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("g_of_pairs, a_of_pairs", ((True, True), (False, True), (False, False)))
def test_rows_of_pairs_and_of_tokens(device, backend, g_of_pairs, a_of_pairs):
    call = random_call(device, 21, 3, 5, 16, 40, 72, g_of_pairs=g_of_pairs, a_of_pairs=a_of_pairs)
    base = torch.full((6, 40, 80), UNTOUCHED, dtype=torch.bfloat16, device=device)
    call = call._replace(out=base[..., 4:76], g=strided_like(call.g, (8, 0)), a=strided_like(call.a, (16, 0)))
    OPS["moe_weight_grad"].run(*call, backend=backend)
    check(call)
    assert (base[..., :4] == UNTOUCHED).all() and (base[..., 76:] == UNTOUCHED).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_number_leads_outside(device, backend):
    """Numbers that no caller may give, experts that are not here, blocks of an expert with others between them."""
    call = random_call(device, 21, 3, 5, 16, 40, 72)
    good = call.sorted_ids.clone(), call.experts.clone()
    extremes = torch.tensor([-1, -2**31, 2**31 - 1, 3 << 24, 21, 0xFFFFFF, 1 << 30], dtype=torch.int32, device=device)
    for ids, experts in ((extremes, []), ([], [-1, 2**31 - 1]), ([], [-2**31, 6, 0, 1, 0])):
        call.sorted_ids.copy_(good[0])
        call.experts.copy_(good[1])
        call.sorted_ids[:len(ids)] = torch.as_tensor(ids, dtype=torch.int32, device=device)
        call.experts[:len(experts)] = torch.as_tensor(experts, dtype=torch.int32, device=device)
        call.out.fill_(UNTOUCHED)
        OPS["moe_weight_grad"].run(*call, backend=backend)
        check(call)
    for valid in (-5, 0, 2**31 - 1):
        call.valid[0] = valid
        OPS["moe_weight_grad"].run(*call, backend=backend)
        assert call.out.isfinite().all()
    call.valid[0] = 0
    OPS["moe_weight_grad"].run(*call, backend=backend)
    assert (call.out == 0).all()


def test_special_values_stay_in_their_experts(device):
    call = random_call(device, 21, 3, 5, 16, 40, 72)
    call.g[4, 7], call.a[2, 9] = math.inf, math.nan
    OPS["moe_weight_grad"].run(*call, backend="triton")
    wanted, _ = expected(call)
    assert torch.equal(call.out.isfinite(), wanted.isfinite())
    assert torch.equal(call.out.isnan(), wanted.isnan())


def test_many_blocks_and_equal_results(device):
    """More blocks than a program looks at at a time."""
    call = random_call(device, 1200, 1, 3, 1, 24, 20, out_dtype=torch.float32)
    OPS["moe_weight_grad"].run(*call, backend="triton")
    check(call)
    first = call.out.clone()
    OPS["moe_weight_grad"].run(*call, backend="triton")
    assert torch.equal(call.out, first)


def test_bad_input_is_named(device):
    good = random_call(device, 9, 2, 3, 16, 32, 64)
    for error, match, call in (
            (ValueError, "moe_weight_grad: g must have 18 rows, one for each pair, or 9", good._replace(g=good.g[:5])),
            (ValueError, "moe_weight_grad: block must be", good._replace(block=0))):
        with pytest.raises(error, match=match):
            OPS["moe_weight_grad"].run(*call)


def bench() -> None:
    """Beside a loop over experts in torch."""
    op = OPS["moe_weight_grad"]
    benching.of("moe_weight_grad", "experts slots n k pairs block", (
        (experts, slots, n, k, tokens * slots, block_for(tokens * slots, experts))
        for experts, slots, n, k in ((8, 2, 28672, 4096), (128, 8, 1536, 2048)) for tokens in (512, 8192)),
        beside=lambda call: {"torch": functools.partial(op, call, backend="torch")}, dtype="bf16", out_dtype="bf16")
