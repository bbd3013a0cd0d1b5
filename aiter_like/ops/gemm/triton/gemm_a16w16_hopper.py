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
_SUM_BLOCK = 512  # elements of a row that a program adds up


@triton.jit
def _finish(product, out, bias, residual, row, column, rows, columns, out_row, out_column, residual_row,
            residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr):
    """out = act(product + bias) + residual at rows and columns that broadcast to the product's shape."""
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
        group = tile // (GROUP * blocks_n)
        height = tl.minimum(blocks_m - group * GROUP, GROUP)
        inside = tile % (GROUP * blocks_n)
        first_row, first_column = (group * GROUP + inside % height) * BLOCK_M, inside // height * BLOCK_N
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
            _finish(product, out, bias, residual, row, column, rows, columns, out_row, out_column, residual_row,
                    residual_column, ACTIVATION, IS_BF16)


@triton.jit
def _sum_kernel(partials, out, bias, residual, rows, columns, out_row, out_column, residual_row, residual_column,
                ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
                OVERLAPS: tl.constexpr):
    """Adds the partial sums of BLOCK elements of a row up, in the order of the splits, and finishes them."""
    await_stream(OVERLAPS)
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    product = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        at = partials + (split * rows + row) * columns + column
        product += tl.load(at, mask=column < columns, other=0.0)
    _finish(product, out, bias, residual, row, column, rows, columns, out_row, out_column, residual_row,
            residual_column, ACTIVATION, IS_BF16)


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
           *strides, SWAP=is_swapped, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=_GROUP, **constants,
           options={"num_warps": num_warps, "num_stages": num_stages})
    if splits > 1:
        launch(_sum_kernel, (triton.cdiv(n, _SUM_BLOCK), m), partials, call.out, call.bias, call.residual, m, n,
               *strides, BLOCK=_SUM_BLOCK, **constants, options={"num_warps": 4})
