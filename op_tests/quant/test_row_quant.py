# SPDX-License-Identifier: MIT
"""Quantisers by row and group: every backend against float64 and, bit by bit, one another."""

import functools

import benching
import pytest
import torch
from covering import covering
from quant_cases import BACKENDS, matrix, same_numbers, special

import aiter_like
from aiter_like import sim
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like
from aiter_like.testing.quantised import check_quantised, double, quantised_dtypes

INT8, BF16 = torch.int8, torch.bfloat16
TOKEN, GROUP = aiter_like.per_token_quant_hip, aiter_like.per_group_quant_hip
SCALED, SMOOTH = aiter_like.dynamic_per_token_scaled_quant, aiter_like.smoothquant_fwd


def fp8(device: torch.device) -> torch.dtype:
    return quantised_dtypes(device)[0]


@pytest.mark.parametrize("columns", (1, 7, 40, 520, 33000))
@pytest.mark.parametrize("backend", BACKENDS)
def test_per_token_against_float64(device, run, backend, columns):
    x = matrix(device, 3, columns, seed=columns)
    for dtype in quantised_dtypes(device) if columns == 520 else (fp8(device),):
        q, scale = run(backend, TOKEN, x, quant_dtype=dtype)
        assert (q.dtype, scale.shape, scale.dtype) == (dtype, (3, 1), torch.float32)
        check_quantised(q, scale, double(x))
        expected = TOKEN(x, quant_dtype=dtype, backend="torch")
        assert same_numbers(q, expected[0]) and torch.equal(scale, expected[1])


