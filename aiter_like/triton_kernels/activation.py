# SPDX-License-Identifier: MIT
"""Gated activations in Triton: bodies and launchers, named by the operators of ops/activation.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.scales import DTYPES, largest
from aiter_like.triton_kernels import scales
from aiter_like.triton_kernels.launch import await_stream, launch

_MAX_BLOCK = 4096  # elements of a row that one program keeps in registers, gate and up
_TILE = 2048  # elements of out of one program: 8 per lane


@triton.jit
def _normal_cdf(x):
    """Φ(x) = (1 + erf(x / √2)) / 2, accurate in the lower tail too, where 1 + erf would cancel: as math.h has it."""
    t = 1.0 / (tl.abs(x) * 0.282842712 + 1.0)
    p = 0.0208722893 * t - 0.071313791
    p = p * t + 0.0442835987
    p = p * t + 0.0414843708
    p = p * t + 0.0415099785
    p = p * t + 0.0960455462
    p = p * t + 0.101098135
    p = p * t + 0.113201745
    p = p * t + 0.112818167
    tail = p * t * tl.exp(-0.5 * x * x)
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """act(x) in fp32; swiglu: x · sigmoid(1.702 x); gelu_tanh: 0.5 x (1 + tanh u) = x · sigmoid(2 u)."""
    if ACTIVATION == "silu":
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "swiglu":
        return x / (1.0 + tl.exp(-1.702 * x))
    elif ACTIVATION == "gelu":
        return x * _normal_cdf(x)
    else:
        return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def gated(gate, up, limit, ACTIVATION: tl.constexpr):
    """act(gate) · up, or · (up + 1) for swiglu; limit > 0 bounds gate from above, up on both sides; NaN stays."""
    bound = tl.where(limit > 0.0, limit, float("inf"))
    gate = tl.where(gate > bound, bound, gate)
    up = tl.where(up > bound, bound, tl.where(up < -bound, -bound, up))
    if ACTIVATION == "swiglu":
        up += 1.0
    return activated(gate, ACTIVATION) * up


@triton.jit
def _act_and_mul_kernel(out, x, scale, expert_ids, bias, out_stride, x_stride, bias_stride, rows, columns, num_experts,
                        limit, ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr, LARGEST: tl.constexpr,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = act(gate) · up for a tile of BLOCK_M rows × BLOCK_N columns; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (row < rows) & (column < columns)
    gate = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    if IS_GATED:
        up = tl.load(x + row * x_stride + column + columns, mask=mask, other=0.0).to(tl.float32)
        if bias is not None:
            expert = tl.load(expert_ids + row, mask=row < rows, other=-1)
            has_bias = mask & (expert >= 0) & (expert < num_experts)
            place = bias + expert.to(tl.int64) * bias_stride + column
            gate += tl.load(place, mask=has_bias, other=0.0).to(tl.float32)
            up += tl.load(place + columns, mask=has_bias, other=0.0).to(tl.float32)
        y = gated(gate, up, limit, ACTIVATION)
    else:
        y = activated(gate, ACTIVATION)
    if scale is not None:
        y *= scales.inverse_of(tl.load(scale))
    if LARGEST > 0:
        y = scales.quantised(y, out.dtype.element_ty, LARGEST)
    tl.store(out + row * out_stride + column, y.to(out.dtype.element_ty), mask=mask)


def act_and_mul(out: torch.Tensor, input: torch.Tensor, activation: str, is_gated: bool, limit: float,
                scale: torch.Tensor | None, expert_ids: torch.Tensor | None, bias: torch.Tensor | None,
                num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out`."""
    columns = out.shape[-1]
    y, x = out.view(-1, columns), input.view(-1, input.shape[-1])
    block_n = min(triton.next_power_of_2(columns), _TILE)
    block_m = max(1, min(_TILE // block_n, triton.next_power_of_2(y.shape[0])))
    grid = (triton.cdiv(y.shape[0], block_m), triton.cdiv(columns, block_n))
    top = largest(out.dtype) if out.dtype in DTYPES else 0.0
    launch(_act_and_mul_kernel, grid, y, x, scale, expert_ids, bias, y.stride(0), x.stride(0),
           0 if bias is None else bias.stride(0), y.shape[0], columns, 0 if bias is None else bias.shape[0],
           float(limit), ACTIVATION=activation, IS_GATED=is_gated, LARGEST=top, BLOCK_M=block_m, BLOCK_N=block_n,
           options={"num_warps": num_warps or _TILE // (8 * target_of(input.device).wave_size)})


@triton.jit
def _act_and_mul_quant_kernel(out, scale, x, weights, out_stride, x_stride, weights_stride, scale_stride, group_stride,
                              weight_step, columns, limit, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
                              IS_WHOLE: tl.constexpr, GROUP: tl.constexpr, LARGEST: tl.constexpr,
                              OVERLAPS: tl.constexpr):
    """act(gate) · up · weights quantised by row or by group, or as it is, one row per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    out += row * out_stride
    if weights is not None:
        weights += row * weights_stride
    operands = (x + row * x_stride, limit, weights, weight_step)
    if scale is not None:
        scales.quantise_row(out, scale + row * scale_stride, group_stride, columns, None, _gated, operands, ACTIVATION,
                            BLOCK, IS_WHOLE, GROUP, LARGEST)
    else:
        for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            y = _gated(column, columns, operands, ACTIVATION)
            tl.store(out + column, y.to(out.dtype.element_ty), mask=column < columns)


@triton.jit
def _gated(column, columns, operands, ACTIVATION: tl.constexpr):
    """act(gate) · up · weights in fp32; zeros beyond the row."""
    x, limit, weights, weight_step = operands
    gate = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    up = tl.load(x + columns + column, mask=column < columns, other=0.0).to(tl.float32)
    y = gated(gate, up, limit, ACTIVATION)
    if weights is not None:
        y *= tl.load(weights + column * weight_step, mask=column < columns, other=0.0).to(tl.float32)
    return y


def act_and_mul_quant(out: torch.Tensor, scale: torch.Tensor | None, input: torch.Tensor, activation: str, limit: float,
                      group_size: int, weights: torch.Tensor | None, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out` and `scale`."""
    columns = out.shape[-1]
    y, x = out.view(-1, columns), input.view(-1, 2 * columns)
    block = min(triton.next_power_of_2(columns), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    groups = columns // group_size if group_size else 1
    is_matrix = scale is not None and scale.ndim == 2 and scale.shape[1] == groups
    strides = scale.stride() if is_matrix else (groups, 1)
    is_each = weights is not None and weights.shape == out.shape  # else one per row, dense
    weights = weights.view(-1, columns if is_each else 1) if weights is not None else None
    launch(_act_and_mul_quant_kernel, (y.shape[0],), y, scale, x, weights, y.stride(0), x.stride(0),
           0 if weights is None else weights.stride(0), *strides, int(is_each), columns, float(limit),
           ACTIVATION=activation, BLOCK=block, IS_WHOLE=columns <= block, GROUP=group_size,
           LARGEST=0.0 if scale is None else largest(out.dtype), options={"num_warps": num_warps})
