# SPDX-License-Identifier: MIT
"""Group normalisation in Triton, named by the operator of ops/group_norm.py."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from aiter_like import slices
from aiter_like.device import target_of
from aiter_like.triton_kernels.launch import await_stream, launch
from aiter_like.triton_kernels.layer_norm import moments

_MAX_PARTS = 256  # slices whose moments a program combines at a time


@triton.jit
def _group_norm_kernel(out, x, weight, bias, size, groups, channels, positions, count, epsilon, BLOCK: tl.constexpr,
                       VEC: tl.constexpr, IS_CHANNELS_LAST: tl.constexpr, IS_SILU: tl.constexpr,
                       OVERLAPS: tl.constexpr):
    """y = (x - mean) / sqrt(var + epsilon) · weight + bias for one group per program; bound: memory.

    A program keeps BLOCK elements as [BLOCK // VEC, VEC]: VEC neighbours are of one channel, or (IS_CHANNELS_LAST) of
    one position. `count` is `size`, channels · positions, in fp32.
    """
    await_stream(OVERLAPS)
    row = tl.program_id(0)
    values = _load(x, row, 0, size, groups, channels, BLOCK, VEC, IS_CHANNELS_LAST)
    mean, variance = _moments(values, size, count, VEC)
    _store(out, values, mean, variance, weight, bias, row, 0, size, groups, channels, positions, epsilon, BLOCK, VEC,
           IS_CHANNELS_LAST, IS_SILU)


@triton.jit
def _group_norm_parts_kernel(parts, x, size, groups, channels, slices, BLOCK: tl.constexpr, VEC: tl.constexpr,
                             IS_CHANNELS_LAST: tl.constexpr, OVERLAPS: tl.constexpr):
    """Mean, and sum of the squared deviations from it, of a slice of BLOCK elements per program → parts
    [rows, slices, 2].
    """
    await_stream(OVERLAPS)
    row, slice = _slice(tl.program_id(0), groups, slices, IS_CHANNELS_LAST)
    start = slice * BLOCK
    values = _load(x, row, start, size, groups, channels, BLOCK, VEC, IS_CHANNELS_LAST)
    rest = tl.minimum(size - start, BLOCK)
    count = rest.to(tl.float32)
    mean, variance = _moments(values, rest, count, VEC)
    part = parts + (row * slices + slice).to(tl.int64) * 2
    tl.store(part, mean)
    tl.store(part + 1, variance * count)


@triton.jit
def _group_norm_slices_kernel(out, parts, x, weight, bias, size, groups, channels, positions, slices, count, epsilon,
                              BLOCK: tl.constexpr, VEC: tl.constexpr, PARTS: tl.constexpr,
                              IS_CHANNELS_LAST: tl.constexpr, IS_SILU: tl.constexpr, OVERLAPS: tl.constexpr):
    """As _group_norm_kernel, of a slice per program with the moments of all slices of its group; the last slice first,
    which is still in a cache.
    """
    await_stream(OVERLAPS)
    row, slice = _slice(tl.num_programs(0) - 1 - tl.program_id(0), groups, slices, IS_CHANNELS_LAST)
    start = slice * BLOCK
    values = _load(x, row, start, size, groups, channels, BLOCK, VEC, IS_CHANNELS_LAST)
    parts += (row * slices).to(tl.int64) * 2
    total = tl.zeros([PARTS], tl.float32)
    for first in range(0, slices, PARTS):
        means, counts = _means(parts, first, slices, size, BLOCK, PARTS)
        total += means * counts
    mean = tl.sum(total, 0) / count
    squares = tl.zeros([PARTS], tl.float32)
    for first in range(0, slices, PARTS):  # Chan et al. 1979: those from a slice's mean, and of its mean
        means, counts = _means(parts, first, slices, size, BLOCK, PARTS)
        part = first + tl.arange(0, PARTS)
        squares += tl.load(parts + part * 2 + 1, mask=part < slices, other=0.0)
        squares += counts * (means - mean) * (means - mean)
    variance = tl.sum(squares, 0) / count
    _store(out, values, mean, variance, weight, bias, row, start, size, groups, channels, positions, epsilon, BLOCK,
           VEC, IS_CHANNELS_LAST, IS_SILU)


@triton.jit
def _slice(index, groups, slices, IS_CHANNELS_LAST: tl.constexpr):
    """Row and slice of a program: neighbours in memory beside one another, as SliceIndex of group_norm.hip says."""
    if IS_CHANNELS_LAST:
        quotient = index // groups
        row = quotient // slices * groups + index % groups
        slice = quotient % slices
    else:
        row = index // slices
        slice = index - row * slices
    return row, slice


@triton.jit
def _means(parts, first, slices, size, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Mean and number of elements of some slices; zeros beyond the last."""
    part = first + tl.arange(0, PARTS)
    counts = tl.minimum(tl.maximum(size - part * BLOCK, 0), BLOCK).to(tl.float32)
    return tl.load(parts + part * 2, mask=part < slices, other=0.0), counts


@triton.jit
def _moments(values, size, count, VEC: tl.constexpr):
    """Mean and variance of the first `size` elements of a block, zeros beyond them; from their squares if that is
    exact.
    """
    mean, variance, is_lossy = moments(tl.sum(values, 1), tl.sum(values * values, 1), count)
    if is_lossy:
        column = tl.arange(0, values.shape[0]) * VEC
        deviation = tl.where((column < size)[:, None], values - mean, 0.0)
        variance = tl.sum(tl.sum(deviation * deviation, 1), 0) / count
    return mean, variance


@triton.jit
def _store(out, values, mean, variance, weight, bias, row, start, size, groups, channels, positions, epsilon,
           BLOCK: tl.constexpr, VEC: tl.constexpr, IS_CHANNELS_LAST: tl.constexpr, IS_SILU: tl.constexpr):
    column = start + tl.arange(0, BLOCK // VEC) * VEC
    mask = (column < size)[:, None]
    channel = (row % groups) * channels + (column % channels if IS_CHANNELS_LAST else column // positions)
    if IS_CHANNELS_LAST:
        channel = tl.multiple_of(channel, VEC)[:, None] + tl.arange(0, VEC)[None, :]
    else:
        channel = channel[:, None]
    scale = tl.rsqrt(variance + epsilon)
    y = values - mean
    if weight is not None:
        y *= tl.load(weight + channel, mask=mask, other=0.0).to(tl.float32) * scale
    else:
        y *= scale
    if bias is not None:
        y += tl.load(bias + channel, mask=mask, other=0.0).to(tl.float32)
    if IS_SILU:
        y = y / (1.0 + tl.exp(-y))
    place = _places(row, start, size, groups, channels, BLOCK, VEC, IS_CHANNELS_LAST)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _places(row, start, size, groups, channels, BLOCK: tl.constexpr, VEC: tl.constexpr,
            IS_CHANNELS_LAST: tl.constexpr):
    """Where a group's elements from `start` on are in memory: [BLOCK // VEC, VEC]."""
    column = start + tl.arange(0, BLOCK // VEC) * VEC
    if IS_CHANNELS_LAST:
        group = row % groups
        first = (row // groups).to(tl.int64) * groups * size + group * channels
        place = first + (column // channels).to(tl.int64) * groups * channels + column % channels
    else:
        place = row.to(tl.int64) * size + column
    return tl.multiple_of(place, VEC)[:, None] + tl.arange(0, VEC)[None, :]


@triton.jit
def _load(x, row, start, size, groups, channels, BLOCK: tl.constexpr, VEC: tl.constexpr,
          IS_CHANNELS_LAST: tl.constexpr):
    """A group's elements from `start` on in fp32, [BLOCK // VEC, VEC]; zeros beyond it."""
    column = start + tl.arange(0, BLOCK // VEC) * VEC
    place = _places(row, start, size, groups, channels, BLOCK, VEC, IS_CHANNELS_LAST)
    return tl.load(x + place, mask=(column < size)[:, None], other=0.0).to(tl.float32)


def group_norm(out: torch.Tensor, parts: torch.Tensor | None, input: torch.Tensor, weight: torch.Tensor | None,
               bias: torch.Tensor | None, num_groups: int, epsilon: float, silu: bool, num_warps: int | None = None,
               slice: int | None = None) -> None:
    """Same arguments as the operator's other backends, Triton's `num_warps`, and the elements of a slice, a power of
    two; writes `out` and `parts`.

    Raises:
        ValueError: `parts` is too small for slices of this length.
    """
    rows = input.shape[0] * num_groups
    channels, size = input.shape[1] // num_groups, input.numel() // rows
    is_last = not input.is_contiguous()
    slice = slice or slices.default(target_of(input.device), rows, size, input.element_size())
    block = triton.next_power_of_2(min(slice, size))
    vec = math.gcd(channels if is_last else size // channels, block, 16 // input.element_size())
    options = {"num_warps": num_warps or min(max(block // 512, 1), 16)}  # at least 8 elements per lane of a wave of 64
    shape = (size, num_groups, channels)
    constants = {"BLOCK": block, "VEC": vec, "IS_CHANNELS_LAST": is_last, "options": options}
    if slice >= size:
        launch(_group_norm_kernel, (rows,), out, input, weight, bias, *shape, size // channels, float(size),
               float(epsilon), IS_SILU=silu, **constants)
        return
    count = triton.cdiv(size, block)
    if parts is None or parts.numel() < 2 * rows * count or not parts.is_contiguous():
        raise ValueError(f"group_norm: parts must have room for {count} slices of each of {rows} groups")
    launch(_group_norm_parts_kernel, (rows * count,), parts, input, *shape, count, **constants)
    launch(_group_norm_slices_kernel, (rows * count,), out, parts, input, weight, bias, *shape, size // channels, count,
           float(size), float(epsilon), PARTS=min(triton.next_power_of_2(count), _MAX_PARTS), IS_SILU=silu, **constants)
