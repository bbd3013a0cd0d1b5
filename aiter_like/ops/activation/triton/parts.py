# SPDX-License-Identifier: MIT
"""The activations as such, for Triton kernels of any operator. No operator's file is read here, so that what changes
there leaves the measured rows of products and experts.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _gelu(x, IS_BF16: tl.constexpr):
    """x · Φ(x) = max(x, 0) − |x| · Φ(−|x|), by the fits of csrc/activation/activation.h; bf16 takes a short one.

    On sm_90 the whole kernel has 24 instructions per element of bf16 and 26 of other dtypes; with silu it has 15."""
    a = tl.minimum(tl.abs(x), 40.0)  # an infinity would make 0 · ∞ of the tail; NaN stays in the power
    if IS_BF16:
        u = libdevice.fast_dividef(a, a * 0.35 + 1.0)
        p = -0.001749164 * u + 0.009229823
        p = p * u + 0.005684221
        p = p * u - 0.050178193
        p = p * u - 0.64652044
        p = p * u - 0.9999906
    else:
        u = libdevice.fast_dividef(a, a * 0.27 + 1.0)
        p = -9.8719165e-06 * u + 0.000115493356
        p = p * u - 0.00039570723
        p = p * u - 9.6020914e-05
        p = p * u + 0.0007086859
        p = p * u + 0.01481138
        p = p * u + 0.003884673
        p = p * u - 0.761575
        p = p * u - 0.99999994
    return tl.maximum(x, 0.0) - u * tl.exp2(x * -0.72134752 * x + p)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr):
    """act(x) in fp32; with IS_BF16 as exact as bf16 needs. swiglu is x · sigmoid(1.702 x); gelu_tanh is
    0.5 x (1 + tanh u) = x · sigmoid(2 u). A power and a quotient are one instruction each here, where tl.exp and `/`
    spend more on denormal numbers."""
    if ACTIVATION == "silu":
        return libdevice.fast_dividef(x, 1.0 + tl.exp2(-1.44269504 * x))
    elif ACTIVATION == "swiglu":
        # 1.702 log2 e. The quotient would lose x / 2 below 2^-126, which up + 1 may bring back.
        return x * libdevice.fast_dividef(1.0, 1.0 + tl.exp2(-2.45546696 * x))
    elif ACTIVATION == "gelu":
        return _gelu(x, IS_BF16)
    else:  # √(8/π) log2 e, and 0.044715 times it
        return libdevice.fast_dividef(x, 1.0 + tl.exp2(x * (-2.30220819 - 0.102943240 * x * x)))


@triton.jit
def gated(gate, up, limit, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr):
    """act(gate) · up, or · (up + 1) for swiglu; a limit bounds gate from above and up on both sides, and keeps NaN."""
    if limit is not None:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    if ACTIVATION == "swiglu":
        up += 1.0
    return activated(gate, ACTIVATION, IS_BF16) * up
