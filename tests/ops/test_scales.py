# SPDX-License-Identifier: MIT
"""The quantisers' scale rule: values by hand, zeros, NaN, infinity, groups, the fp8 of other hardware."""

import math

import pytest
import torch

from aiter_like.device import simulated_target
from aiter_like.ops.common import quant_rule


@pytest.mark.parametrize("dtype", quant_rule.DTYPES, ids=str)
def test_largest_magnitude_becomes_the_largest_value(dtype):
    x = torch.tensor([[1.0, -3.0, 0.5, 0.0], [2.0**-100, 0.0, 0.0, 0.0]])
    scale = quant_rule.row_scales(x, dtype)
    largest = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0, torch.int8: 127.0}[dtype]
    assert torch.equal(scale, torch.tensor([[3.0], [2.0**-100]]) / largest)
    q = quant_rule.quantised(x, scale, dtype)
    assert q.dtype == dtype and q.float()[0, 1] == -largest and q.float()[1, 0] == largest
    assert (q.float() * scale - x).abs().max() <= 3.0 / 16


@pytest.mark.parametrize("dtype", quant_rule.DTYPES, ids=str)
def test_zeros_nan_and_infinity(dtype):
    x = torch.tensor([[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
    scale = quant_rule.row_scales(x, dtype)
    assert 0 < scale[0] < 2.0**-110 and scale[1].isnan() and scale[2].isinf()
    q = quant_rule.quantised(x, scale, dtype).float()
    nan = 0.0 if dtype == torch.int8 else math.nan
    expected = torch.tensor([[0.0, 0.0], [nan, nan], [nan, 0.0]])
    assert torch.equal(q.nan_to_num(99.0), expected.nan_to_num(99.0))


def test_a_scale_per_group():
    x = torch.arange(1.0, 129.0).repeat(2, 1)
    scale = quant_rule.row_scales(x, torch.int8, 32)
    assert torch.equal(scale, torch.tensor([[32.0, 64.0, 96.0, 128.0]] * 2) / 127)
    q = quant_rule.quantised(x, scale, torch.int8)
    assert q[0, 31::32].tolist() == [127] * 4 and q[1, 0] == 4


def test_refusals():
    assert "fp8 on gfx942 is torch.float8_e4m3fnuz" in quant_rule.refusal(simulated_target(), torch.float8_e4m3fn)
    assert quant_rule.refusal(simulated_target(), torch.float8_e4m3fnuz) is None
    assert quant_rule.refusal(simulated_target(), torch.int8) is None
    quant_rule.check_group("op", 256, 128)
    with pytest.raises(ValueError, match="op: group_size must be 0, 32, 64 or 128, got int 16"):
        quant_rule.check_group("op", 256, 16)
    with pytest.raises(ValueError, match="group_size must divide the row, got 128 for rows of 200"):
        quant_rule.check_group("op", 200, 128)
