# SPDX-License-Identifier: MIT
"""AITER's products in Triton that quantise their activations, against float64."""

import pytest
import torch
from seeded import wide_numbers as numbers

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.gemm import triton

FP8 = torch.float8_e4m3fnuz
NAME = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
product = getattr(triton, NAME)


def expect(x, weights, scale, bias, dtype, group):
    """x [batch, m, k] with a scale for each group of columns, rounded as its elements are stored."""
    groups = x.double().unflatten(-1, (-1, min(group, x.shape[-1])))
    largest = 127 if dtype == torch.int8 else torch.finfo(dtype).max
    scales = groups.abs().amax(-1, keepdim=True) / largest
    narrow = (groups / scales).round() if dtype == torch.int8 else (groups / scales).float().to(dtype).double()
    exact = (narrow * scales).flatten(-2) @ weights.double().mT * scale.double().reshape(-1, 1, 1)
    return exact if bias is None else exact + bias.double()


@pytest.mark.parametrize("is_transposed", (False, True))
@pytest.mark.parametrize(("m", "k", "dtype"), [(5, 128, FP8), (3, 64, torch.int8), (1, 256, FP8), (21, 384, FP8)])
def test_groups(simulated, m, k, dtype, is_transposed):
    """One scale of a row, and several; each order of the input, with and without a tensor to write."""
    x, bias = numbers(3, m, k).bfloat16(), numbers(3, 1, 48, seed=1).bfloat16()
    weights = (numbers(3, 48, k, seed=2) * 20).round().clamp(-100, 100).to(dtype)
    scale = torch.tensor([0.5, 0.25, 2.0]) if is_transposed else torch.tensor(0.125)
    expected = expect(x, weights, scale, bias, dtype, 128)
    wide = torch.full((m, 3, 96), 7.0, dtype=torch.bfloat16)
    for x_in, options in ((x, {}), (x.transpose(0, 1).contiguous(), {"transpose_bm_in": True}),
                          (x.mT.contiguous().mT, {"dtype": torch.float16})):
        found = product(x_in, weights, scale, bias=bias, transpose_bm=is_transposed, config={}, **options)
        assert found.dtype == options.get("dtype", torch.bfloat16) and found.is_contiguous()
        torch.testing.assert_close(found.double(), expected.transpose(0, 1) if is_transposed else expected, rtol=0.02,
                                   atol=0.02 * expected.abs().max().item())
    if is_transposed:
        given = wide[..., :48]
        assert product(x, weights, scale, 128, bias, YQ=given, transpose_bm=True) is given
        torch.testing.assert_close(given.double(), expected.transpose(0, 1), rtol=0.02,
                                   atol=0.02 * expected.abs().max().item())
        assert (wide[..., 48:] == 7).all()


def test_no_rows(simulated):
    found = product(torch.empty(2, 0, 256).bfloat16(), torch.zeros(2, 16, 256).to(FP8), torch.ones(1))
    assert found.shape == (2, 0, 16)


def test_bad_input_is_named(simulated):
    x, weights, scale = numbers(2, 3, 256).bfloat16(), torch.zeros(2, 16, 256).to(FP8), torch.ones(1)
    for args, options, error, message in (
            ((x, weights, scale, 64), {}, UnsupportedError, "group_size is 128"),
            ((x, weights.to(torch.int8), scale), {}, UnsupportedError, "WQ fp8"),
            ((x[..., :192], weights[..., :192], scale), {}, UnsupportedError, "k a multiple"),
            ((x[:1], weights, scale), {}, ValueError, "WQ must have shape"),
            ((x, weights, torch.ones(3)), {}, ValueError, "w_scale must have 1 or 2 elements"),
            ((x, weights, scale), {"bias": x[0]}, ValueError, "bias must have shape"),
            ((x, weights, scale), {"YQ": x[..., :16], "transpose_bm": True}, ValueError, "YQ must have shape"),
            ((x, weights, scale), {"transpose_bm_in": True}, ValueError, "WQ must have shape"),
            ((x, weights.float(), scale), {}, TypeError, "WQ must have dtype")):
        with pytest.raises(error, match=f"{NAME}: .*{message}"):
            product(*args, **options)
