# SPDX-License-Identifier: MIT
"""Derivatives of rms_norm and layer_norm: against autograd in float64, through every backend."""

import functools
import math

import pytest
import torch
from covering import covering
from norm_cases import EPSILON, double, layer_norm64, rms_norm64, rows_like, vector_like

import aiter_like
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import tune_shapes
from aiter_like.ops.norm.norm_backward import NormBackwardCall, norm_backward_ref
from aiter_like.testing import TOLERANCES, assert_within, strided_like

BF16, FP32 = torch.bfloat16, torch.float32
UNITS = {dtype: TOLERANCES[dtype, "rtne"].unit for dtype in (BF16, torch.float16, FP32)}


def exact(dout, x, weight, bias=None):
    """dx, dweight and dbias by autograd in float64; without a bias the norm is RMSNorm."""
    values = [double(tensor).requires_grad_() for tensor in (x, weight, *([] if bias is None else [bias]))]
    with torch.enable_grad():
        x64, weight64, *bias64 = values
        scaled = x64 if bias is None else x64 - x64.mean(-1, keepdim=True)
        y = scaled / (scaled.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight64 + sum(bias64)
    with torch.no_grad():
        assert torch.allclose(y, rms_norm64(x, weight) if bias is None else layer_norm64(x, weight, bias))
    return torch.autograd.grad(y, values, double(dout))


def check(got, dout, x, weight, bias=None):
    """Each derivative in `got`, dx first: its rounding, and √(terms)·2⁻²⁰ of the largest term that it is the sum of.
    Returns the largest error as a fraction of that.
    """
    x64 = double(x) if bias is None else double(x) - double(x).mean(-1, keepdim=True)
    scale = 1 / (x64.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    slope = double(dout).abs() * double(weight).abs().clamp(min=1)
    names, worst = ("dx", "dweight", "dbias")[:len(got)], 0.0
    for name, tensor, expected in zip(names, got, exact(dout, x, weight, bias)[:len(got)], strict=True):
        largest = (slope * scale).amax(-1, keepdim=True) if name == "dx" else slope.max() * (x64 * scale).abs().max()
        limit = UNITS[tensor.dtype] * 1.01 * expected.abs() + 2**-20 * math.sqrt(x.shape[0] + 8) * largest
        worst = max(worst, assert_within(name, tensor, expected, limit))
    return worst


@pytest.mark.parametrize("rows, hidden, dtype, weight_dtype", (
    (5, 1, BF16, BF16), (5, 100, BF16, BF16), (3, 4096, BF16, FP32), (700, 64, FP32, FP32),
    (4, 1000, torch.float16, FP32)), ids=str)
@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_against_float64(device, run, backend, rows, hidden, dtype, weight_dtype):
    x, dout = rows_like(device, rows, hidden, dtype, count=2, seed=hidden)
    weight = vector_like(device, hidden, weight_dtype)
    check(run(backend, aiter_like.rms_norm_backward, dout, x, weight, EPSILON), dout, x, weight)
    if hidden > 1:  # of one element LayerNorm is constant: its derivative is what rounding leaves
        bias = torch.zeros_like(weight)
        check(run(backend, aiter_like.layer_norm_backward, dout, x, weight, EPSILON), dout, x, weight, bias)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_everything(device, run, backend, seed):
    """A covering design: each pair of size, dtypes, number of rows, and mean or none."""
    factors = {"hidden": (2, 7, 64, 129, 1000, 4096, 8192, 16384, 20001), "dtype": (BF16, torch.float16, FP32),
               "is_float_weight": (0, 1), "rows": (1, 5, 650), "has_mean": (0, 1)}
    for hidden, dtype, is_float_weight, rows, has_mean in map(dict.values, covering(
            factors, seed, lambda hidden, rows, **_: rows * hidden < 2**21)):
        x, dout = rows_like(device, rows, hidden, dtype, count=2, seed=hidden)
        weight = vector_like(device, hidden, FP32 if is_float_weight else dtype)
        if has_mean:
            got = run(backend, aiter_like.layer_norm_backward, dout, x, weight, EPSILON)
            check(got, dout, x, weight, torch.zeros_like(weight))
        else:
            check(run(backend, aiter_like.rms_norm_backward, dout, x, weight, EPSILON), dout, x, weight)


@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_strides(device, run, backend):
    x, dout = rows_like(device, 6, 100, BF16, count=2)
    weight = vector_like(device, 100, BF16)
    expected = run(backend, aiter_like.rms_norm_backward, dout, x, weight, EPSILON)
    for x_view, dout_view in ((strided_like(x, (0, 24)), strided_like(dout, (0, 3), offset=1)),
                              (x.view(2, 3, 100), dout.view(2, 3, 100)), (x, dout.t().contiguous().t())):
        got = run(backend, aiter_like.rms_norm_backward, dout_view, x_view, weight, EPSILON)
        assert torch.equal(got[0].view(6, 100), expected[0]) and torch.allclose(got[1], expected[1])


@pytest.mark.parametrize("backend", (None, "hip", "triton", "torch"))
def test_autograd_of_rms_norm(device, backend):
    (x, dout), weight = rows_like(device, 5, 64, BF16, count=2), vector_like(device, 64, BF16)
    x.requires_grad_(), weight.requires_grad_()
    out = aiter_like.rms_norm(x, weight, EPSILON, backend=backend)
    out.backward(dout)
    assert x.grad.dtype == weight.grad.dtype == BF16
    check((x.grad, weight.grad), dout, x, weight)
    x.grad = None
    aiter_like.rms_norm(x, weight.detach(), EPSILON, backend=backend).sum().backward()
    check((x.grad,), torch.ones_like(x), x, weight)


@pytest.mark.parametrize("backend", (None, "hip", "triton", "torch"))
def test_autograd_of_layer_norm(device, backend):
    (x, dout) = rows_like(device, 5, 1000, FP32, count=2)
    weight, bias = vector_like(device, 1000, FP32), vector_like(device, 1000, FP32, seed=2)
    x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    aiter_like.layer_norm(x, weight, bias, EPSILON, backend=backend).backward(dout)
    check((x.grad, weight.grad, bias.grad), dout, x, weight, bias)
    x.grad = None
    aiter_like.layer_norm(x, epsilon=EPSILON, backend=backend).backward(dout)
    check((x.grad,), dout, x, torch.ones_like(weight), bias)


def test_what_has_no_derivative_says_so(device):
    (x,), weight = rows_like(device, 3, 64, FP32), vector_like(device, 64, FP32)
    x.requires_grad_()
    with pytest.raises(UnsupportedError, match="forward only"):
        aiter_like.rms_norm(x, weight, EPSILON, out=torch.empty_like(x), backend="hip")
    with pytest.raises(UnsupportedError, match="no derivative: take backend='torch'"):
        torch.autograd.grad(aiter_like.rms_norm(x, weight, EPSILON).sum(), x, create_graph=True)
    (dx,) = torch.autograd.grad(aiter_like.rms_norm(x, weight, EPSILON, backend="torch").sum(), x, create_graph=True)
    assert dx.requires_grad


def test_compiled_training_step(device):
    (x, dout), weight = rows_like(device, 5, 64, BF16, count=2), vector_like(device, 64, BF16)
    x.requires_grad_(), weight.requires_grad_()
    compiled = torch.compile(lambda x, weight: aiter_like.rms_norm(x * 2, weight, EPSILON), fullgraph=True,
                             backend="aot_eager")
    got = torch.autograd.grad(compiled(x, weight), (x, weight), dout)
    expected = torch.autograd.grad(aiter_like.rms_norm(x * 2, weight, EPSILON), (x, weight), dout)
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])


