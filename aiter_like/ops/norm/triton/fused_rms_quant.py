# SPDX-License-Identifier: MIT
"""RMSNorm quantised, and of a second matrix beside it, in Triton; named by the operator of
ops/norm/fused_rms_quant.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.fused_rms_quant import FusedRmsQuantCall
from aiter_like.ops.norm.triton.parts import load_sum


@triton.jit(do_not_specialize=["rows"])
def _fused_rms_quant_kernel(out, scale, plain_out, residual_out, second_out, x, weight, epsilon, residual_in, second,
                            second_weight, second_epsilon, out_stride, plain_out_stride, residual_out_stride,
                            second_out_stride, x_stride, residual_in_stride, second_stride, scale_stride, group_stride,
                            rows, hidden, second_hidden, BLOCK: tl.constexpr, SECOND_BLOCK: tl.constexpr,
                            GROUP: tl.constexpr, LARGEST: tl.constexpr, IS_STATIC: tl.constexpr,
                            IS_ROUNDED: tl.constexpr, IS_GEMMA: tl.constexpr, OVERLAPS: tl.constexpr):
    """A row of x, or behind them one of the second matrix, per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    if second is not None:
        if row >= rows:
            row -= rows
            column = tl.arange(0, SECOND_BLOCK)
            values = load_sum(second + row * second_stride, None, column, second_hidden)
            y = _normed(values, second_weight, second_epsilon, column, second_hidden, x.dtype.element_ty, IS_ROUNDED,
                        IS_GEMMA)
            tl.store(second_out + row * second_out_stride + column, y.to(second_out.dtype.element_ty),
                     mask=column < second_hidden)
            return
    column = tl.arange(0, BLOCK)
    mask = column < hidden
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if residual_in is not None:
        values += tl.load(residual_in + row * residual_in_stride + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(residual_out + row * residual_out_stride + column, values.to(residual_out.dtype.element_ty), mask=mask)
    y = _normed(values, weight, epsilon, column, hidden, x.dtype.element_ty, IS_ROUNDED, IS_GEMMA)
    if plain_out is not None:
        tl.store(plain_out + row * plain_out_stride + column, y.to(plain_out.dtype.element_ty), mask=mask)
    if out is not None:
        if IS_STATIC:
            y = y * quant_rule.inverse_of(tl.load(scale))
        elif GROUP > 0:
            y = quant_rule.grouped(y, scale + row * scale_stride, group_stride, hidden // GROUP, BLOCK, GROUP, LARGEST)
        else:
            own = quant_rule.scale_of(quant_rule.amax(y, 0), LARGEST)
            tl.store(scale + row * scale_stride, own)
            y = y * quant_rule.inverse_of(own)
        tl.store(out + row * out_stride + column, quant_rule.quantised(y, out.dtype.element_ty, LARGEST), mask=mask)


@triton.jit
def _normed(values, weight, epsilon, column, hidden, dtype: tl.constexpr, IS_ROUNDED: tl.constexpr,
            IS_GEMMA: tl.constexpr):
    """x / sqrt(mean(x²) + epsilon) · weight in fp32; zeros beyond the row."""
    w = tl.load(weight + column, mask=column < hidden, other=0.0).to(tl.float32)
    if IS_GEMMA:
        w += 1.0
    y = values * tl.rsqrt(tl.sum(values * values, 0) / hidden + epsilon) * w
    if IS_ROUNDED:
        y = y.to(dtype).to(tl.float32)
    return tl.where(column < hidden, y, 0.0)  # a NaN row has its scale from its own elements alone


def fused_rms_quant(call: FusedRmsQuantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out`, `scale`, `plain_out`, `residual_out` and `second_out`, by `num_warps`."""
    scale, group_size = call.scale, call.group_size
    sizes = [call.input.shape[-1], 1 if call.second is None else call.second.shape[-1]]
    blocks = [power_of_2(size) for size in sizes]
    num_warps = num_warps or min(max(max(blocks) // 1024, 1), 16)  # at least 16 elements per lane on a wave of 64
    matrices = [None if tensor is None else tensor.view(-1, tensor.shape[-1]) for tensor in (
        call.out, call.plain_out, call.residual_out, call.second_out, call.input, call.residual_in, call.second)]
    y, plain, total, other, x, residual, more = matrices
    groups = sizes[0] // group_size if group_size else 1
    is_matrix = scale is not None and scale.ndim == 2 and scale.shape[1] == groups
    return launch(_fused_rms_quant_kernel, (x.shape[0] + (0 if more is None else more.shape[0]),), y, scale, plain,
                  total, other, x, call.weight, real(call.epsilon), residual, more, call.second_weight,
                  real(call.second_epsilon), *(0 if matrix is None else matrix.stride(0) for matrix in matrices),
                  *(scale.stride() if is_matrix else (groups, 1)), x.shape[0], *sizes, BLOCK=blocks[0],
                  SECOND_BLOCK=blocks[1], GROUP=group_size, LARGEST=0.0 if y is None else largest(y.dtype),
                  IS_STATIC=call.is_static, IS_ROUNDED=call.is_rounded, IS_GEMMA=call.gemma_norm,
                  options={"num_warps": num_warps})
