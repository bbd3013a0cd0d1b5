# SPDX-License-Identifier: MIT
"""Gated activations quantised by group and row: every backend against float64; bad input."""

import functools
import math

import benching
import pytest
import torch
from activation_cases import GATED, gated_float64
from covering import covering
from torch import Tensor

import aiter_like
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.testing import assert_within, strided_like
from aiter_like.testing.quantised import check_quantised, quantised_dtypes

BACKENDS = ("hip", "triton", "torch")
INT8, BF16 = torch.int8, torch.bfloat16
QUANT, SILU = aiter_like.act_mul_and_fp8_group_quant, aiter_like.silu_and_mul_quant
CLAMP = aiter_like.fused_clamp_act_mul
ERROR = 7e-6  # of y in fp32: (16 + 3 · 30) · 2^-24


def make(device: torch.device, *shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    """Halves of 4 · normal numbers, none of them below -4, where gelu is all tail."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 4).clamp(-4).to(device, dtype)


@pytest.mark.parametrize("group_size", (0, 128))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, group_size):
    for columns in (384,) if group_size else (379, 20000):
        x = make(device, 3, 2 * columns, seed=columns)
        q, scale = run(backend, QUANT, x, "silu", group_size)
        assert q.dtype == quantised_dtypes(device)[0] and q.shape == (3, columns)
        check_quantised(q, scale, gated_float64(x, "silu"), group_size, error=ERROR)


@pytest.mark.parametrize("backend, activation", (("hip", "gelu"), *((backend, activation) for backend in BACKENDS[1:]
                                                                    for activation in GATED[1:])))
def test_other_activations(device, run, backend, activation):
    x = make(device, 3, 512, dtype=torch.float16 if activation == "gelu_tanh" else BF16)
    q, scale = run(backend, QUANT, x, activation, 64, INT8)
    check_quantised(q, scale, gated_float64(x, activation), 64, error=ERROR)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_and_width(device, run, backend, seed):
    """A covering design: each pair of activation, dtypes, number of rows and of columns, and group."""
    factors = {"activation": GATED, "dtype": (BF16, torch.float16, torch.float32), "index": (0, 1),
               "rows": (1, 33, 600), "columns": (128, 768, 4096, 14336), "group_size": (0, 32, 64, 128)}
    for activation, dtype, index, rows, columns, group_size in map(dict.values, covering(
            factors, seed, lambda rows, columns, **_: rows * columns < 2**22)):
        x = make(device, rows, 2 * columns, dtype=dtype, seed=rows)
        q, scale = QUANT(x, activation, group_size, quantised_dtypes(device)[index], backend=backend)
        check_quantised(q, scale, gated_float64(x, activation), group_size, error=ERROR)


@pytest.mark.parametrize("backend", BACKENDS)
def test_aiter_form(device, run, backend):
    x = make(device, 4, 768)
    q, own = QUANT(x, "silu", 128, INT8, backend=backend)
    for view in (x, x.view(2, 2, 768), strided_like(x, (0, 3), offset=1), strided_like(x, (0, 24))):
        outer = view.shape[:-1]
        out, scale = torch.empty(*outer, 384, dtype=INT8, device=device), torch.empty(*outer, 3, device=device)
        run(backend, SILU, out, view, scale, 128)
        assert torch.equal(out.view(4, 384), q) and torch.equal(scale.view(4, 3), own)
    run(backend, SILU, out, x, scale, 128, shuffle_scale=True)
    assert torch.equal(out, q) and torch.equal(scale.view(3, 4), own.t())
    run(backend, SILU, out, x, scale, 128, 2.0)
    check_quantised(out, scale, gated_float64(x, "silu", 2.0), 128, error=ERROR)


@pytest.mark.parametrize("backend", BACKENDS)
def test_clamped_and_weighted(device, run, backend):
    """By a weight per row and quantised; by one per element and as it is; neither: act_and_mul."""
    x, generator = make(device, 5, 768), torch.Generator().manual_seed(3)
    row, each = (torch.rand(5, size, generator=generator).to(device) + 0.5 for size in (1, 384))
    expected = gated_float64(x, "silu", 2.0)
    q, scale = run(backend, CLAMP, x, swiglu_limit=2.0, weights=row, dtype_quant=INT8)
    check_quantised(q, scale, expected * row.cpu().double(), 128, error=ERROR)
    p, turned = run(backend, CLAMP, strided_like(x, (0, 3), offset=1), swiglu_limit=2.0, weights=row[:, 0],
                    dtype_quant=INT8, transpose_scale=True)
    assert torch.equal(p, q) and turned.shape == scale.shape and torch.equal(turned.view(3, 5).t(), scale)
    out, own = torch.empty_like(q), torch.empty(3, 5, device=device)
    result = run(backend, CLAMP, x, out, own, 2.0, weights=row, transpose_scale=True)
    assert result[0] is out and torch.equal(out, q) and torch.equal(own.t(), scale)
    y = run(backend, CLAMP, x, swiglu_limit=2.0, weights=strided_like(each, (0, 8)))
    wanted = expected * each.cpu().double()
    assert_within("weighted", y, wanted, (2**-8 * 1.01 + ERROR) * wanted.abs())
    explanation = aiter_like.explain(CLAMP, x, activation="gelu", backend=backend)
    assert (explanation.op, explanation.backend) == ("act_and_mul", backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_of_nan_and_infinity(device, run, backend):
    """In their rows alone; behind a row's end there is none of them."""
    x = torch.ones(4, 2 * 384, dtype=BF16, device=device)
    weights = torch.tensor([[1.0], [math.nan], [math.inf], [0.0]], device=device)
    q, scale = run(backend, CLAMP, x, weights=weights, dtype_quant=INT8)
    assert scale[1].isnan().all() and scale[2].isinf().all() and not q[1:].any() and (q[0] == 127).all()
    assert scale[[0, 3]].isfinite().all() and (scale[3] > 0).all()


@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_fused_silu_mul(device, run, backend):
    x = make(device, 3, 768)
    expected, out = torch.empty(3, 384, dtype=BF16, device=device), torch.empty(3, 384, dtype=BF16, device=device)
    aiter_like.silu_and_mul(expected, x, backend=backend)
    assert torch.equal(run(backend, aiter_like.fused_silu_mul, x), expected)
    assert run(backend, aiter_like.fused_silu_mul, x, out) is out and torch.equal(out, expected)


@pytest.mark.parametrize("group_size", (0, 128))
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_rows(device, run, backend, group_size):
    x = make(device, 4, 768)
    x[0], x[1, 5], x[2, 384 + 200] = 0.0, math.nan, math.inf
    for dtype in quantised_dtypes(device)[:1 if group_size == 0 else 2]:
        q, scale = run(backend, QUANT, x, "silu", group_size, dtype)
        assert (q[0].float() == 0).all() and (scale[0] > 0).all()
        place = 1 if group_size else 0
        assert scale[1, 0].isnan() and scale[2, place].isinf() and scale[3].isfinite().all()
        nan = 0.0 if dtype == INT8 else math.nan
        expected = torch.full((128,), nan)
        assert torch.equal(q[1, :128].float().cpu().nan_to_num(9.0), expected.nan_to_num(9.0))
        check_quantised(q[3:], scale[3:], gated_float64(x[3:], "silu"), group_size, error=ERROR)


def test_empty(device):
    q, scale = QUANT(torch.empty(0, 256, device=device), "silu", 128)
    assert q.shape == (0, 128) and scale.shape == (0, 1)


def bad_calls(device: torch.device):
    x = make(device, 3, 256)
    out, scale = torch.empty(3, 128, dtype=INT8, device=device), torch.empty(3, 1, device=device)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    yield "x must have an even last dimension", ValueError, QUANT, (x[:, :255], "silu", 128)
    yield "activation must be 'silu'", ValueError, QUANT, (x, "relu", 128)
    yield "group_size must be 0, 32, 64 or 128", ValueError, QUANT, (x, "silu", 16)
    yield "group_size must divide the row", ValueError, QUANT, (x[:, :200], "silu", 64)
    yield "out must have shape", ValueError, SILU, (out[:2], x, scale, 128)
    yield "out must have dtype", TypeError, SILU, (x[:, :128], x, scale, 128)
    yield "scale must have shape", ValueError, SILU, (out, x, scale[:2], 128)
    yield "limit must be at least 0.0", ValueError, SILU, (out, x, scale, 128, -1.0)
    yield "shuffle_scale must be True or False", TypeError, SILU, (out, x, scale, 128, 0.0, 1)
    yield "fp8 on .* is", UnsupportedError, functools.partial(QUANT, backend="hip"), (x, "silu", 128, other)
    clamp = functools.partial(CLAMP, x)
    yield "inp must have an even last dimension", ValueError, CLAMP, (x[:, :255],)
    yield "activation must be 'silu'", ValueError, functools.partial(clamp, activation="relu"), ()
    yield "limit must be at least 0.0", ValueError, functools.partial(clamp, swiglu_limit=-1.0), ()
    yield "scale_dtype_fmt must be 'fp32'", ValueError, functools.partial(clamp, scale_dtype_fmt="ue8m0"), ()
    yield "shuffle_scale must be False", ValueError, functools.partial(clamp, shuffle_scale=True), ()
    yield r"weights must have shape \(3, 1\) or \(3, 128\)", ValueError, functools.partial(clamp, weights=scale[:2]), ()
    yield "quant_block_size must be 32", ValueError, functools.partial(
        clamp, dtype_quant=INT8, quant_block_size=100), ()
    yield "out must have dtype_quant", ValueError, functools.partial(clamp, x[:, :128], dtype_quant=INT8), ()
    yield r"scale must have shape \(1, 3\)", ValueError, functools.partial(
        clamp, out, scale, transpose_scale=True), ()
    yield "out must be a tensor", TypeError, functools.partial(clamp, 1.0), ()


def test_bad_input_is_named(device):
    for message, kind, function, args in bad_calls(device):
        with pytest.raises(kind, match=message):
            function(*args)


def bench() -> None:
    """silu with a scale per 128 columns or per token."""
    benching.of("act_and_mul_quant", "rows columns group_size", (
        (8192, 8192, 128), (8192, 4096, 128), (4096, 14336, 128), (64, 8192, 128), (8192, 8192, 0), (8192, 4096, 0)),
        dtype="bf16", out_dtype="fp8")
