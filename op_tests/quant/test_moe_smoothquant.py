# SPDX-License-Identifier: MIT
"""Tokens smoothed and quantised per expert: every backend against float64; bad input."""

import math

import benching
import pytest
import torch
from covering import covering
from quant_cases import BACKENDS, matrix, same_numbers
from torch import Tensor

import aiter_like
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like
from aiter_like.testing.quantised import check_quantised, double, quantised_dtypes

INT8 = torch.int8
QUANT = aiter_like.moe_smoothquant_fwd


def make(device: torch.device, tokens: int, columns: int, topk: int, experts: int = 5,
         dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Input, factors and ids, among them -1 and one beyond the last expert."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.exp2(torch.randn(experts, columns, generator=generator))
    ids = torch.randint(0, experts, (tokens, topk), generator=generator, dtype=torch.int32)
    if tokens > 1:
        ids[0, 0], ids[-1, -1] = -1, experts
    return matrix(device, tokens, columns, dtype=dtype, seed=seed), factors.to(device), ids.to(device)


def smoothed(x: Tensor, factors: Tensor, ids: Tensor) -> Tensor:
    """Row slot · tokens + token in float64."""
    experts = factors.shape[0]
    padded = torch.cat((double(factors), torch.zeros(1, x.shape[1]).double()))  # no expert: zeros
    places = ids.cpu().long().t().flatten()
    places = torch.where((places >= 0) & (places < experts), places, experts)
    return double(x).repeat(ids.shape[1], 1) * padded[places]


def quantise(run, backend: str, x: Tensor, factors: Tensor, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out = torch.empty(ids.numel(), x.shape[1], dtype=dtype, device=x.device)
    scale = torch.full((ids.numel(), 1), math.nan, device=x.device)
    run(backend, QUANT, out, x, factors, ids, scale)
    return out, scale


def some(backend: str, args: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """For hip the tokens again and again, so many that a workgroup takes a token's experts one after the other."""
    x, factors, ids = args
    rows = torch.arange(1100 if backend == "hip" else x.shape[0], device=x.device) % x.shape[0]
    return x[rows], factors, ids[rows].contiguous()


@pytest.mark.parametrize("tokens, columns, topk", ((1, 1, 1), (5, 1040, 3), (2, 33000, 2)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, tokens, columns, topk):
    args = make(device, tokens, columns, topk, seed=columns)
    if columns == 1040:
        args = some(backend, args)
    out, scale = quantise(run, backend, *args, INT8)
    check_quantised(out, scale, smoothed(*args))
    expected = quantise(run, "torch", *args, INT8)
    assert torch.equal(out, expected[0]) and torch.equal(scale, expected[1])
    assert tokens == 1 or not out[0].any() and not out[-1].any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_and_width(device, run, backend, seed):
    """A covering design: each pair of dtypes and shape."""
    factors = {"dtype": (torch.bfloat16, torch.float16, torch.float32), "index": (0, 1),
               "shape": ((1, 4096, 8), (40, 5120, 6), (600, 1024, 2), (3, 65536, 4), (9, 1000, 1))}
    for dtype, index, (tokens, columns, topk) in map(dict.values, covering(factors, seed)):
        args = make(device, tokens, columns, topk, 64, dtype, seed=tokens)
        check_quantised(*quantise(run, backend, *args, quantised_dtypes(device)[index]), smoothed(*args))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_rows_and_strides(device, run, backend):
    x, factors, ids = make(device, 5, 1040, 2)
    ids[:] = torch.tensor([0, 1], device=device)
    x[0], x[1, 33], x[2, 1039] = 0.0, math.nan, -math.inf
    ids[1, 1] = -1  # not even a NaN reaches a slot of no expert
    x, factors, ids = some(backend, (x, factors, ids))
    out, scale = quantise(run, backend, x, factors, ids, INT8)
    expected = quantise(run, "torch", x, factors, ids, INT8)
    assert torch.equal(out, expected[0]) and same_numbers(scale, expected[1])
    assert not out[0].any() and scale[0] > 0 and scale[1].isnan() and scale[2].isinf()
    absent = x.shape[0] + 1
    assert not out[absent].any() and scale[absent].isfinite()
    for view, turned in ((strided_like(x, (0, 16)), strided_like(factors, (0, 16))),
                         (strided_like(x, (0, 3), offset=1), strided_like(factors, (0, 1)))):
        again = quantise(run, backend, view, turned, ids, INT8)
        assert torch.equal(again[0], out) and same_numbers(again[1], scale)
    target = strided_like(torch.zeros(out.shape, device=device), (0, 5)).to(INT8)
    flat = torch.empty(scale.numel(), device=device)
    run(backend, QUANT, target, x, factors, ids, flat)
    assert torch.equal(target, out) and same_numbers(flat, scale[:, 0])


def test_empty(device):
    x, factors, ids = make(device, 3, 64, 2)
    QUANT(torch.empty(0, 64, dtype=INT8, device=device), x[:0], factors, ids[:0], torch.empty(0, 1, device=device))


def test_bad_input_is_named(device):
    x, factors, ids = make(device, 3, 64, 2)
    out, scale = torch.empty(6, 64, dtype=INT8, device=device), torch.empty(6, 1, device=device)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    for message, kind, args, options in (
            (r"out must have shape \(6, 64\)", ValueError, (out[:3], x, factors, ids, scale), {}),
            ("x_scale must have at least one expert", ValueError, (out, x, factors[:0], ids, scale), {}),
            ("topk_ids must be dense", ValueError, (out, x, factors, strided_like(ids, (0, 2)), scale), {}),
            (r"y_scale must have shape \(6, 1\)", ValueError, (out, x, factors, ids, scale[:3]), {}),
            ("fp8 on .* is", UnsupportedError, (out.view(other), x, factors, ids, scale), {"backend": "hip"})):
        with pytest.raises(kind, match=f"moe_smoothquant(?s:.*){message}"):
            QUANT(*args, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_of_a_nan_reach_no_int8(device, run, backend):
    """A conversion that takes a sum's low byte must not take that of a NaN."""
    x, factors, ids = make(device, 2, 64, 2, dtype=torch.float32)
    x.view(torch.int32)[1, 5] = 0x7FC0005A
    out, scale = quantise(run, backend, x, factors, ids.clamp(0, 4), INT8)
    assert scale[1::2].isnan().all() and not out[1::2].any() and out[::2].any(1).all()


def bench() -> None:
    benching.of("moe_smoothquant", "tokens columns topk num_experts", (
        (8192, 4096, 2, 8), (8192, 7168, 8, 256), (64, 7168, 8, 256), (1, 4096, 2, 8)), dtype="bf16", out_dtype="fp8")
