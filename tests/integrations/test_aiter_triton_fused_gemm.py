# SPDX-License-Identifier: MIT
"""AITER's products in Triton with something before or behind them, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aiter_like.integrations.aiter.gemm import triton_fused as fused
from aiter_like.ops.layout.shuffle_weight import shuffle_weight

FP8 = torch.float8_e4m3fnuz
ACTIVATIONS = {None: lambda x: x, "relu": torch.relu, "silu": F.silu, "silu_exp2": F.silu, "gelu": F.gelu,
               "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(got, expected, tolerance=0.02):
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


def test_plain(simulated):
    x, w = numbers(5, 64), numbers(24, 64, seed=1)
    expected = x.double() @ w.double().t()
    close(fused.gemm_a16w16_atomic(x, w, torch.float32), expected)
    y = torch.full((5, 24), 7.0).bfloat16()
    assert fused.gemm_a16w16_atomic(x, w, torch.float32, y) is y
    close(y, expected)


@pytest.mark.parametrize("has_y", (False, True))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward(simulated, activation, has_y):
    x, up, down = numbers(5, 64), numbers(48, 64, seed=1) / 8, numbers(24, 64, seed=2) / 8
    act = ACTIVATIONS[activation]
    gate, other = (x.double() @ up.double().t()).chunk(2, -1)
    y, inner = (torch.empty(5, columns).bfloat16() if has_y else None for columns in (64, 24))
    gated = act(gate) * other
    found = fused.gemm_a16w16_gated(x, up, torch.float16, inner, activation=activation)
    assert found is inner if has_y else found.dtype == torch.float16
    close(found, gated)
    for name, weights, hidden, more in (
            ("ff_a16w16_gated", up, gated, {"intermediate": inner}), ("ff_a16w16_fused_gated", up, gated, {}),
            ("ff_a16w16_nogate", up[:24], act(gate), {"intermediate": inner}),
            ("ff_a16w16_fused_ungated", up[:24], act(gate), {})):
        found = getattr(fused, name)(x, weights, down, y=y, activation=activation, **more)
        assert not has_y or found is y
        close(found, hidden @ down.double())


def test_bad_feed_forward(simulated):
    x, up = numbers(5, 64), numbers(48, 64)
    with pytest.raises(ValueError, match="gemm_a16w16_gated: activation must be 'silu', 'gelu', .* got str 'tanh'"):
        fused.gemm_a16w16_gated(x, up, activation="tanh")
    with pytest.raises(ValueError, match="gemm_a16w16_gated: w must have an even number of rows"):
        fused.gemm_a16w16_gated(x, up[1:], activation="relu")


@pytest.fixture
def quantised():
    """x [5, 256] and w [96, 256] with their block scales, and the exact product."""
    x, w = numbers(5, 256).to(FP8), numbers(96, 256, seed=1).to(FP8)
    x_scale, w_scale = torch.rand(5, 2) + 0.5, torch.rand(1, 2) + 0.5
    wide = [each.double() * scale.repeat_interleave(128, 1).double() for each, scale in ((x, x_scale), (w, w_scale))]
    return (x, w, x_scale, w_scale), wide[0] @ wide[1].t()


@pytest.mark.parametrize("has_y", (False, True))
@pytest.mark.parametrize("has_bias", (False, True))
def test_two_products(simulated, quantised, has_bias, has_y):
    operands, expected = quantised
    x, w, bias, other_bias = numbers(5, 64), numbers(24, 64, seed=1), numbers(96, seed=2), numbers(24, seed=3)
    biases = [bias, other_bias] if has_bias else [None, None]
    ys = [torch.empty(5, columns).bfloat16() if has_y else None for columns in (96, 24)]
    found = fused.fused_gemm_a8w8_blockscale_a16w16(*operands, x, w, *biases, torch.bfloat16, *ys, skip_reduce=True)
    assert not has_y or all(got is given for got, given in zip(found, ys, strict=True))
    close(found[0], expected + (bias.double() if has_bias else 0))
    close(found[1], x.double() @ w.double().t() + (other_bias.double() if has_bias else 0))
    with pytest.raises(ValueError, match="fused_gemm_a8w8_blockscale_a16w16: bias_fp8 must have shape"):
        fused.fused_gemm_a8w8_blockscale_a16w16(*operands, x, w, bias[1:])


@pytest.mark.parametrize("b", (3, "one", "all"))
@pytest.mark.parametrize("a", (-1.5, "one", "all"))
def test_product_and_sum(simulated, quantised, a, b):
    """Of a tensor, in place and not; behind a product, in both ways."""
    operands, product = quantised
    shapes = {"one": (1,), "all": (5, 96)}
    a, b = (numbers(*shapes[value], seed=seed) if value in shapes else value for seed, value in ((5, a), (6, b)))
    wide = [value.double() if isinstance(value, torch.Tensor) else value for value in (a, b)]
    x, out = numbers(5, 96), torch.empty(96, 5).half()
    expected = x.double() * wide[0] + wide[1]
    assert fused.fused_mul_add(x, a, b, out) is out
    close(out.view(5, 96), expected)
    assert fused.fused_mul_add(x, a, b) is x
    close(x, expected)
    y = torch.empty(5, 96).bfloat16()
    assert fused.fused_gemm_a8w8_blockscale_mul_add(*operands, a, b, y=y) is y
    close(y, product * wide[0] + wide[1])
    found = fused.fused_gemm_a8w8_blockscale_mul_add(*operands, a, b, torch.float16, fuse_type=1)
    assert found.dtype == torch.float16
    close(found, product + wide[0] * wide[1])


def test_bad_product_and_sum(simulated, quantised):
    x = numbers(5, 96)
    with pytest.raises(ValueError, match="fused_mul_add: a must have 1 or 480 elements"):
        fused.fused_mul_add(x, x[0], 1)
    with pytest.raises(ValueError, match="fused_mul_add: out must have the shape"):
        fused.fused_mul_add(x, 1, 1, x[1:])
    with pytest.raises(ValueError, match="fused_gemm_a8w8_blockscale_mul_add: fuse_type must be 0 or 1, got int 2"):
        fused.fused_gemm_a8w8_blockscale_mul_add(*quantised[0], 1, 1, fuse_type=2)


@pytest.mark.parametrize("is_transposed", (False, True))
def test_split(simulated, quantised, is_transposed):
    (x, w, x_scale, w_scale), expected = quantised
    y, heads = numbers(5, 1, 4, seed=4), expected.view(5, 6, 16)
    shuffled, scale = shuffle_weight(w).view(6, 16 * 256), x_scale
    if is_transposed:
        scale = x_scale.t().contiguous().view(5, 2)
    calls = (("fused_gemm_a8w8_blockscale_split_cat", (x, w, y, x_scale, w_scale, 10, 6), {}),
             ("fused_gemm_a8w8_blockscale_preshuffle_split_cat",
              (x, shuffled, y.expand(5, 6, 4), scale, w_scale, 10, 6), {"is_x_scale_transposed": is_transposed}))
    for name, args, options in calls:
        first, second = getattr(fused, name)(*args, dtype=torch.bfloat16, **options)
        assert first.shape == (5, 6, 14) and second.shape == (5, 6, 6) and second.is_contiguous()
        close(first[..., :10], heads[..., :10])
        close(second, heads[..., 10:])
        assert torch.equal(first[..., 10:], y.expand(5, 6, 4))
        with pytest.raises(ValueError, match=f"{name}: S1 . S2 must divide the 96 columns"):
            getattr(fused, name)(*args[:5], 10, 7, **options)
