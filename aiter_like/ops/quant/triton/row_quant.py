# SPDX-License-Identifier: MIT
"""Quantisers in Triton: bodies and launchers, named by the operators of ops/quant/row_quant.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import await_stream, launch

_MAX_BLOCK = 16384  # elements that one program keeps in registers: 32 fp32 per lane at 16 waves of 32
_TILE = 4096  # elements of a program that reduces nothing across it


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


def row_quant(out: torch.Tensor, scale: torch.Tensor, input: torch.Tensor, group_size: int,
              smooth_scale: torch.Tensor | None, scale_ub: torch.Tensor | None, num_rows: torch.Tensor | None,
              num_rows_factor: int, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out` and `scale`."""
    columns = input.shape[-1]
    block = min(triton.next_power_of_2(columns), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8 if block <= 8192 else 16)  # at least 8 elements per lane of 64
    y, x = out.view(-1, columns), input.view(-1, columns)
    groups = columns // group_size if group_size else 1
    strides = scale.stride() if scale.ndim == 2 and scale.shape[1] == groups else (groups, 1)
    launch(_row_quant_kernel, (x.shape[0],), y, scale, x, smooth_scale, scale_ub, num_rows, num_rows_factor,
           y.stride(0), x.stride(0), *strides, columns, BLOCK=block, IS_WHOLE=columns <= block, GROUP=group_size,
           LARGEST=largest(out.dtype), options={"num_warps": num_warps})


@triton.jit
def _tensor_amax_kernel(scale, x, num_rows, num_rows_factor, x_stride, rows, columns, LARGEST: tl.constexpr,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """The scale of a tile, made the maximum with the one in memory, whose bits are ordered as an integer's."""
    await_stream(OVERLAPS)
    row, column, mask = _tile(tl.program_id(0), num_rows, num_rows_factor, rows, columns, BLOCK_M, BLOCK_N)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    own = quant_rule.scale_of(quant_rule.amax(tl.reshape(values, [BLOCK_M * BLOCK_N]), 0), LARGEST)
    tl.atomic_max(scale, own.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def _tensor_quant_kernel(out, scale, x, num_rows, num_rows_factor, out_stride, x_stride, rows, columns,
                         LARGEST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                         OVERLAPS: tl.constexpr):
    """x / scale, rounded and saturated, last rows first: what a cache still has of the pass before. Bound: memory."""
    await_stream(OVERLAPS)
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    row, column, mask = _tile(block, num_rows, num_rows_factor, rows, columns, BLOCK_M, BLOCK_N)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    y = quant_rule.quantised(values * quant_rule.inverse_of(tl.load(scale)), out.dtype.element_ty, LARGEST)
    tl.store(out + row * out_stride + column, y, mask=mask)


@triton.jit
def _tile(block, num_rows, num_rows_factor, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows of this block and columns of this program, and which of them there are to be quantised."""
    row = block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (row < rows) & (column < columns)
    if num_rows is not None:
        mask = mask & (row < tl.load(num_rows).to(tl.int64) * num_rows_factor)
    return row, column, mask


def tensor_quant(out: torch.Tensor, scale: torch.Tensor, input: torch.Tensor, is_dynamic: bool,
                 num_rows: torch.Tensor | None, num_rows_factor: int, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out`, and `scale` if dynamic.
    """
    columns = input.shape[-1]
    y, x = out.view(-1, columns), input.view(-1, columns)
    block_n = min(triton.next_power_of_2(columns), _TILE)
    block_m = max(1, min(_TILE // block_n, triton.next_power_of_2(x.shape[0])))
    grid = (triton.cdiv(x.shape[0], block_m), triton.cdiv(columns, block_n))
    top, options = largest(out.dtype), {"num_warps": num_warps or 4}
    if is_dynamic:
        scale.fill_(2.0**-110 / top)
        launch(_tensor_amax_kernel, grid, scale.view(torch.int32), x, num_rows, num_rows_factor, x.stride(0),
               *x.shape, LARGEST=top, BLOCK_M=block_m, BLOCK_N=block_n, options=options)
    launch(_tensor_quant_kernel, grid, y, scale, x, num_rows, num_rows_factor, y.stride(0), x.stride(0), *x.shape,
           LARGEST=top, BLOCK_M=block_m, BLOCK_N=block_n, options=options)
