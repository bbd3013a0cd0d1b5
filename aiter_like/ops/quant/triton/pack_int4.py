# SPDX-License-Identifier: MIT
"""4-bit packing in Triton, named by the operator of ops/quant/pack_int4.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.pack_int4 import PackInt4Call

_PACKED = 2048  # bytes of a program: 16 numbers per lane at 4 waves of 64


@triton.jit(do_not_specialize=["rows"])
def _pack_int4_kernel(out, x, out_stride, x_stride, rows, columns, IS_UNPACKING: tl.constexpr, BLOCK_M: tl.constexpr,
                      BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M rows × BLOCK_N packed bytes of two numbers each, the first in the low half; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    number = tl.program_id(1) * (2 * BLOCK_N) + tl.arange(0, 2 * BLOCK_N)[None, :]
    is_byte = (row < rows) & (column < columns)
    is_number = (row < rows) & (number < 2 * columns)
    if IS_UNPACKING:
        byte = tl.load(x + row * x_stride + column, mask=is_byte, other=0)
        both = tl.join((byte << 4) >> 4, byte >> 4)
        tl.store(out + row * out_stride + number, tl.reshape(both, [BLOCK_M, 2 * BLOCK_N]), mask=is_number)
    else:
        both = tl.load(x + row * x_stride + number, mask=is_number, other=0)
        low, high = tl.split(tl.reshape(both, [BLOCK_M, BLOCK_N, 2]))
        tl.store(out + row * out_stride + column, (low & 15) | (high << 4), mask=is_byte)


def pack_int4(call: PackInt4Call, num_warps: int | None = None) -> Launch:
    """The launch that writes `out`, with Triton's `num_warps`."""
    out, input, columns = call.out, call.input, call.packed_columns
    y, x = out.view(-1, out.shape[-1]), input.view(-1, input.shape[-1])
    block_n = min(power_of_2(columns), _PACKED)
    block_m = max(1, min(_PACKED // block_n, power_of_2(x.shape[0])))
    grid = (triton.cdiv(x.shape[0], block_m), triton.cdiv(columns, block_n))
    return launch(_pack_int4_kernel, grid, y, x, y.stride(0), x.stride(0), x.shape[0], columns,
                  IS_UNPACKING=call.is_unpacking, BLOCK_M=block_m, BLOCK_N=block_n,
                  options={"num_warps": num_warps or 4})
