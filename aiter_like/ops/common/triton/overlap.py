# SPDX-License-Identifier: MIT
"""The constant OVERLAPS of kernels that a `Launch` repeats: it hands all constants over in order."""

from aiter_like.jit.triton_launch import overlaps

__all__ = ["overlaps"]
