# SPDX-License-Identifier: MIT
"""Dynamic quantisation to fp8 and int8 in torch: the rule of csrc/include/aiter_like/quant.h. Read by the operators'
references and checks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.ops.common import elements

GROUPS = (32, 64, 128)
"""Group sizes, in columns, that the kernels take."""

SMALLEST_AMAX = 2.0**-110  # keeps 1 / scale finite
DTYPES = (*elements.FP8, torch.int8)
"""Dtypes that a quantiser may write on some architecture; see `refusal`."""


def largest(dtype: torch.dtype) -> float:
    """The largest magnitude that a quantiser writes: 240 (e4m3 FNUZ), 448 (e4m3 OCP), 127 (int8: symmetric)."""
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def row_scales(x: Tensor, dtype: torch.dtype, group_size: int = 0) -> Tensor:
    """Scales of `x` [..., columns]: one per row ([..., 1]), or per group of columns ([..., columns / group_size])."""
    grouped = x.unflatten(-1, (-1, group_size)) if group_size else x.unsqueeze(-2)
    return divided(grouped.abs().amax(-1).clamp(min=SMALLEST_AMAX), largest(dtype))


def divided(amax: Tensor, top: float) -> Tensor:
    """The correctly rounded quotient: by a Python number, torch on a GPU multiplies with the rounded reciprocal."""
    return amax / torch.full_like(amax, top)


def quantised(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` divided by `scale` (in the shape of `row_scales`), rounded to nearest even and saturated; int8 NaNs become 0.
    """
    groups = x.unflatten(-1, (scale.shape[-1], -1)) * (1 / scale).unsqueeze(-1)
    return rounded(groups.flatten(-2), dtype)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` rounded to nearest even and saturated; int8 NaNs become 0."""
    limited = x.clamp(-largest(dtype), largest(dtype))
    return limited.round().nan_to_num(0.0).to(dtype) if dtype == torch.int8 else limited.to(dtype)


def refusal(target: Target, dtype: torch.dtype) -> str | None:
    """Why no kernel writes this dtype: it is the fp8 of other hardware."""
    if dtype in elements.FP8 and dtype != dtypes.fp8_of(target.arch):
        return f"fp8 on {target.arch} is {dtypes.fp8_of(target.arch)}, got {dtype}"
    return None


def check_group(op: str, columns: int, group_size: int) -> None:
    """`group_size` is 0 (a scale per row), or one of GROUPS that divides the row."""
    check.choice(op, "group_size", group_size, (0, *GROUPS))
    if group_size and columns % group_size:
        raise ValueError(f"{op}: group_size must divide the row, got {group_size} for rows of {columns} elements")


def store_quantised(out: Tensor, scale: Tensor, y: Tensor, group_size: int) -> None:
    """Writes `y` quantised to `out`, and to `scale` its scales by row, or by group of `group_size` columns."""
    own = row_scales(y, out.dtype, group_size)
    out.copy_(quantised(y, own, out.dtype))
    scale.copy_(own.view(scale.shape))


def check_scale(op: str, name: str, scale: Tensor, input: Tensor, group_size: int) -> None:
    """`scale` has an element per row, or per row and group: dense in memory, or a matrix of any strides."""
    check.tensor(op, name, scale, dtypes=(torch.float32,), device=input.device, last_contiguous=False)
    outer, groups = tuple(input.shape[:-1]), input.shape[-1] // group_size if group_size else 1
    shapes = [(*outer, groups), (math.prod(outer), groups), *([outer, (math.prod(outer),)] if groups == 1 else [])]
    if tuple(scale.shape) not in shapes:
        raise ValueError(f"{op}: {name} must have shape {shapes[0]}, got {tuple(scale.shape)}")
    if not scale.is_contiguous() and (scale.ndim, scale.shape[-1]) != (2, groups):
        raise ValueError(f"{op}: {name} must be dense in memory, got strides {scale.stride()}")


def group_major(scale: Tensor, shuffle_scale: bool) -> Tensor:
    """`scale`; with `shuffle_scale` the matrix whose memory is that of `scale` with groups outermost.

    Raises:
        TypeError: `shuffle_scale` is no bool.
    """
    check.flag("group_major", "shuffle_scale", shuffle_scale)  # public.py tells it of the function called
    if not shuffle_scale or scale.ndim == 0 or not scale.is_contiguous():  # (1, rows) strides say it themselves
        return scale
    return scale.view(scale.shape[-1], -1).t()
