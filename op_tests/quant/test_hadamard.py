# SPDX-License-Identifier: MIT
"""hadamard: every backend against a product with the matrix in float64, all widths, strides, special values, bad input.
"""

import benching
import pytest
import torch

import aiter_like
from aiter_like.testing import strided_like

KERNELS = ("hip", "triton")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def matrix(columns: int) -> torch.Tensor:
    """Signs by the number of bits that a row's and a column's index share, which is not how the operator sums."""
    index = torch.arange(columns)
    shared = index[:, None] & index
    ones = sum(shared >> bit & 1 for bit in range(max(columns.bit_length(), 1)))
    return 1.0 - 2.0 * (ones % 2).double()


def compare(out: torch.Tensor, x: torch.Tensor, scale: float | None = None) -> None:
    columns = x.shape[-1]
    factor = columns ** -0.5 if scale is None else scale
    wanted = x.cpu().double() @ matrix(columns) * factor
    largest = x.abs().max().item() * columns * factor
    facts = torch.finfo(out.dtype)  # the sums of fp32 differ by a rounding of the largest sum that there can be
    torch.testing.assert_close(out.cpu().double(), wanted, rtol=facts.eps, atol=2**-22 * largest + facts.tiny,
                               equal_nan=True)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("columns", [2**exponent for exponent in range(1, 13)])
def test_widths(device, run, backend, columns):
    x = torch.randn(5, columns, dtype=DTYPES[columns.bit_length() % 3], device=device)
    compare(run(backend, aiter_like.hadamard_transform, x), x)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((1, 128), (33, 64), (2, 3, 256), (3, 512)), ids=str)
def test_every_backend(device, run, backend, dtype, shape):
    x = torch.randn(shape, dtype=dtype, device=device)
    compare(run(backend, aiter_like.hadamard_transform, x), x)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("columns", (4, 128))
def test_strided_rows_scale_and_other_dtype(device, run, backend, columns):
    x = strided_like(torch.randn(9, columns, device=device), (3, 0))
    out = strided_like(torch.empty(9, columns, device=device, dtype=torch.bfloat16), (5, 0))
    assert run(backend, aiter_like.hadamard_transform, x, 0.5, out=out) is out
    compare(out, x, 0.5)


@pytest.mark.parametrize("backend", KERNELS)
def test_in_place_and_back(device, run, backend):
    x = torch.randn(7, 256, device=device)
    y = x.clone()
    run(backend, aiter_like.hadamard_transform, y, out=y)
    compare(y, x)
    run(backend, aiter_like.hadamard_transform, y, out=y)
    torch.testing.assert_close(y, x, rtol=0, atol=4e-6)


@pytest.mark.parametrize("backend", KERNELS)
def test_special_values(device, run, backend):
    """A number that is none spoils its own row alone; a row with one infinity has infinities of both signs."""
    x = torch.randn(4, 64, device=device)
    x[1, 5], x[2, 63] = torch.nan, torch.inf
    out = run(backend, aiter_like.hadamard_transform, x)
    compare(out[[0, 3]], x[[0, 3]])
    assert out[1].isnan().all()
    assert torch.equal(out[2].cpu().double(), matrix(64)[63] * torch.inf)


def test_bad_input_is_named(device):
    x = torch.randn(4, 8, device=device)
    with pytest.raises(ValueError, match=r"input must have a power of two of columns, got shape \(4, 6\)"):
        aiter_like.hadamard_transform(x[:, :6])
    with pytest.raises(ValueError, match="scale must be finite"):
        aiter_like.hadamard_transform(x, float("inf"))
    assert aiter_like.hadamard_transform(x[:0]).shape == (0, 8)
    assert torch.equal(aiter_like.hadamard_transform(x[:, :1]), x[:, :1])


def bench() -> None:
    benching.of("hadamard", "rows columns", ((131072, 128), (8192, 1024), (1024, 128), (64, 128)), dtype="bf16",
                out_dtype="bf16")
