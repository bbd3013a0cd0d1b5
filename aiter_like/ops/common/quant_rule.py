# SPDX-License-Identifier: MIT
"""Dynamic quantisation to fp8 and int8 in torch: the rule of csrc/include/aiter_like/quant.h. Read by the operators'
references and checks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.ops.common import elements

GROUPS = (32, 64, 128)
"""Group sizes, in columns, that the kernels take."""

SMALLEST_AMAX = 2.0**-110  # keeps 1 / scale finite
DTYPES = (*elements.FP8, torch.int8)
"""What a quantiser may write, by any architecture; see `refusal`."""


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
    """`x` divided by `scale` (shaped as `of` gives it), rounded to nearest even and saturated; int8 NaNs become 0."""
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
    """`group_size` is 0 (a scale per row), or one of GROUPS that divides the row.

    Raises:
        ValueError: it is not.
    """
    check.choice(op, "group_size", group_size, (0, *GROUPS))
    if group_size and columns % group_size:
        raise ValueError(f"{op}: group_size must divide the row, got {group_size} for rows of {columns} elements")
