# SPDX-License-Identifier: MIT
"""The forms of AITER's Triton functions: the same results as the formulas in float64, AITER's defaults and answers."""

from __future__ import annotations

import pytest
import torch

from aiter_like import device
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import aiter_triton

ROWS, HIDDEN, EPSILON = 5, 96, 1e-5


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture
def operands():
    return numbers(ROWS, HIDDEN), numbers(ROWS, HIDDEN, seed=1), numbers(HIDDEN, seed=2), numbers(HIDDEN, seed=3)


def normalised(x, weight, bias):
    return torch.nn.functional.layer_norm(x.double(), (HIDDEN,), weight.double(), bias.double(), EPSILON)


@pytest.mark.parametrize("is_smooth", (False, True))
@pytest.mark.parametrize("has_residual", (False, True))
def test_quantised_layer_norms(simulated, operands, has_residual, is_smooth):
    x, residual, weight, bias = operands
    out, scale, total = torch.empty(ROWS, HIDDEN, dtype=torch.int8), torch.empty(ROWS, 1), torch.empty_like(x)
    smooth = [numbers(HIDDEN, seed=4).float().abs() + 0.5] if is_smooth else []
    name = f"layernorm2d_fwd_with_{'add_' if has_residual else ''}{'smooth' if is_smooth else 'dynamic'}quant"
    sums = [residual, total] if has_residual else []
    getattr(aiter_triton, name)(out, x, *sums, *smooth, scale, weight, bias)
    expected = normalised(x.double() + residual.double() if has_residual else x, weight, bias)
    expected = expected * smooth[0].double() if is_smooth else expected
    assert ((out.double() * scale.double() - expected).abs() <= scale.double()).all()
    assert not has_residual or torch.equal(total, (x.float() + residual.float()).bfloat16())


@pytest.mark.parametrize("has_gradient", (False, True))
def test_layer_norm_of_a_sum(simulated, operands, has_gradient):
    """`out` is returned, or where a gradient is asked for what has one; both outputs are written in each case."""
    x, residual, weight, bias = (one.requires_grad_(has_gradient) for one in operands)
    out, total = torch.empty_like(x), torch.empty_like(x)
    found = aiter_triton.layernorm2d_fwd_with_add(out, x, residual, total, weight, bias, EPSILON)
    expected = normalised(x.detach().double() + residual.detach().double(), weight.detach(), bias.detach())
    for one in (found, out):
        torch.testing.assert_close(one.detach().double(), expected, atol=0.03, rtol=0.02)
    assert torch.equal(total, (x.detach().float() + residual.detach().float()).bfloat16())
    if not has_gradient:
        assert found is out
        return
    ahead = numbers(ROWS, HIDDEN, seed=5)
    found.backward(ahead)
    exact = [one.detach().double().requires_grad_() for one in (x, residual, weight, bias)]
    torch.nn.functional.layer_norm(exact[0] + exact[1], (HIDDEN,), *exact[2:], EPSILON).backward(ahead.double())
    for one, double in zip((x, residual, weight, bias), exact, strict=True):
        torch.testing.assert_close(one.grad.double(), double.grad, atol=0.05, rtol=0.05)


def test_plain_layer_norm(simulated, operands):
    x, _, weight, bias = operands
    found = aiter_triton.layer_norm(x, weight, bias, eps=EPSILON)
    torch.testing.assert_close(found.double(), normalised(x, weight, bias), atol=0.03, rtol=0.02)


def test_rms_norm_with_dynamic_scales(simulated, operands):
    x, _, weight, _ = operands
    out, scale = torch.empty(ROWS, HIDDEN, dtype=torch.int8), torch.empty(ROWS, 1)
    assert aiter_triton.rmsnorm2d_fwd_with_dynamicquant(out, x, scale, weight, EPSILON) is None
    rows = aiter_triton.rmsnorm2d_fwd_with_dynamicquant(out, x, scale, weight, EPSILON, clamp_out=True,
                                                        dump_rms_norm=True)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()
    torch.testing.assert_close(rows.double(), exact, atol=0.03, rtol=0.02)
    assert ((out.double() * scale.double() - exact).abs() <= scale.double()).all()
    with pytest.raises(UnsupportedError, match="rmsnorm2d_fwd_with_dynamicquant: no backend supports scale_ub"):
        aiter_triton.rmsnorm2d_fwd_with_dynamicquant(out, x, scale, weight, EPSILON, scale_ub=scale[:1, 0])


def test_what_the_device_has(simulated):
    assert aiter_triton.is_fp8_avail() and aiter_triton.get_num_sms() == device.default_target().cu_num == 304
    assert not any(ask() for ask in (aiter_triton.is_fp4_avail, aiter_triton.is_gluon_avail, aiter_triton.is_tdm_avail,
                                     aiter_triton.is_mx_scale_preshuffling_avail))


def test_types(simulated):
    names = aiter_triton.str_to_torch_dtype
    assert "bf16" in names and "fp3" not in names and {"float32", "int8"} <= set(names)
    assert len(names) == len(set(names))
    assert names["bf16"] is names["bfloat16"] is torch.bfloat16 and names["int64"] is torch.int64
    assert names["fp8e4m3"] is names["float8_e4m3fn"] is torch.float8_e4m3fnuz
    assert names["e5m2fnuz"] is torch.float8_e5m2fnuz and names["mxfp4_e2m1"] is torch.uint8
    assert aiter_triton.get_dtype_max(torch.int8) == 127 and aiter_triton.get_dtype_max(torch.float16) == 65504
    with pytest.raises(KeyError, match="fp3"):
        names["fp3"]
