# SPDX-License-Identifier: MIT
"""group_norm: every backend against float64; both layouts, SiLU, bad input."""

from __future__ import annotations

import math

import pytest
import torch
from covering import covering
from norm_cases import BACKENDS, check_layer_norm, double, layer_norm64, vector_like

import aiter_like
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.testing import TOLERANCES, assert_within

BF16 = torch.bfloat16
EPSILON = 1e-5


def make(device, shape, dtype, is_last=False, mean=0.0, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3 + mean
    return x.to(device, dtype).to(memory_format=torch.channels_last if is_last else torch.contiguous_format)


def factors(device, channels, dtype):
    """Weight and bias."""
    return vector_like(device, channels, dtype), vector_like(device, channels, dtype, seed=200)


def by_group(x, groups, *per_channel):
    """The rows that a layer norm takes, and each factor as one of the same shape."""
    def rows(tensor):
        return tensor.reshape(x.shape[0] * groups, -1)

    def spread(factor):
        return rows(factor.view(-1, *[1] * (x.ndim - 2)).expand(x.shape))

    return rows(x), *(spread(factor) for factor in per_channel)


def check(out, x, groups, weight, bias):
    assert out.stride() == x.stride()
    check_layer_norm(by_group(out, groups)[0], *by_group(x, groups, weight, bias), epsilon=EPSILON)


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("shape, groups, dtype, factor_dtype", (
    ((2, 64, 4, 8), 4, BF16, BF16), ((3, 30, 5, 7), 3, BF16, BF16), ((2, 32, 4, 4), 4, torch.float32, torch.float32)),
    ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, shape, groups, dtype, factor_dtype, is_last):
    weight, bias = factors(device, shape[1], factor_dtype)
    for mean in (0.0, 5.0):
        x = make(device, shape, dtype, is_last, mean)
        out = run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON)
        check(out, x, groups, weight, bias)
    assert torch.equal(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON, out=x), out), "in place"


