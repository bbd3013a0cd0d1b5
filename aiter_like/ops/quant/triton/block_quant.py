# SPDX-License-Identifier: MIT
"""Quantisation by block and per expert, and 4-bit packing, in Triton: bodies and launchers, named by the operators of
ops/quant/block_quant.py, quant_moe.py and int4.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.ops.common.quant_rule import largest
from aiter_like.ops.common.triton import quant_rule
from aiter_like.ops.common.triton.launch import await_stream, launch

_TILE = 16384  # elements of a block that a program keeps: 32 per lane at 8 waves of 64
_MAX_BLOCK = 8192  # elements of a row that a program keeps
_PACKED = 2048  # bytes of a program: 16 numbers per lane at 4 waves of 64


@triton.jit(do_not_specialize=["rows", "row_blocks", "column_blocks"])  # a build for each would serve nothing
def _block_quant_kernel(out, scale, x, out_stride, x_stride, rows, columns, row_blocks, column_blocks,
                        BLOCK_ROWS: tl.constexpr, TILE_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
                        LARGEST: tl.constexpr, OVERLAPS: tl.constexpr):
    """One block of BLOCK_ROWS × BLOCK_COLUMNS per program, TILE_ROWS rows at a time; bound: memory."""
    await_stream(OVERLAPS)
    block = tl.program_id(0)
    band = block // column_blocks
    matrix = band // row_blocks
    first = band % row_blocks * BLOCK_ROWS
    column = block % column_blocks * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    end = tl.minimum(rows, first + BLOCK_ROWS)
    values = tl.zeros([TILE_ROWS, BLOCK_COLUMNS], tl.float32)
    magnitude = tl.zeros([TILE_ROWS, BLOCK_COLUMNS], tl.float32)
    for start in range(0, BLOCK_ROWS, TILE_ROWS):
        row = first + start + tl.arange(0, TILE_ROWS)[:, None]
        place = (matrix.to(tl.int64) * rows + row) * x_stride + column
        values = tl.load(x + place, mask=(row < end) & (column < columns), other=0.0).to(tl.float32)
        magnitude = quant_rule.larger(magnitude, tl.abs(values))
    own = quant_rule.scale_of(quant_rule.amax(tl.reshape(magnitude, [TILE_ROWS * BLOCK_COLUMNS]), 0), LARGEST)
    inverse = quant_rule.inverse_of(own)
    tl.store(scale + block, own)
    for start in range(0, BLOCK_ROWS, TILE_ROWS):
        row = first + start + tl.arange(0, TILE_ROWS)[:, None]
        index = matrix.to(tl.int64) * rows + row
        mask = (row < end) & (column < columns)
        if BLOCK_ROWS > TILE_ROWS:
            values = tl.load(x + index * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        q = quant_rule.quantised(values * inverse, out.dtype.element_ty, LARGEST)
        tl.store(out + index * out_stride + column, q, mask=mask)


def block_quant(out: torch.Tensor, scale: torch.Tensor, input: torch.Tensor, block_rows: int, block_columns: int,
                num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out` and `scale`."""
    rows, columns = input.shape[-2:]
    y, x = out.view(-1, columns), input.view(-1, columns)
    tile = min(triton.next_power_of_2(block_rows), _TILE // block_columns)
    launch(_block_quant_kernel, (scale.numel(),), y, scale, x, y.stride(0), x.stride(0), rows, columns,
           *scale.shape[-2:], BLOCK_ROWS=block_rows, TILE_ROWS=tile, BLOCK_COLUMNS=block_columns,
           LARGEST=largest(out.dtype), options={"num_warps": num_warps or min(max(tile * block_columns // 2048, 1), 8)})


@triton.jit(do_not_specialize=["tokens", "topk", "experts"])
def _moe_smoothquant_kernel(out, scale, x, x_scale, topk_ids, out_stride, x_stride, factor_stride, tokens, columns,
                            topk, experts, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr, LARGEST: tl.constexpr,
                            OVERLAPS: tl.constexpr):
    """A token for one of its experts per program, a token's beside one another; bound: memory."""
    await_stream(OVERLAPS)
    token = (tl.program_id(0) // topk).to(tl.int64)
    slot = tl.program_id(0) % topk
    expert = tl.load(topk_ids + token * topk + slot)
    used = tl.where((expert >= 0) & (expert < experts), columns, 0)  # a slot of no expert has no columns: zeros
    row = slot.to(tl.int64) * tokens + token
    x += token * x_stride
    x_scale += expert.to(tl.int64) * factor_stride
    out += row * out_stride
    lanes = tl.arange(0, BLOCK)
    values = tl.zeros([BLOCK], tl.float32)
    magnitude = tl.zeros([BLOCK], tl.float32)
    for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
        values = _smoothed(x, x_scale, start + lanes, used)
        magnitude = quant_rule.larger(magnitude, tl.abs(values))
    own = quant_rule.scale_of(quant_rule.amax(magnitude, 0), LARGEST)
    inverse = quant_rule.inverse_of(own)
    tl.store(scale + row, own)
    for start in range(0, BLOCK if IS_WHOLE else columns, BLOCK):
        if not IS_WHOLE:
            values = _smoothed(x, x_scale, start + lanes, used)
        q = quant_rule.quantised(values * inverse, out.dtype.element_ty, LARGEST)
        tl.store(out + start + lanes, q, mask=start + lanes < columns)


@triton.jit
def _smoothed(x, factor, column, columns):
    """x · factor in fp32; zeros beyond the row."""
    values = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    return values * tl.load(factor + column, mask=column < columns, other=0.0)


def moe_smoothquant(out: torch.Tensor, scale: torch.Tensor, input: torch.Tensor, x_scale: torch.Tensor,
                    topk_ids: torch.Tensor, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out` and `scale`."""
    columns = input.shape[-1]
    block = min(triton.next_power_of_2(columns), _MAX_BLOCK)
    num_warps = num_warps or min(max(block // 512, 1), 8)  # at least 8 elements per lane on a wave of 64
    launch(_moe_smoothquant_kernel, (topk_ids.numel(),), out, scale, input, x_scale, topk_ids, out.stride(0),
           input.stride(0), x_scale.stride(0), *input.shape, topk_ids.shape[1], x_scale.shape[0], BLOCK=block,
           IS_WHOLE=columns <= block, LARGEST=largest(out.dtype), options={"num_warps": num_warps})


@triton.jit(do_not_specialize=["rows"])
def _pack_int4_kernel(out, x, out_stride, x_stride, rows, columns, IS_UNPACKING: tl.constexpr, BLOCK_M: tl.constexpr,
                      BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M rows × BLOCK_N packed bytes of two numbers each, the first in the low half; bound: memory."""
    await_stream(OVERLAPS)
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    number = tl.program_id(1) * (2 * BLOCK_N) + tl.arange(0, 2 * BLOCK_N)[None, :]
    is_byte = (row < rows) & (column < columns)
    is_number = (row < rows) & (number < 2 * columns)
    if IS_UNPACKING:
        byte = tl.load(x + row * x_stride + column, mask=is_byte, other=0)
        both = tl.join((byte << 4) >> 4, byte >> 4)
        tl.store(out + row * out_stride + number, tl.reshape(both, [BLOCK_M, 2 * BLOCK_N]), mask=is_number)
    else:
        both = tl.load(x + row * x_stride + number, mask=is_number, other=0)
        low, high = tl.split(tl.reshape(both, [BLOCK_M, BLOCK_N, 2]))
        tl.store(out + row * out_stride + column, (low & 15) | (high << 4), mask=is_byte)


def pack_int4(out: torch.Tensor, input: torch.Tensor, is_unpacking: bool, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and Triton's `num_warps`; writes `out`."""
    columns = min(out.shape[-1], input.shape[-1])
    y, x = out.view(-1, out.shape[-1]), input.view(-1, input.shape[-1])
    block_n = min(triton.next_power_of_2(columns), _PACKED)
    block_m = max(1, min(_PACKED // block_n, triton.next_power_of_2(x.shape[0])))
    grid = (triton.cdiv(x.shape[0], block_m), triton.cdiv(columns, block_n))
    launch(_pack_int4_kernel, grid, y, x, y.stride(0), x.stride(0), x.shape[0], columns, IS_UNPACKING=is_unpacking,
           BLOCK_M=block_m, BLOCK_N=block_n, options={"num_warps": num_warps or 4})
