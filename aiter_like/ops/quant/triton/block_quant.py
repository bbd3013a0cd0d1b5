# SPDX-License-Identifier: MIT
"""Quantisation by block in Triton, named by the operator of ops/quant/block_quant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.block_quant import BlockQuantCall

_TILE = 16384  # elements of a block that a program keeps: 32 per lane at 8 waves of 64


@triton.jit(do_not_specialize=["rows", "row_blocks", "column_blocks"])  # a build for each value would gain nothing
def _block_quant_kernel(out, scale, x, out_stride, x_stride, rows, columns, row_blocks, column_blocks,
                        BLOCK_ROWS: tl.constexpr, TILE_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
                        LARGEST: tl.constexpr, OVERLAPS: tl.constexpr):
    """One block of BLOCK_ROWS × BLOCK_COLUMNS per program, TILE_ROWS rows at a time; bound: memory."""
    await_stream(OVERLAPS)
    block = tl.program_id(0)
    band = block // column_blocks
    matrix = band // row_blocks
    first = band % row_blocks * BLOCK_ROWS
    column = block % column_blocks * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    end = tl.minimum(rows, first + BLOCK_ROWS)
    values = tl.zeros([TILE_ROWS, BLOCK_COLUMNS], tl.float32)
    magnitude = tl.zeros([TILE_ROWS, BLOCK_COLUMNS], tl.float32)
    for start in range(0, BLOCK_ROWS, TILE_ROWS):
        row = first + start + tl.arange(0, TILE_ROWS)[:, None]
        place = (matrix.to(tl.int64) * rows + row) * x_stride + column
        values = tl.load(x + place, mask=(row < end) & (column < columns), other=0.0).to(tl.float32)
        magnitude = quant_rule.larger(magnitude, tl.abs(values))
    own = quant_rule.scale_of(quant_rule.amax(tl.reshape(magnitude, [TILE_ROWS * BLOCK_COLUMNS]), 0), LARGEST)
    inverse = quant_rule.inverse_of(own)
    tl.store(scale + block, own)
    for start in range(0, BLOCK_ROWS, TILE_ROWS):
        row = first + start + tl.arange(0, TILE_ROWS)[:, None]
        index = matrix.to(tl.int64) * rows + row
        mask = (row < end) & (column < columns)
        if BLOCK_ROWS > TILE_ROWS:
            values = tl.load(x + index * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        q = quant_rule.quantised(values * inverse, out.dtype.element_ty, LARGEST)
        tl.store(out + index * out_stride + column, q, mask=mask)


def block_quant(call: BlockQuantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `scale`, with Triton's `num_warps`."""
    (rows, columns), block_rows, block_columns = call.input.shape[-2:], call.block_rows, call.block_columns
    y, x = call.out.view(-1, columns), call.input.view(-1, columns)
    tile = min(power_of_2(block_rows), _TILE // block_columns)
    return launch(_block_quant_kernel, (call.scale.numel(),), y, call.scale, x, y.stride(0), x.stride(0), rows, columns,
                  *call.scale.shape[-2:], BLOCK_ROWS=block_rows, TILE_ROWS=tile, BLOCK_COLUMNS=block_columns,
                  LARGEST=largest(call.out.dtype),
                  options={"num_warps": num_warps or min(max(tile * block_columns // 2048, 1), 8)})
