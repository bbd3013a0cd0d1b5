# SPDX-License-Identifier: MIT
"""Float64 references, the table of tolerances, comparison and shapes that the tests of several operators share.

The references are written apart from the operators' own ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LENGTHS = (1, 15, 16, 63, 65, 127, 257, 1000)
"""Sequence lengths on both sides of every tile edge: 16 (MFMA), 64 (keys), 128 (rows)."""

HIDDEN_SIZES = (1, 7, 8, 64, 100, 1000, 2048, 2056, 4096, 8192, 8200, 20000)
"""Row lengths on both sides of every path of rms_norm: vector or scalar, wave or workgroup, kept or read twice."""


@dataclass(frozen=True)
class Tolerance:
    """Limits of one (dtype, rounding).

    Attributes:
        unit: unit roundoff of the result's rounding, half of or a whole unit in the last place.
        relative_l2: limit of ‖out − out64‖ / ‖out64‖ for attention: about twice what an emulation of the algorithm with
            this rounding shows (bf16 1.8–2.4e-3, towards zero 3.8–6.2e-3; fp16 2.2–2.9e-4, towards zero 4.9–7.7e-4).
        smallest: half of the smallest subnormal: what rounding loses where the unit no longer scales.
    """

    unit: float
    relative_l2: float
    smallest: float = 0.0


TOLERANCES: dict[tuple[torch.dtype, str], Tolerance] = {
    (torch.bfloat16, "rtne"): Tolerance(2**-8, 4e-3),
    (torch.bfloat16, "rtna"): Tolerance(2**-8, 4e-3),
    (torch.bfloat16, "rtz"): Tolerance(2**-7, 9e-3),
    (torch.float16, "rtne"): Tolerance(2**-11, 5e-4, smallest=2**-24),
    (torch.float16, "rtz"): Tolerance(2**-10, 1.2e-3, smallest=2**-24),
    (torch.float32, "rtne"): Tolerance(2**-24, 1e-6),
}


def rms_norm_float64(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0) -> Tensor:
    """rms_norm of the exact inputs in float64, on the CPU. The T5 variant's inner rounding is part of the tolerance."""
    x, w = input.detach().cpu().double(), weight.detach().cpu().double()
    return x / (x.pow(2).sum(-1, keepdim=True) / x.shape[-1] + epsilon).sqrt() * w


def check_rms_norm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
                   use_model_sensitive_rmsnorm: int = 0) -> float:
    """Compares with the float64 reference, element by element.

    The limit is u·|y| for the rounding of the result, once more for the T5 variant's, and (8 + √hidden)·2⁻²⁴·|y| for
    the fp32 sum and reciprocal square root.

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: an element is beyond its limit; the message shows the worst one.
    """
    expected = rms_norm_float64(input, weight, epsilon, use_model_sensitive_rmsnorm)
    tolerance = TOLERANCES[out.dtype, "rtne"]
    accumulation = 2**-24 * (8 + math.sqrt(input.shape[-1]))
    roundings = 2 if use_model_sensitive_rmsnorm else 1
    magnitude = weight.detach().cpu().double().abs().clamp(min=1) * tolerance.smallest  # the inner rounding's part
    limit = (roundings * tolerance.unit * (1 + tolerance.unit) + accumulation) * expected.abs() + 2 * magnitude
    return assert_within("rms_norm", out, expected, limit)


def relative_l2(out: Tensor, expected: Tensor) -> float:
    """‖out − expected‖ / ‖expected‖; 0 for two empty or all-zero tensors."""
    difference = (out.detach().cpu().double() - expected).norm().item()
    return difference / expected.norm().item() if difference else 0.0


def assert_within(name: str, out: Tensor, expected: Tensor, limit: Tensor) -> float:
    """Every |out − expected| ≤ limit; an infinity must be the same infinity; NaN never passes.

    Returns:
        The largest error as a fraction of its limit.

    Raises:
        AssertionError: the message counts the elements and shows the worst one.
    """
    got = out.detach().cpu().double()
    if got.shape != expected.shape:
        raise AssertionError(f"{name}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    same = got == expected
    ratio = torch.where(same, 0.0, (got - expected).abs() / limit).nan_to_num(nan=math.inf)
    worst = ratio.max().item() if ratio.numel() else 0.0
    if worst > 1.0:
        index = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
        raise AssertionError(f"{name}: {int((ratio > 1).sum())} of {ratio.numel()} elements beyond the limit; worst at "
                             f"{index}: {got[index].item()!r}, expected {expected[index].item()!r}, "
                             f"limit ±{limit.expand_as(got)[index].item():.3e}")
    return worst


def strided_like(tensor: Tensor, paddings: Sequence[int], offset: int = 0) -> Tensor:
    """A copy of `tensor` whose dimension d is followed by paddings[d] unused elements, starting at `offset`: NaN, or -1
    of integers.
    """
    sizes = [size + padding for size, padding in zip(tensor.shape, paddings, strict=True)]
    unused = math.nan if tensor.is_floating_point() else -1
    storage = torch.full((math.prod(sizes) + offset,), unused, dtype=tensor.dtype, device=tensor.device)
    view = storage[offset:].view(sizes)[tuple(slice(0, size) for size in tensor.shape)]
    return view.copy_(tensor)
