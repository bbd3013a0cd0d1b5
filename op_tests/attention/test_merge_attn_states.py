# SPDX-License-Identifier: MIT
"""merge_attn_states and its names against float64; cascade_attention against attention over all keys."""

import math

import pytest
import torch
from paged_attention_cases import BF16, F16, Case

import aiter_like
from aiter_like.testing import TOLERANCES, assert_within

BACKENDS = ("hip", "triton", "torch")


def states(device, dtype, tokens=9, heads=3, columns=72, seed=0):
    """(outputs of two sides, their log-sum-exps [tokens, heads]); some saw no key, and have NaN there."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, tokens, heads, columns, generator=generator).to(dtype)
    lses = torch.randn(2, tokens, heads, generator=generator) * 4
    lses[0, 1], lses[1, 2], lses[:, 3], lses[0, 4] = -math.inf, math.inf, -math.inf, 200.0
    a[1], b[2], a[3] = math.nan, math.nan, math.nan
    return a.to(device), b.to(device), *lses.to(device)


def expected(a, b, first, second):
    first, second = (lse.cpu().double().masked_fill(lse.cpu() == math.inf, -math.inf) for lse in (first, second))
    lse = torch.logaddexp(first, second)
    weights = [torch.exp(one - lse.masked_fill(lse == -math.inf, 0.0))[..., None] for one in (first, second)]
    parts = [torch.where(weight == 0, 0.0, weight * one.cpu().double()) for weight, one in zip(weights, (a, b))]
    return sum(parts), sum(part.abs() for part in parts), lse


def compare(out, out_lse, *given):
    values, sizes, lse = expected(*given)
    tolerance = TOLERANCES[out.dtype, "rtne"]
    assert_within("merge_attn_states", out, values, tolerance.unit * values.abs() + 2**-20 * sizes + tolerance.smallest)
    assert_within("lse", out_lse, lse, 2e-6 * (4 + lse.abs().nan_to_num(0, 0, 0)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sides_far_from_zero(device, run, backend):
    """Their weights sum up to 1 although fp32 has no log 2 beside such log-sum-exps."""
    a, b, _, _ = states(device, BF16)
    a, b = a.nan_to_num(), b.nan_to_num()
    far = torch.tensor([1e9, -1e9, 1e5, -3e6, 2e9, 300.0, -1e9, 1e9, 0.0], device=device)[:, None].repeat(1, 3)
    near = far.where(far.abs() < 1e9, far * torch.tensor([1.0, 1.0, 1.5], device=device))
    out, lse = run(backend, aiter_like.merge_state_v2, a, far, b, near)
    compare(out, lse, a, b, far, near)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, columns", ((BF16, 128), (F16, 37), (torch.float32, 72)), ids=str)
def test_layouts(device, run, backend, dtype, columns):
    """vLLM's log-sum-exps have heads first, SGLang's tokens; rows apart in all tensors; odd rows."""
    a, b, first, second = states(device, dtype, columns=columns)
    out, lse = torch.empty_like(a), torch.empty(3, 9, device=device)
    run(backend, aiter_like.merge_attn_states, out, a, first.t().contiguous(), b, second.t(), lse)
    compare(out, lse.t(), a, b, first, second)
    assert (out[3] == 0).all() and (lse[:, 3] == -math.inf).all()
    wide = torch.full((9, 5, columns + 8), 3.0, dtype=dtype, device=device)
    wide[:, 1:4, :columns] = a
    target = torch.full_like(wide, 3.0)
    merged, merged_lse = run(backend, aiter_like.merge_state_v2, wide[:, 1:4, :columns], first, b, second,
                             target[:, 1:4, :columns])
    assert torch.equal(merged, out) and torch.equal(merged_lse, lse.t())
    assert (target[:, 0] == 3).all() and (target[..., columns:] == 3).all()
    again, _ = run(backend, aiter_like.merge_state, a, first, b, second)
    assert torch.equal(again, out)


def test_bad_input(device):
    a, b, first, second = states(device, BF16)
    for message, kind, changed in (
            ("prefix_lse must have shape", ValueError, {2: first[0]}),
            ("prefix_lse must have shape", ValueError, {2: first})):
        given = [torch.empty_like(a), a, first.t(), b, second.t()]
        for index, value in changed.items():
            given[index] = value
        with pytest.raises(kind, match=f"merge_attn_states: .*{message}"):
            aiter_like.merge_attn_states(*given)
    assert aiter_like.merge_state_v2(a[:0], first[:0], b[:0], second[:0])[0].shape == (0, 3, 72)


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_cascade(device, backend):
    """A prefix of whole pages is read once; a sequence has nothing behind it but its own queries."""
    if backend == "hip" and device.type != "cpu":
        pytest.skip("an MFMA kernel")
    case = Case(device, ((2, 90), (2, 75), (2, 50)), (4, 2), page_size=16)
    for index in (1, 2):
        case.table[index, :3] = case.table[0, :3]
    k, v = case.caches()
    given = (case.q.to(device), k, v, case.table.to(device), case.used, 90)
    out = aiter_like.cascade_attention(*given, 48, max_seqlen_q=2, backend=backend)
    values, weighted, _ = case.expect()
    assert_within("cascade_attention", out, values, 2**-7 * weighted + 2**-7 * values.abs())  # rounded before the merge
    whole = aiter_like.cascade_attention(*given, 0, max_seqlen_q=2, backend=backend)
    case.compare(whole)
    aiter_like.cascade_attention(*given[:4], torch.where(case.used == 75, 0, case.used), 90, 0, max_seqlen_q=2,
                                 out=whole.fill_(7.0), backend=backend)
    assert (whole[2:4] == 0).all() and not (whole == 7).all(2).any()  # every row is of a sequence, and is written
    with pytest.raises(ValueError, match="cascade_attention: prefix_len must be a multiple of the page size 16"):
        aiter_like.cascade_attention(*given, 40, max_seqlen_q=2)


def test_cascade_tells_sequences_that_do_not_have_the_prefix(device):
    """On the CPU; nothing is written then. Those on a GPU would have to be waited for."""
    if device.type != "cpu":
        pytest.skip("contents on a GPU are not looked at")
    case = Case(device, ((2, 90), (2, 75), (2, 50)), (4, 2), page_size=16)
    case.table[1:, :3] = case.table[0, :3]
    k, v = case.caches()
    out = torch.full((*case.q.shape[:2], v.shape[3]), 7.0, dtype=case.q.dtype)

    def refused(match, table=case.table, lengths=case.used, kind=ValueError, longest=90, **options):
        with pytest.raises(kind, match=f"cascade_attention: {match}"):
            aiter_like.cascade_attention(case.q, k, v, table, lengths, longest, 48, out=out,
                                         **{"max_seqlen_q": 2, "backend": "torch", **options})
        assert (out == 7).all()

    for length in (49, 48, 47, 20, 0):  # the last has no room for its queries behind the prefix, or not all of it
        refused(f"seq_lens must be at least 50, .* got {length}", lengths=torch.tensor([90, 75, length]).int())
    for row, column in ((0, 0), (1, 2), (2, 1)):
        other = case.table.clone()
        other[row, column] = case.table[0, 3]
        refused(f"block_table must begin with the same 3 pages .* in row {max(row, 1)}", other)
    for page in (-1, len(k)):
        refused("block_table must name pages", torch.where(case.table == case.table[0, 1], page, case.table))
    refused("the keys of a sequence must be between 0 and 80", longest=80)
    refused("seq_lens must be a tensor", lengths=[90, 75, 50], kind=TypeError)
    refused("seq_lens must have dtype torch.int32", lengths=case.used.long(), kind=TypeError)
    refused("seq_lens must have shape", lengths=case.used[:2])
    refused("max_seqlen_q must be", max_seqlen_q="2", kind=TypeError)


@pytest.mark.parametrize("backend", ("hip", "triton", "torch"))
def test_cascade_of_lengths_that_nobody_sees(device, unseen, backend):
    """One below the prefix, at the end of int32 too, has no keys behind it; one beyond the pages has these."""
    if backend == "hip" and device.type != "cpu":
        pytest.skip("an MFMA kernel")
    case = Case(device, ((1, 90), (1, 75), (1, 64)), (4, 2), page_size=16)
    case.table[1:, :3] = case.table[0, :3]

    def call(*lengths):
        lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        return aiter_like.cascade_attention(case.q.to(device), *case.caches(), case.table.to(device), lengths, 90, 48,
                                            backend=backend)

    wanted = call(90, 75, 48)
    for length in (-2**31, -2**31 + 47, -1, 0, 47):
        assert torch.equal(call(90, 75, length), wanted)
    assert torch.equal(call(2**31 - 1, 75, 48)[1:], wanted[1:])
