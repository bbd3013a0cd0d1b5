# SPDX-License-Identifier: MIT
"""Sums of experts' results: every backend against float64, slots that do not count, rows by numbers."""

import functools
import math

import benching
import pytest
import torch

import aiter_like
from aiter_like import sim
from aiter_like.ops.moe.moe_sum import moe_sum_op
from aiter_like.testing import strided_like

BACKENDS = ("hip", "triton")
BF16, F16, F32, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int32


def exact(x, weights=None, counts=None):
    """In float64: (sums, sums of magnitudes)."""
    x = x.double() if counts is None else torch.where(counts[..., None], x.double(), 0)
    if weights is not None:
        x = x * torch.where(weights.isfinite(), weights, 0).double()[..., None]
    return x.sum(1), x.abs().sum(1)


def compare(output, x, weights=None, counts=None):
    """Rounded once, after sums in fp32: half a unit of the dtype, and one of fp32 for each slot."""
    total, size = exact(x, weights, counts)
    facts = torch.finfo(output.dtype)
    bound = total.abs() * facts.eps / 2 * 1.001 + size * 2.0**-23 * (x.shape[1] + 1) + facts.tiny * facts.eps
    assert ((output.double() - total).abs() <= bound).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtypes", ((BF16, BF16), (F16, F16), (F32, F32), (BF16, F32), (F32, F16)), ids=str)
@pytest.mark.parametrize("shape", ((1, 1, 1), (3, 2, 77), (5, 8, 1032), (2, 9, 512), (7, 5, 2056)), ids=str)
def test_sum(device, run, backend, dtypes, shape):
    x = torch.randn(shape, device=device).to(dtypes[0])
    output = torch.full((shape[0], shape[2]), math.nan, dtype=dtypes[1], device=device)
    assert run(backend, aiter_like.moe_sum, x, output) is None
    compare(output, x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("columns", (264, 263))
def test_strides_and_nothing_beyond_the_rows(device, run, backend, columns):
    """Tokens and slots further apart than they are long, and output rows too."""
    x = strided_like(torch.randn(4, 6, columns, device=device).to(BF16), (16, 8, 0))
    full = torch.full((4, 280), 7.0, dtype=BF16, device=device)
    run(backend, aiter_like.moe_sum, x, full[:, :columns])
    compare(full[:, :columns], x)
    assert (full[:, columns:] == 7).all()
    run(backend, aiter_like.moe_sum, x[:, 1:4], full[:, :columns])  # some of the slots
    compare(full[:, :columns], x[:, 1:4])
    run(backend, aiter_like.moe_sum, x.transpose(0, 1), torch.empty(6, columns, dtype=BF16, device=device))


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_are_added_in_their_order(device, run, backend):
    """In fp32, where another order would lose other digits."""
    x = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24), 1.0, 2.0**-24, 3.0, 1.0, -3.0], device=device)
    x = x[None, :, None].expand(2, 9, 64).contiguous()
    wanted = torch.zeros(2, 64, device=device)
    for slot in range(9):
        wanted += x[:, slot]
    output = torch.empty_like(wanted)
    run(backend, aiter_like.moe_sum, x, output)
    assert torch.equal(output, wanted) and wanted[0, 0] == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tokens, slots, experts", ((6, 8, 5), (4, 70, 9), (3, 1, 2)))
def test_slots_that_do_not_count_are_not_read(device, run, backend, tokens, slots, experts):
    """Of masked experts, of numbers that are none, of tokens that are not here: their rows and weights are NaN."""
    generator = torch.Generator().manual_seed(slots)
    ids = torch.randint(-2, experts + 2, (tokens, slots), generator=generator, dtype=I32)
    ids[0, 0], ids[-1, -1] = 2**31 - 1, -2**31
    mask = torch.ones(experts, dtype=I32)
    mask[1] = 0
    for local in (None, tokens - 1, 0, -3, tokens + 5):
        counts = (ids >= 0) & (ids < experts) & (ids != 1)
        counts &= (torch.arange(tokens) < (tokens if local is None else local))[:, None]
        x = torch.randn(tokens, slots, 136, generator=generator).masked_fill(~counts[..., None], math.nan).to(BF16)
        weights = torch.rand(tokens, slots, generator=generator).masked_fill(~counts, math.nan)
        x, given = x.to(device), strided_like(weights.to(device), (3, 0))
        limit = None if local is None else torch.tensor([local], dtype=I32, device=device)
        output = torch.full((tokens, 136), 5.0, dtype=BF16, device=device)
        numbers = strided_like(ids.to(device), (2, 0))
        run(backend, moe_sum_op.run, output, x, given, numbers, mask.to(device), limit, experts)
        compare(output, x, given, counts.to(device))
        assert output.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_experts_elsewhere(device, run, backend):
    x = torch.full((3, 4, 64), math.nan, dtype=F16, device=device)
    output = torch.ones(3, 64, dtype=F16, device=device)
    ids, mask = torch.zeros(3, 4, dtype=I32, device=device), torch.zeros(2, dtype=I32, device=device)
    run(backend, moe_sum_op.run, output, x, None, ids, mask, None, 2)
    assert not output.any()
    run(backend, moe_sum_op.run, output.fill_(1), x, None, ids, None, None, 0)  # no experts at all
    assert not output.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("columns", (520, 33))
