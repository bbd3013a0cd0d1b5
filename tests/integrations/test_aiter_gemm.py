# SPDX-License-Identifier: MIT
"""AITER's calls of hipBLASLt against float64, which are products of ours."""

import pytest
import torch
from seeded import numbers

import aiter_like as aiter
from aiter_like.errors import UnsupportedError

M, N, K, FP8 = 5, 32, 64, torch.float8_e4m3fnuz
pytestmark = pytest.mark.usefixtures("in_torch")


def close(out: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(out.double(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("is_shuffled", (False, True))
@pytest.mark.parametrize("use_gelu", (False, True))
@pytest.mark.parametrize("dtype", (torch.bfloat16, FP8), ids=str)
def test_products(dtype, use_gelu, is_shuffled):
    aiter.hipb_create_extension()
    x, weights, bias = numbers(M, K, dtype=dtype), numbers(N, K, seed=1, dtype=dtype), numbers(N)
    given = aiter.shuffle_weight(weights) if is_shuffled else weights
    scales = {} if dtype != FP8 else {"scaleA": numbers(M, 1, dtype=torch.float32).abs() / 8,
                                      "scaleB": numbers(1, N, dtype=torch.float32).abs() / 8}
    options = {"out_dtype": torch.bfloat16, "bpreshuffle": is_shuffled, "use_gelu": use_gelu, **scales}
    (solution,) = aiter.hipb_findallsols(x, given.t(), bias, **options)
    out = aiter.hipb_mm(x, given.t(), solution, bias, **options)
    expected = x.double() @ weights.double().t()
    for scale in scales.values():
        expected = expected * scale.double()
    expected = expected + bias.double()
    close(out, torch.nn.functional.gelu(expected) if use_gelu else expected)


def test_single_scales_and_none():
    x, weights = numbers(M, K, dtype=FP8), numbers(N, K, seed=1, dtype=FP8)
    half = torch.tensor(0.5)
    close(aiter.hipb_mm(x, weights.t(), -1, scaleA=half), x.double() @ weights.double().t() / 2)


def test_products_of_few_rows():
    x, weights, out = numbers(M, K), numbers(N, K, seed=1), torch.empty(M, N, dtype=torch.bfloat16)
    expected = x.double() @ weights.double().t()
    for call in (lambda: aiter.wvSpltK(weights, x, out, M, 304), lambda: aiter.LLMM1(weights, x, out, 4)):
        call()
        close(out, expected)
        out.zero_()
    scales = numbers(N, 1, dtype=torch.float32).abs(), numbers(M, 1, dtype=torch.float32).abs()
    x, weights = x.to(FP8), weights.to(FP8)
    aiter.wvSplitKQ(weights, x, out, *scales, 304)
    close(out, (x.double() @ weights.double().t()) * scales[0].double().t() * scales[1].double())


def test_what_is_not_served_says_so():
    x, weights = numbers(M, K), numbers(N, K)
    for call in (lambda: aiter.hipb_mm(x, weights.t(), -1, use_gelu=True),
                 lambda: aiter.hipb_findallsols(x, weights.t(), use_gelu=True)):
        with pytest.raises(RuntimeError, match="use_gelu requires bias"):
            call()
    with pytest.raises(UnsupportedError, match="solution_index -1 or 0, got NoneType and 7"):
        aiter.hipb_mm(x, weights.t(), 7)
    with pytest.raises(ValueError, match="scaleA and scaleB must be None for torch.bfloat16"):
        aiter.hipb_mm(x, weights.t(), -1, scaleA=torch.ones(1))


@pytest.mark.parametrize("name", ("gemm_a8w8_bpreshuffle_ck", "gemm_a8w8_bpreshuffle_cktile"))
def test_shuffled_weights(name):
    x, weights = numbers(M, K, dtype=FP8), numbers(N, K, seed=1, dtype=FP8)
    scales, out = (torch.rand(M, 1), torch.rand(N, 1)), torch.empty(M, N, dtype=torch.bfloat16)
    function = getattr(aiter, name)
    assert function(x, aiter.shuffle_weight(weights), *scales, out) is out
    close(out, x.double() @ weights.double().t() * scales[0].double() * scales[1].double().t())
    with pytest.raises(TypeError, match=f"^{name}: XQ must have dtype"):
        function(x.double(), weights, *scales, out)
    with pytest.raises(ValueError, match=f"^{name}: out must have shape|^{name}: Out must have shape"):
        function(x, weights, *scales, out[:2])
