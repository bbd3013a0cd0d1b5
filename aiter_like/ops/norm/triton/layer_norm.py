# SPDX-License-Identifier: MIT
"""Layer normalisation in Triton, named by the operator of ops/norm/layer_norm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.layer_norm import LayerNormCall
from aiter_like.ops.norm.triton.parts import load_sum, moments

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64
_MOST_KEPT = tl.constexpr(4096)  # Longer rows do not keep their factors: fewer of them would fit a CU.


@triton.jit
def _layer_norm_kernel(out, scale, residual_out, x, weight, bias, x_bias, residual_in, x_scale, out_stride,
                       residual_out_stride, x_stride, residual_in_stride, scale_stride, hidden, count, epsilon,
                       BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr, LARGEST: tl.constexpr, OVERLAPS: tl.constexpr):
    """y = (x - mean(x)) / sqrt(var(x) + epsilon) · weight + bias for one row per program; bound: memory.

    `count` is `hidden` in fp32: the mean is rounded correctly, so that a row of equal elements has no deviation.
    """
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    out += row * out_stride
    x += row * x_stride
    if residual_in is not None:
        residual_in += row * residual_in_stride
        residual_out += row * residual_out_stride
    columns = tl.arange(0, BLOCK)
    KEEPS_FACTORS: tl.constexpr = IS_WHOLE and BLOCK <= _MOST_KEPT
    if KEEPS_FACTORS:  # loaded with the row, not after the reduction
        w, b = _factor(weight, columns, hidden, 1.0), _factor(bias, columns, hidden, -0.0)
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    values = tl.zeros([BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        values = _load(x, residual_in, x_bias, start + columns, hidden)
        total += values
        squares += values * values
    mean, variance, is_lossy = moments(total, squares, count)
    if is_lossy:
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
            if not IS_WHOLE:
                values = _load(x, residual_in, x_bias, start + columns, hidden)
            deviation = tl.where(start + columns < hidden, values - mean, 0.0)
            squares += deviation * deviation
        variance = tl.sum(squares, 0) / count
    inverse_deviation = tl.rsqrt(variance + epsilon)
    inverse = 1.0
    if scale is not None:
        most = tl.zeros([BLOCK], tl.float32)
        for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
            if not IS_WHOLE:
                values = _load(x, residual_in, x_bias, start + columns, hidden)
            if not KEEPS_FACTORS:
                w = _factor(weight, start + columns, hidden, 1.0)
                b = _factor(bias, start + columns, hidden, -0.0)
            y = _normed((values - mean) * inverse_deviation, w, b, x_scale, start + columns, hidden)
            most = quant_rule.larger(most, tl.abs(tl.where(start + columns < hidden, y, 0.0)))
        row_scale = quant_rule.scale_of(quant_rule.amax(most, 0), LARGEST)
        inverse = quant_rule.inverse_of(row_scale)
        tl.store(scale + row * scale_stride, row_scale)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        column = start + columns
        if not IS_WHOLE:
            values = _load(x, residual_in, x_bias, column, hidden)
        if residual_in is not None:
            tl.store(residual_out + column, values.to(residual_out.dtype.element_ty), mask=column < hidden)
        if not KEEPS_FACTORS:
            w, b = _factor(weight, column, hidden, 1.0), _factor(bias, column, hidden, -0.0)
        y = _normed((values - mean) * inverse_deviation, w, b, x_scale, column, hidden)
        if scale is not None:
            tl.store(out + column, quant_rule.quantised(y * inverse, out.dtype.element_ty, LARGEST),
                     mask=column < hidden)
        else:
            tl.store(out + column, y.to(out.dtype.element_ty), mask=column < hidden)


@triton.jit
def _load(x, residual, x_bias, column, hidden):
    """x, plus what is to be added to it, in fp32; zeros beyond the row."""
    values = load_sum(x, x_bias, column, hidden)
    if residual is not None:
        values += tl.load(residual + column, mask=column < hidden, other=0.0).to(tl.float32)
    return values


@triton.jit
def _factor(pointer, column, hidden, NEUTRAL: tl.constexpr):
    """Weight or bias of some columns; NEUTRAL where there is none."""
    if pointer is not None:
        return tl.load(pointer + column, mask=column < hidden, other=0.0)
    else:
        return tl.full(column.shape, NEUTRAL, tl.float32)


@triton.jit
def _normed(scaled, w, b, x_scale, column, hidden):
    """The normalised row times weight plus bias, times x_scale where there is one."""
    scaled = scaled * w.to(tl.float32) + b.to(tl.float32)
    if x_scale is not None:
        scaled *= tl.load(x_scale + column, mask=column < hidden, other=0.0)
    return scaled


def layer_norm(call: LayerNormCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out`, `scale` and `residual_out`, with Triton's `num_warps`."""
    hidden, scale = call.input.shape[-1], call.scale
    block = min(power_of_2(hidden), _MAX_BLOCK)
    num_warps = num_warps or max(block // 1024, 1)  # at least 16 elements per lane on a wave of 64
    matrices = [None if tensor is None else tensor.view(-1, hidden)
                for tensor in (call.out, call.residual_out, call.input, call.residual_in)]
    is_column = scale is not None and scale.ndim == 2 and scale.shape[1] == 1
    return launch(_layer_norm_kernel, (call.input.numel() // hidden,), matrices[0], scale, matrices[1], matrices[2],
                  call.weight, call.bias, call.x_bias, matrices[3], call.x_scale,
                  *(0 if matrix is None else matrix.stride(0) for matrix in matrices),
                  scale.stride(0) if is_column else 1, hidden, real(hidden), real(call.epsilon), BLOCK=block,
                  IS_WHOLE=hidden <= block, LARGEST=0.0 if scale is None else largest(call.out.dtype),
                  options={"num_warps": num_warps})
