# SPDX-License-Identifier: MIT
"""softmax: every backend against float64."""

import math

import pytest
import torch
from sampling_cases import BACKENDS, logits_like

import aiter_like

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ROUNDING = {BF16: 2**-8, F16: 2**-11, F32: 2**-24}


def exact(x, temperature=1.0):
    x = x.cpu().double()
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.cpu().double()[:, None].clamp(min=1e-5)
    return torch.softmax((x - x.amax(-1, keepdim=True)) / temperature, -1)


def check(got, wanted, dtype):
    """Exponents are rounded to fp32, the results to their dtype; below its normal numbers what is left of 2^-24."""
    bound = wanted * (ROUNDING[dtype] + 2**-23 * (8 - wanted.clamp(min=1e-30).log())) + 2**-25 * (dtype == F16) + 1e-37
    error = (got.cpu().double() - wanted).abs()
    assert (error <= bound).all(), ((error / bound).max(), error.max())


@pytest.mark.parametrize("columns, dtype, out", ((1, F32, F32), (127, BF16, F32), (256, BF16, BF16), (9001, F16, F32),
                                                 (20001, BF16, F32), (9000, F32, F32)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, columns, dtype, out):
    x = logits_like(device, 2, columns, dtype, stride=columns + 5)
    temperatures = torch.tensor([0.5, 1.7], device=device)
    result = torch.full((2, columns + 3), math.nan, dtype=out, device=device)
    run(backend, aiter_like.softmax, x, temperatures, out=result[:, :columns])
    check(result[:, :columns], exact(x, temperatures), out)
    assert result[:, columns:].isnan().all()
    assert run(backend, aiter_like.softmax, x).dtype == dtype


def test_rows_longer_than_registers(device, run):
    """More rows than half the CUs are not cut; of 70001 fp32 a CU of gfx942 holds 65536, and an SM of Hopper 40960."""
    x = logits_like(device, 1, 70001, F32, seed=1)
    got = run("hip", aiter_like.softmax, x.expand(153, -1))
    check(got[:1], exact(x), F32)
    assert torch.equal(got, got[:1].expand(153, -1))


@pytest.mark.parametrize("columns", (129, 20001))
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend, columns):
    """As torch: NaN, +inf and rows of -inf give NaNs; -inf gives 0; temperature 0 equal shares of the largest."""
    x = logits_like(device, 5, columns, F32, seed=2)
    x[0, 3] = math.nan
    x[1, 100] = math.inf
    x[2] = -math.inf
    x[3, : columns - 1] = -math.inf
    x[4, 7] = x[4, 100] = 50.0
    got = run(backend, aiter_like.softmax, x, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0], device=device)).cpu()
    assert got[:3].isnan().all()
    assert got[3, -1] == 1 and (got[3, :-1] == 0).all()
    assert got[4, 7] == got[4, 100] == 0.5 and got[4].sum() == 1
    large = torch.tensor([[1e38, 9.9e37, -1e38]], device=device)
    assert run(backend, aiter_like.softmax, large).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("columns", (129, 20001))
@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_temperatures(device, run, backend, columns):
    """Infinite ones share equally among all but -inf, NaN gives NaNs, and negative ones count as 1e-5."""
    x = logits_like(device, 6, columns, F32, seed=4)
    x[:2, 5], x[4] = -math.inf, -math.inf
    extremes = torch.tensor([math.inf, 1e38, math.nan, -math.inf, math.inf, -3.0], device=device)
    got = run(backend, aiter_like.softmax, x, extremes).cpu()
    assert (got[:2, 5] == 0).all() and got[[2, 4]].isnan().all()
    for row in (0, 1):
        assert torch.allclose(got[row][x[row].cpu() > -math.inf], torch.tensor(1 / (columns - 1)), rtol=1e-5)
    check(got[[3, 5]], exact(x[[3, 5]], torch.zeros(2)), F32)
    assert torch.equal(run(backend, aiter_like.softmax, x[1:2], 1e38).cpu(), got[1:2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_and_repeats(device, run, backend):
    x = logits_like(device, 2, 20001, F32, seed=3)
    first = run(backend, aiter_like.softmax, x, 0.8)
    assert torch.equal(first, run(backend, aiter_like.softmax, x, 0.8))
    assert run(backend, aiter_like.softmax, x, 0.8, out=x) is x and torch.equal(x, first)


def test_empty_and_bad_input(device):
    x = logits_like(device, 2, 64)
    assert aiter_like.softmax(x[:0]).shape == (0, 64)
    for message, kind, call in (
            ("temperature must be at least 0", ValueError, lambda: aiter_like.softmax(x, -1.0)),
            ("dtype must be that of out", TypeError, lambda: aiter_like.softmax(x, dtype=BF16, out=x))):
        with pytest.raises(kind, match=f"softmax: {message}"):
            call()


def bench() -> None:
    """Beside torch; V = 128256."""
    import benching

    benching.of("softmax", "rows dtype out_dtype", (
        (rows, dtype, dtype) for dtype in ("fp32", "bf16") for rows in (1, 16, 64, 128, 512)), columns=128256)
