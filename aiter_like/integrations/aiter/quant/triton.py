# SPDX-License-Identifier: MIT
"""AITER's Triton functions that quantise behind something else: sums of partial results, norms, gates."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements, quant_rule


@aiter("aiter.ops.triton.[quant.]fused_fp8_quant aiter.ops.triton.quant", callers="V")
def fused_rms_gated_fp8_group_quant(
        x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor, eps: float, *, norm_before_gate: bool = True,
        use_ue8m0: bool = False, activation: str = "silu", out_dtype: torch.dtype | None = None,
        fp8_min: float | None = None, fp8_max: float | None = None, fp8_min_scaling_factor: float | None = None,
        group_size: int | None = None) -> tuple[Tensor, Tensor]:
    """`gated_rms_norm` in fp32, or `rms_norm` with bias and gate beside it, then fp8 with a scale for each group of
    columns, whose largest magnitude becomes `fp8_max`. The quantisation has bounds that no operator has here, and is
    made of torch's functions.

    Args:
        x, z: [rows, columns] bf16|fp16|fp32, contiguous; the gate is z.
        weight, bias: [columns].
        eps: added to the mean square.
        norm_before_gate: False: x is gated first, then normed.
        use_ue8m0: scales are powers of two, rounded up.
        activation: of the gate: "silu" or "swish", or "sigmoid"; any other: there is no gate, as with AITER's.
        out_dtype: the device's fp8; None: that.
        fp8_min, fp8_max: bounds of the results, both or neither; None: those of `get_fp8_min_max_bounds`.
        fp8_min_scaling_factor: the smallest scale; None: 1 / (512 · fp8_max).
        group_size: divides the columns; None: all of them.

    Returns:
        fp8 [rows, columns] and fp32 scales [rows, columns / group_size], [rows] where group_size is None.
    """
    op = "fused_rms_gated_fp8_group_quant"
    check.tensor(op, "x", x, rank=2, dtypes=elements.FLOATS)
    check.tensor(op, "z", z, dtypes=(x.dtype,), shape=x.shape, device=x.device)
    columns, fp8 = x.shape[1], dtypes.fp8_of(target_of(x.device).arch)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None or name == "weight":
            check.tensor(op, name, tensor, dtypes=elements.FLOATS, shape=(columns,), device=x.device)
    check.choice(op, "out_dtype", out_dtype or fp8, (fp8,))
    if (fp8_min is None) != (fp8_max is None):
        raise ValueError(f"{op}: fp8_min and fp8_max must be given together, got {fp8_min} and {fp8_max}")
    low, top = get_fp8_min_max_bounds(fp8) if fp8_max is None else (fp8_min, fp8_max)
    size = _group_of(op, columns, group_size)
    if norm_before_gate and bias is None and activation in ("silu", "swish"):
        y = aiter_like.gated_rms_norm(x.float(), z.float(), weight.float(), eps)
    else:
        gate = z.float().sigmoid() if activation == "sigmoid" else torch.nn.functional.silu(z.float())
        gate = gate if activation in ("silu", "swish", "sigmoid") else torch.ones_like(gate)
        y = aiter_like.rms_norm(x.float() if norm_before_gate else x.float() * gate, weight.float(), eps)
        y = y if bias is None else y + bias.float()
        y = y * gate if norm_before_gate else y
    groups = y.unflatten(1, (-1, size))
    scales = quant_rule.divided(groups.abs().amax(-1), top)
    if use_ue8m0:
        scales = torch.exp2(scales.log2().ceil())
    scales = scales.clamp(min=1 / (512 * top) if fp8_min_scaling_factor is None else fp8_min_scaling_factor)
    narrow = (groups / scales[..., None]).clamp(low, top).to(fp8).view(x.shape)
    return narrow, scales[:, 0] if group_size is None else scales


def _group_of(op: str, columns: int, group_size: int | None) -> int:
    """The size of a group, in AITER's words where it is none."""
    if group_size is None:
        return columns
    check.integer(op, "group_size", group_size)
    if group_size <= 0:
        raise ValueError(f"{op}: group_size must be positive, got {group_size}")
    if group_size > columns:
        raise ValueError(f"{op}: group_size must be less than or equal to hidden size {columns}, got {group_size}")
    if columns % group_size:
        raise ValueError(f"{op}: the hidden size must be divisible by group_size, got {columns} and {group_size}")
    return group_size


@aiter("aiter.ops.triton.[quant.]fused_fp8_quant aiter.ops.triton.quant", stays=True)
def get_fp8_min_max_bounds(fp8_dtype: torch.dtype) -> tuple[float, float]:
    """What AITER's norms with gates clamp to: of FNUZ 224, though 240 is its largest number, else the largest."""
    largest = 224.0 if fp8_dtype == torch.float8_e4m3fnuz else float(quant_rule.largest(fp8_dtype))
    return -largest, largest
