# SPDX-License-Identifier: MIT
"""Normalisation in Triton: the kernel and its launcher, named by the operator of ops/norm/rms_norm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.rms_norm import RmsNormCall
from aiter_like.ops.norm.triton.parts import load_sum, times

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64


@triton.jit
def _rms_norm_kernel(out, x, weight, residual_in, residual_out, out_stride, x_stride, residual_in_stride,
                     residual_out_stride, hidden, epsilon, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr,
                     IS_MODEL_SENSITIVE: tl.constexpr, IS_GEMMA: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = x / sqrt(mean(x²) + epsilon) · weight for one row per program, x plus the residual; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    out += row * out_stride
    x += row * x_stride
    if residual_in is not None:
        residual_in += row * residual_in_stride
        residual_out += row * residual_out_stride
    if IS_WHOLE:  # its weights come with the row, not after the reduction
        w = tl.load(weight + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < hidden, other=0.0)
    values, inverse_rms = row_rms(x, residual_in, hidden, epsilon, BLOCK, IS_WHOLE)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        column = start + tl.arange(0, BLOCK)
        if not IS_WHOLE:
            values = load_sum(x, residual_in, column, hidden)
            w = tl.load(weight + column, mask=column < hidden, other=0.0)
        if residual_in is not None:
            tl.store(residual_out + column, values.to(residual_out.dtype.element_ty), mask=column < hidden)
        y = times(values * inverse_rms, w, x.dtype.element_ty, IS_MODEL_SENSITIVE, IS_GEMMA)
        tl.store(out + column, y.to(out.dtype.element_ty), mask=column < hidden)


@triton.jit
def row_rms(x, residual, hidden, epsilon, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr):
    """The row's last block, as load_sum gives it, and 1 / sqrt(mean(x²) + epsilon) of the whole row."""
    squares = tl.zeros([BLOCK], tl.float32)
    values = tl.zeros([BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        values = load_sum(x, residual, start + tl.arange(0, BLOCK), hidden)
        squares += values * values
    return values, tl.rsqrt(tl.sum(squares, 0) / hidden + epsilon)


def rms_norm(call: RmsNormCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `residual_out`, with Triton's `num_warps`."""
    hidden = call.input.shape[-1]
    block = min(power_of_2(hidden), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    matrices = [None if tensor is None else tensor.view(-1, hidden)
                for tensor in (call.out, call.input, call.residual_in, call.residual_out)]
    strides = [0 if matrix is None else matrix.stride(0) for matrix in matrices]
    return launch(_rms_norm_kernel, (matrices[0].shape[0],), matrices[0], matrices[1], call.weight, *matrices[2:],
                  *strides, hidden, real(call.epsilon), BLOCK=block, IS_WHOLE=hidden <= block,
                  IS_MODEL_SENSITIVE=bool(call.use_model_sensitive_rmsnorm), IS_GEMMA=call.gemma_norm,
                  options={"num_warps": num_warps})