@pytest.mark.parametrize("rows, hidden", ((3, 20001), pytest.param(610, 16400, marks=pytest.mark.exhaustive)))
@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_long_rows(device, run, backend, rows, hidden):
    """Also with fewer programs than rows: a program's rows are added up in memory."""
    x, dout = rows_like(device, rows, hidden, BF16, count=2)
    weight = vector_like(device, hidden, FP32)
    bias = torch.zeros_like(weight)
    got = run(backend, aiter_like.layer_norm_backward, dout, x, weight, EPSILON)
    check(got, dout, x, weight, bias)
    check(run(backend, aiter_like.rms_norm_backward, dout, x, weight, EPSILON), dout, x, weight)
    dx, parts = torch.empty_like(x), torch.full((2, 2, hidden), math.nan, device=device)
    call = NormBackwardCall(dx, *parts, dout, x=x, weight=weight, epsilon=EPSILON, has_mean=True, parts=2)
    OPS["norm_backward"](call, backend=backend)
    check((dx, *parts.sum(1)), dout, x, weight, bias)


def test_bad_input_is_named(device):
    (x,), weight = rows_like(device, 3, 64, BF16), vector_like(device, 64, BF16)
    for message, kind, args in (("dout must have shape", ValueError, (x[:2], x, weight, EPSILON)),
                                ("epsilon must be at least", ValueError, (x, x, weight, -1.0))):
        with pytest.raises(kind, match=f"norm_backward: {message}"):
            aiter_like.rms_norm_backward(*args)


