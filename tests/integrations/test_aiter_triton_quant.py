# SPDX-License-Identifier: MIT
"""AITER's Triton functions that quantise behind something else, against float64."""

import pytest
import torch
import torch.nn.functional as F
from seeded import numbers

from aiter_like.integrations.aiter.quant import triton as quant

FP8 = torch.float8_e4m3fnuz
ROWS, HIDDEN, EPSILON = 5, 256, 1e-5


def close_groups(got, expected):
    """Within half a step of fp8 of each group."""
    narrow, scales = got
    scales = scales.double().repeat_interleave(narrow.shape[1] // scales.shape[1], 1)
    assert ((narrow.double() * scales - expected).abs() <= expected.abs() / 15 + scales / 500).all()


def norm(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()


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
