# SPDX-License-Identifier: MIT
"""Triton kernels that bench_sim.py times on the simulator. Shapes are multiples of the tiles: no masks in the GEMM."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _gemm_kernel(a, b, out, N, K, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK)
    a_at = a + rows[:, None] * K + k[None, :]                # [BLOCK, BLOCK]
    b_at = b + k[:, None] * N + columns[None, :]             # [BLOCK, BLOCK]
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for _ in range(0, K, BLOCK):
        total = tl.dot(tl.load(a_at), tl.load(b_at), total)
        a_at += BLOCK
        b_at += BLOCK * N
    tl.store(out + rows[:, None] * N + columns[None, :], total.to(out.dtype.element_ty))


@triton.jit
def _softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    values = tl.load(x + row + at, at < columns, other=float("-inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + at, powers / tl.sum(powers, 0), at < columns)


def gemm(a: torch.Tensor, b: torch.Tensor, mfma: int) -> torch.Tensor:
    """`a` [M, K] times `b` [K, N] by MFMAs of `mfma` rows and columns, in tiles of 64."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype)
    _gemm_kernel[(m // 64, n // 64)](a, b, out, n, k, BLOCK=64, num_warps=4, matrix_instr_nonkdim=mfma)
    return out


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Of each row of `x` [rows, columns]."""
    out = torch.empty_like(x)
    _softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
