# SPDX-License-Identifier: MIT
"""What the tests of many products share: dtypes, sizes for a backend, random operands, the formula in float64."""

from __future__ import annotations

import math

import products
import torch

from aiter_like import dtypes
from aiter_like.device import target_of

BACKENDS = ("ck", "triton")
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def kinds(device):
    """The dtypes of operands on this device."""
    return (*SIXTEEN_BITS, dtypes.fp8_of(target_of(device).arch), torch.int8)


def fitted(backend, dtype, n, k):
    """n and k as large as the backend takes them: ck moves 16 bytes of a row, and writes 4 columns, at a time."""
    step = 16 // dtype.itemsize
    return (math.ceil(n / 4) * 4, math.ceil(k / step) * step) if backend == "ck" else (n, k)


def random(generator, dtype, *shape):
    """Normal numbers; of int8 some at its ends."""
    x = torch.randn(shape, generator=generator, device=generator.device)
    return ((x * 50).round().clamp(-128, 127) if dtype == torch.int8 else x).to(dtype)


def compare(out, a, b, x_scale=None, w_scale=None, bias=None) -> None:
    """The formula in float64, written apart from the operator's reference."""
    expected, magnitude = a.double() @ b.double().mT, a.double().abs() @ b.double().abs().mT
    if x_scale is not None:
        scale = x_scale.double() * w_scale.double()
        expected, magnitude = expected * scale, magnitude * scale
    if bias is not None:
        expected, magnitude = expected + bias.double(), magnitude + bias.double().abs()
    if a.dtype == torch.int8:  # sums are exact, and rounded once
        products.compare(out, expected, expected.abs() if bias is None else magnitude, 0)
    else:
        products.compare(out, expected, magnitude, a.shape[-1])
