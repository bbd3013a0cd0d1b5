# SPDX-License-Identifier: MIT
"""Dropout, residual add and LayerNorm in Triton, named by the operator of ops/norm/dropout_layer_norm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.philox import threshold
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.dropout_layer_norm import DropoutLayerNormCall


@triton.jit(do_not_specialize=["seed", "offset", "threshold"])
def _dropout_layer_norm_kernel(out, residual_out, x, residual_in, weight, bias, out_stride, residual_out_stride,
                               x_stride, residual_in_stride, hidden, seed, offset, threshold, kept_scale, epsilon,
                               BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """x = dropout(input) + residual, out = (x - mean) / sqrt(var + epsilon) · weight + bias; one row per program."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_inside = column < hidden
    values = tl.load(x + row * x_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_in + row * residual_in_stride + column, mask=is_inside, other=0.0).to(tl.float32)
    counter = offset + row * ((hidden + 3) // 4) + tl.arange(0, BLOCK // 4)
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    zero = low * 0
    r0, r1, r2, r3 = tl.philox(seed, low, high, zero, zero)
    words = tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))  # column 4 i + j has word j of counter i
    values = tl.where((words >> 8).to(tl.int32) >= threshold, values * kept_scale, 0.0) + residual
    mean = tl.sum(values, 0) / hidden
    deviation = tl.where(is_inside, values - mean, 0.0)
    inverse_deviation = tl.rsqrt(tl.sum(deviation * deviation, 0) / hidden + epsilon)
    w = tl.load(weight + column, mask=is_inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(residual_out + row * residual_out_stride + column, values.to(residual_out.dtype.element_ty),
             mask=is_inside)
    tl.store(out + row * out_stride + column, (deviation * inverse_deviation * w + b).to(out.dtype.element_ty),
             mask=is_inside)


def dropout_layer_norm(call: DropoutLayerNormCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `residual_out`, with Triton's `num_warps`."""
    hidden = call.input.shape[-1]
    block = max(power_of_2(hidden), 4)
    num_warps = num_warps or min(max(block // 512, 1), 16)  # at least 8 elements per lane on a wave of 64
    matrices = [tensor.view(-1, hidden) for tensor in (call.out, call.residual_out, call.input, call.residual_in)]
    return launch(_dropout_layer_norm_kernel, (matrices[0].shape[0],), *matrices, call.weight, call.bias,
                  *(matrix.stride(0) for matrix in matrices), hidden, call.seed, call.offset, threshold(call.p),
                  1.0 / (1.0 - call.p), real(call.epsilon), BLOCK=block, options={"num_warps": num_warps})
