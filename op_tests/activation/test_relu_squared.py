# SPDX-License-Identifier: MIT
"""relu_squared: every backend against float64, odd sizes, strides, special values, bad input."""

import benching
import pytest
import torch

import aiter_like
from aiter_like.testing import strided_like

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def exact(x: torch.Tensor) -> torch.Tensor:
    """The formula in float64, written apart from the operator's reference."""
    return torch.nn.functional.relu(x.double()).square()


def compare(out: torch.Tensor, x: torch.Tensor) -> None:
    """One unit in the last place of the dtype, which for numbers below the normal ones is the smallest of all."""
    facts = torch.finfo(out.dtype)
    torch.testing.assert_close(out.double(), exact(x), rtol=facts.eps, atol=facts.smallest_normal * facts.eps,
                               equal_nan=True)


@pytest.mark.parametrize("backend", ("hip", "triton"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((1, 1), (3, 7), (5, 264), (2, 3, 1000), (1, 8200)), ids=str)
def test_every_backend(device, run, backend, dtype, shape):
    x = torch.randn(shape, dtype=dtype, device=device)
    compare(run(backend, aiter_like.relu_squared, x), x)


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_strided_rows(device, run, backend):
    x = strided_like(torch.randn(9, 300, device=device).bfloat16(), (5, 0))
    compare(run(backend, aiter_like.relu_squared, x), x)


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_special_values(device, run, backend):
    x = torch.tensor([[0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-38, -1e38, 3.0]], device=device)
    compare(run(backend, aiter_like.relu_squared, x), x)


def test_empty(device):
    assert aiter_like.relu_squared(torch.randn(0, 8, device=device)).shape == (0, 8)


def bench() -> None:
    benching.of("relu_squared", "rows columns", ((8192, 8192), (4096, 14336), (64, 8192)), dtype="bf16")
