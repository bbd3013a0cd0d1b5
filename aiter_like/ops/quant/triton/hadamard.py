# SPDX-License-Identifier: MIT
"""hadamard in Triton: body and launcher, named by ops/quant/hadamard.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.hadamard import HadamardCall

_TILE = 1024  # elements of one program, where a row has no more


@triton.jit
def _hadamard_kernel(out, x, out_stride, x_stride, rows, scale, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
                     BLOCK_M: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M rows; bound: memory.

    Each stage adds and subtracts neighbours and moves their bit to the front, so that all stages are alike and the last
    one leaves the elements in order. All reads of a row come before its writes.
    """
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    values = tl.load(x + row * x_stride + column, mask=row < rows, other=0.0).to(tl.float32)
    for _ in tl.static_range(STAGES):
        low, high = tl.split(tl.reshape(values, [BLOCK_M, COLUMNS // 2, 2]))
        values = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), [BLOCK_M, COLUMNS])
    tl.debug_barrier()  # `out` may be `x`: a wave may store what another one, with the same elements, still loads
    tl.store(out + row * out_stride + column, (values * scale).to(out.dtype.element_ty), mask=row < rows)


def hadamard(call: HadamardCall, num_warps: int = 4) -> Launch:
    """The launch that writes `out`, with Triton's `num_warps`."""
    columns = call.out.shape[-1]
    y, x = call.out.view(-1, columns), call.input.view(-1, columns)
    block_m = max(1, min(_TILE // columns, power_of_2(y.shape[0])))
    return launch(_hadamard_kernel, (triton.cdiv(y.shape[0], block_m),), y, x, y.stride(0), x.stride(0), y.shape[0],
                  call.scale, COLUMNS=columns, STAGES=columns.bit_length() - 1, BLOCK_M=block_m,
                  options={"num_warps": num_warps})
