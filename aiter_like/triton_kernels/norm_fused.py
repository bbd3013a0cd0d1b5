# SPDX-License-Identifier: MIT
"""RMSNorm fused with what stands beside it, in Triton; named by the operators of ops/norm_fused.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.triton_kernels.launch import launch


@triton.jit
def _fused_qk_rmsnorm_kernel(q_out, k_out, q, q_weight, q_eps, k, k_weight, k_eps, q_out_stride, k_out_stride, q_stride,
                             k_stride, q_rows, q_hidden, k_hidden, Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr):
    """out = x / sqrt(mean(x²) + epsilon) · weight for one row of q, then of k, per program; bound: memory."""
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
