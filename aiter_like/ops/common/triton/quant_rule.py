# SPDX-License-Identifier: MIT
"""Dynamic quantisation to fp8 and int8 inside Triton kernels: the rule of csrc/include/aiter_like/quant.h."""

from __future__ import annotations

import triton
import triton.language as tl

_SMALLEST_AMAX = tl.constexpr(2.0**-110)
_WHOLE = tl.constexpr(1.5 * 2.0**23)
"""A whole number below 2^22 is the last bits of its sum with this one, to which the sum is rounded."""


@triton.jit
def amax(x, axis: tl.constexpr):
    """Largest magnitude along `axis`, NaN if there is one: the bits of floats without sign are ordered like them."""
    return tl.max(tl.abs(x).to(tl.int32, bitcast=True), axis).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(amax, LARGEST: tl.constexpr):
    """Scale for the largest magnitude `amax`, which may be NaN."""
    return tl.div_rn(tl.where(amax < _SMALLEST_AMAX, _SMALLEST_AMAX, amax), tl.full(amax.shape, LARGEST, tl.float32))


@triton.jit
def inverse_of(scale):
    """1 / scale, correctly rounded."""
    return tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)


@triton.jit
def quantised(x, dtype: tl.constexpr, LARGEST: tl.constexpr):
    """fp32 `x` rounded to nearest even in `dtype`, saturated at ±LARGEST; fp8 keeps NaN, int8 makes it 0."""
    if dtype == tl.float8e4nv:  # only NVIDIA's, whose conversion saturates
        return x.to(dtype)
    if dtype == tl.int8:
        limited = tl.where(x == x, tl.minimum(tl.maximum(x, -LARGEST), LARGEST), 0.0)
        return (limited + _WHOLE).to(tl.int32, bitcast=True).to(tl.int8)
    return tl.where(x > LARGEST, LARGEST, tl.where(x < -LARGEST, -LARGEST, x)).to(dtype)


@triton.jit
def larger(a, b):
    """The larger of two values without sign, NaN if one is NaN."""
    bits = tl.maximum(a.to(tl.int32, bitcast=True), b.to(tl.int32, bitcast=True))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def quantise_row(out, scale, group_stride, columns, scale_ub, LOAD: tl.constexpr, operands, VARIANT: tl.constexpr,
                 BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr, GROUP: tl.constexpr, LARGEST: tl.constexpr):
    """Quantises a row that LOAD(column, columns, operands, VARIANT) gives, with one scale, at most scale_ub / LARGEST
    where that is given, or (GROUP > 0) one per group."""
    lanes = tl.arange(0, BLOCK)
    values = tl.zeros([BLOCK], tl.float32)
    inverse = 0.0
    if GROUP == 0:
        magnitude = tl.zeros([BLOCK], tl.float32)
        for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
            values = LOAD(start + lanes, columns, operands, VARIANT)
            magnitude = larger(magnitude, tl.abs(values))
        most = amax(magnitude, 0)
        if scale_ub is not None:
            bound = tl.load(scale_ub)
            most = tl.where(most > bound, bound, most)
        row_scale = scale_of(most, LARGEST)
        inverse = inverse_of(row_scale)
        tl.store(scale, row_scale)
    for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
        column = start + lanes
        if GROUP > 0 or not IS_WHOLE:
            values = LOAD(column, columns, operands, VARIANT)
        if GROUP == 0:
            y = values * inverse
        else:
            y = grouped(values, scale + start // GROUP * group_stride, group_stride, (columns - start) // GROUP, BLOCK,
                        GROUP, LARGEST)
        tl.store(out + column, quantised(y, out.dtype.element_ty, LARGEST), mask=column < columns)


@triton.jit
def grouped(x, scale, stride, count, BLOCK: tl.constexpr, GROUP: tl.constexpr, LARGEST: tl.constexpr):
    """fp32 `x` [BLOCK] over its groups' scales, for `quantised`; the first `count` scales go to scale[g · stride]."""
    groups = tl.reshape(x, [BLOCK // GROUP, GROUP])
    own = scale_of(amax(groups, 1), LARGEST)
    index = tl.arange(0, BLOCK // GROUP)
    tl.store(scale + index * stride, own, mask=index < count)
    return tl.reshape(groups * inverse_of(own)[:, None], [BLOCK])
