# SPDX-License-Identifier: MIT
"""Group normalisation in Triton, named by the operator of ops/group_norm.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.triton_kernels.launch import await_stream, launch
from aiter_like.triton_kernels.layer_norm import moments

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64


@triton.jit
def _group_norm_kernel(out, x, weight, bias, size, groups, channels, positions, count, epsilon, BLOCK: tl.constexpr,
                       IS_WHOLE: tl.constexpr, IS_CHANNELS_LAST: tl.constexpr, IS_SILU: tl.constexpr,
                       OVERLAPS: tl.constexpr):
    """y = (x - mean) / sqrt(var + epsilon) · weight + bias for one group per program; bound: memory.

    `count` is `size`, channels · positions, in fp32.
    """
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    group = row % groups
    if IS_CHANNELS_LAST:
        first = row // groups * groups * size + group * channels
    else:
        first = row * size
    x += first
    out += first
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    values = tl.zeros([BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else size, BLOCK):
        values = _load(x, start + columns, size, groups, channels, IS_CHANNELS_LAST)
        total += values
        squares += values * values
    mean, variance, is_lossy = moments(total, squares, count)
    if is_lossy:
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, BLOCK if IS_WHOLE else size, BLOCK):
            if not IS_WHOLE:
                values = _load(x, start + columns, size, groups, channels, IS_CHANNELS_LAST)
            deviation = tl.where(start + columns < size, values - mean, 0.0)
            squares += deviation * deviation
        variance = tl.sum(squares, 0) / count
    inverse_deviation = tl.rsqrt(variance + epsilon)
    for start in range(0, BLOCK if IS_WHOLE else size, BLOCK):
        column = start + columns
        if not IS_WHOLE:
            values = _load(x, column, size, groups, channels, IS_CHANNELS_LAST)
        y = (values - mean) * inverse_deviation
        channel = group * channels + (column % channels if IS_CHANNELS_LAST else column // positions)
        if weight is not None:
            y *= tl.load(weight + channel, mask=column < size, other=0.0).to(tl.float32)
        if bias is not None:
            y += tl.load(bias + channel, mask=column < size, other=0.0).to(tl.float32)
        if IS_SILU:
            y = y / (1.0 + tl.exp(-y))
        tl.store(out + _offset(column, groups, channels, IS_CHANNELS_LAST), y.to(out.dtype.element_ty),
                 mask=column < size)


@triton.jit
def _offset(column, groups, channels, IS_CHANNELS_LAST: tl.constexpr):
    """Of an element of a group, in memory."""
    if IS_CHANNELS_LAST:
        return (column // channels).to(tl.int64) * groups * channels + column % channels
    else:
        return column


@triton.jit
def _load(x, column, size, groups, channels, IS_CHANNELS_LAST: tl.constexpr):
    """Elements of a group in fp32; zeros beyond it."""
    return tl.load(x + _offset(column, groups, channels, IS_CHANNELS_LAST), mask=column < size, other=0.0).to(
        tl.float32)


def group_norm(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
               num_groups: int, epsilon: float, silu: bool, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out`."""
    rows = input.shape[0] * num_groups
    channels, size = input.shape[1] // num_groups, input.numel() // rows
    block = min(triton.next_power_of_2(size), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    launch(_group_norm_kernel, (rows,), out, input, weight, bias, size, num_groups, channels, size // channels,
           float(size), float(epsilon), BLOCK=block, IS_WHOLE=size <= block,
           IS_CHANNELS_LAST=not input.is_contiguous(), IS_SILU=silu, options={"num_warps": num_warps})
