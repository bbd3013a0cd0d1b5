# SPDX-License-Identifier: MIT
"""Activations of fp32 into 16 bits, by the names that act_and_mul has: every backend against float64. What is
refused does not depend on the dtype: test_act_and_mul.py has it.
"""

import math

import pytest
import torch
from activation_cases import GATED, check_activation, gated_float64
from torch import Tensor

import aiter_like
from aiter_like import sim
from aiter_like.testing import TOLERANCES, strided_like

BACKENDS = ("hip", "triton", "torch")
HALVES = (torch.bfloat16, torch.float16)
FUNCTIONS = {"silu": aiter_like.silu_and_mul, "gelu": aiter_like.gelu_and_mul,
             "gelu_tanh": aiter_like.gelu_tanh_and_mul, "swiglu": aiter_like.swiglu_and_mul}


def make(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    """fp32 values up to about ±12, few of which 16 bits can hold."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 4).to(device)


def call(run, backend: str, activation: str, x: Tensor, dtype: torch.dtype, *args: object) -> Tensor:
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=dtype, device=x.device)
    run(backend, FUNCTIONS[activation], out, x, *args)
    return out


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, activation, dtype):
    for columns in (1, 7, 64, 1000, 4104):
        x = make(device, 5, 2 * columns, seed=columns)
        check_activation(call(run, backend, activation, x, dtype), x, activation)


@pytest.mark.parametrize("backend", BACKENDS)
def test_limit_and_each_element(device, run, backend):
    x = make(device, 6, 264)
    check_activation(call(run, backend, "silu", x, torch.float16, 2.5), x, "silu", limit=2.5)
    out = torch.empty_like(x, dtype=torch.bfloat16)
    run(backend, aiter_like.gelu_fast, out, x)
    check_activation(out, x, "gelu_tanh", is_gated=False)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_shapes_and_neighbours(device, run, backend, dtype):
    x = make(device, 6, 528)
    for view in (strided_like(x, (0, 24)), strided_like(x, (0, 3), offset=1), x.view(2, 3, 528), x[::2], x[0]):
        out = call(run, backend, "silu", view, dtype)
        check_activation(out, view, "silu")
    storage = torch.full((8, 280), 7.0, dtype=dtype, device=device)
    run(backend, aiter_like.silu_and_mul, storage[1:7, 5:269], x)
    check_activation(storage[1:7, 5:269], x, "silu")
    storage[1:7, 5:269] = 7.0
    assert (storage == 7.0).all(), "only the result is written"


@pytest.mark.parametrize("activation", ("silu", "gelu", "swiglu"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_of_the_rows_expert(device, run, backend, activation):
    x, bias = make(device, 6, 48), make(device, 3, 48, seed=1)
    ids = torch.tensor([2, 0, -1, 1, 3, 2], dtype=torch.int32, device=device)
    full = torch.stack([bias[i] if 0 <= i < 3 else torch.zeros_like(bias[0]) for i in ids.tolist()])
    out = torch.empty(6, 24, dtype=torch.bfloat16, device=device)
    run(backend, getattr(aiter_like, f"{activation}_and_mul_bias"), out, x, ids, bias)
    check_activation(out, (x + full).double(), activation)  # the sum is rounded to fp32, as in the kernels


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_scale_divides(device, run, backend, dtype):
    x, scale = make(device, 4, 144), torch.tensor([0.37], device=device)
    out = torch.empty(4, 72, dtype=dtype, device=device)
    run(backend, aiter_like.scaled_silu_and_mul, out, x, scale)
    expected = gated_float64(x, "silu") / scale.cpu().double()
    tolerance = TOLERANCES[dtype, "rtne"]
    bound = tolerance.unit * (1 + tolerance.unit) * expected.abs() + 2**-19 * expected.abs() + tolerance.smallest
    assert ((out.cpu().double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_infinity_and_what_16_bits_do_not_hold(device, run, backend):
    """Beyond the largest fp16 there are infinities."""
    x = torch.tensor([[math.nan, 1.0, 300.0, -300.0, math.inf, 1e-30, -1e30, 0.0,
                       1.0, math.nan, 300.0, 300.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    out = call(run, backend, "silu", x, torch.float16)[0]
    assert out[:2].isnan().all() and not out[2:].isnan().any()
    assert out[2] == math.inf and out[4] == math.inf and (out[[3, 5, 6, 7]] == 0).all()


def test_empty(device):
    for shape in ((0, 8), (3, 0)):
        assert aiter_like.silu_and_mul(torch.empty(shape[0], shape[1] // 2, dtype=torch.float16, device=device),
                                       torch.empty(shape, device=device)) is None


def test_moves_each_byte_once(device):
    """The simulator's counters: a vector of four elements takes 16 bytes of gate, as many of up, and 8 of out."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, out = make(device, 16, 2 * 1024), torch.empty(16, 1024, dtype=torch.bfloat16, device=device)
    aiter_like.silu_and_mul(out, x, backend="hip")
    with sim.enabled(checks=False) as session:
        aiter_like.silu_and_mul(out, x, backend="hip")
    (counts,) = session.counters.values()
    vectors = out.numel() // 4 // 64  # of a wave
    moved = {name: count for name, count in counts["accesses"].items() if count}
    assert moved == {"global_load_dwordx4": 2 * vectors, "global_store_dwordx2": vectors}
