# SPDX-License-Identifier: MIT
"""The forms of AITER's Triton functions: the same results as the formulas in float64, AITER's defaults and answers."""

from __future__ import annotations

import pytest
import torch

import aiter_like
from aiter_like import device
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.others import adapters, triton
from aiter_like.ops.layout.shuffle_weight import shuffle_weight

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
    getattr(triton, name)(out, x, *sums, *smooth, scale, weight, bias)
    expected = normalised(x.double() + residual.double() if has_residual else x, weight, bias)
    expected = expected * smooth[0].double() if is_smooth else expected
    assert ((out.double() * scale.double() - expected).abs() <= scale.double()).all()
    assert not has_residual or torch.equal(total, (x.float() + residual.float()).bfloat16())


@pytest.mark.parametrize("has_gradient", (False, True))
def test_layer_norm_of_a_sum(simulated, operands, has_gradient):
    """`out` is returned, or where a gradient is asked for what has one; both outputs are written in each case."""
    x, residual, weight, bias = (one.requires_grad_(has_gradient) for one in operands)
    out, total = torch.empty_like(x), torch.empty_like(x)
    found = triton.layernorm2d_fwd_with_add(out, x, residual, total, weight, bias, EPSILON)
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
    found = triton.layer_norm(x, weight, bias, eps=EPSILON)
    torch.testing.assert_close(found.double(), normalised(x, weight, bias), atol=0.03, rtol=0.02)


def test_rms_norm_with_dynamic_scales(simulated, operands):
    x, _, weight, _ = operands
    out, scale = torch.empty(ROWS, HIDDEN, dtype=torch.int8), torch.empty(ROWS, 1)
    assert triton.rmsnorm2d_fwd_with_dynamicquant(out, x, scale, weight, EPSILON) is None
    rows = triton.rmsnorm2d_fwd_with_dynamicquant(out, x, scale, weight, EPSILON, clamp_out=True,
                                                        dump_rms_norm=True)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()
    torch.testing.assert_close(rows.double(), exact, atol=0.03, rtol=0.02)
    assert ((out.double() * scale.double() - exact).abs() <= scale.double()).all()
    with pytest.raises(UnsupportedError, match="rmsnorm2d_fwd_with_dynamicquant: no backend supports scale_ub"):
        triton.rmsnorm2d_fwd_with_dynamicquant(out, x, scale, weight, EPSILON, scale_ub=scale[:1, 0])


def test_what_the_device_has(simulated):
    assert triton.is_fp8_avail() and triton.get_num_sms() == device.default_target().cu_num == 304
    assert not triton.is_2d_gluon_available(torch.bfloat16, torch.bfloat16, 0, False, False)
    assert not any(ask() for ask in (triton.is_fp4_avail, triton.is_gluon_avail, triton.is_tdm_avail))


def test_types(simulated):
    names = triton.str_to_torch_dtype
    assert "bf16" in names and "fp3" not in names and {"float32", "int8"} <= set(names)
    assert len(names) == len(set(names))
    assert names["bf16"] is names["bfloat16"] is torch.bfloat16 and names["int64"] is torch.int64
    assert names["fp8e4m3"] is names["float8_e4m3fn"] is torch.float8_e4m3fnuz
    assert names["e5m2fnuz"] is torch.float8_e5m2fnuz and names["mxfp4_e2m1"] is torch.uint8
    with pytest.raises(KeyError, match="fp3"):
        names["fp3"]


@pytest.mark.parametrize("has_y", (False, True))
def test_products_of_8_bits(simulated, has_y):
    x, w = (torch.randint(-128, 128, (2, rows, 64), generator=torch.Generator().manual_seed(rows)).to(torch.int8)
            for rows in (5, 24))
    x_scale, w_scale, bias = torch.rand(2, 5, 1) + 0.5, torch.rand(2, 1, 24) + 0.5, numbers(2, 1, 24).float()
    exact = (x.double() @ w.double().mT) * x_scale.double() * w_scale.double()
    y = torch.empty(2, 5, 24, dtype=torch.bfloat16) if has_y else None
    first = None if y is None else y[0]
    one = x[0], w[0], x_scale[0], w_scale[0]
    for function, args, options, expected in (
            (triton.batched_gemm_a8w8, (x, w, x_scale, w_scale), {"YQ": y}, exact),
            (triton.gemm_a8w8, (*one, bias[0, 0].bfloat16()), {"y": first}, exact[0] + bias[0, 0].double()),
            (triton.gemm_a8w8_per_token_scale, (*one[:3], w_scale[0].t()), {"y": first}, exact[0])):
        found = function(*args, **options)
        torch.testing.assert_close(found.double(), expected, rtol=0.01, atol=0.01)
        assert not has_y or found.data_ptr() == y.data_ptr()
    short = bias.bfloat16()  # Both the product and the sum are rounded.
    found = triton.batched_gemm_a8w8(x, w, x_scale, w_scale, short, YQ=y)
    assert torch.equal(found, exact.bfloat16() + short) and (y is None or found is y)
    with pytest.raises(ValueError, match="batched_gemm_a8w8: bias must have shape"):
        triton.batched_gemm_a8w8(x, w, x_scale, w_scale, short[..., 1:])
    with pytest.raises(UnsupportedError, match="gemm_a8w8: no backend supports skip_reduce"):
        triton.gemm_a8w8(x[0], w[0], x_scale[0], w_scale[0], skip_reduce=True)


