# SPDX-License-Identifier: MIT
"""relu_squared in Triton: body and launcher, named by ops/activation/relu_squared.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.activation.relu_squared import ReluSquaredCall
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2

_TILE = 2048  # elements of one program: 8 per lane
_MAX_GRID = 65535  # programs along the second and third dimension


@triton.jit
def _relu_squared_kernel(out, x, out_stride, x_stride, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                  OVERLAPS: tl.constexpr):
    """out = max(x, 0)² for BLOCK_M rows × BLOCK_N columns; bound: memory."""
    await_stream(OVERLAPS)
    first = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * BLOCK_M
    row = first + tl.arange(0, BLOCK_M)[:, None].to(tl.int64)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (row < rows) & (column < columns)
    values = tl.load(x + row * x_stride + column, mask=mask).to(tl.float32)
    y = tl.where(values <= 0.0, 0.0, values * values)  # a NaN is not below 0, and stays
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=mask)


def relu_squared(call: ReluSquaredCall, num_warps: int = 4) -> Launch:
    """The launch that writes `out`, with Triton's `num_warps`."""
    columns = call.out.shape[-1]
    y, x = call.out.view(-1, columns), call.input.view(-1, columns)
    block_n = min(power_of_2(columns), _TILE)
    block_m = max(1, min(_TILE // block_n, power_of_2(y.shape[0])))
    blocks = triton.cdiv(y.shape[0], block_m)
    grid = (triton.cdiv(columns, block_n), min(blocks, _MAX_GRID), triton.cdiv(blocks, _MAX_GRID))
    return launch(_relu_squared_kernel, grid, y, x, y.stride(0), x.stride(0), y.shape[0], columns, BLOCK_M=block_m,
                  BLOCK_N=block_n, options={"num_warps": num_warps})
