# SPDX-License-Identifier: MIT
"""RMSNorm of queries and keys in Triton, named by the operator of ops/norm/fused_qk_rmsnorm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, real
from aiter_like.ops.norm.fused_qk_rmsnorm import FusedQkRmsnormCall
from aiter_like.ops.norm.triton.parts import rows_of_a_program


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


def fused_qk_rmsnorm(call: FusedQkRmsnormCall, num_warps: int | None = None) -> Launch:
    """The launch that writes `q_out` and `k_out`, with Triton's `num_warps`."""
    sizes = [call.q.shape[-1], call.k.shape[-1]]
    blocks = [power_of_2(size) for size in sizes]
    q_out, k_out, q, k = (tensor.view(-1, tensor.shape[-1]) for tensor in (call.q_out, call.k_out, call.q, call.k))
    block_m = rows_of_a_program(q, max(blocks), q.shape[0] + k.shape[0])
    num_warps = num_warps or min(max(max(blocks) * block_m // 512, 1), 16)  # at least 8 elements per lane on 64
    grid = triton.cdiv(q.shape[0], block_m) + triton.cdiv(k.shape[0], block_m)
    return launch(_fused_qk_rmsnorm_kernel, (grid,), q_out, k_out, q, call.q_weight, real(call.q_eps), k, call.k_weight,
                  real(call.k_eps), *(tensor.stride(0) for tensor in (q_out, k_out, q, k)), q.shape[0], k.shape[0],
                  *sizes, Q_BLOCK=blocks[0], K_BLOCK=blocks[1], ROWS=block_m, options={"num_warps": num_warps})
