# SPDX-License-Identifier: MIT
"""Quantisation by row and by group in Triton, named by the operator of ops/quant/row_quant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.row_quant import RowQuantCall

_MAX_BLOCK = 16384  # elements that one program keeps in registers: 32 fp32 per lane at 16 waves of 32


@triton.jit
def _row_quant_kernel(out, scale, x, smooth_scale, scale_ub, num_rows, num_rows_factor, out_stride, x_stride,
                      scale_stride, group_stride, columns, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr,
                      GROUP: tl.constexpr, LARGEST: tl.constexpr, OVERLAPS: tl.constexpr):
    """x · smooth_scale quantised by row or by group, one row per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    if num_rows is not None:
        if row >= tl.load(num_rows).to(tl.int64) * num_rows_factor:
            return
    out += row * out_stride
    x += row * x_stride
    scale += row * scale_stride
    quant_rule.quantise_row(out, scale, group_stride, columns, scale_ub, _smoothed, (x, smooth_scale), None, BLOCK,
                            IS_WHOLE, GROUP, LARGEST)


@triton.jit
def _smoothed(column, columns, operands, VARIANT: tl.constexpr):
    """x · smooth_scale in fp32; zeros beyond the row."""
    x, smooth_scale = operands
    values = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    if smooth_scale is not None:
        values *= tl.load(smooth_scale + column, mask=column < columns, other=0.0)
    return values


def row_quant(call: RowQuantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `scale`, with Triton's `num_warps`."""
    scale, group_size, columns = call.scale, call.group_size, call.input.shape[-1]
    block = min(power_of_2(columns), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8 if block <= 8192 else 16)  # at least 8 elements per lane of 64
    y, x = call.out.view(-1, columns), call.input.view(-1, columns)
    groups = columns // group_size if group_size else 1
    strides = scale.stride() if scale.ndim == 2 and scale.shape[1] == groups else (groups, 1)
    return launch(_row_quant_kernel, (x.shape[0],), y, scale, x, call.smooth_scale, call.scale_ub, call.num_rows,
                  call.num_rows_factor, y.stride(0), x.stride(0), *strides, columns, BLOCK=block,
                  IS_WHOLE=columns <= block, GROUP=group_size, LARGEST=largest(call.out.dtype),
                  options={"num_warps": num_warps})
