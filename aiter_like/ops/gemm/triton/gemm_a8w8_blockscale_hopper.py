# SPDX-License-Identifier: MIT
"""gemm_a8w8_blockscale on Hopper: operands by TMA, programs that go on from tile to tile. Launched by
gemm_a8w8_blockscale.py.

The product of a block of the depth stands in registers of its own until it is scaled and added, which leaves room for
sums of 128 × 256 elements but for no product of as many: such a tile is computed in two halves. What is read again from
the L2 for each tile bounds a large product. The matrix unit wants 64 rows on its left: where `a` has fewer, the weights
stand there (SWAP) and the tile of out is computed transposed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from aiter_like.device import Target
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, scratch
from aiter_like.ops.gemm.gemm_a8w8_blockscale import BLOCK, GemmA8w8BlockscaleCall, hopper_stages
from aiter_like.ops.gemm.triton.hopper import SUM_ELEMENTS, placed, sum_tiles_kernel
from aiter_like.ops.gemm.triton.parts import GROUP, finish, tile_place

_STEP = tl.constexpr(BLOCK)


@triton.jit
def _added(sums):
    """`sums`, added up before what follows: else the compiler puts the additions of both halves behind both products,
    whose registers are then needed at once, and some of them spill."""
    return tl.inline_asm_elementwise("mov.f32 $0, $1;", "=f,f", [sums], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def _store(sums, out, partials, split_tile, row, column, first_row, first_column, rows, columns, out_row, out_column,
           IS_BF16: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes the sums of rows and columns of a tile to out or, of a part of the depth, to partials."""
    if SPLITS > 1 and split_tile >= 0:
        at = partials + split_tile.to(tl.int64) * (BLOCK_M * BLOCK_N) + row * BLOCK_N + column
        tl.store(at, sums, mask=row < rows - first_row)
    else:
        finish(sums, out, None, None, None, None, first_row + row, first_column + column, rows, columns, out_row,
               out_column, 0, 0, "none", IS_BF16)


