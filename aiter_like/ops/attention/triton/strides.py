# SPDX-License-Identifier: MIT
"""Strides as the attention kernels take them, whatever the layout of a tensor."""

from __future__ import annotations

import torch


def strides_of_rows(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Strides of batch (or page), row and head of [batch, rows, heads, dim], or [rows, heads, dim]."""
    return tensor.stride()[:3] if tensor.ndim > 3 else (0, *tensor.stride()[:2])


def strides_of_keys(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """Strides of page, row, head and column of k or v. Shuffled pages have, for k, those of page, key, head and x
    columns; for v, those of page, x keys, head and column.
    """
    return *strides_of_rows(tensor), tensor.stride(3) if tensor.ndim == 5 else 1


def strides_of_lse(lse: torch.Tensor | None) -> tuple[int, int, int]:
    """The same of [batch, heads, rows], or [heads, rows]."""
    if lse is None:
        return 0, 0, 0
    return (lse.stride(0) if lse.ndim == 3 else 0), lse.stride(-1), lse.stride(-2)


def strides_of_bias(bias: torch.Tensor | None) -> tuple[int, int, int, int]:
    """Strides of batch, row, head and key of [batch, heads, rows, keys] or [rows, keys]; 0 along what is broadcast."""
    if bias is None:
        return 0, 0, 0, 0
    strides = [stride if size > 1 else 0 for stride, size in zip(bias.stride(), bias.shape, strict=True)]
    batch, head, row, key = [0, 0, *strides][-4:]
    return batch, row, head, key


def stride_of_batch(matrix: torch.Tensor | None) -> int:
    """The stride of a batch; 0 for what is no matrix."""
    return matrix.stride(0) if matrix is not None and matrix.ndim == 2 else 0


def strides_of_descale(descale: torch.Tensor | None) -> tuple[int, int]:
    """Strides of [batch, num_kv_heads]; zeros for one number."""
    return (0, 0) if descale is None or descale.numel() == 1 else (descale.stride(0), descale.stride(1))
