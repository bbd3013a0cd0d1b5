# SPDX-License-Identifier: MIT
"""Tensor descriptors of attention's kernels for Hopper."""

from __future__ import annotations

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def head_box(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A box of `rows` rows of one head of [batch, rows, heads, head_dim], or without a batch; zeros lie beyond the head
    dimension."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    dense = tensor if tensor.ndim == 4 else tensor.unsqueeze(0)
    return TensorDescriptor(dense, list(dense.shape), list(dense.stride()), [1, rows, 1, columns], layout)
