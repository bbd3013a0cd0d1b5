# SPDX-License-Identifier: MIT
"""elementwise: every backend against float64, broadcast and strided operands, special values, bad input."""

import functools

import benching
import pytest
import torch

import aiter_like
from aiter_like.testing import strided_like

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
BACKENDS = ("hip", "triton")
TWO = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
ONE = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


def compare(name: str, out: torch.Tensor, *operands: torch.Tensor) -> None:
    """The formula in float64 within a unit in the last place; fp32 of the functions of one tensor within 2^-18."""
    facts = torch.finfo(out.dtype)
    rtol = 2.0**-18 if name in ONE and out.dtype == FP32 else facts.eps
    expected = (TWO | ONE)[name](*(x.double() for x in operands))
    assert out.shape == expected.shape
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=facts.smallest_normal * facts.eps,
                               equal_nan=True)


def numbers(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


FEW = [("add", FP16), ("div", FP32), ("sigmoid", FP32), ("tanh", FP32)]
MANY = [pytest.param(name, dtype, marks=[] if dtype == BF16 or (name, dtype) in FEW else pytest.mark.exhaustive,
                     id=f"{name} {dtype}") for name in TWO | ONE for dtype in (BF16, FP16, FP32)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name, dtype", MANY)
def test_every_function(device, run, backend, name, dtype):
    for shape in ((1,), (3, 7), (2, 3, 264)):
        operands = [numbers(device, shape, dtype, seed) * 3 for seed in range(2 if name in TWO else 1)]
        compare(name, run(backend, getattr(aiter_like, name), *operands), *operands)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shapes", (((4, 1, 96), (1, 5, 96)), ((40, 1), (5, 1, 48)), ((3, 9, 8, 1), (8, 16)),
                                    ((), (6, 8))), ids=str)
def test_broadcast(device, run, backend, shapes):
    x, y = (numbers(device, shape, BF16, seed) for seed, shape in enumerate(shapes))
    compare("sub", run(backend, aiter_like.sub, x, y), x, y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides(device, run, backend):
    """Transposed, with gaps, from an odd address; results that are not contiguous; one dtype and two."""
    x = numbers(device, (6, 10, 16), BF16)
    for y in (numbers(device, (16, 10, 6), BF16, 1).permute(2, 1, 0), strided_like(x.flip(0), (3, 8, 0)),
              numbers(device, (961,), BF16, 1)[1:].view(6, 10, 16), numbers(device, (6, 10, 16), FP32, 1)):
        compare("mul", run(backend, aiter_like.mul, x, y), x, y)
        out = torch.empty(10, 16, 6, dtype=x.dtype, device=device).permute(2, 0, 1)
        compare("add", run(backend, functools.partial(aiter_like.add, out=out), y, x), y, x)


@pytest.mark.parametrize("name", TWO)
def test_in_place(device, run, name):
    x, y = numbers(device, (5, 64), BF16), numbers(device, (64,), BF16, 1)
    out = x.clone()
    assert run("hip", getattr(aiter_like, f"{name}_"), out, y) is out
    compare(name, out, x, y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3e38, -100.0, 1e-30], device=device)
    compare("div", run(backend, aiter_like.div, x, x.flip(0)), x, x.flip(0))
    for name in ONE:
        out = run(backend, getattr(aiter_like, name), x)
        torch.testing.assert_close(out.double(), ONE[name](x.double()), rtol=2.0**-18, atol=2e-38, equal_nan=True)


def test_dimensions_that_no_kernel_takes(device):
    """Five that are apart in memory; torch takes them."""
    x = numbers(device, (2, 3, 4, 5, 6), FP32)
    y = numbers(device, (2, 1, 4, 1, 6), FP32, 1)
    with pytest.raises(aiter_like.errors.UnsupportedError, match="at most 4 dimensions that are apart"):
        aiter_like.add(x, y, backend="hip")
    compare("add", aiter_like.add(x, y), x, y)


def test_bad_input_is_named(device):
    x = torch.randn(4, 8, device=device)
    for error, message, call in (
            (ValueError, r"div: other must have a shape that can be broadcast with \(4, 8\), got \(3,\)",
             lambda: aiter_like.div(x, x[0, :3])),
            (ValueError, r"sub_: other must have a shape that can be broadcast to \(8,\)",
             lambda: aiter_like.sub_(x[0], x)),
            (ValueError, "must not overlap itself", lambda: aiter_like.add_(x[:1].expand(4, 8), x))):
        with pytest.raises(error, match=message):
            call()
    assert aiter_like.add(x[:0], x[:1]).shape == (0, 8)


def bench() -> None:
    """Sums and, of one operand, tanh."""
    benching.of("elementwise", "elements operands", ((8192**2, 2), (1280 * 59392, 2), (8192**2, 1), (4096 * 880, 1)),
                dtype="bf16")