@triton.jit
def _gemm_a8w8_blockscale_hopper_kernel(a, b, a_scale, b_scale, out, partials, rows, columns, depth, whole, out_row,
                                        out_column, a_scale_row, a_scale_block, b_scale_column, b_scale_block,
                                        IS_BF16: tl.constexpr, SWAP: tl.constexpr, SPLITS: tl.constexpr,
                                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
                                        OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out at a time; bound: what the L2 gives, or memory. With SPLITS > 1 the tiles from
    number `whole` on are split: the sums over a part of the depth each go to partials [SPLITS, tiles − whole, BLOCK_M,
    BLOCK_N]."""
    await_stream(OVERLAPS)
    IS_WIDE: tl.constexpr = BLOCK_N > _STEP
    WIDTH: tl.constexpr = _STEP if IS_WIDE else BLOCK_N
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    tiles, steps = blocks_m * blocks_n, tl.cdiv(depth, _STEP)
    rest = tiles - whole
    # Both loops become one where all tiles have the same steps, and loads go on from tile to tile; that would take more
    # registers than a wide tile leaves.
    for index in tl.range(tl.program_id(0), whole + rest * SPLITS, tl.num_programs(0), flatten=not IS_WIDE):
        tile, split_tile, first, end = index, index - whole, 0, steps
        if SPLITS > 1:
            split = tl.where(index < whole, 0, split_tile // rest)
            tile -= split * rest
            first = tl.where(index < whole, 0, steps * split // SPLITS)
            end = tl.where(index < whole, steps, steps * (split + 1) // SPLITS)
        block_row, block_column = tile_place(tile, blocks_m, blocks_n, GROUP)
        first_row, first_column = block_row * BLOCK_M, block_column * BLOCK_N
        a_scale_at = a_scale + first_row.to(tl.int64) * a_scale_row
        b_scale_at = b_scale + (first_column // _STEP).to(tl.int64) * b_scale_column
        if SPLITS > 1:
            a_scale_at += first.to(tl.int64) * a_scale_block
            b_scale_at += first.to(tl.int64) * b_scale_block
        last_row = rows - first_row - 1  # TMA reads zeros past the edges: a scale of another row or column does no harm
        next_column = tl.where(first_column + _STEP < columns, b_scale_column, 0)
        if SWAP:
            sums = tl.zeros((WIDTH, BLOCK_M), tl.float32)
        else:
            sums = tl.zeros((BLOCK_M, WIDTH), tl.float32)
        if IS_WIDE:
            more = tl.zeros((BLOCK_M, WIDTH), tl.float32)
        for step in range(first, end):
            row = tl.minimum(tl.arange(0, BLOCK_M), last_row)  # made here, it need not be kept from step to step
            a_now, b_now = tl.load(a_scale_at + row * a_scale_row), tl.load(b_scale_at)
            left, right = a.load([first_row, step * _STEP]), b.load([first_column, step * _STEP])
            if SWAP:
                sums += tl.dot(right, left.T) * (a_now * b_now)[None, :]
            else:
                sums += tl.dot(left, right.T) * (a_now * b_now)[:, None]
            if IS_WIDE:
                sums = _added(sums)
                b_now = tl.load(b_scale_at + next_column)
                right = b.load([first_column + _STEP, step * _STEP])
                more += tl.dot(left, right.T) * (a_now * b_now)[:, None]
            a_scale_at += a_scale_block
            b_scale_at += b_scale_block
        row, column = placed(tl.arange(0, BLOCK_M), tl.arange(0, WIDTH), SWAP)
        _store(sums, out, partials, split_tile, row, column, first_row, first_column, rows, columns, out_row,
               out_column, IS_BF16, SPLITS, BLOCK_M, BLOCK_N)
        if IS_WIDE:
            _store(more, out, partials, split_tile, row, column + _STEP, first_row, first_column, rows, columns,
                   out_row, out_column, IS_BF16, SPLITS, BLOCK_M, BLOCK_N)


def multiply(call: GemmA8w8BlockscaleCall, target: Target, *, block_m: int, block_n: int, num_warps: int,
             num_stages: int, swap: int, splits: int) -> tuple[Launch, ...]:
    """The launches that write `out`, by as many programs as the SMs hold: one of 8 warps, or two of 4 where shared
    memory suffices. Tiles that do not fill all SMs at the end have their depth split in `splits`, which a second kernel
    adds up."""
    (m, k), n, out = call.a.shape, call.b.shape[0], call.out
    a, b = (TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, BLOCK])
            for matrix, rows in ((call.a, block_m), (call.b, min(block_n, BLOCK))))
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    whole = tiles // target.cu_num * target.cu_num if splits > 1 else tiles
    rest = tiles - whole if splits > 1 else 0
    splits = splits if rest else 1
    partials = scratch((splits, rest, block_m, block_n), torch.float32, out) if rest else None
    fits = hopper_stages(block_m, block_n, num_warps, splits, out.element_size())
    programs = min(whole + rest * splits, target.cu_num * (8 // num_warps if num_stages <= fits else 1))
    strides, constants = out.stride(), {"IS_BF16": out.dtype == torch.bfloat16, "SPLITS": splits, "GROUP": GROUP}
    constants |= {"BLOCK_M": block_m, "BLOCK_N": block_n}
    product = launch(
        _gemm_a8w8_blockscale_hopper_kernel, (programs,), a, b, call.a_scale, call.b_scale, out, partials, m, n, k,
        whole, *strides, *call.a_scale.stride(), *call.b_scale.stride(), SWAP=bool(swap), **constants,
        options={"num_warps": num_warps, "num_stages": num_stages})
    if not rest:
        return (product,)
    rows = min(block_m, max(SUM_ELEMENTS // block_n, 1))
    return product, launch(
        sum_tiles_kernel, (rest, block_m // rows), partials, out, None, None, None, None, m, n, whole, *strides, 0, 0,
        ACTIVATION="none", ROW_SCALES=False, COLUMN_SCALES=False, ROWS=rows, **constants, options={"num_warps": 4})
