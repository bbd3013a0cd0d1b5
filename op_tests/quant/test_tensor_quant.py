# SPDX-License-Identifier: MIT
"""Quantisers with one scale: every backend against float64 and, bit by bit, the reference."""

import functools
import math

import benching
import pytest
import torch
from covering import covering
from quant_cases import BACKENDS, matrix, same_numbers

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import quant_rule
from aiter_like.testing import strided_like
from aiter_like.testing.quantised import check_quantised, double, quantised_dtypes

INT8 = torch.int8
QUANT, STATIC, DYNAMIC = (aiter_like.per_tensor_quant_hip, aiter_like.static_per_tensor_quant,
                          aiter_like.dynamic_per_tensor_quant)


@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend):
    for rows, columns, input_dtype in ((1, 1, torch.bfloat16), (5, 7, torch.bfloat16), (3, 4104, torch.bfloat16),
                                       (70, 64, torch.float16 if backend == "triton" else torch.bfloat16)):
        x = matrix(device, rows, columns, dtype=input_dtype, seed=columns)
        for dtype in quantised_dtypes(device) if columns == 4104 else (INT8,):
            q, scale = run(backend, QUANT, x, quant_dtype=dtype)
            assert (q.dtype, scale.shape) == (dtype, (1,))
            check_quantised(q.view(1, -1), scale, double(x).view(1, -1))
            expected = QUANT(x, quant_dtype=dtype, backend="torch")
            assert same_numbers(q, expected[0]) and torch.equal(scale, expected[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype(device, run, backend, seed):
    """A covering design: each pair of dtypes and shape."""
    factors = {"dtype": (torch.bfloat16, torch.float16, torch.float32), "index": (0, 1),
               "shape": ((1, 8192), (600, 4096), (4096, 1000), (3, 200001))}
    for dtype, index, shape in map(dict.values, covering(factors, seed)):
        x = matrix(device, *shape, dtype=dtype)
        q, scale = QUANT(x, quant_dtype=quantised_dtypes(device)[index], backend=backend)
        check_quantised(q.view(1, -1), scale, double(x).view(1, -1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_large_element_anywhere(device, run, backend):
    """The maximum of all workgroups and lanes, wherever it comes from."""
    x = torch.zeros(9, 2048, dtype=torch.bfloat16, device=device)
    for row, column in ((0, 0), (8, 2047), (4, 1021), (7, 3)):
        x.zero_()[row, column] = -96.0
        q, scale = run(backend, QUANT, x)
        assert scale.item() == torch.tensor(96.0).div(127).item() and q[row, column] == -127
        assert q.count_nonzero() == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_static_scale(device, run, backend):
    x = matrix(device, 6, 264)
    for value in (0.5, 1e-3, 1e4):
        scale = torch.tensor([value], device=device)
        for dtype in quantised_dtypes(device):
            out, top = torch.empty_like(x, dtype=dtype), quant_rule.largest(dtype)
            run(backend, STATIC, out, x, scale)
            expected = quant_rule.rounded(x.float() * (1 / scale), dtype)
            assert same_numbers(out, expected) and scale.item() == torch.tensor(value).item()
            assert out.float().abs().max() == top or value > 1
    q, same = run(backend, QUANT, x, scale)
    assert same.data_ptr() == scale.data_ptr() and torch.equal(q, quant_rule.rounded(x.float() * (1 / scale), INT8))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    for value in (0.0, math.nan, math.inf, -math.inf, 2.0**-130, 3e38):
        x = torch.ones(3, 72, dtype=torch.bfloat16, device=device) if value else torch.zeros(
            3, 72, dtype=torch.bfloat16, device=device)
        x[1, 33] = value
        for dtype in quantised_dtypes(device):
            q, scale = run(backend, QUANT, x, quant_dtype=dtype)
            expected = QUANT(x, quant_dtype=dtype, backend="torch")
            assert same_numbers(q, expected[0]) and same_numbers(scale, expected[1])
            assert scale.isnan().item() == math.isnan(value) and scale.isinf().item() == math.isinf(value)
            assert value or (scale.item() > 0 and (q.float() == 0).all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_shapes(device, run, backend):
    x = matrix(device, 6, 264)
    for view in (strided_like(x, (0, 24)), strided_like(x, (0, 3), offset=1), x.view(2, 3, 264), x[::2], x[0],
                 x[:1].expand(4, 264)):
        q, scale = run(backend, QUANT, view)
        expected = QUANT(view.contiguous(), backend="torch")
        assert torch.equal(q, expected[0]) and torch.equal(scale, expected[1])
        target = strided_like(torch.zeros(view.shape, device=device), (0,) * (view.ndim - 1) + (5,)).to(INT8)
        own = torch.empty(1, device=device)
        run(backend, DYNAMIC, target, view, own)
        assert torch.equal(target, q) and torch.equal(own, scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_first_rows(device, run, backend):
    x = matrix(device, 6, 264)
    x[4:] *= 1000
    for count, factor in ((2, 2), (0, 1), (9, 1), (-1, 3)):
        number = torch.tensor([count], dtype=torch.int32, device=device)
        q, scale = run(backend, QUANT, x, num_rows=number, num_rows_factor=factor)
        used = min(max(count * factor, 0), 6)
        expected = QUANT(x[:used].contiguous(), backend="torch")
        assert torch.equal(q[:used], expected[0]) and torch.equal(scale, expected[1])


def test_empty(device):
    q, scale = QUANT(torch.empty(0, 128, device=device))
    assert q.shape == (0, 128) and scale.item() > 0


def bad_calls(device: torch.device):
    x = matrix(device, 3, 64)
    out = torch.empty_like(x, dtype=INT8)
    yield "quant_dtype must be", ValueError, QUANT, (x, None, torch.uint8)
    yield "scale must have one element", ValueError, STATIC, (out, x, torch.ones(2, device=device))
    yield "fp8 on .* is", UnsupportedError, functools.partial(QUANT, backend="hip"), (x, None, wrong_fp8(device))


def wrong_fp8(device: torch.device) -> torch.dtype:
    own = quantised_dtypes(device)[0]
    return next(dtype for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) if dtype != own)


def test_bad_input_is_named(device):
    for message, kind, function, args in bad_calls(device):
        with pytest.raises(kind, match=message):
            function(*args)


def bench() -> None:
    """A scale that has to be found, and a given one."""
    benching.of("tensor_quant", "rows columns is_dynamic", (
        (*shape, is_dynamic) for shape in ((8192, 8192), (8192, 4096), (64, 8192), (1, 4096)) for is_dynamic in (1, 0)),
        dtype="bf16", out_dtype="fp8")
