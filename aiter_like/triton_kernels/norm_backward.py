# SPDX-License-Identifier: MIT
"""Derivatives of the norms in Triton, named by the operator of ops/norm_backward.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.triton_kernels.launch import launch


@triton.jit
def _norm_backward_kernel(dx, dweight, dbias, dout, x, weight, dx_stride, dout_stride, x_stride, rows, hidden, epsilon,
                          BLOCK: tl.constexpr, HAS_MEAN: tl.constexpr):
    """With n = (x - mean) · r, r = 1 / sqrt(mean square + epsilon), g = dout · weight:
    dx = r · (g - mean(g) - n · mean(g · n)). Each program walks through its rows and keeps their part of
    dweight = Σ dout · n and dbias = Σ dout. Bound: memory.
    """
    column = tl.arange(0, BLOCK)
    is_inside = column < hidden
    w = tl.zeros([BLOCK], tl.float32)
    if weight is not None:
        w = tl.load(weight + column, mask=is_inside, other=0.0).to(tl.float32)
    dweight_part = tl.zeros([BLOCK], tl.float32)
    dbias_part = tl.zeros([BLOCK], tl.float32)
    for index in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = index.to(tl.int64)
        values = tl.load(x + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
        slope = tl.load(dout + row * dout_stride + column, mask=is_inside, other=0.0).to(tl.float32)
        if HAS_MEAN:
            values = tl.where(is_inside, values - tl.sum(values, 0) / hidden, 0.0)
        scale = tl.rsqrt(tl.sum(values * values, 0) / hidden + epsilon)
        normed = values * scale
        dweight_part += slope * normed
        dbias_part += slope
        if weight is not None:
            slope *= w
        result = slope - normed * (tl.sum(slope * normed, 0) / hidden)
        if HAS_MEAN:
            result -= tl.sum(slope, 0) / hidden
        tl.store(dx + row * dx_stride + column, (result * scale).to(dx.dtype.element_ty), mask=is_inside)
    if dweight is not None:
        tl.store(dweight + tl.program_id(0) * hidden + column, dweight_part, mask=is_inside)
    if dbias is not None:
        tl.store(dbias + tl.program_id(0) * hidden + column, dbias_part, mask=is_inside)


def norm_backward(dx: torch.Tensor, dweight: torch.Tensor | None, dbias: torch.Tensor | None, dout: torch.Tensor,
                  x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, has_mean: bool, parts: int,
                  num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes the first three."""
    hidden = x.shape[-1]
    block = triton.next_power_of_2(hidden)
    num_warps = num_warps or min(max(block // 512, 1), 16)  # at least 8 elements per lane on a wave of 64
    dx, dout, x = (tensor.view(-1, hidden) for tensor in (dx, dout, x))
    launch(_norm_backward_kernel, (parts,), dx, dweight, dbias, dout, x, weight, dx.stride(0), dout.stride(0),
           x.stride(0), x.shape[0], hidden, float(epsilon), BLOCK=block, HAS_MEAN=has_mean,
           options={"num_warps": num_warps})
