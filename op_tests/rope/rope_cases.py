# SPDX-License-Identifier: MIT
"""Rotary position embedding in float64, element by element: what test_rope*.py and test_rotary.py compare with."""

import torch
from torch import Tensor

from aiter_like.testing import TOLERANCES, assert_within


def rope_float64(x: Tensor, cos: Tensor, sin: Tensor, rotate_style: int = 0, is_shared: bool = True,
                 nope_first: bool = False, is_backward: bool = False) -> tuple[Tensor, Tensor]:
    """The result, and Σ|product| of each element, on the CPU.

    Each token has a matrix: M[e, e] = cos of e's angle, M[e, partner(e)] = ±sin of it, - for the first of a pair.

    Args:
        x: [..., heads, head_dim].
        cos, sin: [..., width], a row per token, float64.
    """
    x = x.detach().cpu().double()
    width = cos.shape[-1]
    rotary = 2 * width if is_shared else width
    begin = x.shape[-1] - rotary if nope_first else 0
    element = torch.arange(rotary)
    half = max(rotary // 2, 1)
    is_first = element < half if rotate_style == 0 else element % 2 == 0
    partner = (element + half) % max(rotary, 1) if rotate_style == 0 else element ^ 1
    pair = element % half if rotate_style == 0 else element // 2
    angle = pair if is_shared else element
    cos, sin = cos[..., None, :], torch.where(is_first, -1.0, 1.0) * sin[..., None, :][..., angle]  # [..., 1, rotary]
    if is_backward:
        sin = sin[..., partner]
    part = x[..., begin:begin + rotary]
    direct, crossed = part * cos[..., angle], part[..., partner] * sin
    out, magnitude = x.clone(), x.abs()
    out[..., begin:begin + rotary] = direct + crossed
    magnitude[..., begin:begin + rotary] = direct.abs() + crossed.abs()
    return out, magnitude


def check_rope(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, *flags: bool | int, angle_error: float = 0.0) -> float:
    """Compares with the float64 reference, element by element.

    The limit is u·|y| for the rounding of the result and 2⁻²³·Σ|product| for fp32; `angle_error` is the error of sines
    and cosines that the operator computed itself.

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: an element is beyond its limit.
    """
    expected, magnitude = rope_float64(x, cos, sin, *flags)
    tolerance = TOLERANCES[out.dtype, "rtne"]
    largest = x.detach().cpu().double().abs().amax(-1, keepdim=True) if x.numel() else 0.0
    limit = (tolerance.unit * (1 + tolerance.unit) * expected.abs() + 2**-23 * magnitude + 2 * angle_error * largest
             + tolerance.smallest)
    return assert_within("rope", out, expected, limit)


def tables(angles: Tensor, dtype: torch.dtype,
           device: torch.device) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Cosines and sines [rows, 1, 1, width] on the device, and the same values as float64 [rows, width]."""
    found = tuple(function(angles.double()).to(dtype) for function in (torch.cos, torch.sin))
    return (tuple(table[:, None, None].to(device) for table in found), tuple(table.double() for table in found))
