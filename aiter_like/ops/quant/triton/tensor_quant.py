# SPDX-License-Identifier: MIT
"""Quantisation with one scale in Triton, named by the operator of ops/quant/tensor_quant.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import SMALLEST_AMAX, largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.fill import fill
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.tensor_quant import TensorQuantCall

_TILE = 4096  # elements of a program


@triton.jit
def _tensor_amax_kernel(scale, x, num_rows, num_rows_factor, x_stride, rows, columns, LARGEST: tl.constexpr,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """Raises the scale in memory to that of a tile. The bits of positive numbers are ordered as integers are."""
    await_stream(OVERLAPS)
    row, column, mask = _tile(tl.program_id(0), num_rows, num_rows_factor, rows, columns, BLOCK_M, BLOCK_N)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    own = quant_rule.scale_of(quant_rule.amax(tl.reshape(values, [BLOCK_M * BLOCK_N]), 0), LARGEST)
    tl.atomic_max(scale, own.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def _tensor_quant_kernel(out, scale, x, num_rows, num_rows_factor, out_stride, x_stride, rows, columns,
                         LARGEST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                         OVERLAPS: tl.constexpr):
    """x / scale, rounded and saturated. The last rows come first: a cache still has them of the pass before.

    Bound: memory."""
    await_stream(OVERLAPS)
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    row, column, mask = _tile(block, num_rows, num_rows_factor, rows, columns, BLOCK_M, BLOCK_N)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    y = quant_rule.quantised(values * quant_rule.inverse_of(tl.load(scale)), out.dtype.element_ty, LARGEST)
    tl.store(out + row * out_stride + column, y, mask=mask)


@triton.jit
def _tile(block, num_rows, num_rows_factor, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The rows of a block, the columns of this program, and which of these elements are to be quantised."""
    row = block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (row < rows) & (column < columns)
    if num_rows is not None:
        mask = mask & (row < tl.load(num_rows).to(tl.int64) * num_rows_factor)
    return row, column, mask


def tensor_quant(call: TensorQuantCall, num_warps: int | None = None) -> tuple[Launch, ...]:
    """The launches that write `out`, and `scale` where the call is dynamic, with Triton's `num_warps`."""
    scale, columns = call.scale, call.input.shape[-1]
    y, x = call.out.view(-1, columns), call.input.view(-1, columns)
    block_n = min(power_of_2(columns), _TILE)
    block_m = max(1, min(_TILE // block_n, power_of_2(x.shape[0])))
    grid = (triton.cdiv(x.shape[0], block_m), triton.cdiv(columns, block_n))
    top, used = largest(call.out.dtype), (call.num_rows, call.num_rows_factor)
    same = {"LARGEST": top, "BLOCK_M": block_m, "BLOCK_N": block_n, "options": {"num_warps": num_warps or 4}}
    quantise = launch(_tensor_quant_kernel, grid, y, scale, x, *used, y.stride(0), x.stride(0), *x.shape, **same)
    if not call.is_dynamic:
        return (quantise,)
    return (fill(scale, SMALLEST_AMAX / top),
            launch(_tensor_amax_kernel, grid, scale.view(torch.int32), x, *used, x.stride(0), *x.shape, **same),
            quantise)
