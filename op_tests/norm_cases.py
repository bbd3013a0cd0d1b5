# SPDX-License-Identifier: MIT
"""What the tests of the norms share: inputs, float64 references; testing/quantised.py compares quantised rows."""

import math

import torch
from torch import Tensor

from aiter_like.testing import TOLERANCES, assert_within
from aiter_like.testing.quantised import check_quantised as check_quantised
from aiter_like.testing.quantised import double as double
from aiter_like.testing.quantised import quantised_dtypes as quantised_dtypes

EPSILON = 1e-6
BACKENDS = ("hip", "triton", "torch")


def rows_like(device: torch.device, rows: int, hidden: int, dtype: torch.dtype, count: int = 1, seed: int = 0,
              scale: float = 3.0, mean: float = 0.0) -> list[Tensor]:
    """`count` matrices [rows, hidden] of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(rows, hidden, generator=generator) * scale + mean).to(device, dtype) for _ in range(count)]


def vector_like(device: torch.device, hidden: int, dtype: torch.dtype, seed: int = 100) -> Tensor:
    return torch.randn(hidden, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


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
