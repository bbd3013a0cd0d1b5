# SPDX-License-Identifier: MIT
"""Group normalisation in Triton, named by the operator of ops/norm/group_norm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common import slices
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.group_norm import GroupNormCall
from aiter_like.ops.norm.triton.parts import moments

_MAX_PARTS = 256  # slices whose moments a program combines at a time
_CHANNELS, _TILE = 64, 4096  # for channels last: channels of a program, elements of a tile of their positions


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
                             OVERLAPS: tl.constexpr):
    """Mean, and sum of the squared deviations from it, of a slice of BLOCK elements per program → parts
    [rows, slices, 2].
    """
    await_stream(OVERLAPS)
    index = tl.program_id(0)
    row = index // slices
    start = (index - row * slices) * BLOCK
    values = _load(x, row, start, size, groups, channels, BLOCK, VEC, False)
    rest = tl.minimum(size - start, BLOCK)
    count = rest.to(tl.float32)
    mean, variance = _moments(values, rest, count, VEC)
    part = parts + index.to(tl.int64) * 2
    tl.store(part, mean)
    tl.store(part + 1, variance * count)


@triton.jit
def _group_norm_slices_kernel(out, parts, x, weight, bias, size, groups, channels, positions, slices, count, epsilon,
                              BLOCK: tl.constexpr, VEC: tl.constexpr, PARTS: tl.constexpr, IS_SILU: tl.constexpr,
                              OVERLAPS: tl.constexpr):
    """Like _group_norm_kernel, with a slice per program and the moments of all slices of its group; the last slice
    first, which is still in a cache.
    """
    await_stream(OVERLAPS)
    index = tl.num_programs(0) - 1 - tl.program_id(0)
    row = index // slices
    start = (index - row * slices) * BLOCK
    values = _load(x, row, start, size, groups, channels, BLOCK, VEC, False)
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
           VEC, False, IS_SILU)


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
    """Offsets of a group's elements from `start` on: [BLOCK // VEC, VEC]."""
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


@triton.jit
def _channels_kernel(parts, x, positions, slices, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
                     OVERLAPS: tl.constexpr):
    """For channels last: mean, and squared deviations, of BLOCK_C channels in a slice of a sample's positions → parts
    [samples, slices + 1, channels, 2]. Both are taken of differences from the slice's first value, like in
    group_norm.hip.
    """
    await_stream(OVERLAPS)
    sample, slice, first, count = _positions(tl.program_id(0), positions, slices)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    x += (sample * positions + first) * channels
    shift = tl.load(x + channel, mask=(channel < channels) & (count > 0), other=0.0).to(tl.float32)
    shift = tl.where(tl.abs(shift) < float("inf"), shift, 0.0)  # one NaN makes one NaN result, not NaNs of several bits
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    squares = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, count, BLOCK_P):
        place, mask = _tile(start, count, channel, channels, BLOCK_P)
        difference = tl.load(x + place, mask=mask, other=0.0).to(tl.float32) - shift[None, :]
        difference = tl.where(mask, difference, 0.0)
        total += difference
        squares += difference * difference
    sums = tl.sum(total, 0)
    mean = sums / tl.maximum(count, 1).to(tl.float32)
    part = parts + ((sample * (slices + 1) + slice) * channels + channel) * 2
    tl.store(part, mean + shift, mask=channel < channels)
    tl.store(part + 1, tl.sum(squares, 0) - sums * mean, mask=channel < channels)


