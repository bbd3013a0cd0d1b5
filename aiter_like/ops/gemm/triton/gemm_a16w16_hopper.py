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
from aiter_like.ops.common.triton.launch import await_stream, launch
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.gemm.triton.parts import GROUP, SUM_BLOCK, finish, sum_kernel, tile_place


@triton.jit
def _gemm_a16w16_hopper_kernel(a, b, out, bias, residual, partials, rows, columns, depth, out_row, out_column,
                               residual_row, residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr,
                               SWAP: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                               BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = act(a · bᵀ + bias) + residual, BLOCK_M × BLOCK_N elements at a time; bound: the matrix units, or memory.
    With SPLITS > 1 the sums over a part of the depth each go to partials [SPLITS, rows, columns]."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    tiles, steps = blocks_m * blocks_n, tl.cdiv(depth, BLOCK_K)
    for index in tl.range(tl.program_id(0), tiles * SPLITS, tl.num_programs(0), flatten=True):
        tile, split = index % tiles, index // tiles
        block_row, block_column = tile_place(tile, blocks_m, blocks_n, GROUP)
        first_row, first_column = block_row * BLOCK_M, block_column * BLOCK_N
        if SWAP:
            product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        else:
            product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(steps * split // SPLITS, steps * (split + 1) // SPLITS):
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
        if SPLITS > 1:
            at = partials + (split.to(tl.int64) * rows + row) * columns + column
            tl.store(at, product, mask=(row < rows) & (column < columns))
        else:
            finish(product, out, None, None, bias, residual, row, column, rows, columns, out_row, out_column,
                   residual_row, residual_column, ACTIVATION, IS_BF16)


def multiply(call: GemmA16w16Call, blocks: tuple[int, int, int], num_warps: int, num_stages: int, is_swapped: bool,
             splits: int, target: Target) -> None:
    """Writes `out`, in blocks of (rows, columns, depth); at most a program for each SM. `splits` parts of the depth are
    added up by a second kernel."""
    (m, k), n = call.a.shape, call.b.shape[0]
    block_m, block_n, block_k = blocks
    a, b = (TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, block_k])
            for matrix, rows in ((call.a, block_m), (call.b, block_n)))
    partials = torch.empty(splits, m, n, dtype=torch.float32, device=call.a.device) if splits > 1 else None
    programs = min(triton.cdiv(m, block_m) * triton.cdiv(n, block_n) * splits, target.cu_num)
    strides = (*call.out.stride(), *((0, 0) if call.residual is None else call.residual.stride()))
    constants = {"ACTIVATION": call.activation, "IS_BF16": call.out.dtype == torch.bfloat16, "SPLITS": splits}
    launch(_gemm_a16w16_hopper_kernel, (programs,), a, b, call.out, call.bias, call.residual, partials, m, n, k,
           *strides, SWAP=is_swapped, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=GROUP, **constants,
           options={"num_warps": num_warps, "num_stages": num_stages})
    if splits > 1:
        launch(sum_kernel, (triton.cdiv(n, SUM_BLOCK), m), partials, call.out, None, None, call.bias, call.residual, m,
               n, *strides, BLOCK=SUM_BLOCK, **constants, options={"num_warps": 4})
