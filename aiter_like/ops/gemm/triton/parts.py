# SPDX-License-Identifier: MIT
"""Shared by Triton's kernels of products: the order of tiles, the loop over the depth, what follows a sum."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.activation.triton.parts import activated
from aiter_like.ops.common.triton.launch import await_stream

BLOCKS = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
"""The parameters of a kernel without TMA."""
ROUGH = 128  # NVIDIA's matrix unit may add up so many products of fp8 by itself
GROUP = 8  # blocks of rows that are computed side by side, so that what is in the L2 at a time is about square
SUM_BLOCK = 512  # elements of a row that a program of sum_kernel adds up


@triton.jit
def tile_place(tile, blocks_m, blocks_n, GROUP: tl.constexpr):
    """(block of rows, block of columns) of a tile's number: down GROUP blocks of rows, then on to the next column."""
    group = tile // (GROUP * blocks_n)
    height = tl.minimum(blocks_m - group * GROUP, GROUP)
    inside = tile % (GROUP * blocks_n)
    return group * GROUP + inside % height, inside // height


@triton.jit
def rows_and_columns(tile, blocks_m, blocks_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Rows [BLOCK_M, 1] and columns [1, BLOCK_N] of a tile of out, 64-bit."""
    block_row, block_column = tile_place(tile, blocks_m, blocks_n, GROUP)
    row = (block_row.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    return row, (block_column.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]


@triton.jit
def weights_at(b, column, b_column, b_depth, BLOCK_K: tl.constexpr, BAND: tl.constexpr, PACK: tl.constexpr):
    """(addresses [BLOCK_K, columns] of the first step's weights, what a step adds to them). With BAND > 0 b is in bands
    of so many rows, cut into packs of PACK columns (16 bytes) that follow one another row by row; b_column is then the
    length of a row, b_depth is not read."""
    k = tl.arange(0, BLOCK_K).to(tl.int64)[:, None]
    if BAND:
        pack = k // PACK * (PACK * BAND) + k % PACK
        return b + column // BAND * (b_column * BAND) + column % BAND * PACK + pack, BLOCK_K * BAND
    else:
        return b + column * b_column + k * b_depth, BLOCK_K * b_depth


@triton.jit
def products(a_rows, b_at, is_row, is_column, depth, a_depth, b_step, IS_INTEGER: tl.constexpr, ROUGH: tl.constexpr,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """[BLOCK_M, BLOCK_N] of a · bᵀ over the whole depth, in int32 of integers, else in fp32. a_rows [BLOCK_M, 1] points
    to where the rows of a begin that is_row has; b_at, b_step: weights_at, of the rows of b that is_column has. ROUGH:
    hopper.py."""
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at = a_rows + k[None, :] * a_depth
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if IS_INTEGER else tl.float32)
    for first in range(0, depth, BLOCK_K):
        is_inside = k < depth - first
        left = tl.load(a_at, mask=is_row & is_inside[None, :], other=0.0)
        right = tl.load(b_at, mask=is_column & is_inside[:, None], other=0.0)
        product = tl.dot(left, right, product, max_num_imprecise_acc=ROUGH, out_dtype=product.dtype)
        a_at += BLOCK_K * a_depth
        b_at += b_step
    return product


@triton.jit
def scale_of(scale, index, count, IS_EACH: tl.constexpr):
    """The scales at `index`, which has the shape they take; or the one number that there is."""
    if IS_EACH:
        return tl.load(scale + index, mask=index < count, other=0.0)
    else:
        return tl.load(scale)


@triton.jit
def finish(product, out, row_scale, column_scale, bias, residual, row, column, rows, columns, out_row, out_column,
           residual_row, residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr,
           ROW_SCALES: tl.constexpr = True, COLUMN_SCALES: tl.constexpr = True, up=None):
    """out = act(product · row_scale · column_scale + bias) + residual at rows and columns that broadcast to the
    product's shape. Scales [rows] and [columns] in fp32, bias and residual may be None; without ROW_SCALES or
    COLUMN_SCALES such a scale is one number. With `up`, a product without scales whose bias follows the other one's,
    out = act(product + bias) · (up + its bias) + residual."""
    product = product.to(tl.float32)
    if row_scale is not None:
        product *= scale_of(row_scale, row, rows, ROW_SCALES)
    if column_scale is not None:
        product *= scale_of(column_scale, column, columns, COLUMN_SCALES)
    if bias is not None:
        product += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    if ACTIVATION != "none":
        product = activated(product, ACTIVATION, IS_BF16)
    if up is not None:
        if bias is not None:
            up += tl.load(bias + columns + column, mask=column < columns, other=0.0).to(tl.float32)
        product *= up
    mask = (row < rows) & (column < columns)
    row, column = row.to(tl.int64), column.to(tl.int64)
    if residual is not None:
        residual_at = residual + row * residual_row + column * residual_column
        product += tl.load(residual_at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_row + column * out_column, product.to(out.dtype.element_ty), mask=mask)


@triton.jit
def sum_kernel(partials, out, row_scale, column_scale, bias, residual, rows, columns, out_row, out_column,
               residual_row, residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr, SPLITS: tl.constexpr,
               BLOCK: tl.constexpr, OVERLAPS: tl.constexpr, ROW_SCALES: tl.constexpr = True,
               COLUMN_SCALES: tl.constexpr = True):
    """Adds the partial sums [SPLITS, rows, columns] of BLOCK elements of a row up, in the order of the splits, and
    finishes them. Launched over (columns / BLOCK, rows)."""
    await_stream(OVERLAPS)
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    product = tl.zeros((BLOCK,), partials.dtype.element_ty)
    for split in tl.static_range(SPLITS):
        at = partials + (split * rows + row) * columns + column
        product += tl.load(at, mask=column < columns, other=0)
    finish(product, out, row_scale, column_scale, bias, residual, row, column, rows, columns, out_row, out_column,
           residual_row, residual_column, ACTIVATION, IS_BF16, ROW_SCALES, COLUMN_SCALES)


def blocks_for(m: int, platform: str, element_bytes: int, num_stages: int = 4) -> tuple[int, int, int, int, int]:
    """BLOCKS by rows, with `num_stages` on NVIDIA: what is in LDS or shared memory fits gfx942 too."""
    if m <= 16:
        block_m, block_n, depth, num_warps = 16, 64, 128, 4
    elif m <= 64:
        block_m, block_n, depth, num_warps = 64, 64, 64, 4
    elif m <= 256:
        block_m, block_n, depth, num_warps = 64, 128, 64, 4
    else:
        block_m, block_n, depth, num_warps = 128, 128, 64, 4 if platform == "hip" else 8
    return block_m, block_n, depth * 2 // element_bytes, num_warps, 2 if platform == "hip" else num_stages


def values(op: str, names: tuple[str, ...], suited: tuple[int, ...], given: dict[str, int]) -> dict[str, int]:
    """The parameters of a kernel: those that suit the sizes, unless they are given.

    Raises:
        ValueError: a parameter of another name is given.
    """
    unknown = given.keys() - set(names)
    if unknown:
        raise ValueError(f"{op}: parameters must be of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    return dict(zip(names, suited)) | given


def constants_of(op: str, names: tuple[str, ...], suited: tuple[int, ...],
                 given: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Constants and options of a kernel from its parameters: those that suit the sizes, unless they are given."""
    chosen = values(op, names, suited, given)
    options = {name: chosen.pop(name) for name in ("num_warps", "num_stages")}
    return {name.upper(): value for name, value in chosen.items()}, options
