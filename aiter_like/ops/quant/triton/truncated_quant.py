# SPDX-License-Identifier: MIT
"""Quantisation to int8 towards zero in Triton, named by the operator of ops/quant/truncated_quant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.truncated_quant import TruncatedQuantCall

_MAX_BLOCK = 16384  # elements that one program keeps in registers: 32 fp32 per lane at 16 waves of 32


@triton.jit
def _truncated_quant_kernel(out, scale, x, scale_ub, num_rows, num_rows_factor, out_stride, x_stride, columns,
                            BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr, IS_DYNAMIC: tl.constexpr,
                            OVERLAPS: tl.constexpr):
    """trunc(x / scale) of one row per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    if num_rows is not None:
        if row >= tl.load(num_rows).to(tl.int64) * num_rows_factor:
            return
    lanes = tl.arange(0, BLOCK)
    values = tl.zeros([BLOCK], tl.float32)
    if IS_DYNAMIC:
        magnitude = tl.zeros([BLOCK], tl.float32)
        for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
            values = tl.load(x + row * x_stride + start + lanes, mask=start + lanes < columns, other=0.0)
            values = values.to(tl.float32)
            magnitude = quant_rule.larger(magnitude, tl.abs(values))
        most = quant_rule.amax(magnitude, 0)
        if scale_ub is not None:
            bound = tl.load(scale_ub)
            most = tl.where(most > bound, bound, most)
        own = quant_rule.scale_of(most, 127.0)
        tl.store(scale + row, own)
    else:
        own = tl.load(scale)
    inverse = quant_rule.inverse_of(own)
    for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
        column = start + lanes
        if not IS_DYNAMIC or not IS_WHOLE:
            values = tl.load(x + row * x_stride + column, mask=column < columns, other=0.0).to(tl.float32)
        y = values * inverse
        y = tl.where(y == y, tl.minimum(tl.maximum(y, -128.0), 127.0), 0.0)
        tl.store(out + row * out_stride + column, y.to(tl.int32).to(tl.int8), mask=column < columns)


def truncated_quant(call: TruncatedQuantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out`, and `scale` where the call is dynamic, with Triton's `num_warps`."""
    columns = call.input.shape[-1]
    block = min(power_of_2(columns), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8 if block <= 8192 else 16)  # at least 8 elements per lane of 64
    y, x = call.out.view(-1, columns), call.input.view(-1, columns)
    return launch(_truncated_quant_kernel, (x.shape[0],), y, call.scale, x, call.scale_ub, call.num_rows,
                  call.num_rows_factor, y.stride(0), x.stride(0), columns, BLOCK=block, IS_WHOLE=columns <= block,
                  IS_DYNAMIC=call.is_dynamic, options={"num_warps": num_warps})
