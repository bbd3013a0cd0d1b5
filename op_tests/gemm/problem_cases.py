# SPDX-License-Identifier: MIT
"""What the tests of many products share: dtypes, sizes for a backend, random operands, the formula in float64."""

import math

import products
import torch

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.ops.common import elements

BACKENDS = ("ck", "triton")
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
HOPPER_FP8 = 2.0**-11
"""What Hopper's matrix units lose of a sum of products of fp8, as a part of their magnitudes: they keep about 14 bits
behind the largest of 32 (DeepSeek-V3's report, section 3.3.2).
"""


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
    lost = (HOPPER_FP8,) if out.device.type == "cuda" and a.dtype in elements.FP8 else ()
    if a.dtype == torch.int8:  # sums are exact, and rounded once
        products.compare(out, expected, expected.abs() if bias is None else magnitude, 0)
    else:
        products.compare(out, expected, magnitude, a.shape[-1], *lost)
