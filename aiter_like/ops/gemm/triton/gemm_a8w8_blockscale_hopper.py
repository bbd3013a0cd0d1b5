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
from aiter_like.ops.common.triton.launch import await_stream, launch
from aiter_like.ops.gemm.gemm_a8w8_blockscale import BLOCK, GemmA8w8BlockscaleCall, hopper_stages
from aiter_like.ops.gemm.triton.parts import GROUP, SUM_BLOCK, finish, sum_kernel, tile_place

_STEP = tl.constexpr(BLOCK)


@triton.jit
def _store(sums, out, partials, split, row, column, rows, columns, out_row, out_column, SWAP: tl.constexpr,
           SPLITS: tl.constexpr, IS_BF16: tl.constexpr):
    """Writes the sums of `row` × `column` to out, or, of a part of the depth, to partials."""
    if SWAP:
        row, column = row[None, :], column[:, None]
    else:
        row, column = row[:, None], column[None, :]
    if SPLITS > 1:
        at = partials + (split.to(tl.int64) * rows + row) * columns + column
        tl.store(at, sums, mask=(row < rows) & (column < columns))
    else:
        finish(sums, out, None, None, None, None, row, column, rows, columns, out_row, out_column, 0, 0, "none",
               IS_BF16)


@triton.jit
def _gemm_a8w8_blockscale_hopper_kernel(a, b, a_scale, b_scale, out, partials, rows, columns, depth, out_row,
                                        out_column, a_scale_row, a_scale_block, b_scale_column, b_scale_block,
                                        IS_BF16: tl.constexpr, SWAP: tl.constexpr, SPLITS: tl.constexpr,
                                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
                                        OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out at a time; bound: what the L2 gives, or memory. With SPLITS > 1 the sums over a
    part of the depth each go to partials [SPLITS, rows, columns]."""
    await_stream(OVERLAPS)
    IS_WIDE: tl.constexpr = BLOCK_N > _STEP
    WIDTH: tl.constexpr = _STEP if IS_WIDE else BLOCK_N
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    tiles, blocks = blocks_m * blocks_n, tl.cdiv(depth, _STEP)
    steps = tl.cdiv(blocks, SPLITS)  # of each split: only where all have the same do both loops become one
    for index in tl.range(tl.program_id(0), tiles * SPLITS, tl.num_programs(0), flatten=True):
        tile, split = index % tiles, index // tiles
        block_row, block_column = tile_place(tile, blocks_m, blocks_n, GROUP)
        first_row, first_column = block_row * BLOCK_M, block_column * BLOCK_N
        a_scale_at = a_scale + first_row.to(tl.int64) * a_scale_row
        b_scale_at = b_scale + (first_column // _STEP).to(tl.int64) * b_scale_column
        if SWAP:
            sums = tl.zeros((WIDTH, BLOCK_M), tl.float32)
        else:
            sums = tl.zeros((BLOCK_M, WIDTH), tl.float32)
        if IS_WIDE:
            more = tl.zeros((BLOCK_M, WIDTH), tl.float32)
        for step in range(0, steps):
            block = split * steps + step
            is_inside = block < blocks  # past the depth TMA reads zeros
            row = tl.arange(0, BLOCK_M)  # of the tile: what is made here need not be kept from step to step
            a_now = tl.load(a_scale_at + block.to(tl.int64) * a_scale_block + row * a_scale_row,
                            mask=(row < rows - first_row) & is_inside, other=0.0)
            b_now = tl.load(b_scale_at + block * b_scale_block, mask=is_inside, other=0.0)
            left, right = a.load([first_row, block * _STEP]), b.load([first_column, block * _STEP])
            if SWAP:
                sums += tl.dot(right, left.T) * (a_now * b_now)[None, :]
            else:
                sums += tl.dot(left, right.T) * (a_now * b_now)[:, None]
            if IS_WIDE:
                is_there = is_inside & (first_column + _STEP < columns)
                b_now = tl.load(b_scale_at + b_scale_column + block * b_scale_block, mask=is_there, other=0.0)
                right = b.load([first_column + _STEP, block * _STEP])
                more += tl.dot(left, right.T) * (a_now * b_now)[:, None]
        row, column = first_row + tl.arange(0, BLOCK_M), first_column + tl.arange(0, WIDTH)
        _store(sums, out, partials, split, row, column, rows, columns, out_row, out_column, SWAP, SPLITS, IS_BF16)
        if IS_WIDE:
            _store(more, out, partials, split, row, column + _STEP, rows, columns, out_row, out_column, SWAP, SPLITS,
                   IS_BF16)


def multiply(call: GemmA8w8BlockscaleCall, blocks: tuple[int, int], num_warps: int, num_stages: int, is_swapped: bool,
             splits: int, target: Target) -> None:
    """Writes `out`, in blocks of (rows, columns); at most as many programs as the SMs hold: one of 8 warps, or two of 4
    where shared memory suffices. `splits` parts of the depth are added up by a second kernel."""
    (m, k), n = call.a.shape, call.b.shape[0]
    block_m, block_n = blocks
    a, b = (TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, BLOCK])
            for matrix, rows in ((call.a, block_m), (call.b, min(block_n, BLOCK))))
    partials = torch.empty(splits, m, n, dtype=torch.float32, device=call.a.device) if splits > 1 else None
    fits = hopper_stages(block_m, block_n, num_warps, 4 if splits > 1 else call.out.element_size())
    most = target.cu_num * (8 // num_warps if num_stages <= fits else 1)
    programs = min(triton.cdiv(m, block_m) * triton.cdiv(n, block_n) * splits, most)
    strides, constants = call.out.stride(), {"IS_BF16": call.out.dtype == torch.bfloat16, "SPLITS": splits}
    launch(_gemm_a8w8_blockscale_hopper_kernel, (programs,), a, b, call.a_scale, call.b_scale, call.out, partials, m, n,
           k, *strides, *call.a_scale.stride(), *call.b_scale.stride(), SWAP=is_swapped, BLOCK_M=block_m,
           BLOCK_N=block_n, GROUP=GROUP, **constants, options={"num_warps": num_warps, "num_stages": num_stages})
    if splits > 1:
        launch(sum_kernel, (triton.cdiv(n, SUM_BLOCK), m), partials, call.out, None, None, None, None, m, n, *strides,
               0, 0, ACTIVATION="none", BLOCK=SUM_BLOCK, **constants, options={"num_warps": 4})