def test_scales_of_experts_stay_as_they_are(simulated):
    data = torch.arange(256, dtype=torch.uint8).view(8, 32)
    assert triton.shuffle_scale_moe(data) is data
    found = triton.shuffle_scale_moe(data, "gfx90a", return_layout=True)
    assert found[0] is data and found[1] is None
    with pytest.raises(UnsupportedError, match="shuffle_scale_moe: no kernel here reads the scales of gfx950"):
        triton.shuffle_scale_moe(data, "gfx950")


def test_attention(simulated):
    """Of AITER's kernel: its window and sink; the setters say nothing."""
    q, k, v = (numbers(1, 20, 4, 64, seed=seed) for seed in range(3))
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    for setter, value in (("use_fused_bwd_kernel", True), ("use_int64_strides", False), ("impl", "default")):
        assert getattr(triton, f"mha_set_{setter}")(value) is None
    found = triton.flash_attn_func(q, k, v, causal=True, window_size=(7, 0), sink=sink, config={})
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 8
    ahead = torch.arange(20)[:, None] - torch.arange(20)
    scores = scores.masked_fill((ahead < 0) | (ahead > 7), -torch.inf)
    scores = torch.cat((scores, sink.double()[None, :, None, None].expand(1, 4, 20, 1)), -1)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., :-1], v.double())
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02)


def test_weights_are_shuffled_as_elsewhere(simulated):
    w = torch.arange(32 * 64).view(32, 64).to(torch.int8)
    assert torch.equal(triton.shuffle_weight(w, arch="gfx950"), shuffle_weight(w))


def dropped(q, k, v, signs):
    """Attention of one sequence in float64, without what is negative in `signs` [heads, queries, keys]; a half is."""
    p = torch.einsum("qhd,khd->hqk", q.double(), k.double()).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("hqk,khd->qhd", p * (signs >= 0) / 0.5, v.double())


def test_dropped_scores_are_negative():
    q, k, v = (numbers(2, 9, 2, 32, seed=seed) for seed in range(3))
    with aiter_like.use_backend("torch"):
        out, signs = triton.flash_attn_func(q, k, v, 0.5, return_attn_probs=True)
        assert triton.flash_attn_func(q, k, v, return_attn_probs=True)[1].numel() == 0
    assert signs.shape == (2, 2, 9, 9) and signs.dtype == torch.float32
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    for own, *tensors, mask in zip(out, q, k, v, signs):
        torch.testing.assert_close(own.double(), dropped(*tensors, mask), rtol=2e-2, atol=2e-2)


def test_dropped_scores_of_packed_sequences_are_negative():
    """[batch, heads, longest, longest], with 0 behind the queries of a sequence."""
    q, k, v = (numbers(9, 2, 32, seed=seed) for seed in range(3))
    starts = torch.tensor([0, 2, 2, 9], dtype=torch.int32)
    with aiter_like.use_backend("torch"):
        call = {"dropout_p": 0.5, "return_lse": True, "return_attn_probs": True}
        out, _, signs = adapters.flash_attn_varlen_func(q, k, v, starts, starts, 7, 7, **call)
        empty = adapters.flash_attn_varlen_func(q[:0], k, v, starts[:1].expand(4).contiguous(), starts, 0, 7,
                                                      **call)
    assert signs.shape == (3, 2, 7, 7) and empty[2].shape == (3, 2, 0, 7)
    assert not signs[0, :, 2:].any() and not signs[1].any() and (signs[0, :, :2] != 0).all() and (signs[2] != 0).all()
    for index, rows in ((0, slice(0, 2)), (2, slice(2, 9))):
        length = rows.stop - rows.start
        expected = dropped(q[rows], k[rows], v[rows], signs[index, :, :length, :length])
        torch.testing.assert_close(out[rows].double(), expected, rtol=2e-2, atol=2e-2)
