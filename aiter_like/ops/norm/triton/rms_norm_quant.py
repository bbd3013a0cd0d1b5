# SPDX-License-Identifier: MIT
"""Normalisation with a quantised result in Triton, named by the operator of ops/norm/rms_norm_quant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.rms_norm_quant import RmsNormQuantCall
from aiter_like.ops.norm.triton.parts import load_sum, times

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64
_LEAST_PRODUCT, _MOST_PRODUCT = tl.constexpr(2.0**-100), tl.constexpr(2.0**100)  # one between has lost no bits


@triton.jit
def _rms_norm_quant_kernel(out, scale, residual_out, plain_out, x, weight, residual_in, x_scale, out_stride,
                           residual_out_stride, plain_out_stride, x_stride, residual_in_stride, scale_stride,
                           group_stride, hidden, epsilon, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr,
                           GROUP: tl.constexpr, LARGEST: tl.constexpr, IS_MODEL_SENSITIVE: tl.constexpr,
                           IS_GEMMA: tl.constexpr, OVERLAPS: tl.constexpr):
    """y = x / sqrt(mean(x²) + epsilon) · weight, quantised by row or by group, one row per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    out += row * out_stride
    x += row * x_stride
    scale += row * scale_stride
    if residual_in is not None:
        residual_in += row * residual_in_stride
        residual_out += row * residual_out_stride
    columns = tl.arange(0, BLOCK)
    # y = x · weight · root: the largest product is found beside the sum of squares.
    HAS_PRODUCTS: tl.constexpr = GROUP == 0 and x_scale is None and not IS_MODEL_SENSITIVE
    squares = tl.zeros([BLOCK], tl.float32)
    largest = tl.zeros([BLOCK], tl.float32)
    values = tl.zeros([BLOCK], tl.float32)
    y = tl.zeros([BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        values = load_sum(x, residual_in, start + columns, hidden)
        squares += values * values
        if HAS_PRODUCTS:
            y = _made(values, 1.0, weight, start + columns, hidden, x.dtype.element_ty, IS_MODEL_SENSITIVE, IS_GEMMA)
            largest = quant_rule.larger(largest, tl.abs(y))
    if HAS_PRODUCTS:
        total, most = tl.reduce((squares, largest), 0, _sum_and_larger)
    else:
        total, most = tl.sum(squares, 0), 0.0
    inverse_rms = tl.rsqrt(total / hidden + epsilon)
    is_made = (most > _LEAST_PRODUCT) & (most < _MOST_PRODUCT)  # no NaN is
    before, after = tl.where(is_made, 1.0, inverse_rms), tl.where(is_made, inverse_rms, 1.0)
    if GROUP == 0:
        if not is_made:
            largest = tl.zeros([BLOCK], tl.float32)
            for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
                if HAS_PRODUCTS or not IS_WHOLE:
                    values = load_sum(x, residual_in, start + columns, hidden)
                y = _made(values, before, weight, start + columns, hidden, x.dtype.element_ty, IS_MODEL_SENSITIVE,
                          IS_GEMMA)
                y = tl.where(start + columns < hidden, y, 0.0)  # a NaN row has its scale from its own elements alone
                largest = quant_rule.larger(largest, tl.abs(_smooth(y, x_scale, start + columns, hidden)))
            most = quant_rule.amax(largest, 0)
        row_scale = quant_rule.scale_of(most * after, LARGEST)
        tl.store(scale, row_scale)
        factor = after * quant_rule.inverse_of(row_scale)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        column = start + columns
        if not IS_WHOLE:
            values = load_sum(x, residual_in, column, hidden)
        if residual_in is not None:
            tl.store(residual_out + column, values.to(residual_out.dtype.element_ty), mask=column < hidden)
        if GROUP > 0 or not IS_WHOLE:
            y = _made(values, before, weight, column, hidden, x.dtype.element_ty, IS_MODEL_SENSITIVE, IS_GEMMA)
        if plain_out is not None:
            tl.store(plain_out + row * plain_out_stride + column, (y * after).to(plain_out.dtype.element_ty),
                     mask=column < hidden)
        result = _smooth(y, x_scale, column, hidden)
        if GROUP == 0:
            result = result * factor
        else:
            result = quant_rule.grouped(result, scale + start // GROUP * group_stride, group_stride,
                                    (hidden - start) // GROUP, BLOCK, GROUP, LARGEST)
        tl.store(out + column, quant_rule.quantised(result, out.dtype.element_ty, LARGEST), mask=column < hidden)


@triton.jit
def _sum_and_larger(a, b, c, d):
    return a + c, quant_rule.larger(b, d)


@triton.jit
def _made(values, before, weight, column, hidden, dtype: tl.constexpr, IS_MODEL_SENSITIVE: tl.constexpr,
          IS_GEMMA: tl.constexpr):
    """x · before · weight in fp32."""
    w = tl.load(weight + column, mask=column < hidden, other=0.0)
    return times(values * before, w, dtype, IS_MODEL_SENSITIVE, IS_GEMMA)


@triton.jit
def _smooth(y, x_scale, column, hidden):
    """y · x_scale, where there is one."""
    if x_scale is not None:
        y *= tl.load(x_scale + column, mask=column < hidden, other=0.0)
    return y


def rms_norm_quant(call: RmsNormQuantCall, **options: int) -> Launch:
    """The launch that writes `out`, `scale`, `residual_out` and `plain_out`, with Triton's options."""
    hidden, scale = call.input.shape[-1], call.scale
    block = min(power_of_2(hidden), _MAX_BLOCK)
    options.setdefault("num_warps", max(block // 1024, 1))  # at least 16 elements per lane on a wave of 64
    matrices = [None if tensor is None else tensor.view(-1, hidden)
                for tensor in (call.out, call.residual_out, call.plain_out, call.input, call.residual_in)]
    groups = hidden // call.group_size if call.group_size else 1
    strides = scale.stride() if scale.ndim == 2 and scale.shape[1] == groups else (groups, 1)
    return launch(_rms_norm_quant_kernel, (call.input.numel() // hidden,), matrices[0], scale, *matrices[1:4],
                  call.weight, matrices[4], call.x_scale,
                  *(0 if matrix is None else matrix.stride(0) for matrix in matrices), *strides, hidden,
                  real(call.epsilon), BLOCK=block, IS_WHOLE=hidden <= block, GROUP=call.group_size,
                  LARGEST=largest(call.out.dtype), IS_MODEL_SENSITIVE=bool(call.use_model_sensitive_rmsnorm),
                  IS_GEMMA=call.gemma_norm, options=options)