def bench() -> None:
    """Whole calls, parts added up, beside torch.compile of the formulas; the peers get mean and scale from forward."""
    import bench_peers
    import benching

    device = torch.device("cuda")

    def case(rows, hidden, has_mean, compiled, seed):
        random = tune_shapes.normal(device, seed, "bf16")
        x, dout, weight, bias = random(rows, hidden), random(rows, hidden), random(hidden), random(hidden)
        ours = aiter_like.layer_norm_backward if has_mean else aiter_like.rms_norm_backward
        calls = benching.by_backend(ours, dout, x, weight, EPSILON, backends=("triton",))
        calls["torch.compile"] = functools.partial(compiled, dout, x, weight)
        mean = x.float().mean(-1) * has_mean
        scale = ((x.float() - mean[:, None]).square().mean(-1) + EPSILON).rsqrt()
        calls |= bench_peers.calls("layer_norm_backward", dout, x, weight, bias, mean, scale) if has_mean else \
            bench_peers.calls("rms_norm_backward", dout, x, weight, scale)

        def check_some(result):
            """dx of a few rows, dweight of a few columns."""
            few = check((result[0][:64],), dout[:64], x[:64], weight, bias if has_mean else None)
            normed = (x.double() - mean[:, None]) * scale[:, None]
            terms = (dout * normed)[:, :64].cpu()
            limit = 2**-20 * math.sqrt(rows) * terms.abs().max() + UNITS[result[1].dtype] * terms.sum(0).abs()
            return max(few, assert_within("dweight", result[1][:64], terms.sum(0), limit))

        return benching.Case(f"{rows}×{hidden}{' mean' * has_mean}", 6 * x.numel(), calls, check_some)

    def stock(has_mean):
        def derivatives(dout, x, weight):
            dx, dweight, dbias = torch.empty_like(x), *(dout.new_empty(1, x.shape[1], dtype=FP32) for _ in range(2))
            norm_backward_ref(NormBackwardCall(dx, dweight, dbias if has_mean else None, dout, x=x, weight=weight,
                                               epsilon=EPSILON, has_mean=has_mean, parts=1))
            return dx, dweight[0], dbias[0]

        return benching.compiled(derivatives)

    def cases():
        for rows, hidden, has_mean in ((8192, 4096, False), (8192, 4096, True), (8192, 8192, False), (64, 4096, False)):
            torch._dynamo.reset()
            yield benching.rotating(functools.partial(case, rows, hidden, has_mean, stock(has_mean)))

    benching.table("norm_backward bf16", cases())
