# SPDX-License-Identifier: MIT
"""Gated activations in Triton, named by the operator of ops/activation/act_and_mul.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.activation.act_and_mul import ActAndMulCall
from aiter_like.ops.activation.triton.parts import activated, gated
from aiter_like.ops.common.quant_rule import DTYPES, largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real

_TILE = 2048  # elements of out of one program: 8 per lane
_MAX_GRID = 65535  # programs along the second and third dimension


@triton.jit
def _act_and_mul_kernel(out, x, scale, expert_ids, bias, out_stride, x_stride, bias_stride, rows, columns, num_experts,
                        limit, ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr, LARGEST: tl.constexpr,
                        IS_BF16: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = act(gate) · up for BLOCK_M rows × BLOCK_N columns; bound: memory. A row's tiles follow one another."""
    await_stream(OVERLAPS)
    first = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * BLOCK_M
    row = tl.arange(0, BLOCK_M)[:, None].to(tl.int64)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (row < rows - first) & (column < columns)
    x += first * x_stride
    out += first * out_stride
    gate = tl.load(x + row * x_stride + column, mask=mask).to(tl.float32)
    if IS_GATED:
        up = tl.load(x + columns + row * x_stride + column, mask=mask).to(tl.float32)
        if bias is not None:
            expert = tl.load(expert_ids + first + row, mask=row < rows - first, other=-1)
            has_bias = mask & (expert >= 0) & (expert < num_experts)
            place = bias + expert.to(tl.int64) * bias_stride + column
            gate += tl.load(place, mask=has_bias, other=0.0).to(tl.float32)
            up += tl.load(place + columns, mask=has_bias, other=0.0).to(tl.float32)
        y = gated(gate, up, limit, ACTIVATION, IS_BF16)
    else:
        y = activated(gate, ACTIVATION, IS_BF16)
    if scale is not None:
        y *= quant_rule.inverse_of(tl.load(scale))
    if LARGEST > 0:
        y = quant_rule.quantised(y, out.dtype.element_ty, LARGEST)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=mask)


def act_and_mul(call: ActAndMulCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `out`, with Triton's `num_warps`."""
    out, bias, columns = call.out, call.bias, call.out.shape[-1]
    y, x = out.view(-1, columns), call.input.view(-1, call.input.shape[-1])
    block_n = min(power_of_2(columns), _TILE)
    block_m = max(1, min(_TILE // block_n, power_of_2(y.shape[0])))
    blocks = triton.cdiv(y.shape[0], block_m)
    grid = (triton.cdiv(columns, block_n), min(blocks, _MAX_GRID), triton.cdiv(blocks, _MAX_GRID))
    top = largest(out.dtype) if out.dtype in DTYPES else 0.0
    return launch(_act_and_mul_kernel, grid, y, x, call.scale, call.expert_ids, bias, y.stride(0), x.stride(0),
                  0 if bias is None else bias.stride(0), y.shape[0], columns, 0 if bias is None else bias.shape[0],
                  real(call.limit) or None, ACTIVATION=call.activation, IS_GATED=call.is_gated, LARGEST=top,
                  IS_BF16=out.dtype == torch.bfloat16, BLOCK_M=block_m, BLOCK_N=block_n,
                  options={"num_warps": num_warps or _TILE // (8 * target_of(call.input.device).wave_size)})
