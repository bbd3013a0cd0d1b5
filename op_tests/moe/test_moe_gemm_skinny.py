# SPDX-License-Identifier: MIT
"""moe_gemm by its kernel for few rows of each expert (backend "hip"), against float64: pairs that are not sorted, sums
of a token's pairs, and sorted blocks; what nobody may read or write; traffic by counters."""

import pytest
import torch
from experts import UNTOUCHED, check, random_call
from test_moe_gemm import sorted_order

from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError
from aiter_like.ops.moe import moe_gemm_hip

pytestmark = pytest.mark.rotating

_FP8 = ("fp8", "blocks", "int8")


@pytest.fixture
def multiply(device, run):
    """multiply(call): with the backend forced, and compared with float64."""

    def of(call, is_checked=True):
        if device.type == "cuda" and call.a.element_size() == 1 and torch.version.cuda:
            pytest.skip("8-bit operands have no kernel for NVIDIA here")
        run("hip", OPS["moe_gemm"].run, *call)
        if is_checked:
            check(call)
        return call.out

    return of


def pairs(device, *experts, slots=2):
    return {"experts": torch.tensor(experts, dtype=torch.int32, device=device), "slots": slots}


@pytest.mark.parametrize("experts", ((0, 3, -1, 2, 4, 1), (2,) * 6, (2**31 - 1, -2**31, 1, 3, 3, 1)), ids=str)
def test_pairs(device, multiply, experts):
    """Columns and a depth of no whole unit; experts that are not here, whose rows stay; all pairs of one expert."""
    weights = torch.rand(6, device=device)
    call = random_call(device, "bf16", pairs(device, *experts), 3, 4, 74, 1163, "silu_and_mul", weights=weights)
    first = multiply(call).clone()
    call.out.fill_(UNTOUCHED)
    assert torch.equal(multiply(call), first), "equal calls give equal bits"


@pytest.mark.parametrize("experts, k", (((0, 3, -1, 2, 4, 1), 1029), ((2,) * 6, 1024), ((-1, 4, 0, 1, 5, 9), 900)),
                         ids=str)
def test_sums_of_tokens(device, multiply, experts, k):
    """Pairs whose steps follow one another, whole or not, and a token of which no expert is here: zeros."""
    weights, bias = torch.rand(6, device=device), torch.randn(4, 37, device=device)
    multiply(random_call(device, "fp16", pairs(device, *experts), 3, 4, 37, k, is_of_pairs=True, sums_slots=True,
                         weights=weights, bias=bias))


@pytest.mark.parametrize("form", _FP8)
def test_pairs_of_8_bits(device, multiply, form):
    """Sums of pairs, whose scales differ, and of columns that share the last block of scales with others."""
    multiply(random_call(device, form, pairs(device, 0, 3, -1, 2, 4, 1), 3, 4, 146, 1067, is_of_pairs=True,
                         sums_slots=True, weights=torch.rand(6, device=device)))


def sort(device, tokens, slots, experts, block, seed):
    """sorted_order, in which the first block's expert is not here, and padding has numbers that no pair has."""
    order, weights = sorted_order(device, tokens, slots, experts, block, seed)
    ids, valid = order["sorted_ids"], int(order["valid"][0])
    order["experts"][0] = -1
    order["experts"][1] = experts
    padding = (ids[:valid] == (slots << 24 | tokens)).nonzero()[:, 0]
    wrong = torch.tensor([slots << 24, tokens, -1, 2**31 - 1, -2**31, 0xFFFFFF], dtype=torch.int32, device=device)
    ids[padding] = wrong[torch.arange(len(padding), device=device) % len(wrong)]
    ids[valid:] = 0  # a pair, but beyond what counts
    return order, weights


@pytest.mark.parametrize("form, block, n, k, activation", (
    ("bf16", 16, 74, 1163, "silu_and_mul"), ("bf16", 13, 74, 2048, "silu_and_mul"),
    ("blocks", 16, 160, 1072, "silu_and_mul"), ("fp8", 16, 146, 259, "none"), ("fp16", 64, 36, 512, "gelu")), ids=str)
def test_sorted(device, multiply, form, block, n, k, activation):
    order, weights = sort(device, 37, 3, 5, block, seed=n + k)
    multiply(random_call(device, form, order, 37, 5, n, k, activation, weights=weights))


@pytest.mark.parametrize("form, block", (("bf16", 1), ("fp8", 8)))
def test_shuffled_and_interleaved(device, multiply, form, block):
    order, _ = (pairs(device, 3, -1, 1, 0, 2, 1), None) if block == 1 else sort(device, 3, 2, 4, block, seed=1)
    bias = torch.randn(4, 96, device=device)
    multiply(random_call(device, form, order, 3, 4, 96, 1056, "swiglu_and_mul", shuffled=True, is_interleaved=True,
                         bias=bias, limit=0.75))


