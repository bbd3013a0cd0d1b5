# SPDX-License-Identifier: MIT
"""RMSNorm fused with what stands beside it, in Triton; named by the operators of ops/norm/fused_qk_rmsnorm.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import await_stream, launch

_MAX_BLOCK = 8192  # elements that one program keeps in registers: 32 fp32 per lane at 4 waves of 64
_ELEMENTS, _PROGRAMS = 2048, 8  # of short rows that share a program; programs that each CU shall have


@triton.jit
def _fused_qk_rmsnorm_kernel(q_out, k_out, q, q_weight, q_eps, k, k_weight, k_eps, q_out_stride, k_out_stride, q_stride,
                             k_stride, q_rows, k_rows, q_hidden, k_hidden, Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr,
                             ROWS: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = x / sqrt(mean(x²) + epsilon) · weight for ROWS rows of q, or behind them of k, per program; bound: memory.
    """
    await_stream(OVERLAPS)
    index = tl.program_id(0)
    q_programs = tl.cdiv(q_rows, ROWS)
    if index < q_programs:
        _normed(q_out, q, q_weight, q_eps, q_out_stride, q_stride, index * ROWS, q_rows, q_hidden, ROWS, Q_BLOCK)
    else:
        _normed(k_out, k, k_weight, k_eps, k_out_stride, k_stride, (index - q_programs) * ROWS, k_rows, k_hidden, ROWS,
                K_BLOCK)


@triton.jit
def _normed(out, x, weight, epsilon, out_stride, x_stride, first, rows, hidden, ROWS: tl.constexpr,
            BLOCK: tl.constexpr):
    row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < hidden)
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    scaled = values * tl.rsqrt(tl.sum(values * values, 1) / hidden + epsilon)[:, None]
    w = tl.load(weight + column, mask=column < hidden, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, (scaled * w).to(out.dtype.element_ty), mask=mask)


def fused_qk_rmsnorm(q_out: torch.Tensor, k_out: torch.Tensor, q: torch.Tensor, q_weight: torch.Tensor, q_eps: float,
                     k: torch.Tensor, k_weight: torch.Tensor, k_eps: float, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `q_out` and `k_out`."""
    sizes = [q.shape[-1], k.shape[-1]]
    blocks = [triton.next_power_of_2(size) for size in sizes]
    q_out, k_out, q, k = (tensor.view(-1, tensor.shape[-1]) for tensor in (q_out, k_out, q, k))
    block_m = _rows_of_a_program(q, max(blocks), q.shape[0] + k.shape[0])
    num_warps = num_warps or min(max(max(blocks) * block_m // 512, 1), 16)  # at least 8 elements per lane on 64
    grid = triton.cdiv(q.shape[0], block_m) + triton.cdiv(k.shape[0], block_m)
    launch(_fused_qk_rmsnorm_kernel, (grid,), q_out, k_out, q, q_weight, float(q_eps), k, k_weight, float(k_eps),
           *(tensor.stride(0) for tensor in (q_out, k_out, q, k)), q.shape[0], k.shape[0], *sizes, Q_BLOCK=blocks[0],
           K_BLOCK=blocks[1], ROWS=block_m, options={"num_warps": num_warps})


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


def gated_rms_norm(out: torch.Tensor, scale: torch.Tensor | None, input: torch.Tensor, gate: torch.Tensor,
                   weight: torch.Tensor, epsilon: float, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out` and `scale`."""
    hidden = input.shape[-1]
    block = min(triton.next_power_of_2(hidden), _MAX_BLOCK)
    is_column = scale is not None and scale.ndim == 2 and scale.shape[1] == 1
    out, input, gate = (tensor.view(-1, hidden) for tensor in (out, input, gate))
    block_m = _rows_of_a_program(input, block, input.shape[0])
    num_warps = num_warps or min(max(block * block_m // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    launch(_gated_rms_norm_kernel, (triton.cdiv(input.shape[0], block_m),), out, scale, input, gate, weight,
           out.stride(0), input.stride(0), gate.stride(0), scale.stride(0) if is_column else 1, *input.shape,
           float(epsilon), ROWS=block_m, BLOCK=block, IS_WHOLE=hidden <= block,
           LARGEST=0.0 if scale is None else largest(out.dtype), options={"num_warps": num_warps})


def _rows_of_a_program(x: torch.Tensor, block: int, rows: int) -> int:
    """Short rows share a program where there are enough of them: one of 128 elements alone leaves its lanes idle."""
    count = min(_ELEMENTS // block, rows // (_PROGRAMS * target_of(x.device).cu_num))
    return 1 << max(count, 1).bit_length() - 1
