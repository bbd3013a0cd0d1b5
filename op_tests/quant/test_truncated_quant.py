# SPDX-License-Identifier: MIT
"""Quantisation to int8 towards zero: every backend against float64 and bit by bit the reference."""

import functools
import math

import benching
import pytest
import torch
from covering import covering
from quant_cases import BACKENDS, matrix, same_numbers, special
from torch import Tensor

import aiter_like
from aiter_like.testing import strided_like
from aiter_like.testing.quantised import double

INT8 = torch.int8
QUANT = aiter_like.truncated_quant


def by_row(run, backend, x: Tensor, **options) -> tuple[Tensor, Tensor]:
    out = torch.full(x.shape, 77, dtype=INT8, device=x.device)
    scale = torch.full(x.shape[:-1], 9.0, device=x.device)
    run(backend, QUANT, out, x, scale, **options)
    return out, scale


def check_truncated(q: Tensor, scale: Tensor, x: Tensor) -> None:
    """Against float64; where x / scale is within 1e-5 of a whole number either side of it is right."""
    expected = x.abs().amax(-1, keepdim=True) / 127
    torch.testing.assert_close(double(scale).view(expected.shape), expected, rtol=1e-6, atol=0)
    y, got = x / expected, double(q)
    is_close = ((got - y.trunc()).abs() == 1) & ((y - y.round()).abs() < 1e-5 * y.abs())
    assert ((got == y.trunc()) | is_close).all() and (got.abs() <= y.abs() * (1 + 1e-5)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend):
    for rows, columns, dtype in ((1, 1, torch.bfloat16), (5, 7, torch.float16), (3, 4104, torch.bfloat16),
                                 (70, 64, torch.float32)):
        x = matrix(device, rows, columns, dtype=dtype, seed=columns)
        q, scale = by_row(run, backend, x)
        check_truncated(q, scale, double(x))
        expected = by_row(lambda _, function, *args: function(*args, backend="torch"), None, x)
        assert torch.equal(q, expected[0]) and torch.equal(scale, expected[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_and_width(device, run, backend, seed):
    """A covering design: each pair of dtype, number of rows and of columns."""
    factors = {"dtype": (torch.bfloat16, torch.float16, torch.float32), "rows": (1, 17, 600),
               "columns": (128, 1000, 4096, 14336, 65536)}
    for dtype, rows, columns in map(dict.values, covering(
            factors, seed, lambda rows, columns, **_: rows * columns < 2**22)):
        x = matrix(device, rows, columns, dtype=dtype, seed=rows)
        check_truncated(*by_row(run, backend, x), double(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_given_scale(device, run, backend):
    """Cut off towards zero, within −128 … 127."""
    x = torch.tensor([[2.9, -2.9, 0.99, -0.99, 127.9, -127.9, 128.9, -128.9, 1e30, -1e30, math.inf, -math.inf, math.nan,
                       0.0, 3.0, -3.0]], device=device)
    wanted = torch.tensor([[2, -2, 0, 0, 127, -127, 127, -128, 127, -128, 127, -128, 0, 0, 3, -3]], dtype=INT8)
    out = torch.empty(x.shape, dtype=INT8, device=device)
    for value in (1.0, 0.25):
        run(backend, QUANT, out, x * value, torch.tensor([value], device=device), is_dynamic=False)
        assert torch.equal(out.cpu(), wanted)
    x = matrix(device, 6, 264)
    out, scale = torch.empty(x.shape, dtype=INT8, device=device), torch.tensor([0.37], device=device)
    run(backend, QUANT, out, x, scale, is_dynamic=False)
    assert torch.equal(out.cpu(), (x.float().cpu() * (1 / scale.cpu())).clamp(-128, 127).trunc().to(INT8))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_rows(device, run, backend):
    x = special(device, 40)
    q, scale = by_row(run, backend, x)
    expected = by_row(lambda _, function, *args: function(*args, backend="torch"), None, x)
    assert same_numbers(q, expected[0]) and same_numbers(scale, expected[1])
    assert (q[:3] == 0).all() and scale[0] > 0 and scale[1].isnan() and scale[2].isinf()


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_shapes(device, run, backend):
    x = matrix(device, 6, 384)
    for view in (strided_like(x, (0, 24)), strided_like(x, (0, 3), offset=1), x.view(2, 3, 384), x[::2], x[0],
                 x[:1].expand(4, 384)):
        q, scale = by_row(run, backend, view)
        again = by_row(run, backend, view.contiguous())
        assert torch.equal(q, again[0]) and torch.equal(scale, again[1])
        target = strided_like(torch.zeros(view.shape, device=device), (0,) * (view.ndim - 1) + (5,)).to(INT8)
        run(backend, QUANT, target, view, torch.empty_like(scale))
        assert torch.equal(target, q)


@pytest.mark.parametrize("backend", BACKENDS)
def test_first_rows_and_a_bound(device, run, backend):
    x = matrix(device, 6, 384)
    expected = by_row(run, backend, x)
    for count, factor in ((2, 2), (0, 1), (9, 1), (-1, 3)):
        number = torch.tensor([count], dtype=torch.int32, device=device)
        used = min(max(count * factor, 0), 6)
        q, scale = by_row(run, backend, x, num_rows=number, num_rows_factor=factor)
        assert torch.equal(q[:used], expected[0][:used]) and torch.equal(scale[:used], expected[1][:used])
        assert (q[used:] == 77).all() and (scale[used:] == 9.0).all()
    bound = x.float().abs().amax(-1).median().reshape(1)
    q, scale = by_row(run, backend, x, scale_ub=bound)
    assert torch.equal(scale, expected[1].minimum(bound / bound.new_tensor(127.0)))
    assert torch.equal(q, (x.float() * (1 / scale[:, None])).clamp(-128, 127).trunc().to(INT8))


def test_empty(device):
    for shape in ((0, 128), (3, 0)):
        QUANT(torch.empty(shape, dtype=INT8, device=device), torch.empty(shape, device=device),
              torch.empty(shape[0], device=device))


def bad_calls(device: torch.device):
    x = matrix(device, 3, 256)
    out, scale, one = torch.empty_like(x, dtype=INT8), torch.empty(3, device=device), torch.ones(1, device=device)
    yield "scale must be contiguous with 3 elements", ValueError, (out, x, one)
    yield "scale must be contiguous with 1 elements", ValueError, (out, x, scale, False)
    yield "scale must be contiguous with 3 elements", ValueError, (out, x, torch.empty(3, 2, device=device)[:, 0])
    yield "scale_ub must be None where the scale is given", ValueError, (out, x, one, False, one)
    yield "num_rows_factor must be between 1", ValueError, (out, x, scale, True, None, None, 0)


def test_bad_input_is_named(device):
    for message, kind, args in bad_calls(device):
        with pytest.raises(kind, match=f"truncated_quant: {message}"):
            QUANT(*args)


def bench() -> None:
    """Rows of bf16, beside the quantiser that rounds to nearest."""
    def peers(call):
        return {"row_quant": functools.partial(aiter_like.per_token_quant_hip, call.input)}

    benching.of("truncated_quant", "rows columns", ((8192, 8192), (8192, 4096), (64, 8192), (1, 4096)), beside=peers,
                is_dynamic=1, dtype="bf16")
