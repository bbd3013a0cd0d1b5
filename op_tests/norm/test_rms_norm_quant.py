# SPDX-License-Identifier: MIT
"""rms_norm_quant: every backend against float64; groups, scale orders, residual, smoothing."""

import math

import pytest
import torch
from covering import covering
from norm_cases import BACKENDS, EPSILON, check_quantised, double, quantised_dtypes, rms_norm64, rows_like, vector_like

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import assert_within, strided_like

BF16 = torch.bfloat16


def quant(run, backend, x, weight, dtype, group_size=0, shuffle=False, residual=None, gemma=False, epsilon=EPSILON):
    """(q, scale in row order, residual_out) of rmsnorm_quant or add_rmsnorm_quant."""
    groups = x.shape[-1] // group_size if group_size else 1
    out, scale = x.new_empty(x.shape, dtype=dtype), x.new_empty(*x.shape[:-1], groups, dtype=torch.float32)
    scale.fill_(math.nan)
    if residual is None:
        run(backend, aiter_like.rmsnorm_quant, out, x, scale, weight, epsilon, group_size, shuffle, gemma)
        total = None
    else:
        total = torch.empty_like(x)
        run(backend, aiter_like.add_rmsnorm_quant, out, x, residual, total, scale, weight, EPSILON, group_size, shuffle,
            gemma)
    return out, scale.view(groups, -1).t() if shuffle else scale, total