def test_rows_by_their_numbers(device, run, backend, columns):
    """Rows in any order, more than once, numbers that are none, rows that hold nothing."""
    generator = torch.Generator().manual_seed(columns)
    rows, used = 20, 15
    x = strided_like(torch.randn(rows, columns, generator=generator).to(device, BF16), (8, 0))
    x[used:] = math.nan
    index = torch.randint(-3, rows + 3, (7, 6), generator=generator, dtype=I32)
    index[0, 0], index[1, 1] = 2**31 - 1, -2**31
    counts = ((index >= 0) & (index < used)).to(device)
    weights = torch.randn(7, 6, generator=generator).to(device)
    output = torch.empty(7, columns, dtype=F32, device=device)
    run(backend, moe_sum_op.run, output, x, weights, index=strided_like(index.to(device), (4, 0)),
        used=torch.tensor([used], device=device))
    compare(output, x[index.clamp(0, rows - 1).long().to(device)], weights, counts)
    bare = index.clamp(0, used - 1).to(device)
    run(backend, moe_sum_op.run, output, x[:used], index=bare)
    compare(output, x[bare.long()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[[nan, inf, inf, -0.0], [1.0, 1.0, -inf, -0.0]]], device=device)
    output = torch.empty(1, 4, dtype=BF16, device=device)
    run(backend, aiter_like.moe_sum, x, output)
    torch.testing.assert_close(output.float().cpu(), torch.tensor([[nan, inf, nan, 0.0]]), equal_nan=True)
    large = torch.full((1, 2, 8), 3e38, device=device)
    run(backend, aiter_like.moe_sum, large, output := torch.empty(1, 8, device=device))
    assert (output == inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_slots(device, run, backend):
    output = torch.ones(3, 16, device=device)
    run(backend, aiter_like.moe_sum, torch.empty(3, 0, 16, device=device), output)
    assert not output.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_bit_for_bit(device, run, backend):
    x = torch.randn(9, 6, 640, device=device).to(BF16)
    first, second = torch.empty(9, 640, dtype=BF16, device=device), torch.empty(9, 640, dtype=BF16, device=device)
    run(backend, aiter_like.moe_sum, x, first)
    run(backend, aiter_like.moe_sum, x, second)
    assert torch.equal(first, second)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modelled_share_of_the_read_rate(device, backend):
    """Of 75 MB, start and end included, at least 85 % of what an MI300X has been measured to read."""
    if device.type != "cpu":
        pytest.skip("the cycle model of the simulator")
    x, output = torch.zeros(1024, 8, 4096, dtype=BF16), torch.empty(1024, 4096, dtype=BF16)
    with sim.enabled(model="sample") as session:
        aiter_like.moe_sum(x, output, backend=backend)
    (launch,) = session.modelled
    assert (x.nbytes + output.nbytes) / launch["modelled_us"] / 1e6 > 0.85 * 4.14


def test_bad_input_is_named(device):
    x, output = torch.randn(4, 2, 8, device=device), torch.full((4, 8), 9.0, device=device)
    ids = torch.zeros(4, 2, dtype=I32, device=device)
    with pytest.raises(ValueError, match="moe_sum: input must have 3 dimensions"):
        aiter_like.moe_sum(x[0], output)
    with pytest.raises(ValueError, match=r"moe_sum: output must have shape \(4, 8\), got \(4, 7\)"):
        aiter_like.moe_sum(x, output[:, :7])
    with pytest.raises(ValueError, match="moe_sum: mask must come with ids"):
        moe_sum_op.run(output, x, mask=ids[0])
    with pytest.raises(ValueError, match=r"moe_sum: mask must have shape \(5,\)"):
        moe_sum_op.run(output, x, None, ids, ids[0], None, 5)
    with pytest.raises(ValueError, match="moe_sum: used must come with index"):
        moe_sum_op.run(output, x, used=torch.zeros(1, dtype=torch.int64, device=device))
    assert (output == 9).all(), "nothing was written"
    aiter_like.moe_sum(x[:0], output[:0])
    aiter_like.moe_sum(x[..., :0], output[:, :0])


def bench() -> None:
    def peers(call):
        return {"torch.sum": functools.partial(torch.sum, call.input, 1)}

    benching.of("moe_sum", "tokens slots columns", (
        (1, 8, 7168), (64, 8, 7168), (4096, 8, 7168), (4096, 6, 2048), (16384, 4, 4096)), beside=peers, dtype="bf16")
