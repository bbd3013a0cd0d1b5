# SPDX-License-Identifier: MIT
"""Tensor descriptors of attention's kernels for Hopper, made once for calls of the same metadata."""

from __future__ import annotations

from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def head_box(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Of `rows` rows of one head of [batch, rows, heads, head_dim], or without a batch, at no address yet; beyond the
    head dimension there are zeros."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    dense = tensor if tensor.ndim == 4 else tensor.unsqueeze(0)
    return TensorDescriptor(tensor.new_empty(0), list(dense.shape), list(dense.stride()), [1, rows, 1, columns], layout)


def moved(box: TensorDescriptor, tensor: Tensor) -> TensorDescriptor:
    """The box at a tensor's address; without the constructor, whose checks cost 2 µs and know the metadata already."""
    copy = object.__new__(TensorDescriptor)
    vars(copy).update(vars(box), base=tensor)
    return copy