@pytest.mark.parametrize("hidden, index", (
    (1, 0), (1000, 0), (1024, 0), (1000, 1), pytest.param(20000, 0, marks=pytest.mark.exhaustive)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scale_per_row(device, run, backend, hidden, index):
    (x,), weight = rows_like(device, 5, hidden, BF16, seed=hidden), vector_like(device, hidden, BF16)
    out, scale, _ = quant(run, backend, x, weight, quantised_dtypes(device)[index])
    check_quantised(out, scale, rms_norm64(x, weight))


@pytest.mark.parametrize("group_size, hidden", ((0, 64), (0, 1000), (32, 64), (128, 1024)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_beyond_fp32(device, run, backend, group_size, hidden):
    """x · weight may overflow, or lose its bits, where y does not: in one row and not in the next one of its wave."""
    (x,), weight = rows_like(device, 6, hidden, BF16, seed=hidden), vector_like(device, hidden, BF16)
    x *= torch.tensor([1.0, 2.0**20, 2.0**50, 2.0**-60, 2.0**-5, 2.0], device=device)[:, None].to(BF16)
    fp8 = quantised_dtypes(device)[0]
    for factor in (2.0**90, 2.0**-80):
        out, scale, _ = quant(run, backend, x, weight * factor, fp8, group_size, epsilon=0.0)
        check_quantised(out, scale, rms_norm64(x, weight * factor, 0.0), group_size)
        alone = quant(run, backend, x[5:], weight * factor, fp8, group_size, epsilon=0.0)
        assert torch.equal(alone[0].view(torch.int8), out[5:].view(torch.int8)) and torch.equal(alone[1], scale[5:])


@pytest.mark.parametrize("group_size, hidden, dtype, index", (
    (128, 4096, BF16, 0), (128, 20096, BF16, 0), (32, 192, torch.float32, 1)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scale_per_group(device, run, backend, group_size, hidden, dtype, index):
    (x,), weight = rows_like(device, 5, hidden, dtype, seed=hidden), vector_like(device, hidden, torch.float32)
    dtype = quantised_dtypes(device)[index]
    out, scale, _ = quant(run, backend, x, weight, dtype, group_size)
    check_quantised(out, scale, rms_norm64(x, weight), group_size)
    shuffled = quant(run, backend, x, weight, dtype, group_size, shuffle=True)
    assert torch.equal(shuffled[0].view(torch.int8), out.view(torch.int8)) and torch.equal(shuffled[1], scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_residual_gemma_and_strides(device, run, backend):
    x, residual = rows_like(device, 6, 1024, BF16, count=2)
    weight = vector_like(device, 1024, BF16)
    total = double(x) + double(residual)
    out, scale, residual_out = quant(run, backend, x, weight, torch.int8, residual=residual, gemma=True)
    check_quantised(out, scale, rms_norm64(total, double(weight) + 1))
    assert torch.equal(residual_out.cpu(), total.to(BF16))
    for view, other in ((strided_like(x, (0, 24)), strided_like(residual, (0, 3), offset=1)),
                        (x.view(2, 3, 1024), residual.view(2, 3, 1024))):
        again = quant(run, backend, view, weight, torch.int8, residual=other, gemma=True)
        assert torch.equal(again[0].view(6, 1024), out) and torch.equal(again[1].view(6, 1), scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_of_unaligned_rows(device, run, backend):
    (x,), weight = rows_like(device, 6, 4096, BF16), vector_like(device, 4096, torch.float32)
    fp8 = quantised_dtypes(device)[0]
    out, scale, _ = quant(run, backend, x, weight, fp8, 128)
    for view in (strided_like(x, (0, 3), offset=1), strided_like(x, (0, 8), offset=1)):
        again = quant(run, backend, view, weight, fp8, 128)
        assert torch.equal(again[0].view(torch.int8), out.view(torch.int8)) and torch.equal(again[1], scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_smoothing(device, run, backend):
    x, residual = rows_like(device, 5, 1000, BF16, count=2)
    weight, xscale = vector_like(device, 1000, BF16), vector_like(device, 1000, torch.float32, seed=2).exp()
    out, scale = torch.empty_like(x, dtype=torch.int8), x.new_empty(5, 1, dtype=torch.float32)
    residual_out, plain = torch.empty_like(x), torch.empty_like(x)
    run(backend, aiter_like.rmsnorm2d_fwd_with_add_smoothquant, out, x, residual, residual_out, xscale, scale, weight,
        EPSILON, plain, 1)
    y = rms_norm64(double(x) + double(residual), weight)
    assert_within("out_before_quant", plain, y, 2**-7 * y.abs() + 1e-6)
    inner_rounding = 2**-8  # of the T5 form
    check_quantised(out, scale, y * double(xscale), error=inner_rounding * 1.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_smoothing_without_residual(device, run, backend):
    (x,), weight = rows_like(device, 5, 1000, BF16), vector_like(device, 1000, BF16)
    xscale = vector_like(device, 1000, torch.float32, seed=2).exp()
    out, scale = torch.empty_like(x, dtype=torch.int8), x.new_empty(5, 1, dtype=torch.float32)
    run(backend, aiter_like.rmsnorm2d_fwd_with_smoothquant, out, x, xscale, scale, weight, EPSILON)
    check_quantised(out, scale, rms_norm64(x, weight) * double(xscale))


@pytest.mark.parametrize("backend", (pytest.param("hip", marks=pytest.mark.exhaustive), "triton", "torch"))
def test_dynamicquant_is_the_same_operator(device, run, backend):
    x, residual = rows_like(device, 4, 256, BF16, count=2)
    weight = vector_like(device, 256, BF16)
    expected = quant(run, backend, x, weight, torch.int8, 64)
    out, scale = torch.empty_like(expected[0]), torch.empty_like(expected[1])
    run(backend, aiter_like.rmsnorm2d_fwd_with_dynamicquant, out, x, scale, weight, EPSILON, 0, 64)
    assert torch.equal(out, expected[0]) and torch.equal(scale, expected[1])
    expected = quant(run, backend, x, weight, torch.int8, 64, residual=residual)
    run(backend, aiter_like.rmsnorm2d_fwd_with_add_dynamicquant, out, x, residual, residual, scale, weight, EPSILON, 0,
        64)
    assert torch.equal(out, expected[0]) and torch.equal(scale, expected[1]) and torch.equal(residual, expected[2])


@pytest.mark.parametrize("index, group_size, hidden", ((0, 0, 1000), (1, 64, 256)), ids=("fp8", "int8"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_nan_and_infinity(device, run, backend, index, group_size, hidden):
    (x,), weight = rows_like(device, 4, hidden, BF16), torch.ones(hidden, dtype=BF16, device=device)
    x[0], x[1, 7], x[2, hidden - 1] = 0.0, math.nan, math.inf
    dtype = quantised_dtypes(device)[index]
    out, scale, _ = quant(run, backend, x, weight, dtype, group_size)
    values = out.cpu().float()
    assert (values[0] == 0).all() and (scale[0] > 0).all() and scale[0].isfinite().all()
    nan = (lambda row: (row == 0).all()) if dtype == torch.int8 else (lambda row: row.isnan().all())
    assert scale[1].isnan().all() and nan(values[1])  # a NaN spoils the norm of the whole row
    before_last = hidden - group_size if group_size else 0  # an infinity makes its own element NaN, the others zero
    assert scale[2, -1].isnan() and nan(values[2, before_last:]) and (values[2, :before_last] == 0).all()
    check_quantised(out[3:], scale[3:], rms_norm64(x[3:], weight), group_size)


def test_empty(device):
    weight = torch.ones(64, device=device)
    out, scale = torch.empty(0, 64, dtype=torch.int8, device=device), torch.empty(0, 1, device=device)
    aiter_like.rmsnorm_quant(out, torch.empty(0, 64, device=device), scale, weight, EPSILON)


def test_fp8_of_other_hardware_is_refused(device, run):
    (x,), weight = rows_like(device, 2, 64, BF16), vector_like(device, 64, BF16)
    other = ({torch.float8_e4m3fn, torch.float8_e4m3fnuz} - set(quantised_dtypes(device))).pop()
    for backend in ("hip", "triton"):
        with pytest.raises(UnsupportedError, match=f"fp8 on .* is .*, got {other}"):
            aiter_like.rmsnorm_quant(torch.empty_like(x, dtype=other), x, x.new_empty(2, 1, dtype=torch.float32),
                                     weight, EPSILON, backend=backend)


def test_bad_input_is_named(device):
    (x,), weight = rows_like(device, 3, 256, BF16), vector_like(device, 256, BF16)
    out, scale = torch.empty_like(x, dtype=torch.int8), x.new_empty(3, 1, dtype=torch.float32)
    for message, kind, args in (
            (r"scale must have shape \(3, 1\), got \(2, 1\)", ValueError, (out, x, scale[:2], weight, EPSILON)),
            (r"scale must have shape \(3, 2\), got \(3, 1\)", ValueError, (out, x, scale, weight, EPSILON, 128)),
            ("scale must have dtype torch.float32", TypeError, (out, x, scale.half(), weight, EPSILON)),
            ("scale must be dense", ValueError, (out, x, scale.new_empty(6)[::2], weight, EPSILON)),
            ("epsilon must be at least", ValueError, (out, x, scale, weight, -1.0)),
            ("group_size must be 0, 32, 64 or 128", ValueError, (out, x, scale, weight, EPSILON, 16)),
            ("shuffle_scale must be True or False", TypeError, (out, x, scale, weight, EPSILON, 0, 2)),
            ("gemma_norm must be True or False", TypeError, (out, x, scale, weight, EPSILON, 0, False, "yes"))):
        with pytest.raises(kind, match=message):
            aiter_like.rmsnorm_quant(*args)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """A covering design: each pair of size, dtypes, group, and residual with several rows or a row without."""
    sizes = (1, 7, 32, 64, 128, 384, 512, 1000, 2048, 4096, 8192, 16384, 20096, 32768)
    factors = {"hidden": sizes, "dtype": (BF16, torch.float16, torch.float32), "index": (0, 1),
               "group_size": (0, 32, 64, 128), "has_residual": (0, 1)}
    for hidden, dtype, index, group_size, has_residual in map(dict.values, covering(
            factors, seed, lambda hidden, group_size, **_: hidden % (group_size or 1) == 0)):
        x, residual = rows_like(device, 1 + 4 * has_residual, hidden, dtype, count=2, seed=hidden)
        weight = vector_like(device, hidden, dtype)
        out, scale, _ = quant(run, backend, x, weight, quantised_dtypes(device)[index], group_size,
                              residual=residual if has_residual else None)
        check_quantised(out, scale, rms_norm64(double(x) + double(residual) if has_residual else x, weight), group_size)


def bench() -> None:
    """Per-token and per-group fp8 of RMSNorm, also with a residual, beside torch.compile."""
    import benching

    benching.of("rms_norm_quant", "rows hidden has_residual group_size", (
        (*shape, group_size) for group_size in (0, 128)
        for shape in ((8192, 8192, 0), (8192, 4096, 0), (8192, 4096, 1), (64, 8192, 0))), dtype="bf16", out_dtype="fp8")
