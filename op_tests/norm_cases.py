# SPDX-License-Identifier: MIT
"""What the tests of the norms share: inputs, float64 references, comparison of quantised rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.testing import TOLERANCES, assert_within

EPSILON = 1e-6
BACKENDS = ("hip", "triton", "torch")


def rows_like(device: torch.device, rows: int, hidden: int, dtype: torch.dtype, count: int = 1, seed: int = 0,
              scale: float = 3.0, mean: float = 0.0) -> list[Tensor]:
    """`count` matrices [rows, hidden] of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(rows, hidden, generator=generator) * scale + mean).to(device, dtype) for _ in range(count)]


def vector_like(device: torch.device, hidden: int, dtype: torch.dtype, seed: int = 100) -> Tensor:
    return torch.randn(hidden, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def rms_norm64(x: Tensor, weight: Tensor, epsilon: float = EPSILON) -> Tensor:
    """RMSNorm of the exact values in float64."""
    x = double(x)
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * double(weight)


def layer_norm64(x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0,
                 epsilon: float = EPSILON) -> Tensor:
    """LayerNorm of the exact values in float64."""
    deviation = double(x) - double(x).mean(-1, keepdim=True)
    scaled = deviation / (deviation.square().mean(-1, keepdim=True) + epsilon).sqrt()
    weight, bias = (double(factor) if isinstance(factor, Tensor) else factor for factor in (weight, bias))
    return scaled * weight + bias


def check_layer_norm(out: Tensor, x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0,
                     epsilon: float = EPSILON) -> float:
    """Compares with float64: u·|y| for the rounding of the result, and (8 + √hidden)·2⁻²⁴ of what fp32 adds up: the
    mean of |x| and the deviation, each in units of the standard deviation times the weight, and the bias.

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: an element is beyond its limit.
    """
    expected = layer_norm64(x, weight, bias, epsilon)
    x = double(x)
    deviation = (x - x.mean(-1, keepdim=True)).abs()
    spread = (deviation.square().mean(-1, keepdim=True) + epsilon).sqrt()
    size = weight.detach().cpu().double().abs() if isinstance(weight, Tensor) else abs(weight)
    offset = bias.detach().cpu().double().abs() if isinstance(bias, Tensor) else abs(bias)
    terms = (x.abs().mean(-1, keepdim=True) + deviation) / spread * size + offset
    tolerance = TOLERANCES[out.dtype, "rtne"]
    limit = tolerance.unit * (1 + tolerance.unit) * expected.abs() + tolerance.smallest
    return assert_within("layer_norm", out, expected, limit + 2**-24 * (8 + math.sqrt(x.shape[-1])) * terms)


def quantised_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """What the quantisers write on this device."""
    return dtypes.fp8_of(target_of(device).arch), torch.int8


def largest(dtype: torch.dtype) -> float:
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


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
    expected_scale = amax.clamp(min=2.0**-110) / largest(out.dtype)
    worst = assert_within("scale", scale.reshape(expected_scale.shape), expected_scale, expected_scale * error)
    value = out.detach().cpu().float().double().view(groups.shape) * expected_scale.unsqueeze(-1)
    if out.dtype == torch.int8:
        half_step = expected_scale.unsqueeze(-1) / 2
    else:  # 3 bits behind the leading one; 2^-9 (FNUZ: 2^-10) is the smallest subnormal
        smallest = 2.0**-9 if out.dtype == torch.float8_e4m3fn else 2.0**-10
        half_step = (groups.abs() / 16).maximum(expected_scale.unsqueeze(-1) * smallest / 2)
    limit = half_step * (1 + 2 * error) + 2 * groups.abs() * error + 2.0**-150
    return max(worst, assert_within("quantised", value, groups, limit))
