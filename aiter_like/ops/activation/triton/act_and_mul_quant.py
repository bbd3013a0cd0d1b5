# SPDX-License-Identifier: MIT
"""Gated activations with a quantised result in Triton, named by the operator of ops/activation/act_and_mul_quant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.activation.act_and_mul_quant import ActAndMulQuantCall
from aiter_like.ops.activation.triton.parts import gated
from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real

_MAX_BLOCK = 4096  # elements of a row that one program keeps in registers, gate and up


@triton.jit
def _act_and_mul_quant_kernel(out, scale, x, weights, out_stride, x_stride, weights_stride, scale_stride, group_stride,
                              weight_step, columns, limit, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
                              IS_WHOLE: tl.constexpr, GROUP: tl.constexpr, LARGEST: tl.constexpr,
                              OVERLAPS: tl.constexpr):
    """act(gate) · up · weights quantised by row or by group, or as it is, one row per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    out += row * out_stride
    if weights is not None:
        weights += row * weights_stride
    operands = (x + row * x_stride, limit, weights, weight_step)
    if scale is not None:
        quant_rule.quantise_row(out, scale + row * scale_stride, group_stride, columns, None, _gated, operands,
                                ACTIVATION, BLOCK, IS_WHOLE, GROUP, LARGEST)
    else:
        for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            y = _gated(column, columns, operands, ACTIVATION)
            tl.store(out + column, y.to(out.dtype.element_ty), mask=column < columns)


@triton.jit
def _gated(column, columns, operands, ACTIVATION: tl.constexpr):
    """act(gate) · up · weights in fp32; zeros beyond the row."""
    x, limit, weights, weight_step = operands
    gate = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    up = tl.load(x + columns + column, mask=column < columns, other=0.0).to(tl.float32)
    y = gated(gate, up, limit, ACTIVATION, False)
    if weights is not None:
        y *= tl.load(weights + column * weight_step, mask=column < columns, other=0.0).to(tl.float32)
    return y


def act_and_mul_quant(call: ActAndMulQuantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `scale`, with Triton's `num_warps`."""
    out, scale, weights, columns = call.out, call.scale, call.weights, call.out.shape[-1]
    y, x = out.view(-1, columns), call.input.view(-1, 2 * columns)
    block = min(power_of_2(columns), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    groups = columns // call.group_size if call.group_size else 1
    is_matrix = scale is not None and scale.ndim == 2 and scale.shape[1] == groups
    strides = scale.stride() if is_matrix else (groups, 1)
    weights = weights.view(-1, columns if call.has_weight_each else 1) if weights is not None else None
    return launch(_act_and_mul_quant_kernel, (y.shape[0],), y, scale, x, weights, y.stride(0), x.stride(0),
                  0 if weights is None else weights.stride(0), *strides, int(call.has_weight_each), columns,
                  real(call.limit) or None, ACTIVATION=call.activation, BLOCK=block, IS_WHOLE=columns <= block,
                  GROUP=call.group_size, LARGEST=0.0 if scale is None else largest(out.dtype),
                  options={"num_warps": num_warps})
