# SPDX-License-Identifier: MIT
"""AITER's Triton functions that quantise behind something else, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aiter_like.integrations.aiter.quant import triton as quant

FP8 = torch.float8_e4m3fnuz
ROWS, HIDDEN, EPSILON = 5, 256, 1e-5


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(got, expected, tolerance=0.01):
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def close_groups(got, expected):
    """Within half a step of fp8 of each group."""
    narrow, scales = got
    scales = scales.double().repeat_interleave(narrow.shape[1] // scales.shape[1], 1)
    assert ((narrow.double() * scales - expected).abs() <= expected.abs() / 15 + scales / 500).all()


def norm(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()


@pytest.mark.parametrize("parts", (None, 3))
def test_gates(simulated, parts):
    shape = (parts, ROWS) if parts else (ROWS,)
    x, x2 = numbers(*shape, 2 * HIDDEN).float(), numbers(*shape, 40, seed=1).float() if parts else None
    narrow, second = quant.fused_reduce_act_mul_fp8_group_quant(x, "gelu", x2, 128, FP8, torch.float16)
    gate, up = (x.double().sum(0) if parts else x.double()).chunk(2, -1)
    close_groups(narrow, F.gelu(gate) * up)
    assert (second is None) == (parts is None)
    if parts:
        assert second.dtype == torch.float16
        close(second, x2.double().sum(0))
    else:
        with pytest.raises(ValueError, match="x2 must be None where x has 2 dimensions"):
            quant.fused_reduce_act_mul_fp8_group_quant(x, x2=x)


@pytest.mark.parametrize("is_transposed", (False, True))
@pytest.mark.parametrize("parts", (None, 3))
def test_norms(simulated, parts, is_transposed):
    shape, dtype = ((parts, ROWS), torch.float32) if parts else ((ROWS,), torch.bfloat16)
    x, second = numbers(*shape, HIDDEN).to(dtype), numbers(*shape, 64, seed=1).to(dtype)
    third = numbers(*shape, 24, seed=2).to(dtype) if parts else None
    weight, other, residual = numbers(HIDDEN, seed=3), numbers(64, seed=4).float(), numbers(ROWS, HIDDEN, seed=5)
    weight = weight if parts is None else weight.float()
    other = other.to(weight.dtype)
    out3 = torch.empty(ROWS, 24).bfloat16() if parts else None
    found = quant.fused_reduce_rms_fp8_group_quant(
        x, weight, EPSILON, second, other, EPSILON, third, 128, FP8, torch.bfloat16, residual, True, out3,
        is_transposed, is_transposed)
    total, narrow = (x.double().sum(0) if parts else x.double()) + residual.double(), found[0]
    close_groups(narrow, norm(total, weight))
    assert narrow[1].stride() == ((1, ROWS) if is_transposed else (2, 1))
    close(found[1], norm(total, weight))
    close(found[2], norm(second.double().sum(0) if parts else second.double(), other))
    close(found[3], total)
    assert found[4] is out3 and all(each.dtype == torch.bfloat16 for each in found[1:4])
    if parts:
        close(out3, third.double().sum(0))


def test_norm_alone(simulated):
    x, weight = numbers(ROWS, HIDDEN), numbers(HIDDEN, seed=3)
    narrow, *others = quant.fused_reduce_rms_fp8_group_quant(x, weight.float(), EPSILON)
    close_groups(narrow, norm(x.double(), weight))
    assert others == [None] * 4
    with pytest.raises(ValueError, match="fused_reduce_rms_fp8_group_quant: inp2 must have shape"):
        quant.fused_reduce_rms_fp8_group_quant(x, weight, EPSILON, x[1:])
    with pytest.raises(ValueError, match="fused_reduce_rms_fp8_group_quant: inp1 must have 2 or 3 dimensions"):
        quant.fused_reduce_rms_fp8_group_quant(x[0], weight, EPSILON)


def test_static_gate(simulated):
    x, scale = numbers(ROWS, 2 * HIDDEN), torch.tensor(0.125)
    found = quant.fused_silu_mul_fp8_per_tensor_static_quant(x, scale, silu_convert_to_inp_type=True)
    gate, up = x.double().chunk(2, -1)
    assert found.dtype == FP8
    torch.testing.assert_close(found.double() / 8, F.silu(gate) * up, rtol=0.07, atol=1e-3)
    with pytest.raises(ValueError, match="inp must have an even number of columns, got 511"):
        quant.fused_silu_mul_fp8_per_tensor_static_quant(x[:, 1:], scale)


def test_norm_of_a_sum(simulated):
    x, weight, residual = numbers(ROWS, HIDDEN), numbers(HIDDEN, seed=1), numbers(ROWS, HIDDEN, seed=2)
    close(quant.fused_rmsnorm_add(x, weight, EPSILON), norm(x.double(), weight))
    found, total = quant.fused_rmsnorm_add(x, weight, EPSILON, residual)
    exact = x.double() + residual.double()
    close(found, norm(exact, weight))
    assert torch.equal(total, exact.bfloat16())


def test_bounds():
    assert quant.get_fp8_min_max_bounds(FP8) == (-224, 224)
    assert quant.get_fp8_min_max_bounds(torch.float8_e4m3fn) == (-448, 448)


@pytest.mark.parametrize(("activation", "has_bias", "is_before", "group_size"), [
    ("silu", False, True, 64), ("silu", True, True, None), ("sigmoid", True, True, 16), ("swish", False, False, 256),
    ("relu", True, True, 128)])
def test_gated_norm(simulated, activation, has_bias, is_before, group_size):
    x, z = numbers(ROWS, HIDDEN), numbers(ROWS, HIDDEN, seed=1)
    weight, bias = numbers(HIDDEN, seed=2), numbers(HIDDEN, seed=3) if has_bias else None
    x[2] = 0
    gate = {"sigmoid": torch.sigmoid, "relu": torch.ones_like}.get(activation, F.silu)(z.double())
    expected = norm(x.double() * (1 if is_before else gate), weight)
    expected = (expected + (bias.double() if has_bias else 0)) * (gate if is_before else 1)
    found = quant.fused_rms_gated_fp8_group_quant(
        x, weight, bias, z, EPSILON, norm_before_gate=is_before, activation=activation, group_size=group_size)
    size = group_size or HIDDEN
    scales = (expected.unflatten(1, (-1, size)).abs().amax(-1) / 224).clamp(min=1 / (224 * 512))
    assert found[1].shape == ((ROWS,) if group_size is None else scales.shape)
    torch.testing.assert_close(found[1].double().view(scales.shape), scales, rtol=1e-5, atol=0)
    close_groups((found[0], found[1].view(scales.shape)), expected)


def test_gated_norm_by_powers_of_two_and_bad_arguments(simulated):
    x, z, weight = numbers(ROWS, HIDDEN), numbers(ROWS, HIDDEN, seed=1), numbers(HIDDEN, seed=2)
    function = quant.fused_rms_gated_fp8_group_quant
    narrow, scales = function(x, weight, None, z, EPSILON, use_ue8m0=True, fp8_min=-100.0, fp8_max=100.0, group_size=64)
    assert (scales.log2() % 1 == 0).all() and narrow.float().abs().max() <= 100
    close_groups((narrow, scales), norm(x.double(), weight) * F.silu(z.double()))
    for message, options in (("less than or equal to hidden size", {"group_size": 512}),
                             ("divisible by group_size", {"group_size": 48}), ("positive", {"group_size": 0}),
                             ("fp8_min and fp8_max must be given together", {"fp8_max": 1.0}),
                             ("out_dtype must be", {"out_dtype": torch.float8_e5m2})):
        with pytest.raises(ValueError, match=f"fused_rms_gated_fp8_group_quant: .*{message}"):
            function(x, weight, None, z, EPSILON, **options)
    with pytest.raises(ValueError, match="fused_rms_gated_fp8_group_quant: z must have shape"):
        function(x, weight, None, z[1:], EPSILON)