@pytest.mark.parametrize("k", (96, 768))
def test_few_steps_for_each_wave(device, multiply, k):
    """Teams of waves, the last of which has no columns."""
    order, weights = sort(device, 37, 3, 5, 16, seed=k)
    multiply(random_call(device, "bf16", order, 37, 5, 68, k, weights=weights))


def test_strides(device, multiply):
    """Rows apart in a, b, out and scales; nothing between the rows of out is written."""
    order, weights = sort(device, 37, 3, 5, 16, seed=5)
    call = random_call(device, "fp8", order, 37, 5, 146, 259, weights=weights)

    def apart(x, *more):
        wide = torch.zeros([size + 2 * extra for size, extra in zip(x.shape, more)], device=device).to(x.dtype)
        wide[tuple(slice(extra, extra + size) for size, extra in zip(x.shape, more))] = x
        return wide[tuple(slice(extra, extra + size) for size, extra in zip(x.shape, more))]

    out = torch.full((call.out.shape[0], 160), UNTOUCHED, dtype=call.out.dtype, device=device)
    call = call._replace(
        out=out[:, 3:149], a=apart(call.a, 0, 3), b=apart(call.b, 1, 1, 5),
        a_scale=apart(call.a_scale[:, None], 0, 1)[:, 0], b_scale=apart(call.b_scale.t(), 1, 1).t())
    multiply(call)
    assert (out[:, :3] == UNTOUCHED).all() and (out[:, 149:] == UNTOUCHED).all()


def test_nan_stays_in_its_row(device, multiply):
    """Of a token, and of an expert that nobody has."""
    order, weights = sort(device, 37, 3, 5, 16, seed=3)
    call = random_call(device, "bf16", order, 37, 5, 74, 1163, "silu_and_mul", weights=weights)
    expected = multiply(call).clone()
    call.out.fill_(UNTOUCHED)
    call.a[4] = torch.nan
    multiply(call, is_checked=False)
    own = torch.zeros(37 * 3, dtype=torch.bool, device=device)
    own[4 * 3:5 * 3] = True
    assert torch.equal(call.out[~own], expected[~own])
    assert (call.out[own].isnan() | (call.out[own] == UNTOUCHED)).all()


REFUSALS = {
    "64 rows": ("bf16", {"block": 96}), "k must be from 8": ("bf16", {"k": 7}),
    "whole bands of 16": ("blocks", {"n": 72, "activation": "silu_and_mul"})}


@pytest.mark.parametrize("form, changes", REFUSALS.values(), ids=REFUSALS)
def test_refusals(device, form, changes):
    changes = {"block": 8, "n": 32, "k": 64, "activation": "none", **changes}
    order, _ = sorted_order(device, 9, 2, 4, changes["block"])
    call = random_call(device, form, order, 9, 4, changes["n"], changes["k"], changes["activation"])
    with pytest.raises(UnsupportedError):
        OPS["moe_gemm"].run(*call, backend="hip")
    assert (call.out == UNTOUCHED).all()


def test_rule_of_sorting():
    """One token needs none; of more, models with few large experts sort first."""
    prefers = moe_gemm_hip.prefers_unsorted
    mixtral, qwen3 = (2, 8, 3 * 4096 * 14336 * 2), (8, 128, 3 * 2048 * 768 * 2)
    assert prefers(1, *mixtral) and not prefers(2, *mixtral)
    assert prefers(1, *qwen3) and prefers(4, *qwen3) and not prefers(8, *qwen3)


@pytest.mark.parametrize("form, k, is_sum", (("bf16", 2048, False), ("blocks", 1152, False), ("fp16", 1024, True)))
def test_traffic(device, multiply, form, k, is_sum):
    """Each weight of the experts that have a row is read once, 16 bytes at a time; nothing spills."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    order, weights = sorted_order(device, 2, 2, 4, 16, seed=2)
    fields = {"weights": weights}
    if is_sum:
        order, fields = pairs(device, 0, 3, -1, 2), {"weights": torch.rand(4), "bias": torch.randn(4, 256),
                                                     "sums_slots": True, "is_of_pairs": True}
    call = random_call(device, form, order, 2, 4, 256, k, "none" if is_sum else "silu_and_mul", **fields)
    with sim.enabled(counters=True) as session:
        multiply(call)
    (launch,) = session.launches
    used = order["experts"][:4] if is_sum else order["experts"][:int(order["valid"][0]) // 16]
    needed = len({one for one in used.tolist() if one >= 0}) * call.b[0].nbytes
    moved = sum(64 * one["segments_64"] for one in launch["instructions"] if "load_dwordx4" in one["text"])
    # All rows of a for each 16 rows of b, or 32 where there are gates: 4 lanes' rows, the least, of a single one.
    again = needed * (4 / 16 if is_sum else 16 / 32)
    assert needed <= moved <= 1.05 * needed + again, (moved, needed, again)
    assert launch["private_bytes"] == 0
