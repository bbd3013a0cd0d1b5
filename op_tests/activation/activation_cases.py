# SPDX-License-Identifier: MIT
"""Activations in float64 and the comparison with them, for the op_tests of this family."""

import math

import torch
from torch import Tensor

from aiter_like.testing import TOLERANCES, assert_within

GATED = ("silu", "gelu", "gelu_tanh", "swiglu")


def activation_float64(x: Tensor, activation: str) -> Tensor:
    """act(x) of float64 `x`, without cancellation in the lower tail."""
    if activation == "gelu":
        return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))
    slope = {"silu": x, "swiglu": 1.702 * x,
             "gelu_tanh": 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)}[activation]
    return x * torch.sigmoid(slope)


def halves(x: Tensor, activation: str, limit: float) -> tuple[Tensor, Tensor]:
    """Gate and factor in float64 on the CPU, bounded."""
    gate, up = x.detach().cpu().double().chunk(2, -1)
    limit = 7.0 if activation == "swiglu" else limit
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate, up + 1 if activation == "swiglu" else up


def gated_float64(x: Tensor, activation: str, limit: float = 0.0) -> Tensor:
    """act(gate) · up of the exact inputs in float64, on the CPU."""
    gate, up = halves(x, activation, limit)
    return activation_float64(gate, activation) * up


def check_activation(out: Tensor, x: Tensor, activation: str, limit: float = 0.0, is_gated: bool = True) -> float:
    """Compares `out` with float64, element by element.

    The limit is u·|y| for the rounding of the result and, for fp32 within, (16 + 3 s)·2⁻²⁴·|y| with the argument s of
    the exponential (below e⁻⁸⁷ the result may be zero).

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: an element is beyond its limit; the message shows the worst one.
    """
    gate, up = halves(x, activation, limit) if is_gated else (x.detach().cpu().double(), torch.ones(()).double())
    expected = activation_float64(gate, activation) * up
    tolerance = TOLERANCES[out.dtype, "rtne"]
    argument = {"silu": gate, "swiglu": 1.702 * gate, "gelu": gate**2, "gelu_tanh": 1.6 * gate + 0.08 * gate**3}
    unit = tolerance.unit * (1 + tolerance.unit) + 2**-24 * (16 + 3 * argument[activation].abs())
    bound = unit.clamp(max=1) * expected.abs() + 2.0**-118 * (gate * up).abs() + tolerance.smallest + 2.0**-126
    return assert_within(activation, out, expected, bound)
