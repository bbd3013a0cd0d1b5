# SPDX-License-Identifier: MIT
"""Shared by the quantisers of matrices: checks, refusals, rows that are not used, new results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.ops.common import elements, quant_rule, rows


def names(call: Any) -> tuple[str, str]:
    """The dtypes of `input` and `out`, as keys have them."""
    return dtypes.name(call.input.dtype), dtypes.name(call.out.dtype)


def kinds(call: Any) -> tuple[str, dict[str, str]]:
    """The beginning of an instance's name for these dtypes, and its macros."""
    input, out = call.input.dtype, call.out.dtype
    return f"{dtypes.name(input)}_{elements.short(out)}", {"ELEMENT": elements.CPP[input], "OUT": elements.CPP[out]}


def used_rows(matrix: Tensor, num_rows: Tensor | None, factor: int) -> Tensor | None:
    """[..., 1]: whether a row is one of the first num_rows · factor; None means all rows. The number stays on the
    device.
    """
    if num_rows is None:
        return None
    index = torch.arange(matrix.shape[:-1].numel(), device=matrix.device)
    return (index < num_rows.reshape(()) * factor).view(*matrix.shape[:-1], 1)


def bounded(scales: Tensor, scale_ub: Tensor, dtype: torch.dtype) -> Tensor:
    """`scales`, at most that of the magnitude `scale_ub`."""
    largest = scale_ub.reshape(()).clamp(min=quant_rule.SMALLEST_AMAX)
    return scales.minimum(quant_rule.divided(largest, quant_rule.largest(dtype)))


def write_rows(out: Tensor, value: Tensor, is_used: Tensor | None) -> None:
    """Writes the used rows of `value` to `out`, which has as many elements."""
    if is_used is not None:
        bits = torch.int8 if out.element_size() == 1 else out.dtype  # torch cannot choose between fp8 elements
        value = torch.where(is_used, value.view(bits), out.reshape(value.shape).view(bits)).view(out.dtype)
    out.copy_(value.view(out.shape))


def check_numbers(op: str, call: Any, *names: str) -> None:
    """Fields that are tensors hold one number each, and the factor of `num_rows` is at least 1."""
    for name in (*names, "num_rows"):
        value = getattr(call, name)
        if value is not None and value.numel() != 1:
            raise ValueError(f"{op}: {name} must have one element, got shape {tuple(value.shape)}")
    check.integer(op, "num_rows_factor", call.num_rows_factor, low=1)


def number(device: torch.device, value: float | None) -> Tensor | None:
    """A tensor of one number, of int32 or fp32."""
    dtype = torch.int32 if isinstance(value, int) else torch.float32
    return None if value is None else torch.full((1,), value, dtype=dtype, device=device)


def refuse_scale(op: str, scale: object) -> None:
    """Refuses a scale that is given where AITER's parameter takes None alone."""
    if scale is not None:
        raise ValueError(f"{op}: scale must be None, the scales are found; got {type(scale).__name__}")


def check_block(op: str, block_shape: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a block.

    Raises:
        TypeError: a side is no integer.
        ValueError: there are not two sides, or one is below 1.
    """
    if not isinstance(block_shape, (tuple, list)) or len(block_shape) != 2:
        raise ValueError(f"{op}: block_shape must be (rows, columns), got {block_shape!r}")
    for side in block_shape:
        check.integer(op, "block_shape", side, low=1)
    return tuple(block_shape)


def refusal(target: Target, call: Any) -> str | None:
    """Says why no kernel takes a call with `out` and `input`."""
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(input=call.input, out=call.out)


def outputs(op: str, x: Tensor, dtype: torch.dtype, group_size: int | None) -> tuple[Tensor, Tensor]:
    """New q and scales: a scale per group, per row where `group_size` is 0, for the whole tensor where it is None.

    Raises:
        TypeError: `x` is no tensor.
        ValueError: `dtype` is none that a quantiser writes, or `x` is a scalar.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: x must be a tensor, got {type(x).__name__}")
    check.choice(op, "quant_dtype", dtype, quant_rule.DTYPES)
    if x.ndim == 0:
        raise ValueError(f"{op}: x must have at least 1 dimension, got a scalar")
    shape = (1,) if group_size is None else (*x.shape[:-1], x.shape[-1] // group_size if group_size else 1)
    scale = x.new_empty(*shape, dtype=torch.float32)
    if x.numel() == 0:
        scale.fill_(quant_rule.SMALLEST_AMAX / quant_rule.largest(dtype))  # the scale of zeros
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format), scale
