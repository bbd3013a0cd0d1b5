# SPDX-License-Identifier: MIT
"""AITER's quantisers to MXFP4: the same bytes as its functions of formats make in torch, and the layouts of weights."""

import pytest
import torch

import aiter_like
from aiter_like import dtypes
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.objects import MxScaleRoundModeInt
from aiter_like.integrations.aiter.quant import formats as aiter_formats
from aiter_like.integrations.aiter.quant import mxfp4


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    size = torch.exp2(torch.randint(-9, 9, (*shape[:-1], 1), generator=generator))
    return (torch.randn(shape, generator=generator) * size).to(dtype)


def in_torch(x: torch.Tensor, mode: int) -> tuple[torch.Tensor, torch.Tensor]:
    groups = x.float().unflatten(-1, (-1, 32))
    scale = aiter_formats.f32_to_mx_e8m0_scale(groups.abs().amax(-1), mode=mode)
    packed = aiter_formats.f32_to_mxfp4((groups / aiter_formats.e8m0_to_f32(scale)[..., None]).flatten(-2))
    return packed.view(torch.uint8), scale.view(torch.uint8)


def same(result: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.uint8), b) for a, b in zip(result, expected))


@pytest.mark.parametrize("mode", [*MxScaleRoundModeInt, 2])
def test_each_rounding(mode):
    x = rows(32, 128)
    result = mxfp4.per_1x32_f4_quant(x, round_mode=mode)
    assert result[0].dtype == dtypes.fp4x2 and result[1].dtype == dtypes.fp8_e8m0
    assert same(result, in_torch(x, mode))


def test_defaults_of_the_names():
    x = rows(32, 128)
    up, even = in_torch(x, 1), in_torch(x, 2)
    for function in (mxfp4.per_1x32_f4_quant_hip, mxfp4.per_1x32_mx_quant_hip):
        assert same(function(x, quant_dtype=dtypes.fp4x2), up) and same(function(x), up)
    assert same(mxfp4.dynamic_mxfp4_quant(x), even) and same(mxfp4.mxfp4_quant(x), even)
    packed, scale = mxfp4.dynamic_mxfp4_quant_shuffled(x, shuffle=True)
    assert same((packed, scale), (even[0], aiter_like.shuffle_scale(even[1])))


@pytest.mark.parametrize("columns", (2, 28, 34, 96))
def test_a_last_group_of_fewer_elements(columns):
    x = rows(5, columns)
    packed, scale = mxfp4.dynamic_mxfp4_quant(x)
    wanted = in_torch(torch.nn.functional.pad(x, (0, -columns % 32)), 2)
    assert torch.equal(packed, wanted[0][:, :columns // 2]) and torch.equal(scale, wanted[1])


def test_groups_along_the_first_dimension():
    x = rows(64, 48)
    packed, scale = in_torch(x.t(), 1)
    assert same(mxfp4.per_1x32_f4_quant(x, pack_dim=0), (packed.t(), scale.t()))
    assert mxfp4.per_1x32_f4_quant(x.view(2, 24, 64))[1].shape == (48, 2)  # the scales are a matrix


def test_bad_input_is_named():
    x = rows(32, 64)
    for message, kind, function, options in (
            ("round_mode must be 0, 1, 2 or 3, got int 4", ValueError, mxfp4.per_1x32_f4_quant, {"round_mode": 4}),
            ("pack_dim must be", ValueError, mxfp4.per_1x32_f4_quant, {"pack_dim": 1}),
            ("scaling_mode must be", ValueError, mxfp4.dynamic_mxfp4_quant, {"scaling_mode": "odd"}),
            ("quant_dtype must be", ValueError, mxfp4.per_1x32_f4_quant_hip, {"quant_dtype": torch.int8}),
            ("quant_dtype must be dtypes.fp4x2", UnsupportedError, mxfp4.per_1x32_mx_quant_hip,
             {"quant_dtype": torch.float8_e4m3fn})):
        with pytest.raises(kind, match=message):
            function(x, **options)
    with pytest.raises(ValueError, match="mxfp4_quant: x must have whole groups"):
        mxfp4.mxfp4_quant(x[:, :48])
