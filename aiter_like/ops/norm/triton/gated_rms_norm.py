# SPDX-License-Identifier: MIT
"""RMSNorm times a gate in Triton, named by the operator of ops/norm/gated_rms_norm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.gated_rms_norm import GatedRmsNormCall
from aiter_like.ops.norm.triton.parts import rows_of_a_program

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64


@triton.jit
def _gated_rms_norm_kernel(out, scale, x, gate, weight, out_stride, x_stride, gate_stride, scale_stride, rows, hidden,
                           epsilon, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr,
                           LARGEST: tl.constexpr, OVERLAPS: tl.constexpr):
    """y = x / sqrt(mean(x²) + epsilon) · weight · silu(gate), ROWS rows per program; bound: memory."""
    await_stream(OVERLAPS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = row < rows
    x += (row * x_stride)[:, None]
    gate += (row * gate_stride)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        column = start + columns
        values = tl.load(x + column, mask=is_row[:, None] & (column < hidden), other=0.0).to(tl.float32)
        squares += values * values
    inverse_rms = tl.rsqrt(tl.sum(squares, 1) / hidden + epsilon)[:, None]
    inverse = inverse_rms
    if scale is not None:
        most = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
            column = start + columns
            y = _gated(x, gate, weight, column, is_row[:, None], hidden, inverse_rms)
            most = quant_rule.larger(most, tl.abs(tl.where(column < hidden, y, 0.0)))
        row_scale = quant_rule.scale_of(quant_rule.amax(most, 1), LARGEST)
        inverse = quant_rule.inverse_of(row_scale)[:, None]
        tl.store(scale + row * scale_stride, row_scale, mask=is_row)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        column = start + columns
        y = _gated(x, gate, weight, column, is_row[:, None], hidden, inverse_rms)
        place, mask = out + (row * out_stride)[:, None] + column, is_row[:, None] & (column < hidden)
        if scale is not None:
            tl.store(place, quant_rule.quantised(y * inverse, out.dtype.element_ty, LARGEST), mask=mask)
        else:
            tl.store(place, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gated(x, gate, weight, column, is_row, hidden, inverse_rms):
    """The normalised rows times weight and silu(gate); the compiler loads x and gate of whole rows once."""
    mask = is_row & (column < hidden)
    values = tl.load(x + column, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(gate + column, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=column < hidden, other=0.0).to(tl.float32)
    return values * inverse_rms * w * (z / (1.0 + tl.exp(-z)))


def gated_rms_norm(call: GatedRmsNormCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out` and `scale`, with Triton's `num_warps`."""
    hidden, scale = call.input.shape[-1], call.scale
    block = min(power_of_2(hidden), _MAX_BLOCK)
    is_column = scale is not None and scale.ndim == 2 and scale.shape[1] == 1
    out, input, gate = (tensor.view(-1, hidden) for tensor in (call.out, call.input, call.gate))
    block_m = rows_of_a_program(input, block, input.shape[0])
    num_warps = num_warps or min(max(block * block_m // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    return launch(_gated_rms_norm_kernel, (triton.cdiv(input.shape[0], block_m),), out, scale, input, gate, call.weight,
                  out.stride(0), input.stride(0), gate.stride(0), scale.stride(0) if is_column else 1, *input.shape,
                  real(call.epsilon), ROWS=block_m, BLOCK=block, IS_WHOLE=hidden <= block,
                  LARGEST=0.0 if scale is None else largest(out.dtype), options={"num_warps": num_warps})
