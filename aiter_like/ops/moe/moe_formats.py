# SPDX-License-Identifier: MIT
"""How the weights of experts are stored, and what they are as numbers. Read by moe_gemm.py and fused_moe.py."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = ("same", "int8", "fp8", "int4", "int4_words", "mxfp4")
"""Elements of the activations' dtype; of 16-bit activations also int8; fp8 of the device; int4, from -8 to 7, two in a
byte as pack_int4 packs them along k; int4_words, eight in 32 bits, from the lowest on 0, 2, 4, 6, 1, 3, 5, 7 of k, as
AITER has them beside fp8; mxfp4, two fp4 in a byte like int4, 32 of which share a power of two (OCP Microscaling v1.0).
Activations of fp8 go with both kinds of int4."""
INT4 = ("int4", "int4_words")
MXFP4_GROUP = 32
SCALE_BLOCK = 128  # elements of the depth, and rows of fp8 weights, that share a scale

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1 by its three lower bits; the fourth is the sign


def per_byte(b_format: str) -> int:
    """Weights in a byte of a format that is not the activations'."""
    return 2 if b_format in (*INT4, "mxfp4") else 1


def widened(weights: Tensor, b_format: str) -> Tensor:
    """Weights [rows, k or k / 2] as fp32 numbers [rows, k], without their scales."""
    if per_byte(b_format) == 1:
        return weights.float()
    as_bytes = weights.view(torch.int8)
    low, high = (as_bytes << 4) >> 4, as_bytes >> 4
    numbers = torch.stack((low, high), -1).flatten(-2)
    if b_format == "int4_words":  # a word's lower half has the even ones
        return numbers.unflatten(-1, (-1, 2, 4)).mT.flatten(-3).float()
    if b_format == "int4":
        return numbers.float()
    values = torch.tensor(_FP4 + tuple(-one for one in _FP4), device=weights.device, dtype=torch.float32)
    return values[(numbers & 15).long()]


def power_of_two(scale: Tensor) -> Tensor:
    """Exponents of 8 bits, biased by 127, as fp32; 255 is NaN."""
    return scale.view(torch.float8_e8m0fnu).float()
