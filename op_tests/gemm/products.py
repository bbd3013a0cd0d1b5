# SPDX-License-Identifier: MIT
"""What a matrix product may be off by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

HOPPER_FP8 = 2.0**-11
"""What Hopper's matrix units lose of a sum of products of fp8, as a part of their magnitudes: they keep about 14 bits
behind the largest of 32 (DeepSeek-V3's report, section 3.3.2).
"""


def compare(out: Tensor, expected: Tensor, magnitude: Tensor, depth: int, lost: float = 0.0) -> None:
    """`out` against `expected` in float64: the result's rounding, and that of a sum of `depth` products in fp32, whose
    magnitudes sum up to `magnitude` (with what is added to the product), though not of every order of additions; of
    fp32's own roundings a few more; of `magnitude` the part that the matrix units lose.
    """
    slack = (math.sqrt(depth) + 8) * 2**-23 * (magnitude + 1) + lost * magnitude
    error = (out.double() - expected).abs()
    bound = torch.finfo(out.dtype).eps * expected.abs() / 2 * 1.01 + slack
    bound += torch.finfo(out.dtype).smallest_normal * torch.finfo(out.dtype).eps
    worst = (error / bound).max().item()
    assert worst <= 1, f"{worst:.2f} times the bound"
