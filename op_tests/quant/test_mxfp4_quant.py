# SPDX-License-Identifier: MIT
"""Quantisation to MXFP4: every backend against numbers in float64; special groups, strides, bad input."""

import math

import benching
import pytest
import torch
from quant_cases import BACKENDS, matrix, special

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.quant.formats import mxfp4_to_f32
from aiter_like.testing import strided_like

QUANT = aiter_like.quant_mxfp4
MODES = (0, 1, 2, 3)
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


def exponent_of(amax: float, mode: int) -> int:
    """The scale's, by logarithms in float64: of amax / 4 or amax / 6, rounded as the mode says, at least -127."""
    if amax == 0.0:
        return -127
    if mode == 2:  # to one bit of mantissa: the exponent changes from 1.75 on
        mantissa, exponent = math.frexp(amax)
        return max(exponent - 1 + (mantissa * 2 >= 1.75) - 2, -127)
    exact = amax / (6.0 if mode == 1 else 4.0)
    mantissa, exponent = math.frexp(exact)  # exact = mantissa · 2^exponent, 0.5 <= mantissa < 1
    if mode == 0:
        return max(exponent - 1, -127)
    return max(exponent - (mantissa == 0.5), -126)


def expected(x: torch.Tensor, mode: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [rows, K] and biased exponents [rows, K / 32] of finite `x`, in float64."""
    groups = x.double().cpu().unflatten(-1, (-1, 32))
    exponents = torch.tensor([exponent_of(amax, mode) for amax in groups.abs().amax(-1).flatten().tolist()])
    exponents = exponents.view(groups.shape[:-1])
    y = groups / torch.exp2(exponents.double())[..., None]
    distance = (y.abs()[..., None] - VALUES).abs()
    distance = distance + torch.tensor([0.0, 1e-9] * 4, dtype=torch.float64)  # of two equal ones, the even code
    code = distance.argmin(-1) | y.signbit().long() << 3
    return code.flatten(-2), exponents + 127


def codes(packed: torch.Tensor) -> torch.Tensor:
    byte = packed.cpu().long()
    return torch.stack((byte & 15, byte >> 4), -1).flatten(-2)


def check_numbers(result: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, mode: int) -> None:
    code, exponent = expected(x, mode)
    assert torch.equal(result[1].cpu().long(), exponent) and torch.equal(codes(result[0]), code)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_and_dtypes(device, run, backend, mode):
    for index, shape in enumerate(((32,), (1, 64), (5, 96), (3, 7, 160), (33, 1056), (2, 8224))):
        for dtype in (torch.bfloat16, torch.float16, torch.float32)[:3 if index < 3 else 1]:
            x = matrix(device, *(shape if len(shape) > 1 else (1, *shape)), dtype=dtype, seed=index).view(shape)
            packed, scale = run(backend, QUANT, x, mode)
            assert packed.dtype == scale.dtype == torch.uint8 and packed.shape == (*shape[:-1], shape[-1] // 2)
            check_numbers((packed, scale), x, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_boundary(device, run, backend, mode):
    """A group for each bf16 number from 4 up to 8 as its largest: that, the middles between codes and their next
    neighbours, of both signs.
    """
    middles = torch.tensor([0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5])
    near = torch.cat((middles, middles * (1 + 2**-7), middles * (1 - 2**-8), torch.tensor([5.0])))
    largest = torch.arange(4.0, 8.0, 2**-5)[:, None]
    signed = (near * torch.tensor([1.0, -1.0]).repeat(11)).expand(128, -1)
    rows = torch.cat((largest, signed, -largest.expand(-1, 9)), 1)
    x = rows.to(device, torch.bfloat16)
    check_numbers(run(backend, QUANT, x, mode), x, mode)
    for exponent in (-126, -129, 120):  # near zero's scale, below it, and far above
        check_numbers(run(backend, QUANT, x * 2.0**exponent, mode), x * 2.0**exponent, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_groups(device, run, backend, mode):
    """Zeros have the scale 0; NaN and infinity spoil their own group alone."""
    x = special(device, 64)
    packed, scale = run(backend, QUANT, x, mode)
    assert packed[0].eq(0).all() and scale[0].eq(0).all()
    for row, spoilt in ((1, 1), (2, 1)):
        assert scale[row, spoilt] == 255 and packed[row, 16 * spoilt:16 * spoilt + 16].eq(0).all()
    finite = [0, 3, 4, 5, 6]
    check_numbers((packed[finite], scale[finite]), x[finite], mode)
    for row, plain in ((1, 0), (2, 0)):
        group = slice(32 * plain, 32 * plain + 32)
        code, exponent = expected(x[row, group][None], mode)
        assert scale[row, plain] == exponent[0, 0]
        assert torch.equal(codes(packed[row, 16 * plain:16 * plain + 16]), code[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    x = matrix(device, 6, 128)
    for view in (strided_like(x, (0, 16)), strided_like(x, (0, 3), offset=1), x[::2], x.view(2, 3, 128)):
        check_numbers(run(backend, QUANT, view, 1), view, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_saturates_when_rounded_up(device, run, backend):
    """What comes back is within half a step of each number; a step above 4 scales is two."""
    x = matrix(device, 40, 256, seed=3)
    packed, scale = run(backend, QUANT, x)
    size = torch.exp2(scale.cpu().double() - 127).repeat_interleave(32, -1)
    error = (mxfp4_to_f32(packed).cpu().double() * size - x.cpu().double()).abs()
    assert (error <= torch.maximum(0.25 * size, x.cpu().double().abs() / 5 + 1e-30)).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_16_bit_number(device, run, backend):
    """Each finite bf16 and fp16 number alone in a group of its own, and as the smaller one beside 6 times as much."""
    for dtype in (torch.bfloat16, torch.float16):
        numbers = torch.arange(-2**15, 2**15).to(torch.int16).view(dtype)
        numbers = numbers[numbers.isfinite()]
        x = torch.zeros(numbers.numel(), 32, dtype=dtype)
        x[:, 7], x[:, 20] = numbers, numbers / 6
        for mode in MODES:
            check_numbers(run(backend, QUANT, x.to(device), mode), x, mode)


def test_empty(device):
    for shape in ((0, 64), (3, 0)):
        packed, scale = QUANT(torch.empty(shape, device=device))
        assert packed.shape == (shape[0], shape[1] // 2) and scale.shape == (shape[0], shape[1] // 32)


def test_other_strides_are_for_torch_alone(device):
    turned = matrix(device, 64, 6).t()
    check_numbers(QUANT(turned, backend="torch"), turned, 1)
    for backend in ("hip", "triton"):
        with pytest.raises(UnsupportedError, match="must be contiguous in its last dimension, got stride 6"):
            QUANT(turned, backend=backend)


def test_bad_input_is_named(device):
    x = matrix(device, 3, 64)
    for message, kind, args in (
            ("x must have whole groups of 32 in its last dimension, got shape \\(3, 48\\)", ValueError, (x[:, :48],)),
            ("x must have whole groups of 32", ValueError, (x[0, 0],)),
            ("x must have dtype", TypeError, (x.int(),)),
            ("round_mode must be 0, 1, 2 or 3, got int 4", ValueError, (x, 4))):
        with pytest.raises(kind, match=message):
            QUANT(*args)


def bench() -> None:
    benching.of("mxfp4_quant", "rows columns", ((8192, 8192), (4096, 14336), (64, 8192)), dtype="bf16")
