# SPDX-License-Identifier: MIT
"""Heads flattened and quantised by group: every backend against float64; bad input."""

import benching
import pytest
import torch
from covering import covering
from quant_cases import BACKENDS, matrix, same_numbers, special

import aiter_like
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like
from aiter_like.testing.quantised import check_quantised, double, quantised_dtypes

INT8 = torch.int8
QUANT = aiter_like.fused_flatten_fp8_group_quant


@pytest.mark.parametrize("tokens, heads, columns, group_size, index", (
    (7, 3, 128, 128, 1), *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in (
        (7, 3, 128, 128, 0), (5, 2, 384, 128, 1), (1, 1, 32, 32, 1)))))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, tokens, heads, columns, group_size, index):
    dtype = quantised_dtypes(device)[index]
    x = matrix(device, tokens, heads, columns, seed=columns)
    q, scale = run(backend, QUANT, x, group_size, dtype)
    assert q.shape == (tokens, heads * columns) and q.dtype == dtype
    check_quantised(q, scale, double(x).flatten(1), group_size)
    expected = QUANT(x, group_size, dtype, backend="torch")
    assert same_numbers(q, expected[0]) and torch.equal(scale, expected[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_and_width(device, run, backend, seed):
    """A covering design: each pair of dtypes, shape and group."""
    factors = {"dtype": (torch.bfloat16, torch.float16, torch.float32), "index": (0, 1),
               "shape": ((1, 128, 128), (33, 5, 512), (600, 16, 64), (3, 2, 32768), (2, 3, 96)),
               "group_size": (32, 64, 128)}
    for dtype, index, shape, group_size in map(dict.values, covering(
            factors, seed, lambda shape, group_size, **_: shape[-1] % group_size == 0)):
        x = matrix(device, *shape, dtype=dtype, seed=shape[0])
        q, scale = QUANT(x, group_size, quantised_dtypes(device)[index], backend=backend)
        check_quantised(q, scale, double(x).flatten(1), group_size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_orders_of_scales(device, run, backend):
    """Heads outermost in memory, padded, at an odd address; scales with groups outermost."""
    x = matrix(device, 7, 3, 128)
    q, scale = run(backend, QUANT, x, 128, INT8)
    turned = x.transpose(0, 1).contiguous()
    for view in (turned.transpose(0, 1), strided_like(turned, (0, 1, 16)).transpose(0, 1),
                 strided_like(x, (1, 0, 3), offset=1), x.expand(7, 3, 128)):
        again = run(backend, QUANT, view, 128, INT8)
        assert torch.equal(again[0], q) and torch.equal(again[1], scale)
    again = run(backend, QUANT, x, 128, INT8, transpose_scale=True)
    assert again[1].stride() == (1, 7) and torch.equal(again[1], scale) and torch.equal(again[0], q)
    shared = x[:, :1].expand(7, 3, 128)
    check_quantised(*run(backend, QUANT, shared, 128, INT8), double(shared).flatten(1), 128)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_rows(device, run, backend):
    x = special(device, 384).view(7, 3, 128)
    q, scale = run(backend, QUANT, x, 128, INT8)
    expected = QUANT(x, 128, INT8, backend="torch")
    assert torch.equal(q, expected[0]) and same_numbers(scale, expected[1])
    assert not q[0].any() and (scale[0] > 0).all() and scale[1].isnan().any() and scale[2].isinf().any()
    check_quantised(q[4:], scale[4:], double(x[4:]).flatten(1), 128)


def test_empty_and_bad_input(device):
    x = matrix(device, 3, 2, 128)
    q, scale = QUANT(x[:0], 128)
    assert q.shape == (0, 256) and scale.shape == (0, 2)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    for message, kind, args, options in (
            ("x must have 3 dimensions", ValueError, (x[0], 128), {}),
            ("group_size must be 32, 64 or 128", ValueError, (x, 0), {}),
            ("group_size must divide the row", ValueError, (x[:, :, :96], 64), {}),
            ("dtype_quant must be", ValueError, (x, 128, torch.uint8), {}),
            ("transpose_scale must be True or False", TypeError, (x, 128, INT8, 1), {}),
            ("fp8 on .* is", UnsupportedError, (x, 128, other), {"backend": "hip"})):
        with pytest.raises(kind, match=message):
            QUANT(*args, **options)


def bench() -> None:
    benching.of("flatten_group_quant", "tokens heads columns", (
        (8192, 128, 128), (4096, 16, 128), (64, 128, 128), (1, 128, 128)), group_size=128, dtype="bf16",
        out_dtype="fp8")
