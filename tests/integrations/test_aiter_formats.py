# SPDX-License-Identifier: MIT
"""AITER's functions on formats of numbers against plain arithmetic."""

import math

import pytest
import torch

from aiter_like import dtypes
from aiter_like.integrations.aiter.objects import MxDtypeInt, MxScaleRoundModeInt
from aiter_like.integrations.aiter.quant import formats

AMAX = torch.tensor([6.0, 6.0001, 5.9, 4.0, 3.999, 0.75, 448.0, 240.0, 241.0, 1e-20, 7.0, 1.9])
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@pytest.mark.parametrize("kind, largest", tuple(zip(MxDtypeInt, (6.0, 448.0, 240.0))))
@pytest.mark.parametrize("mode", MxScaleRoundModeInt)
def test_scales(kind, largest, mode):
    power, steps = 2.0**math.floor(math.log2(largest)), 2 if kind == MxDtypeInt.FP4_E2M1 else 8
    for amax, byte in zip(AMAX.tolist(), formats.f32_to_mx_e8m0_scale(AMAX, mode=mode, dtype=kind).view(torch.uint8)):
        mantissa, exponent = math.frexp(amax)  # in [0.5, 1)
        if mode == MxScaleRoundModeInt.Even:
            amax = math.ldexp(math.floor(mantissa * 2 * steps + 0.5) / steps, exponent - 1)
        rounding = math.ceil if mode in (MxScaleRoundModeInt.RoundUp, MxScaleRoundModeInt.Ceil) else math.floor
        assert byte == 127 + rounding(math.log2(amax / (largest if mode == MxScaleRoundModeInt.RoundUp else power)))
    special = formats.f32_to_mx_e8m0_scale(torch.tensor([torch.nan, torch.inf]), mode=mode, dtype=kind)
    assert special.dtype == dtypes.fp8_e8m0 and (special.view(torch.uint8) == 255).all()


def test_default_of_scales():
    assert torch.equal(formats.fp4_f32_to_e8m0_scale(AMAX).view(torch.uint8),
                       formats.f32_to_mx_e8m0_scale(AMAX, mode=1, dtype=0).view(torch.uint8))
    with pytest.raises(ValueError, match="mode must be"):
        formats.f32_to_mx_e8m0_scale(AMAX, mode=7)


def test_values_of_scales():
    found = formats.e8m0_to_f32(torch.arange(256, dtype=torch.uint8)).double()
    assert torch.equal(found[:255], torch.exp2(torch.arange(255).double() - 127)) and found[255].isnan()


def test_fp4():
    """Every value and every middle, by the nearest with ties to the even code."""
    x = torch.arange(-8, 8.0625, 0.0625)[:256]
    pairs = formats.f32_to_mxfp4(x)
    assert pairs.dtype == dtypes.fp4x2
    for value, found in zip(x.tolist(), formats.mxfp4_to_f32(pairs).tolist()):
        best = min(range(8), key=lambda code: (abs(FP4[code] - abs(value)), code % 2))
        assert found == math.copysign(FP4[best], value)
    assert formats.mxfp4_to_f32(formats.f32_to_mxfp4(torch.tensor([torch.nan, torch.inf]))).tolist() == [0, 6]
    with pytest.raises(ValueError, match="x must have an even last dimension"):
        formats.f32_to_mxfp4(x[:3])


def test_int4_in_words():
    x = torch.arange(-8, 8, dtype=torch.int8).repeat(3, 2, 2)
    words = formats.convert_int8_to_uint32_int4(x)
    assert words.dtype == torch.uint32 and words.shape == (3, 2, 4)
    first, second = (sum((value & 15) << 4 * place for place, value in enumerate(range(begin, begin + 8)))
                     for begin in (-8, 0))
    assert words[0, 0].tolist() == [first, second, first, second]
    digits = f"{0x89ABCDEF:08x}"
    (turned,) = formats.rearrange_4bit_elements(torch.tensor([0x89ABCDEF], dtype=torch.uint32)).tolist()
    assert f"{turned:08x}" == digits[::2] + digits[1::2]
    with pytest.raises(ValueError, match="whole eights"):
        formats.convert_int8_to_uint32_int4(x[..., :7])


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_int4_by_groups(dtype):
    weight = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    narrow, scale = formats.per_1x32_i4_quant(weight, 64)
    assert (narrow.dtype, scale.dtype, scale.shape) == (torch.int8, torch.bfloat16, (2, 2, 3))
    wide = narrow.double() * scale.double().mT.repeat_interleave(64, -1)
    amax = weight.double().unflatten(-1, (2, 64)).abs().amax(-1).repeat_interleave(64, -1)
    assert narrow.abs().max() == 7 and ((wide - weight.double()).abs() <= amax / 14 + amax / 60).all()
    with pytest.raises(ValueError, match="per_1x32_i4_quant: group_size must divide the rows of weight, got 48"):
        formats.per_1x32_i4_quant(weight, 48)