@pytest.mark.parametrize("group_size", (32, 128))
@pytest.mark.parametrize("backend", BACKENDS)
def test_per_group_against_float64(device, run, backend, group_size):
    for dtype in quantised_dtypes(device) if group_size == 128 else (fp8(device),):
        x = matrix(device, 5, 384, seed=group_size)
        q, scale = run(backend, GROUP, x, quant_dtype=dtype, group_size=group_size)
        assert scale.shape == (5, 384 // group_size)
        check_quantised(q, scale, double(x), group_size)
        expected = GROUP(x, quant_dtype=dtype, group_size=group_size, backend="torch")
        assert same_numbers(q, expected[0]) and torch.equal(scale, expected[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_inputs(device, run, backend):
    x = matrix(device, 4, 256, dtype=torch.float32)
    check_quantised(*run(backend, GROUP, x, group_size=64), double(x), 64)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_and_width(device, run, backend, seed):
    """A covering design: each pair of dtypes, group, number of rows and of columns."""
    factors = {"dtype": (BF16, torch.float16, torch.float32), "index": (0, 1), "group_size": (0, 32, 64, 128),
               "columns": (128, 384, 1024, 4096, 5120, 14336, 65536), "rows": (1, 17, 600)}
    for dtype, index, group_size, columns, rows in map(dict.values, covering(
            factors, seed, lambda rows, columns, **_: rows * columns < 2**22)):
        x = matrix(device, rows, columns, dtype=dtype, seed=rows)
        function = functools.partial(GROUP, group_size=group_size) if group_size else TOKEN
        q, scale = function(x, quant_dtype=quantised_dtypes(device)[index], backend=backend)
        check_quantised(q, scale, double(x), group_size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_rows(device, run, backend):
    for columns, group_size in ((40, 0), (384, 128)):
        x = special(device, columns)
        for dtype in quantised_dtypes(device) if group_size else (fp8(device),):
            function = functools.partial(GROUP, group_size=group_size) if group_size else TOKEN
            q, scale = function(x, quant_dtype=dtype, backend=backend)
            expected = function(x, quant_dtype=dtype, backend="torch")
            assert same_numbers(scale, expected[1]) and same_numbers(q, expected[0])
            assert (q[0].float() == 0).all() and (scale[0] > 0).all() and scale[0].isfinite().all()
            assert scale[1].isnan().any() and scale[2].isinf().any()
            check_quantised(q[4:], scale[4:], double(x[4:]), group_size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_shapes(device, run, backend):
    x = matrix(device, 6, 384)
    for function in (TOKEN, GROUP):
        expected = run(backend, function, x, quant_dtype=INT8)
        for view in (strided_like(x, (0, 24)), strided_like(x, (0, 3), offset=1), x.view(2, 3, 384), x[::2], x[0],
                     x[:1].expand(4, 384)):
            q, scale = run(backend, function, view, quant_dtype=INT8)
            again = run(backend, function, view.contiguous(), quant_dtype=INT8)
            assert torch.equal(q, again[0]) and torch.equal(scale, again[1]) and q.shape == view.shape
        assert torch.equal(run(backend, function, x.view(2, 3, 384), quant_dtype=INT8)[0].view(6, 384), expected[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_outermost_in_memory(device, run, backend):
    for rows, columns in ((5, 384), (1, 384)):
        x = matrix(device, rows, columns)
        q, scale = run(backend, GROUP, x, quant_dtype=INT8)
        p, turned = run(backend, GROUP, x, quant_dtype=INT8, transpose_scale=True)
        assert torch.equal(p, q) and turned.shape == scale.shape and turned.is_contiguous()
        assert torch.equal(turned.view(columns // 128, rows), scale.t())
        out, honest = torch.empty_like(q), torch.zeros(columns // 128, rows, device=device).t()
        run(backend, SCALED, out, x, honest)
        assert torch.equal(out, q) and torch.equal(honest, scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scaled_quant_by_row_with_a_bound(device, run, backend):
    x, dtype = matrix(device, 6, 520), fp8(device)
    out, scale = torch.empty_like(x, dtype=dtype), torch.empty(6, 1, device=device)
    bound = x.float().abs().amax(-1).median().reshape(1)
    run(backend, SCALED, out, x, scale, bound)
    q, free = TOKEN(x, quant_dtype=dtype, backend="torch")
    top = torch.finfo(dtype).max
    assert torch.equal(scale, free.minimum(bound / bound.new_tensor(top))) and (scale < free).sum() == 3
    is_free = (scale == free).squeeze(1)
    assert same_numbers(out[is_free], q[is_free])
    cut = x.float() / scale
    assert (out.float()[cut.abs() >= top].abs() == top).all() and (cut.abs() > top).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_first_rows(device, run, backend):
    x = matrix(device, 6, 384)
    for count, factor in ((2, 2), (0, 1), (9, 1), (-1, 3)):
        number = torch.tensor([count], dtype=torch.int32, device=device)
        for groups in (1, 3):
            out = torch.full((6, 384), 77, dtype=INT8, device=device)
            scale = torch.full((6, groups), 9.0, device=device)
            run(backend, SCALED, out, x, scale, num_rows=number, num_rows_factor=factor)
            used = min(max(count * factor, 0), 6)
            expected, own = (GROUP if groups == 3 else TOKEN)(x, backend="torch")
            assert torch.equal(out[:used], expected[:used]) and torch.equal(scale[:used], own[:used])
            assert (out[used:] == 77).all() and (scale[used:] == 9.0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_smoothed(device, run, backend):
    x, factor = matrix(device, 3, 520), matrix(device, 520, dtype=torch.float32, seed=1)
    for view in (x, strided_like(x, (0, 3), offset=1)):
        out, scale = torch.empty_like(x, dtype=INT8), torch.empty(3, 1, device=device)
        run(backend, SMOOTH, out, view, factor, scale)
        check_quantised(out, scale, double(x) * double(factor))


def test_empty(device):
    for shape in ((0, 128), (3, 0)):
        q, scale = TOKEN(torch.empty(shape, device=device))
        assert q.shape == shape and scale.shape == (shape[0], 1) and (scale > 0).all()
    assert GROUP(torch.empty(0, 256, device=device))[1].shape == (0, 2)


def bad_calls(device: torch.device):
    x = matrix(device, 3, 256)
    out, scale, one = torch.empty_like(x, dtype=INT8), torch.empty(3, 1, device=device), torch.ones(1, device=device)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    yield "x must have at least 1 dimension", ValueError, TOKEN, (x[0, 0],)
    yield "scale must be None", ValueError, TOKEN, (x, one)
    yield "quant_dtype must be", ValueError, TOKEN, (x, None, torch.uint8)
    yield "group_size must be 32, 64 or 128", ValueError, GROUP, (x, None, INT8, 48)
    yield "group_size must divide the row", ValueError, GROUP, (x[:, :200], None, INT8, 64)
    yield "transpose_scale|shuffle_scale must be True or False", TypeError, GROUP, (x, None, INT8, 128, 1)
    yield "scale_type must be torch.float32", ValueError, GROUP, (x, None, INT8, 128, False, None, 1, BF16)
    yield "num_rows_factor must be between 1", ValueError, TOKEN, (x, None, INT8, None, 0)
    yield "scales must have shape", ValueError, SCALED, (out, x, scale[:2])
    yield "scale_ub must have one element", ValueError, SCALED, (out, x, scale, scale)
    yield "scale_ub must be None where scales are per group", ValueError, SCALED, (out, x, scale.new_ones(3, 2), one)
    yield "fp8 on .* is", UnsupportedError, functools.partial(TOKEN, backend="hip"), (x, None, other)
    yield "fp8 on .* is", UnsupportedError, functools.partial(TOKEN, backend="triton"), (x, None, other)


def test_bad_input_is_named(device):
    for message, kind, function, args in bad_calls(device):
        with pytest.raises(kind, match=message):
            function(*args)


def test_moves_each_byte_once(device):
    """The simulator's counters: per lane one access of 16 bytes in, one of 8 out; per row one store of the scale."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x = matrix(device, 40, 384)
    TOKEN(x, backend="hip")
    with sim.enabled(checks=False) as session:
        TOKEN(x, backend="hip")
    (counts,) = session.counters.values()
    assert counts["by_class"]["global"] <= 40 * 3


def bench() -> None:
    """A scale per token, or per 128 columns of it, beside torch.compile."""
    benching.of("row_quant", "rows columns group_size", (
        (8192, 8192, 0), (8192, 4096, 0), (4096, 14336, 0), (64, 8192, 0), (8192, 8192, 128), (8192, 4096, 128)),
        dtype="bf16", out_dtype="fp8")
