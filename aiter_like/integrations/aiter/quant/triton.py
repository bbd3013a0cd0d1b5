# SPDX-License-Identifier: MIT
"""AITER's Triton functions that quantise behind something else: sums of partial results, norms, gates. Named by
names.txt.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.ops.common import elements, quant_rule


def fused_reduce_act_mul_fp8_group_quant(
        x: Tensor, activation: str = "silu", x2: Tensor | None = None, group_size: int = 128,
        dtype_quant: torch.dtype | None = None,
        dtype: torch.dtype | None = torch.bfloat16) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """`act_mul_and_fp8_group_quant` of `x`, or of the sum of its parts by `moe_sum`, and the sum of the parts of `x2`.

    Args:
        x: [m, 2n] bf16|fp16|fp32, or parts of it [parts, m, 2n].
        activation, group_size, dtype_quant: as there.
        x2: [parts, m, n2], given with parts of `x` alone.
        dtype: of the sum of `x2`.

    Returns:
        The quantised rows [m, n] and their scales [m, n / group_size]; the sum [m, n2], or None.
    """
    op = "fused_reduce_act_mul_fp8_group_quant"
    _check_parts(op, x=x, x2=x2)
    narrow = aiter_like.act_mul_and_fp8_group_quant(_whole(x), activation, group_size, dtype_quant)
    return narrow, None if x2 is None else _whole(x2, dtype)


def fused_reduce_rms_fp8_group_quant(
        inp1: Tensor, inp1_weight: Tensor, inp1_epsilon: float, inp2: Tensor | None = None,
        inp2_weight: Tensor | None = None, inp2_epsilon: float | None = None, inp3: Tensor | None = None,
        group_size: int = 128, dtype_quant: torch.dtype | None = None, dtype: torch.dtype | None = None,
        res1: Tensor | None = None, output_unquantized_inp1: bool = False, out3: Tensor | None = None,
        transpose_scale: bool = False, is_x_scale_strided: bool = False) -> tuple:
    """`fused_rms_fp8_group_quant` of `inp1` and `inp2`, or of the sums of their parts by `moe_sum`, and the sum of the
    parts of `inp3`.

    Args:
        inp1, inp2: [m, columns], or parts of them [parts, m, columns]; with their weights and epsilons, `res1`,
            group_size, dtype_quant, output_unquantized_inp1, transpose_scale and is_x_scale_strided as there.
        inp3: [parts, m, columns], given with parts of `inp1` alone.
        dtype: of the results that are not quantised; None: that of `inp1`.
        out3: [m, columns] to write the sum of `inp3` to.

    Returns:
        ((q, scale), out1, out2, res_out, out3); None for what was not asked for.
    """
    op = "fused_reduce_rms_fp8_group_quant"
    _check_parts(op, inp1=inp1, inp2=inp2, inp3=inp3)
    check.tensor(op, "inp1", inp1, dtypes=elements.FLOATS)
    dtype = inp1.dtype if dtype is None else dtype
    summed = _whole(inp1)
    weights = [inp1_weight, inp2_weight]
    if any(each is not None and each.dtype != summed.dtype for each in weights):  # one dtype for both: fp32 serves all
        weights = [None if each is None else each.float() for each in weights]
    narrow, *wide = aiter_like.fused_rms_fp8_group_quant(
        summed, weights[0], inp1_epsilon, None if inp2 is None else _whole(inp2), weights[1], inp2_epsilon, group_size,
        dtype_quant, None if res1 is None else res1.to(summed.dtype), output_unquantized_inp1, transpose_scale,
        is_x_scale_strided)
    third = None if inp3 is None else _whole(inp3, dtype, out3)
    return narrow, *(None if each is None else each.to(dtype) for each in wide), third


def fused_silu_mul_fp8_per_tensor_static_quant(inp: Tensor, inp_scale: Tensor, dtype_quant: torch.dtype | None = None,
                                               silu_convert_to_inp_type: bool = False) -> Tensor:
    """`aiter_like.scaled_silu_and_mul` into a new tensor [m, n] of `inp` [m, 2n]; `silu_convert_to_inp_type`, which
    rounds between its steps, has no meaning here: everything is in fp32 and rounded once.
    """
    op = "fused_silu_mul_fp8_per_tensor_static_quant"
    check.tensor(op, "inp", inp, rank=2, dtypes=elements.FLOATS)
    if inp.shape[1] % 2:
        raise ValueError(f"{op}: inp must have an even number of columns, got {inp.shape[1]}")
    out = torch.empty(inp.shape[0], inp.shape[1] // 2, dtype=dtype_quant or dtypes.fp8_of(target_of(inp.device).arch),
                      device=inp.device)
    aiter_like.scaled_silu_and_mul(out, inp, inp_scale.reshape(1))
    return out


def fused_rmsnorm_add(x: Tensor, weight: Tensor, epsilon: float,
                      res1: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """`aiter_like.rms_norm` of `x`, or with `res1` `rmsnorm2d_fwd_with_add` into new tensors: the norm, and the sum."""
    check.tensor("fused_rmsnorm_add", "x", x, rank=2)
    if res1 is None:
        return aiter_like.rms_norm(x, weight, epsilon)
    out, total = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    aiter_like.rmsnorm2d_fwd_with_add(out, x, res1, total, weight, epsilon)
    return out, total


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


def get_fp8_min_max_bounds(fp8_dtype: torch.dtype) -> tuple[float, float]:
    """What AITER's norms with gates clamp to: of FNUZ 224, though 240 is its largest number, else the largest."""
    largest = 224.0 if fp8_dtype == torch.float8_e4m3fnuz else float(quant_rule.largest(fp8_dtype))
    return -largest, largest


def _check_parts(op: str, **tensors: Tensor | None) -> None:
    """The first of them says whether all are parts, of how many and of how many rows."""
    (name, first), *others = tensors.items()
    check.tensor(op, name, first)
    if first.ndim not in (2, 3):
        raise ValueError(f"{op}: {name} must have 2 or 3 dimensions, got shape {tuple(first.shape)}")
    for other, tensor in others:
        if tensor is None:
            continue
        check.tensor(op, other, tensor, shape=(*first.shape[:-1], None), device=first.device)
        if first.ndim == 2 and other in ("x2", "inp3"):
            raise ValueError(f"{op}: {other} must be None where {name} has 2 dimensions")


def _whole(x: Tensor, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    """The sum of parts, in fp32 where nothing else is said; [m, columns] as it is."""
    if x.ndim == 2:
        return x
    if out is None:
        out = torch.empty(x.shape[1:], dtype=dtype or torch.float32, device=x.device)
    aiter_like.moe_sum(x.transpose(0, 1), out)
    return out