@pytest.mark.parametrize("shape, groups", (((3, 30, 5, 7), 3), ((1, 2, 200, 100), 1)), ids=("whole", "pieces"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_far_from_zero_costs_nothing(device, run, backend, shape, groups):
    """Σx² − mean² would leave no digit of the variance of every second sample."""
    x, (weight, bias) = make(device, shape, torch.float32), factors(device, shape[1], torch.float32)
    x[::2] += 1e4
    check(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON), x, groups, weight, bias)


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_silu(device, run, backend, is_last):
    x, (weight, bias) = make(device, (2, 64, 4, 8), BF16, is_last), factors(device, 64, BF16)
    out = run(backend, aiter_like.group_norm, x, 4, weight * 20, bias, EPSILON, silu=True)
    rows, w, b = by_group(x, 4, weight * 20, bias)
    y = layer_norm64(rows, w, b, EPSILON)
    expected = torch.nn.functional.silu(y)
    # The slope of SiLU is at most 1.1; fp32 leaves (8 + √size) ε of |y| and of the factors' magnitudes
    fp32 = 2**-24 * (16 + math.sqrt(rows.shape[-1])) * (8 * double(w).abs() + double(b).abs() + y.abs())
    limit = TOLERANCES[BF16, "rtne"].unit * 1.01 * expected.abs() + 1.1 * fp32 + 1e-38
    assert_within("silu", by_group(out, 4)[0], expected, limit)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_position_one_channel_and_no_factors(device, run, backend):
    for shape, groups in (((3, 64), 4), ((2, 4, 30), 4), ((2, 1, 1, 1), 1)):
        x = make(device, shape, BF16)
        ones, zeros = torch.ones(shape[1], device=device), torch.zeros(shape[1], device=device)
        check(run(backend, aiter_like.group_norm, x, groups, None, None, EPSILON), x, groups, ones, zeros)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_stay_in_their_group(device, run, backend):
    x, (weight, bias) = make(device, (2, 64, 4, 8), BF16), factors(device, 64, BF16)
    x[0, 17, 0, 0], x[1, 63, 3, 7] = math.nan, math.inf
    rows = by_group(run(backend, aiter_like.group_norm, x, 4, weight, bias, EPSILON), 4)[0]
    assert rows[1].isnan().all() and rows[7].isnan().all()
    rest = [0, 2, 3, 4, 5, 6]
    check_layer_norm(rows[rest], *(matrix[rest] for matrix in by_group(x, 4, weight, bias)), epsilon=EPSILON)


def test_same_arguments_as_torch(device):
    x, (weight, bias) = make(device, (2, 64, 4, 8), torch.float32), factors(device, 64, torch.float32)
    expected = torch.nn.functional.group_norm(x, 4, weight, bias, 1e-3)
    torch.testing.assert_close(aiter_like.group_norm(x, 4, weight, bias, 1e-3, backend="torch"), expected)
    x.requires_grad_()
    aiter_like.group_norm(x, 4, weight, bias).sum().backward()
    assert x.grad.shape == x.shape


def test_empty_and_bad_input(device):
    x, (weight, bias) = make(device, (2, 6, 4, 4), BF16), factors(device, 6, BF16)
    assert aiter_like.group_norm(x[:0], 3).shape == (0, 6, 4, 4)
    for error, args, text in (
            (TypeError, (None, 3), "input must be a tensor, got NoneType"),
            (TypeError, (x.int(), 3), "input must have dtype"), (ValueError, (x[0, 0, 0], 1), "at least 2 dimensions"),
            (ValueError, (x, 4), "num_groups must divide the 6 channels, got 4"),
            (ValueError, (x, 0), "num_groups must be"), (ValueError, (x, 3, weight[:5]), "weight must have shape"),
            (TypeError, (x, 3, weight, bias.float()), "bias must have dtype"),
            (ValueError, (x, 3, weight, bias, -1.0), "eps must be")):
        with pytest.raises(error, match=f"group_norm: .*{text}"):
            aiter_like.group_norm(*args)
    with pytest.raises(ValueError, match="group_norm: out must have shape"):
        aiter_like.group_norm(x, 3, out=x[:1])
    with pytest.raises(UnsupportedError, match="must both be contiguous, or channels-last; input has strides"):
        aiter_like.group_norm(x[..., ::2], 3, backend="hip")


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_opcheck(device, backend):
    x, (weight, bias) = make(device, (2, 64, 4, 8), BF16), factors(device, 64, BF16)
    torch.library.opcheck(torch.ops.aiter_like.group_norm, (x, 4, weight, bias), {"backend": backend})


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
def test_moves_each_byte_once(device, run, is_last):
    """The simulator's counters: 16 bytes of a lane in, out, and one access each for weight and bias; no scratch."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, (weight, bias) = make(device, (2, 64, 4, 8), BF16, is_last), factors(device, 64, BF16)
    with sim.enabled(checks=False) as session:
        run("hip", aiter_like.group_norm, x, 4, weight, bias, EPSILON)
    (counts,) = session.counters.values()
    assert counts["by_class"]["global"] == 4 * x.numel() // (8 * 64)
    assert not {"scratch", "flat"} & set(counts["by_class"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """Groups in registers and in pieces, aligned or not. A covering design: each pair of shape, layout and dtypes."""
    sizes = ((2, 32, 16, 16, 4), (1, 12, 37, 41, 2), (1, 64, 64, 64, 4), (2, 128, 33, 33, 2), (3, 24, 3, 3, 24))
    design = {"size": sizes, "is_last": (False, True), "dtype": (BF16, torch.float16, torch.float32),
              "wide": (0, 1)}
    for (*shape, groups), is_last, dtype, wide in map(dict.values, covering(design, seed)):
        x = make(device, shape, dtype, is_last, mean=2.0)
        weight, bias = factors(device, shape[1], torch.float32 if wide else dtype)
        check(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON), x, groups, weight, bias)
