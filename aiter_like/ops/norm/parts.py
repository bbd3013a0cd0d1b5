# SPDX-License-Identifier: MIT
"""Shared by the norms' declarations: names of instances, and the flags that engines pass as numbers."""

from __future__ import annotations

import torch

from aiter_like import dtypes


def dtype_names(input: torch.dtype, weight: torch.dtype) -> list[str]:
    """The beginning of an instance's name: the dtype of the rows, and that of the weight where it is another one."""
    return [dtypes.name(input), *([f"w{dtypes.name(weight)}"] if weight != input else [])]


def as_flag(value: bool) -> bool:
    """`value` as a bool where it is 0 or 1, which engines pass too; anything else is left to the operator's check."""
    return bool(value) if value in (0, 1) else value
