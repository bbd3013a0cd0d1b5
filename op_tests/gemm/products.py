# SPDX-License-Identifier: MIT
"""What a matrix product may be off by."""

import math

import torch
from torch import Tensor


def compare(out: Tensor, expected: Tensor, magnitude: Tensor, depth: int, coarse: float = 0.0) -> None:
    """`out` against `expected` in float64: the result's rounding, and that of a sum of `depth` products in fp32, whose
    magnitudes sum up to `magnitude` (with what is added to the product), though not of every order of additions; of
    fp32's own roundings a few more. `coarse`: the part of the magnitude that a matrix unit with few bits may lose.
    """
    slack = (math.sqrt(depth) + 8) * 2**-23 * (magnitude + 1) + coarse * magnitude
    error = (out.double() - expected).abs()
    bound = torch.finfo(out.dtype).eps * expected.abs() / 2 * 1.01 + slack
    bound += torch.finfo(out.dtype).smallest_normal * torch.finfo(out.dtype).eps
    worst = (error / bound).max().item()
    assert worst <= 1, f"{worst:.2f} times the bound"
