# SPDX-License-Identifier: MIT
"""Gated activations: every backend against float64, over dtypes, widths, strides; bad input."""

import functools
import math

import benching
import pytest
import torch
from activation_cases import GATED, check_activation, gated_float64
from covering import covering
from torch import Tensor

import aiter_like
from aiter_like import dtypes, sim
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.activation.act_and_mul import ActAndMulCall
from aiter_like.ops.common import quant_rule
from aiter_like.testing import strided_like

BACKENDS = ("hip", "triton", "torch")
BF16 = torch.bfloat16
FUNCTIONS = {"silu": aiter_like.silu_and_mul, "gelu": aiter_like.gelu_and_mul,
             "gelu_tanh": aiter_like.gelu_tanh_and_mul, "swiglu": aiter_like.swiglu_and_mul}
WITH_BIAS = {"silu": aiter_like.silu_and_mul_bias, "gelu": aiter_like.gelu_and_mul_bias,
             "swiglu": aiter_like.swiglu_and_mul_bias}


def make(device: torch.device, *shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    """Values up to about ±12: both tails of every activation, and both sides of swiglu's limit."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 4).to(device, dtype)


def call(run, backend: str, activation: str, x: Tensor, *args: object, out: Tensor | None = None) -> Tensor:
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device) if out is None else out
    run(backend, FUNCTIONS[activation], out, x, *args)
    return out


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, activation):
    for columns in (1, 7, 64, 1000, 4104):
        x = make(device, 5, 2 * columns, seed=columns)
        check_activation(call(run, backend, activation, x), x, activation)


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bf16_gate(device, run, backend, activation):
    """The fits, whose errors are largest in the tails, leave room for the rounding of bf16."""
    gate = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16).view(BF16)
    gate = gate[gate.isfinite()].view(-1, 480)
    x = torch.cat((gate, torch.ones_like(gate)), 1).to(device)
    check_activation(call(run, backend, activation, x), x, activation)


@pytest.mark.parametrize("backend, dtype", (("hip", torch.float32), *((backend, dtype) for backend in BACKENDS[1:]
                                              for dtype in (torch.float16, torch.float32))))
def test_other_dtypes(device, run, backend, dtype):
    for columns in (3, 512):
        x = make(device, 3, 2 * columns, dtype=dtype)
        check_activation(call(run, backend, "silu", x), x, "silu")


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_and_width(device, run, backend, seed):
    """A covering design: each pair of activation, dtype, number of rows and of columns."""
    factors = {"activation": GATED, "dtype": (BF16, torch.float16, torch.float32), "count": (1, 2, 17, 300),
               "columns": (1, 2, 8, 9, 63, 128, 513, 2048, 4096, 5120, 14336)}
    for activation, dtype, count, columns in map(dict.values, covering(factors, seed)):
        x = make(device, count, 2 * columns, dtype=dtype, seed=columns)
        check_activation(call(run, backend, activation, x), x, activation)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gelu_fast_of_each_element(device, run, backend):
    for columns in (5, 1024):
        x = make(device, 4, columns)
        out = torch.empty_like(x)
        run(backend, aiter_like.gelu_fast, out, x)
        check_activation(out, x, "gelu_tanh", is_gated=False)
        copy = x.clone()
        run(backend, aiter_like.gelu_fast, copy, copy)
        assert torch.equal(copy, out), "in place"


@pytest.mark.parametrize("backend", BACKENDS)
def test_limit_bounds_gate_and_up(device, run, backend):
    x = make(device, 6, 256)
    out = call(run, backend, "silu", x, 2.5)
    check_activation(out, x, "silu", limit=2.5)
    assert not torch.equal(out, call(run, backend, "silu", x))
    sides = torch.tensor([[9.0, -9.0, 9.0, -9.0, 9.0, 9.0, -9.0, -9.0]], dtype=BF16, device=device)
    expected = torch.tensor([[7 / (1 + math.exp(-1.702 * 7)) * 8, -9 / (1 + math.exp(1.702 * 9)) * 8,
                              7 / (1 + math.exp(-1.702 * 7)) * -6, -9 / (1 + math.exp(1.702 * 9)) * -6]])
    torch.testing.assert_close(call(run, backend, "swiglu", sides).float().cpu(), expected, rtol=2**-8, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_shapes(device, run, backend):
    x = make(device, 6, 528)
    expected = call(run, backend, "silu", x)
    check_activation(expected, x, "silu")
    for view in (strided_like(x, (0, 24)), strided_like(x, (0, 3), offset=1), x.view(2, 3, 528), x[::2], x[0],
                 x[:1].expand(4, 528)):
        out = call(run, backend, "silu", view)
        target = strided_like(torch.zeros_like(out), (0,) * (view.ndim - 1) + (5,), offset=3)
        call(run, backend, "silu", view, out=target)
        assert torch.equal(target, out)
        check_activation(out, view, "silu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_result_is_written(device, run, backend):
    x = make(device, 3, 40)
    storage = torch.full((5, 32), 7.0, dtype=BF16, device=device)
    call(run, backend, "silu", x, out=storage[1:4, 8:28])
    check_activation(storage[1:4, 8:28], x, "silu")
    storage[1:4, 8:28] = 7.0
    assert (storage == 7.0).all()


@pytest.mark.parametrize("backend, activation", (
    *((backend, activation) for backend in BACKENDS for activation in ("silu", "swiglu")), ("triton", "gelu")))
def test_bias_of_the_rows_expert(device, run, backend, activation):
    x, bias = make(device, 6, 48), make(device, 3, 48, seed=1)
    ids = torch.tensor([2, 0, -1, 1, 3, 2], dtype=torch.int32, device=device)
    full = torch.stack([bias[i] if 0 <= i < 3 else torch.zeros_like(bias[0]) for i in ids.tolist()])
    for b in (bias.float(), *((bias,) if backend == "triton" else ())):
        for view, padded in ((x, b), (strided_like(x, (0, 3)), strided_like(b, (0, 5), offset=1))):
            out = torch.empty(6, 24, dtype=BF16, device=device)
            run(backend, WITH_BIAS[activation], out, view, ids, padded)
            check_activation(out, x.double() + full.double(), activation)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scale_divides(device, run, backend):
    x, scale = make(device, 4, 144), torch.tensor([0.37], device=device)
    expected = gated_float64(x, "silu") / scale.cpu().double()
    for dtype in (dtypes.fp8_of(target_of(device).arch), *((torch.int8,) if backend == "triton" else ())):
        out = torch.empty(4, 72, dtype=dtype, device=device)
        run(backend, aiter_like.scaled_silu_and_mul, out, x, scale)
        largest = quant_rule.largest(dtype)
        error = (out.cpu().double() - expected.clamp(-largest, largest)).abs()
        spacing = 0.5 + 1e-3 if dtype == torch.int8 else 2**-4 * expected.abs() + 2**-9
        assert (error <= spacing).all() and error.max() > 0, dtype


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_stay_where_they_are(device, run, backend, activation):
    x = make(device, 3, 64)
    plain = call(run, backend, activation, x)
    x[0, 3], x[1, 32 + 5], x[2, 7], x[2, 9], x[2, 32 + 9] = math.nan, math.nan, math.inf, 80.0, -math.inf
    out = call(run, backend, activation, x)
    expected = torch.zeros(3, 32, dtype=torch.bool, device=device)
    expected[0, 3] = expected[1, 5] = True
    assert torch.equal(out.isnan(), expected)
    if activation == "swiglu":  # its limit holds infinities too
        assert out.isfinite().logical_or(expected).all()
    else:
        assert out[2, 7].isinf() and out[2, 9] == -math.inf
    same = ~expected
    same[2, 7] = same[2, 9] = False
    assert torch.equal(out[same], plain[same])


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_and_huge_tails(device, run, backend):
    for shape in ((0, 8), (3, 0)):
        assert aiter_like.silu_and_mul(torch.empty(shape[0], shape[1] // 2, device=device),
                                       torch.empty(shape, device=device), backend=backend) is None
    x = torch.tensor([[-1e30, -200.0, 0.0, -0.0, 1e-30, 200.0, 1e30, 30.0] + [1.0] * 8], device=device)
    for activation in ("silu", "gelu"):
        check_activation(call(run, backend, activation, x), x, activation)


def bad_calls(device: torch.device):
    x, out = make(device, 3, 64), make(device, 3, 32)
    ids, bias = torch.zeros(3, dtype=torch.int32, device=device), make(device, 2, 64)
    silu, with_bias, scaled = FUNCTIONS["silu"], WITH_BIAS["silu"], aiter_like.scaled_silu_and_mul
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    one = torch.ones(1, device=device)
    yield "input must have an even last dimension", ValueError, silu, (out, x[:, :63])
    yield r"out must have shape \(3, 32\), got \(3, 64\)", ValueError, silu, (x, x)
    yield "out must have dtype", TypeError, silu, (out.float(), x)
    yield "out must be on", ValueError, silu, (out.to("meta"), x)
    yield "limit must be at least 0.0", ValueError, silu, (out, x, -1.0)
    yield "bias must have at least one expert", ValueError, with_bias, (out, x, ids, bias[:0])
    yield "expert_ids and bias must come together", ValueError, with_bias, (out, x, None, bias)
    yield "scale must have one element", ValueError, scaled, (out, x, torch.ones(2, device=device))
    yield "fp8 on .* is", UnsupportedError, functools.partial(scaled, backend="hip"), (out.to(other), x, one)


def test_bad_input_is_named(device):
    for message, kind, function, args in bad_calls(device):
        with pytest.raises(kind, match=message):
            function(*args)


def test_uneven_rows_are_refused_by_the_kernels(device):
    x = make(device, 3, 5, 2, 64)[:, :4]
    out = torch.empty(3, 4, 2, 32, dtype=BF16, device=device)
    for backend in ("hip", "triton"):
        with pytest.raises(UnsupportedError, match="rows of input are not evenly spaced"):
            aiter_like.silu_and_mul(out, x, backend=backend)
    aiter_like.silu_and_mul(out, x)
    check_activation(out, x, "silu")


def test_moves_each_byte_once(device):
    """The simulator's counters: two gate, two up, two out accesses of a lane, of 16 bytes: what 16 elements need."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, out = make(device, 16, 2 * 1024), make(device, 16, 1024)
    aiter_like.silu_and_mul(out, x, backend="hip")
    with sim.enabled(checks=False) as session:
        aiter_like.silu_and_mul(out, x, backend="hip")
    (counts,) = session.counters.values()
    assert counts["by_class"]["global"] == 6 * out.numel() // 16 // 64


def bench() -> None:
    """silu, and gelu beside torch.compile."""
    for name, shapes in (("silu", ((8192, 4096), (8192, 8192), (4096, 14336), (64, 8192))), ("gelu", ((8192, 4096),))):
        benching.of("act_and_mul", "rows columns", shapes, dtype="bf16", out_dtype="bf16",
                    changed=functools.partial(ActAndMulCall._replace, activation=name))
