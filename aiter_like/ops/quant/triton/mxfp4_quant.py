# SPDX-License-Identifier: MIT
"""Quantisation to MXFP4 in Triton, named by the operator of ops/quant/mxfp4_quant.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.quant.mxfp4_quant import GROUP, NAN_SCALE, ROUNDING, Mxfp4QuantCall

_TILE = 4096  # elements of a program

_GROUP, _NAN_SCALE, _INFINITY = tl.constexpr(GROUP), tl.constexpr(NAN_SCALE), tl.constexpr(0x7F800000)
_TO_NEAREST = tl.constexpr(ROUNDING[2])


@triton.jit(do_not_specialize=["rows", "rounding"])
def _mxfp4_quant_kernel(out, scale, x, out_stride, scale_stride, x_stride, rows, columns, rounding,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M rows × BLOCK_N elements, as csrc/quant/mxfp4_quant.hip does it; bound: memory."""
    await_stream(OVERLAPS)
    GROUPS: tl.constexpr = BLOCK_M * BLOCK_N // _GROUP
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    values = tl.load(x + row * x_stride + column, mask=(row < rows) & (column < columns), other=0.0).to(tl.float32)
    groups = tl.reshape(values, [GROUPS, _GROUP])
    amax = quant_rule.amax(groups, 1).to(tl.int32, bitcast=True)  # without sign: the sum below does not overflow
    exponent = ((amax + rounding) >> 23) - 2
    least = tl.where((rounding > _TO_NEAREST) & (amax != 0), 1, 0)
    own = tl.where(amax >= _INFINITY, _NAN_SCALE, tl.maximum(exponent, least))
    inverse = ((254 - own) << 23).to(tl.float32, bitcast=True)
    y = tl.abs(groups) * inverse[:, None]
    step = tl.where(y < 2.0, 2.0, tl.where(y < 4.0, 1.0, 0.5))
    first = tl.where(y < 2.0, 0, tl.where(y < 4.0, 2, 4))
    code = tl.minimum(((y * step + 8388608.0).to(tl.int32, bitcast=True) & 15) + first, 7)
    code = code | (groups.to(tl.int32, bitcast=True) >> 31 & 8)
    code = tl.where((own == _NAN_SCALE)[:, None], 0, code)
    low, high = tl.split(tl.reshape(code, [BLOCK_M, BLOCK_N // 2, 2]))
    byte = tl.program_id(1) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)[None, :]
    tl.store(out + row * out_stride + byte, (low | high << 4).to(tl.uint8), mask=(row < rows) & (2 * byte < columns))
    group = tl.program_id(1) * (BLOCK_N // _GROUP) + tl.arange(0, BLOCK_N // _GROUP)[None, :]
    tl.store(scale + row * scale_stride + group, tl.reshape(own, [BLOCK_M, BLOCK_N // _GROUP]).to(tl.uint8),
             mask=(row < rows) & (group * _GROUP < columns))


def mxfp4_quant(call: Mxfp4QuantCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `scale`, with Triton's `num_warps`."""
    columns = call.input.shape[-1]
    y, s, x = (tensor.view(-1, tensor.shape[-1]) for tensor in (call.out, call.scale, call.input))
    block_n = min(power_of_2(columns), _TILE)
    block_m = max(1, min(_TILE // block_n, power_of_2(x.shape[0])))
    grid = (triton.cdiv(x.shape[0], block_m), triton.cdiv(columns, block_n))
    return launch(_mxfp4_quant_kernel, grid, y, s, x, y.stride(0), s.stride(0), x.stride(0), x.shape[0], columns,
                  ROUNDING[call.round_mode], BLOCK_M=block_m, BLOCK_N=block_n, options={"num_warps": num_warps or 4})
