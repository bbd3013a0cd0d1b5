# SPDX-License-Identifier: MIT
"""RMSNorm fused with what stands beside it, in Triton; named by the operators of ops/norm_fused.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.scales import largest
from aiter_like.triton_kernels import scales
from aiter_like.triton_kernels.launch import await_stream, launch

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64


@triton.jit
def _fused_qk_rmsnorm_kernel(q_out, k_out, q, q_weight, q_eps, k, k_weight, k_eps, q_out_stride, k_out_stride, q_stride,
                             k_stride, q_rows, q_hidden, k_hidden, Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
                             OVERLAPS: tl.constexpr):
    """out = x / sqrt(mean(x²) + epsilon) · weight for one row of q, then of k, per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    if row < q_rows:
        _normed(q_out + row * q_out_stride, q + row * q_stride, q_weight, q_eps, q_hidden, Q_BLOCK)
    else:
        row -= q_rows
        _normed(k_out + row * k_out_stride, k + row * k_stride, k_weight, k_eps, k_hidden, K_BLOCK)


@triton.jit
def _normed(out, x, weight, epsilon, hidden, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    values = tl.load(x + column, mask=column < hidden, other=0.0).to(tl.float32)
    scaled = values * tl.rsqrt(tl.sum(values * values, 0) / hidden + epsilon)
    w = tl.load(weight + column, mask=column < hidden, other=0.0).to(tl.float32)
    tl.store(out + column, (scaled * w).to(out.dtype.element_ty), mask=column < hidden)


def fused_qk_rmsnorm(q_out: torch.Tensor, k_out: torch.Tensor, q: torch.Tensor, q_weight: torch.Tensor, q_eps: float,
                     k: torch.Tensor, k_weight: torch.Tensor, k_eps: float, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `q_out` and `k_out`."""
    sizes = [q.shape[-1], k.shape[-1]]
    blocks = [triton.next_power_of_2(size) for size in sizes]
    num_warps = num_warps or min(max(max(blocks) // 512, 1), 16)  # at least 8 elements per lane on a wave of 64
    q_out, k_out, q, k = (tensor.view(-1, tensor.shape[-1]) for tensor in (q_out, k_out, q, k))
    launch(_fused_qk_rmsnorm_kernel, (q.shape[0] + k.shape[0],), q_out, k_out, q, q_weight, float(q_eps), k, k_weight,
           float(k_eps), *(tensor.stride(0) for tensor in (q_out, k_out, q, k)), q.shape[0], *sizes, Q_BLOCK=blocks[0],
           K_BLOCK=blocks[1], options={"num_warps": num_warps})


@triton.jit
def _gated_rms_norm_kernel(out, scale, x, gate, weight, out_stride, x_stride, gate_stride, scale_stride, hidden,
                           epsilon, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr, LARGEST: tl.constexpr,
                           OVERLAPS: tl.constexpr):
    """y = x / sqrt(mean(x²) + epsilon) · weight · silu(gate), one row per program; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    out += row * out_stride
    x += row * x_stride
    gate += row * gate_stride
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        values = tl.load(x + start + columns, mask=start + columns < hidden, other=0.0).to(tl.float32)
        squares += values * values
    inverse_rms = tl.rsqrt(tl.sum(squares, 0) / hidden + epsilon)
    inverse = 1.0
    if scale is not None:
        most = tl.zeros([BLOCK], tl.float32)
        for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
            y = _gated(x, gate, weight, start + columns, hidden, inverse_rms)
            most = scales.larger(most, tl.abs(tl.where(start + columns < hidden, y, 0.0)))
        row_scale = scales.scale_of(scales.amax(most, 0), LARGEST)
        inverse = scales.inverse_of(row_scale)
        tl.store(scale + row * scale_stride, row_scale)
    for start in range(0, BLOCK if IS_WHOLE else hidden, BLOCK):
        column = start + columns
        y = _gated(x, gate, weight, column, hidden, inverse_rms)
        if scale is not None:
            tl.store(out + column, scales.quantised(y * inverse, out.dtype.element_ty, LARGEST), mask=column < hidden)
        else:
            tl.store(out + column, y.to(out.dtype.element_ty), mask=column < hidden)


@triton.jit
def _gated(x, gate, weight, column, hidden, inverse_rms):
    """The normalised row times weight and silu(gate); the compiler loads x and gate of a whole row once."""
    values = tl.load(x + column, mask=column < hidden, other=0.0).to(tl.float32)
    z = tl.load(gate + column, mask=column < hidden, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=column < hidden, other=0.0).to(tl.float32)
    return values * inverse_rms * w * (z / (1.0 + tl.exp(-z)))


def gated_rms_norm(out: torch.Tensor, scale: torch.Tensor | None, input: torch.Tensor, gate: torch.Tensor,
                   weight: torch.Tensor, epsilon: float, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out` and `scale`."""
    hidden = input.shape[-1]
    block = min(triton.next_power_of_2(hidden), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    is_column = scale is not None and scale.ndim == 2 and scale.shape[1] == 1
    out, input, gate = (tensor.view(-1, hidden) for tensor in (out, input, gate))
    launch(_gated_rms_norm_kernel, (input.shape[0],), out, scale, input, gate, weight, out.stride(0), input.stride(0),
           gate.stride(0), scale.stride(0) if is_column else 1, hidden, float(epsilon), BLOCK=block,
           IS_WHOLE=hidden <= block, LARGEST=0.0 if scale is None else largest(out.dtype),
           options={"num_warps": num_warps})
