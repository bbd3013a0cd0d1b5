# SPDX-License-Identifier: MIT
"""What the Triton kernels of matrix products share: the order of the tiles, and what happens to a sum."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.activation.triton.act_and_mul import activated
from aiter_like.ops.common.triton.launch import await_stream

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


def values(op: str, names: tuple[str, ...], suited: tuple[int, ...], given: dict[str, int]) -> dict[str, int]:
    """The parameters of a kernel: those that suit the sizes, unless they are given.

    Raises:
        ValueError: a parameter of another name is given.
    """
    unknown = given.keys() - set(names)
    if unknown:
        raise ValueError(f"{op}: parameters must be of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    return dict(zip(names, suited)) | given
