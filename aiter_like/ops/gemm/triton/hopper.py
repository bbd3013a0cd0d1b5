# SPDX-License-Identifier: MIT
"""A matrix product on Hopper: operands by TMA, programs that go on from tile to tile. Launched by the files beside it.

The matrix unit wants 64 rows on its left. Where `a` has fewer, the weights stand there (SWAP) and the tile of out is
computed transposed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from aiter_like.device import Target
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, scratch
from aiter_like.ops.gemm.hopper import Blocks
from aiter_like.ops.gemm.triton.parts import GROUP, finish, tile_place

SUM_ELEMENTS = 1024  # elements of a tile that a program of sum_tiles_kernel adds up


@triton.jit
def add_products(product, left, right, SWAP: tl.constexpr, ROUGH: tl.constexpr):
    """product + left · rightᵀ, or its transpose."""
    if SWAP:
        return tl.dot(right, left.T, product, max_num_imprecise_acc=ROUGH, out_dtype=product.dtype)
    else:
        return tl.dot(left, right.T, product, max_num_imprecise_acc=ROUGH, out_dtype=product.dtype)


@triton.jit
def placed(row, column, SWAP: tl.constexpr):
    """Rows and columns of out that broadcast to the shape of a product."""
    if SWAP:
        return row[None, :], column[:, None]
    else:
        return row[:, None], column[None, :]


@triton.jit
def _hopper_kernel(a, b, out, row_scale, column_scale, bias, residual, partials, rows, columns, depth, whole, out_row,
                   out_column, residual_row, residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr,
                   ROW_SCALES: tl.constexpr, COLUMN_SCALES: tl.constexpr, IS_INTEGER: tl.constexpr,
                   ROUGH: tl.constexpr, SWAP: tl.constexpr, SPLITS: tl.constexpr, IS_GATED: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                   OVERLAPS: tl.constexpr):
    """out = act(a · bᵀ · scales + bias) + residual, BLOCK_M × BLOCK_N elements at a time; bound: the matrix units, or
    memory. The matrix unit adds up to ROUGH products of fp8 in a row, with few bits (None: all).
    With SPLITS > 1 the tiles from number `whole` on are split: the sums over a part of the depth each go to
    partials [SPLITS, tiles − whole, BLOCK_M, BLOCK_N]. With IS_GATED b has the rows of gate, then those of up: out =
    act(gate) · up + residual, and partials have two tiles instead of one."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    tiles, steps = blocks_m * blocks_n, tl.cdiv(depth, BLOCK_K)
    rest = tiles - whole
    # One loop of both lets loads go on from tile to tile, but with two sums Triton then waits for each product.
    for index in tl.range(tl.program_id(0), whole + rest * SPLITS, tl.num_programs(0), flatten=not IS_GATED):
        tile, first_step, end_step = index, 0, steps
        if SPLITS > 1:
            split = tl.where(index < whole, 0, (index - whole) // rest)
            tile -= split * rest
            first_step = tl.where(index < whole, 0, steps * split // SPLITS)
            end_step = tl.where(index < whole, steps, steps * (split + 1) // SPLITS)
        block_row, block_column = tile_place(tile, blocks_m, blocks_n, GROUP)
        first_row, first_column = block_row * BLOCK_M, block_column * BLOCK_N
        if SWAP:
            product = tl.zeros((BLOCK_N, BLOCK_M), tl.int32 if IS_INTEGER else tl.float32)
        else:
            product = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if IS_INTEGER else tl.float32)
        up = tl.zeros_like(product)
        for k in range(first_step, end_step):
            left, right = a.load([first_row, k * BLOCK_K]), b.load([first_column, k * BLOCK_K])
            product = add_products(product, left, right, SWAP, ROUGH)
            if IS_GATED:
                up = add_products(up, left, b.load([columns + first_column, k * BLOCK_K]), SWAP, ROUGH)
        row, column = placed(tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), SWAP)
        if SPLITS > 1 and index >= whole:
            number = (index - whole).to(tl.int64) * (2 if IS_GATED else 1)
            at = partials + number * (BLOCK_M * BLOCK_N) + row * BLOCK_N + column
            tl.store(at, product, mask=row < rows - first_row)
            if IS_GATED:
                tl.store(at + BLOCK_M * BLOCK_N, up, mask=row < rows - first_row)
        else:
            finish(product, out, row_scale, column_scale, bias, residual, first_row + row, first_column + column, rows,
                   columns, out_row, out_column, residual_row, residual_column, ACTIVATION, IS_BF16, ROW_SCALES,
                   COLUMN_SCALES, up if IS_GATED else None)


@triton.jit
def sum_tiles_kernel(partials, out, row_scale, column_scale, bias, residual, rows, columns, whole, out_row, out_column,
                residual_row, residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr,
                ROW_SCALES: tl.constexpr, COLUMN_SCALES: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
                BLOCK_N: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr,
                IS_GATED: tl.constexpr = False):
    """Adds the partial sums of ROWS rows of a tile from number `whole` on up, in the order of the splits, and finishes
    them. Launched over (tiles − whole, BLOCK_M / ROWS)."""
    await_stream(OVERLAPS)
    block_row, block_column = tile_place(whole + tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N),
                                         GROUP)
    inside = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    row = block_row * BLOCK_M + inside
    column = tl.arange(0, BLOCK_N)[None, :]
    product = tl.zeros((ROWS, BLOCK_N), partials.dtype.element_ty)
    up = tl.zeros_like(product)
    for split in tl.static_range(SPLITS):
        tile = (split * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * (2 if IS_GATED else 1)
        at = partials + tile * (BLOCK_M * BLOCK_N) + inside * BLOCK_N + column
        product += tl.load(at, mask=row < rows, other=0)
        if IS_GATED:
            up += tl.load(at + BLOCK_M * BLOCK_N, mask=row < rows, other=0)
    finish(product, out, row_scale, column_scale, bias, residual, row, block_column * BLOCK_N + column, rows, columns,
           out_row, out_column, residual_row, residual_column, ACTIVATION, IS_BF16, ROW_SCALES, COLUMN_SCALES,
           up if IS_GATED else None)


class Finish(NamedTuple):
    """Steps that follow a · bᵀ, in this order; `finish` in parts.py.

    Attributes:
        a_scale, b_scale: one fp32 number, or one for each row of out and each column.
        bias: [columns].
        activation: one of ops/gemm/parts.py's ACTIVATIONS.
        residual: [rows, columns].
        is_gated: the rows of b are those of gate, then of up: the activation is gate's, and up is multiplied in.
    """

    a_scale: Tensor | None = None
    b_scale: Tensor | None = None
    bias: Tensor | None = None
    activation: str = "none"
    residual: Tensor | None = None
    is_gated: bool = False


def multiply(out: Tensor, a: Tensor, b: Tensor, then: Finish, blocks: Blocks, target: Target,
             rough: int | None = None) -> tuple[Launch, ...]:
    """The launches that write `out` [rows, columns], from a [rows, depth] and b [columns, depth], or [2 · columns,
    depth] if gated, with at most a program for each SM. Tiles that do not fill all SMs at the end have their depth
    split, which a second kernel adds up."""
    block_m, block_n, block_k, num_warps, num_stages, swap, splits = blocks
    (m, k), n = a.shape, out.shape[1]
    left, right = (TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, block_k])
                   for matrix, rows in ((a, block_m), (b, block_n)))
    sum_dtype = torch.int32 if a.dtype == torch.int8 else torch.float32
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    whole = tiles // target.cu_num * target.cu_num if splits > 1 else tiles
    rest = tiles - whole if splits > 1 else 0
    splits = splits if rest else 1
    sums = splits * rest * (2 if then.is_gated else 1)
    partials = scratch((sums, block_m, block_n), sum_dtype, a) if rest else None
    programs = min(whole + rest * splits, target.cu_num)
    strides = (*out.stride(), *((0, 0) if then.residual is None else then.residual.stride()))
    added = (then.a_scale, then.b_scale, then.bias, then.residual)
    constants = {"ACTIVATION": then.activation, "IS_BF16": out.dtype == torch.bfloat16, "SPLITS": splits,
                 "IS_GATED": then.is_gated,
                 "ROW_SCALES": then.a_scale is None or then.a_scale.numel() > 1,
                 "COLUMN_SCALES": then.b_scale is None or then.b_scale.numel() > 1}
    product = launch(
        _hopper_kernel, (programs,), left, right, out, *added, partials, m, n, k, whole, *strides,
        IS_INTEGER=sum_dtype == torch.int32, ROUGH=rough, SWAP=bool(swap), BLOCK_M=block_m, BLOCK_N=block_n,
        BLOCK_K=block_k, GROUP=GROUP, **constants, options={"num_warps": num_warps, "num_stages": num_stages})
    if not rest:
        return (product,)
    rows = min(block_m, max(SUM_ELEMENTS // block_n, 1))
    return product, launch(
        sum_tiles_kernel, (rest, block_m // rows), partials, out, *added, m, n, whole, *strides, BLOCK_M=block_m,
        BLOCK_N=block_n, ROWS=rows, GROUP=GROUP, **constants, options={"num_warps": 4})