@triton.jit(do_not_specialize=["slices"])
def _group_moments_kernel(parts, positions, slices, groups, channels, size, BLOCK: tl.constexpr,
                          OVERLAPS: tl.constexpr):
    """Mean and variance of a group per program, from those of its `channels` channels in all slices → behind them."""
    await_stream(OVERLAPS)
    sample = (tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    length = tl.cdiv(positions, slices)
    parts += sample * (slices + 1) * groups * channels * 2
    mean = 0.0
    variance = 0.0
    for turn in tl.static_range(2):
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(0, slices * channels, BLOCK):
            index = first + tl.arange(0, BLOCK)
            slice = index // channels
            mask = index < slices * channels
            part = parts + (slice.to(tl.int64) * groups * channels + group * channels + index % channels) * 2
            count = tl.minimum(tl.maximum(positions - slice * length, 0), length).to(tl.float32)
            of_slice = tl.load(part, mask=mask, other=0.0)
            if turn == 0:
                total += tl.where(mask, count * of_slice, 0.0)
            else:
                between = of_slice - mean
                deviations = tl.load(part + 1, mask=mask, other=0.0) + count * between * between
                total += tl.where(mask, deviations, 0.0)
        if turn == 0:
            mean = tl.sum(total, 0) / size
        else:
            variance = tl.sum(total, 0) / size
    moments = parts + (slices.to(tl.int64) * groups * channels + group) * 2
    tl.store(moments, mean)
    tl.store(moments + 1, variance)


@triton.jit
def _positions_kernel(out, parts, x, weight, bias, positions, slices, groups, channels, epsilon, BLOCK_P: tl.constexpr,
                      BLOCK_C: tl.constexpr, IS_SILU: tl.constexpr, OVERLAPS: tl.constexpr):
    """Like _group_norm_slices_kernel, with a slice of positions and BLOCK_C of their channels per program."""
    await_stream(OVERLAPS)
    sample, _, first, count = _positions(tl.num_programs(0) - 1 - tl.program_id(0), positions, slices)
    all_channels = groups * channels
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = channel < all_channels
    moments = parts + ((sample * (slices + 1) + slices) * all_channels + channel // channels) * 2
    mean = tl.load(moments, mask=is_channel, other=0.0)
    scale = tl.rsqrt(tl.load(moments + 1, mask=is_channel, other=1.0) + epsilon)
    if weight is not None:
        scale *= tl.load(weight + channel, mask=is_channel, other=0.0).to(tl.float32)
    if bias is not None:
        offset = tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    start_of = (sample * positions + first) * all_channels
    for start in range(0, count, BLOCK_P):
        place, mask = _tile(start, count, channel, all_channels, BLOCK_P)
        y = tl.load(x + start_of + place, mask=mask, other=0.0).to(tl.float32)
        y = (y - mean[None, :]) * scale[None, :]
        if bias is not None:
            y += offset[None, :]
        if IS_SILU:
            y = y / (1.0 + tl.exp(-y))
        tl.store(out + start_of + place, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _positions(index, positions, slices):
    """Sample and slice of a program, the slice's first position and how many it has."""
    length = tl.cdiv(positions, slices)
    sample = index // slices
    slice = index - sample * slices
    first = tl.minimum(slice * length, positions)
    return sample.to(tl.int64), slice, first, tl.minimum(positions - first, length)


@triton.jit
def _tile(start, count, channel, channels, BLOCK_P: tl.constexpr):
    """Offsets of BLOCK_P positions' channels, from the slice's first on, and which are there."""
    position = start + tl.arange(0, BLOCK_P)[:, None]
    return position.to(tl.int64) * channels + channel[None, :], (position < count) & (channel < channels)[None, :]


def _channels_last(call: GroupNormCall, num_warps: int) -> tuple[Launch, ...]:
    """Long groups of channels last, in three launches: channels of slices, groups, results."""
    input, parts, num_groups = call.input, call.parts, call.num_groups
    samples, channels = input.shape[:2]
    is_right = parts.ndim == 4 and parts.shape[1] > 1 and parts.shape == (samples, parts.shape[1], channels, 2)
    if not is_right or not parts.is_contiguous():
        raise ValueError(f"group_norm: parts must be [{samples}, slices + 1, {channels}, 2], got {tuple(parts.shape)}")
    count, positions = parts.shape[1] - 1, input.numel() // (samples * channels)
    block_c = min(power_of_2(channels), _CHANNELS)
    grid, tile = (samples * count, triton.cdiv(channels, block_c)), {"BLOCK_P": _TILE // block_c, "BLOCK_C": block_c}
    options = {"num_warps": num_warps}
    return (launch(_channels_kernel, grid, parts, input, positions, count, channels, **tile, options=options),
            launch(_group_moments_kernel, (samples * num_groups,), parts, positions, count, num_groups,
                   channels // num_groups, real(input.numel() // (samples * num_groups)), BLOCK=1024,
                   options={"num_warps": 4}),
            launch(_positions_kernel, grid, call.out, parts, input, call.weight, call.bias, positions, count,
                   num_groups, channels // num_groups, real(call.epsilon), IS_SILU=call.silu, **tile, options=options))


def group_norm(call: GroupNormCall, num_warps: int | None = None, slice: int | None = None) -> tuple[Launch, ...]:
    """The launches that write `out` and `parts`, with Triton's `num_warps` and slices of `slice` elements, 2^n.

    Raises:
        ValueError: `parts` is too small for slices of this length.
    """
    is_last = call.is_channels_last
    if is_last and call.parts is not None:
        return _channels_last(call, num_warps or 4)
    out, parts, input, num_groups = call.out, call.parts, call.input, call.num_groups
    rows = input.shape[0] * num_groups
    channels, size = input.shape[1] // num_groups, input.numel() // rows
    slice = slice or slices.default(target_of(input.device), rows, size, input.element_size())
    block = power_of_2(min(slice, size))
    run, most = channels if is_last else size // channels, min(block, 16 // input.element_size())
    vec = next(vec for vec in (8, 4, 2, 1) if vec <= most and run % vec == 0)
    options = {"num_warps": num_warps or min(max(block // 512, 1), 16)}  # at least 8 elements per lane of a wave of 64
    shape, epsilon = (size, num_groups, channels), real(call.epsilon)
    constants = {"BLOCK": block, "VEC": vec, "options": options}
    if slice >= size:
        return (launch(_group_norm_kernel, (rows,), out, input, call.weight, call.bias, *shape, size // channels,
                       real(size), epsilon, IS_CHANNELS_LAST=is_last, IS_SILU=call.silu, **constants),)
    count = triton.cdiv(size, block)
    if parts is None or parts.numel() < 2 * rows * count or not parts.is_contiguous():
        raise ValueError(f"group_norm: parts must have room for {count} slices of each of {rows} groups")
    return (launch(_group_norm_parts_kernel, (rows * count,), parts, input, *shape, count, **constants),
            launch(_group_norm_slices_kernel, (rows * count,), out, parts, input, call.weight, call.bias, *shape,
                   size // channels, count, real(size), epsilon, PARTS=min(power_of_2(count), _MAX_PARTS),
                   IS_SILU=call.silu, **constants))
