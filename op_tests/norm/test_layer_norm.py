# SPDX-License-Identifier: MIT
"""layer_norm: every backend against float64; residual, biases, quantised forms, bad input."""

import math

import pytest
import torch
from covering import covering
from norm_cases import (
    BACKENDS,
    EPSILON,
    check_layer_norm,
    check_quantised,
    double,
    layer_norm64,
    quantised_dtypes,
    rows_like,
    vector_like,
)

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

BF16 = torch.bfloat16


def factors(device, hidden, dtype):
    """Weight and bias."""
    return vector_like(device, hidden, dtype), vector_like(device, hidden, dtype, seed=200)


@pytest.mark.parametrize("hidden, dtype, factor_dtype", (
    (1, BF16, BF16), (1000, BF16, BF16), (1024, BF16, BF16), (1000, torch.float16, torch.float32),
    pytest.param(20000, BF16, BF16, marks=pytest.mark.exhaustive)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, hidden, dtype, factor_dtype):
    for mean in (0.0, 5.0):
        (x,) = rows_like(device, 5, hidden, dtype, seed=hidden, mean=mean)
        weight, bias = factors(device, hidden, factor_dtype)
        check_layer_norm(run(backend, aiter_like.layer_norm, x, weight, bias, EPSILON), x, weight, bias)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_far_from_zero_costs_nothing(device, run, backend):
    """x² − mean² would leave no digit of the variance."""
    (x,) = rows_like(device, 3, 1000, torch.float32, scale=1.0, mean=1e4)
    weight, bias = factors(device, 1000, torch.float32)
    check_layer_norm(run(backend, aiter_like.layer_norm, x, weight, bias, EPSILON), x, weight, bias)


@pytest.mark.parametrize("hidden", (40, 1000))
@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_rows_know_nothing_of_their_neighbours(device, run, backend, hidden):
    """Of which some have a mean that asks for a second sum, in the same wave or not."""
    (x,) = rows_like(device, 12, hidden, torch.float32, scale=1.0)
    x += torch.tensor([0.0, 1e4, 0.9, 1.1], device=device).repeat(3)[:, None]
    weight, bias = factors(device, hidden, torch.float32)
    out = run(backend, aiter_like.layer_norm, x, weight, bias, EPSILON)
    check_layer_norm(out, x, weight, bias)
    for row in range(4):
        assert torch.equal(run(backend, aiter_like.layer_norm, x[row:row + 1], weight, bias, EPSILON)[0], out[row])


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_factors_and_of_equal_elements(device, run, backend):
    (x,) = rows_like(device, 3, 1000, BF16)
    x[1] = 2.5
    out = run(backend, aiter_like.layernorm2d_fwd, x, None, None, EPSILON)
    check_layer_norm(out, x)
    assert (out[1] == 0).all()
    assert torch.equal(run(backend, aiter_like.layer_norm, x, epsilon=EPSILON, out=x), out), "in place"


@pytest.mark.parametrize("backend", BACKENDS)
def test_residual_biases_and_strides(device, run, backend):
    x, residual = rows_like(device, 6, 1000, BF16, count=2)
    weight, bias = factors(device, 1000, BF16)
    x_bias = vector_like(device, 1000, BF16, seed=3)
    total = double(x) + double(x_bias) + double(residual)
    first = None
    for view, other in ((x, residual), (strided_like(x, (0, 24)), strided_like(residual, (0, 3), offset=1)),
                        (x.view(2, 3, 1000), residual.view(2, 3, 1000))):
        out, residual_out = torch.empty_like(view), torch.empty_like(view)
        run(backend, aiter_like.layernorm2d_fwd_with_add, out, view, other, residual_out, weight, bias, EPSILON, x_bias)
        check_layer_norm(out.view(6, 1000), total, weight, bias)
        assert torch.equal(residual_out.view(6, 1000).cpu().float(), total.float().to(BF16).float())
        first = out if first is None else first
        assert torch.equal(out.view(6, 1000), first)
    run(backend, aiter_like.layernorm2d_fwd_with_add, x, x, residual, residual, weight, bias, EPSILON, x_bias)
    assert torch.equal(x, first), "in place"


@pytest.mark.parametrize("backend", BACKENDS)
def test_quantised(device, run, backend):
    x, residual = rows_like(device, 5, 1000, BF16, count=2)
    weight, bias = factors(device, 1000, BF16)
    xscale = vector_like(device, 1000, torch.float32, seed=2).exp()
    x_bias = vector_like(device, 1000, BF16, seed=3)
    scale, residual_out = x.new_empty(5, 1, dtype=torch.float32), torch.empty_like(x)
    fp8, int8 = quantised_dtypes(device)
    out = torch.empty_like(x, dtype=fp8)
    run(backend, aiter_like.layernorm2d_fwd_with_dynamicquant, out, x, scale, weight, bias, EPSILON)
    check_quantised(out, scale, layer_norm64(x, weight, bias))
    out = torch.empty_like(x, dtype=int8)
    y = layer_norm64(double(x) + double(x_bias) + double(residual), weight, bias)
    run(backend, aiter_like.layernorm2d_fwd_with_add_smoothquant, out, x, residual, residual_out, xscale, scale, weight,
        bias, EPSILON, x_bias)
    check_quantised(out, scale, y * double(xscale))


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_other_quantised_forms(device, run, backend):
    x, residual = rows_like(device, 5, 20000, BF16, count=2)
    weight, bias = factors(device, 20000, BF16)
    xscale = vector_like(device, 20000, torch.float32, seed=2).exp()
    scale, residual_out = x.new_empty(5, dtype=torch.float32), torch.empty_like(x)
    for dtype in quantised_dtypes(device):
        out = torch.empty_like(x, dtype=dtype)
        run(backend, aiter_like.layernorm2d_fwd_with_smoothquant, out, x, xscale, scale, weight, bias, EPSILON)
        check_quantised(out, scale, layer_norm64(x, weight, bias) * double(xscale))
        run(backend, aiter_like.layernorm2d_fwd_with_add_dynamicquant, out, x, residual, residual_out, scale, weight,
            bias, EPSILON)
        check_quantised(out, scale, layer_norm64(double(x) + double(residual), weight, bias))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_stay_in_their_row(device, run, backend):
    (x,) = rows_like(device, 4, 1000, BF16)
    weight, bias = factors(device, 1000, BF16)
    x[1, 7], x[2, 999] = math.nan, math.inf
    out = run(backend, aiter_like.layer_norm, x, weight, bias, EPSILON)
    assert out[1].isnan().all() and out[2].isnan().all()
    check_layer_norm(out[::3], x[::3], weight, bias)
    fp8 = quantised_dtypes(device)[0]
    q, scale = torch.empty_like(x, dtype=fp8), x.new_empty(4, 1, dtype=torch.float32)
    x[0] = 1.0
    run(backend, aiter_like.layernorm2d_fwd_with_dynamicquant, q, x, scale, weight, torch.zeros_like(bias), EPSILON)
    assert q[1:3].float().isnan().all() and scale[1:3].isnan().all()
    assert (q[0].float() == 0).all() and 0 < scale[0] < 2.0**-110


def test_empty(device):
    assert aiter_like.layer_norm(torch.empty(0, 64, device=device)).shape == (0, 64)
    assert aiter_like.layer_norm(torch.empty(3, 0, device=device)).shape == (3, 0)


def test_bad_input_is_named(device):
    (x,), (weight, bias) = rows_like(device, 3, 64, BF16), factors(device, 64, BF16)
    with pytest.raises(TypeError, match="layer_norm: bias must have dtype torch.bfloat16"):
        aiter_like.layer_norm(x, weight, bias.float())
    with pytest.raises(ValueError, match="layer_norm: epsilon must be at least"):
        aiter_like.layer_norm(x, weight, bias, -1.0)
    out, scale = torch.empty_like(x, dtype=torch.int8), x.new_empty(3, 1, dtype=torch.float32)
    for message, kind, args in (
            (r"yscale must have shape \(3, 1\)", ValueError, (out, x, scale[:2], weight, bias, EPSILON)),
            ("out must have dtype", TypeError, (x, x, scale, weight, bias, EPSILON))):
        with pytest.raises(kind, match=message):
            aiter_like.layernorm2d_fwd_with_dynamicquant(*args)
    other = ({torch.float8_e4m3fn, torch.float8_e4m3fnuz} - set(quantised_dtypes(device))).pop()
    with pytest.raises(UnsupportedError, match=f"fp8 on .* is .*, got {other}"):
        aiter_like.layernorm2d_fwd_with_dynamicquant(out.to(other), x, scale, weight, bias, EPSILON, backend="hip")


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """A covering design: each pair of size, dtype and number of rows."""
    sizes = (1, 2, 7, 8, 63, 64, 65, 100, 511, 512, 513, 2048, 4096, 5120, 8192, 16384, 20001, 32768)
    design = {"hidden": sizes, "dtype": (BF16, torch.float16, torch.float32), "rows": (1, 5, 9)}
    for hidden, dtype, rows in map(dict.values, covering(design, seed)):
        (x,) = rows_like(device, rows, hidden, dtype, seed=rows, mean=float(rows // 4))
        weight, bias = factors(device, hidden, dtype)
        check_layer_norm(run(backend, aiter_like.layer_norm, x, weight, bias, EPSILON), x, weight, bias)


def bench() -> None:
    """LayerNorm, also with a residual, beside torch and torch.compile."""
    import benching

    benching.of("layer_norm", "rows hidden has_residual", (
        (8192, 4096, 0), (8192, 8192, 0), (64, 8192, 0), (8192, 4096, 1)), dtype="bf16", out_dtype="bf16")
