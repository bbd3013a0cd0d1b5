# SPDX-License-Identifier: MIT
"""Comparison of quantised rows with float64. Read by the tests of every operator that writes fp8 or int8."""

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.testing.compare import assert_within


def double(tensor: Tensor) -> Tensor:
    """The exact values in float64, on the CPU."""
    return tensor.detach().cpu().double()


def quantised_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """The dtypes that the quantisers write on this device."""
    return dtypes.fp8_of(target_of(device).arch), torch.int8


def check_quantised(out: Tensor, scale: Tensor, y: Tensor, group_size: int = 0, error: float = 1e-5) -> float:
    """Compares quantised rows with the float64 rows `y`: every scale, every element.

    A scale may be off by `error` of itself; an element by half a step of its dtype at its value, and by `error` of
    itself, once for its own error and once for the scale's.

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: one is beyond its limit.
    """
    groups = y.unflatten(-1, (-1, group_size)) if group_size else y.unsqueeze(-2)
    amax = groups.abs().amax(-1)
    expected_scale = amax.clamp(min=2.0**-110) / _largest(out.dtype)
    worst = assert_within("scale", scale.reshape(expected_scale.shape), expected_scale, expected_scale * error)
    value = out.detach().cpu().float().double().view(groups.shape) * expected_scale.unsqueeze(-1)
    if out.dtype == torch.int8:
        half_step = expected_scale.unsqueeze(-1) / 2
    else:  # 3 bits behind the leading one; 2^-9 (FNUZ: 2^-10) is the smallest subnormal
        smallest = 2.0**-9 if out.dtype == torch.float8_e4m3fn else 2.0**-10
        half_step = (groups.abs() / 16).maximum(expected_scale.unsqueeze(-1) * smallest / 2)
    limit = half_step * (1 + 2 * error) + 2 * groups.abs() * error + 2.0**-150
    return max(worst, assert_within("quantised", value, groups, limit))


def _largest(dtype: torch.dtype) -> float:
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
