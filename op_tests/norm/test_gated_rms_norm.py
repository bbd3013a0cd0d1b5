# SPDX-License-Identifier: MIT
"""gated_rms_norm: every backend against float64, quantised too."""

import math

import pytest
import torch
from covering import covering
from norm_cases import BACKENDS, EPSILON, check_quantised, double, quantised_dtypes, rms_norm64, rows_like, vector_like

import aiter_like
from aiter_like.testing import TOLERANCES, assert_within, strided_like

BF16 = torch.bfloat16


def gated64(x, gate, weight):
    return rms_norm64(x, weight) * torch.nn.functional.silu(double(gate))


def check(out, x, gate, weight):
    """u·|y| for the rounding of the result, (16 + √hidden + 2·|gate|)·2⁻²⁴·|y| for fp32 and the exponential."""
    y, tolerance = gated64(x, gate, weight), TOLERANCES[out.dtype, "rtne"]
    fp32 = 2**-24 * (16 + math.sqrt(x.shape[-1]) + 2 * double(gate).abs())
    limit = (tolerance.unit * 1.01 + fp32) * y.abs() + tolerance.smallest + 1e-38
    return assert_within("gated_rms_norm", out, y, limit)


@pytest.mark.parametrize("rows, hidden, dtype, weight_dtype", (
    (5, 128, BF16, BF16), (5, 1000, torch.float16, torch.float32),
    (10001, 20, BF16, BF16),  # rows that share a program, the last one's in part
    pytest.param(5, 20000, BF16, BF16, marks=pytest.mark.exhaustive)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, rows, hidden, dtype, weight_dtype):
    x, gate = rows_like(device, rows, hidden, dtype, count=2, seed=hidden)
    weight = vector_like(device, hidden, weight_dtype)
    out = run(backend, aiter_like.gated_rms_norm, x, gate, weight, EPSILON)
    check(out, x, gate, weight)
    assert torch.equal(run(backend, aiter_like.gated_rms_norm, x, gate, weight, EPSILON, out=gate), out), "in place"


@pytest.mark.parametrize("backend", BACKENDS)
def test_gates_of_all_sizes_and_strides(device, run, backend):
    (x,), weight = rows_like(device, 6, 128, BF16), vector_like(device, 128, BF16)
    gate = torch.linspace(-60, 60, 6 * 128).view(6, 128).to(device, BF16)
    first = run(backend, aiter_like.gated_rms_norm, x, gate, weight, EPSILON)
    check(first, x, gate, weight)
    for view, other in ((strided_like(x, (0, 24)), strided_like(gate, (0, 3), offset=1)),
                        (x.view(2, 3, 128), gate.view(2, 3, 128))):
        assert torch.equal(run(backend, aiter_like.gated_rms_norm, view, other, weight, EPSILON).view(6, 128), first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_quantised_rows_that_share_a_program(device, run, backend):
    """A scale each; a NaN stays in its row."""
    (x, gate), weight = rows_like(device, 10001, 20, BF16, count=2), vector_like(device, 20, BF16)
    x[::1000, 3] = math.nan
    dtype = quantised_dtypes(device)[0]
    out, scale = torch.empty_like(x, dtype=dtype).view(-1, 1, 20), x.new_empty(10001, 1, dtype=torch.float32)
    run(backend, aiter_like.gated_rms_norm_quant, out, x.view(-1, 1, 20), gate.view(-1, 1, 20), scale, weight, EPSILON)
    out = out.view(-1, 20)
    kept = torch.ones(10001, dtype=torch.bool)
    kept[::1000] = False
    assert scale[::1000].isnan().all()
    check_quantised(out[kept], scale[kept], gated64(x[kept], gate[kept], weight), error=3e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_quantised(device, run, backend):
    x, gate = rows_like(device, 10, 128, BF16, count=2)
    weight = vector_like(device, 128, BF16)
    x[7], x[8, 3], gate[9, 5] = 0.0, math.nan, math.nan
    for dtype in quantised_dtypes(device):
        out, scale = torch.empty_like(x, dtype=dtype).view(5, 2, 128), x.new_empty(5, 2, dtype=torch.float32)
        run(backend, aiter_like.gated_rms_norm_quant, out, x.view(5, 2, 128), gate.view(5, 2, 128), scale, weight,
            EPSILON)
        out, scale = out.view(10, 128), scale.view(10, 1)
        check_quantised(out[:8], scale[:8], gated64(x[:8], gate[:8], weight), error=3e-5)
        assert scale[8:].isnan().all() and 0 < scale[7] < 2.0**-110
        assert (out[8:] == 0).all() if dtype == torch.int8 else out[8:].float().isnan().all()


def test_empty_and_bad_input(device):
    (x,), weight = rows_like(device, 3, 64, BF16), vector_like(device, 64, BF16)
    assert aiter_like.gated_rms_norm(x[:0], x[:0], weight, EPSILON).shape == (0, 64)
    with pytest.raises(ValueError, match="gated_rms_norm: epsilon must be finite"):
        aiter_like.gated_rms_norm(x, x, weight, math.inf)
    with pytest.raises(ValueError, match=r"scale must have shape \(3, 1\), got \(3, 2\)"):
        scale = torch.empty(3, 2, device=device)
        aiter_like.gated_rms_norm_quant(torch.empty_like(x, dtype=torch.int8), x, x, scale, weight, EPSILON)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """A covering design: each pair of size, dtype and number of rows."""
    factors = {"hidden": (1, 7, 64, 96, 128, 513, 4096, 8192, 32768), "dtype": (BF16, torch.float16, torch.float32),
               "rows": (1, 5)}
    for hidden, dtype, rows in map(dict.values, covering(factors, seed)):
        x, gate = rows_like(device, rows, hidden, dtype, count=2, seed=rows)
        weight = vector_like(device, hidden, dtype)
        check(run(backend, aiter_like.gated_rms_norm, x, gate, weight, EPSILON), x, gate, weight)


def bench() -> None:
    """Heads of 128 and whole rows, beside torch.compile."""
    import benching

    benching.of("gated_rms_norm", "rows hidden", ((32, 128), (65536 * 4, 128), (8192, 8192)), dtype="bf16",
                out_dtype="bf16")
