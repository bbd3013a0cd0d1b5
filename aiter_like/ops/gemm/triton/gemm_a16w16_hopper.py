# SPDX-License-Identifier: MIT
"""gemm_a16w16 on Hopper: operands by TMA, programs that go on from tile to tile. Launched by gemm_a16w16.py.

The matrix unit wants 64 rows on its left. Where `a` has fewer, the weights stand there (SWAP) and the tile of out is
computed transposed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from aiter_like.device import Target
from aiter_like.ops.activation.triton.act_and_mul import activated
from aiter_like.ops.common.triton.launch import await_stream, launch
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call

_GROUP = 8  # blocks of rows that are computed side by side, so that what is in the L2 at a time is about square


@triton.jit
def _gemm_a16w16_hopper_kernel(a, b, out, bias, residual, rows, columns, depth, out_row, out_column, residual_row,
                               residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr, SWAP: tl.constexpr,
                               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                               OVERLAPS: tl.constexpr):
    """out = act(a · bᵀ + bias) + residual, BLOCK_M × BLOCK_N elements at a time; bound: the matrix units, or memory."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    for tile in tl.range(tl.program_id(0), blocks_m * blocks_n, tl.num_programs(0), flatten=True):
        group = tile // (GROUP * blocks_n)
        height = tl.minimum(blocks_m - group * GROUP, GROUP)
        inside = tile % (GROUP * blocks_n)
        first_row, first_column = (group * GROUP + inside % height) * BLOCK_M, inside // height * BLOCK_N
        if SWAP:
            product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        else:
            product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, tl.cdiv(depth, BLOCK_K)):
            left, right = a.load([first_row, k * BLOCK_K]), b.load([first_column, k * BLOCK_K])
            if SWAP:
                product = tl.dot(right, left.T, product)
            else:
                product = tl.dot(left, right.T, product)
        row, column = first_row + tl.arange(0, BLOCK_M), first_column + tl.arange(0, BLOCK_N)
        if SWAP:
            row, column = row[None, :], column[:, None]
        else:
            row, column = row[:, None], column[None, :]
        if bias is not None:
            product += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
        if ACTIVATION != "none":
            product = activated(product, ACTIVATION, IS_BF16)
        mask = (row < rows) & (column < columns)
        row, column = row.to(tl.int64), column.to(tl.int64)
        if residual is not None:
            residual_at = residual + row * residual_row + column * residual_column
            product += tl.load(residual_at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + row * out_row + column * out_column, product.to(out.dtype.element_ty), mask=mask)


def multiply(call: GemmA16w16Call, blocks: tuple[int, int, int], num_warps: int, num_stages: int, is_swapped: bool,
             target: Target) -> None:
    """Writes `out`, in blocks of (rows, columns, depth); at most a program for each SM."""
    (m, k), n = call.a.shape, call.b.shape[0]
    block_m, block_n, block_k = blocks
    a, b = (TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, block_k])
            for matrix, rows in ((call.a, block_m), (call.b, block_n)))
    programs = min(triton.cdiv(m, block_m) * triton.cdiv(n, block_n), target.cu_num)
    residual_strides = (0, 0) if call.residual is None else call.residual.stride()
    launch(_gemm_a16w16_hopper_kernel, (programs,), a, b, call.out, call.bias, call.residual, m, n, k,
           *call.out.stride(), *residual_strides, ACTIVATION=call.activation, IS_BF16=call.out.dtype == torch.bfloat16,
           SWAP=is_swapped, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=_GROUP,
           options={"num_warps": num_warps, "num_stages": num_stages})
