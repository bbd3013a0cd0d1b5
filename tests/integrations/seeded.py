# SPDX-License-Identifier: MIT
"""Tensors of random numbers that are the same in every run."""

from __future__ import annotations

import torch


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wide_numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same, not rounded."""
    return numbers(*shape, seed=seed, dtype=dtype)


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Others for each shape: operands of one call need no seeds of their own."""
    return wide_numbers(*shape, seed=seed + sum(shape)) * scale
