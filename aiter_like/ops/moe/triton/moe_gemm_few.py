# SPDX-License-Identifier: MIT
"""moe_gemm of few pairs, which are not sorted: a program multiplies rows of one expert's matrix with one pair's row.
Launched by moe_gemm.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.common.triton.overlap import overlaps
from aiter_like.ops.gemm.triton.parts import values
from aiter_like.ops.moe import moe_gemm_blocks
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.triton.parts import (
    after,
    constants_of,
    finished,
    group_scaled,
    half_rows,
    matrix_at,
    scale_number,
    sizes_of,
    widened,
)


@triton.jit
def _row_products(a, b, b_scale, a_scale, rows, is_column, depth, b_row, b_depth, b_scale_group, a_scale_block,
                  FORMAT: tl.constexpr, GROUP_SIZE: tl.constexpr, BAND: tl.constexpr, PACK: tl.constexpr,
                  BLOCK_K: tl.constexpr):
    """[rows] of chosen rows of one matrix with one row of a, in int32 of integers, else in fp32. b_scale: addresses
    [rows, 1] of the scales of their first groups."""
    PER_BYTE: tl.constexpr = 2 if FORMAT == "int4" or FORMAT == "mxfp4" else 1
    k, byte = tl.arange(0, BLOCK_K).to(tl.int64), tl.arange(0, BLOCK_K // PER_BYTE).to(tl.int64)[None, :]
    b_at = matrix_at(b, rows, byte, b_row, b_depth, BAND, PACK)
    is_integer: tl.constexpr = a.dtype.element_ty == tl.int8
    number: tl.constexpr = tl.int32 if is_integer else tl.float32
    sums = tl.zeros((rows.shape[0], BLOCK_K), number)
    for first in range(0, depth, BLOCK_K):
        row = tl.load(a + first + k, mask=k < depth - first, other=0.0)
        numbers = widened(tl.load(b_at, mask=is_column & (byte < (depth - first) // PER_BYTE), other=0.0), FORMAT)
        numbers = numbers.to(number)
        if GROUP_SIZE > 0:
            group = tl.arange(0, BLOCK_K // GROUP_SIZE).to(tl.int64)[None, :]
            is_group = group * GROUP_SIZE < depth - first
            group += first // GROUP_SIZE
            scale = tl.load(b_scale + group * b_scale_group, mask=is_column & is_group, other=0.0)
            scale = scale_number(scale, FORMAT)
            if a_scale is not None:
                scale *= tl.load(a_scale + group * a_scale_block, mask=is_group, other=0.0)
            numbers = group_scaled(numbers, scale, GROUP_SIZE)
        sums += numbers * row.to(number)[None, :]
        b_at += BLOCK_K // PER_BYTE * (BAND if BAND else b_depth)
    return tl.sum(sums, 1)


@triton.jit
def _moe_gemm_few_kernel(out, a, b, experts, weights, bias, a_scale, b_scale, limit, slots, pairs, count, columns,
                         depth, out_row, a_row, b_expert, b_row, b_depth, bias_expert, a_scale_row, a_scale_block,
                         b_scale_expert, b_scale_row, b_scale_group, FORMAT: tl.constexpr, SCALES: tl.constexpr,
                         GROUP_SIZE: tl.constexpr, SCALE_ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
                         IS_GATED: tl.constexpr, IS_INTERLEAVED: tl.constexpr, IS_OF_PAIRS: tl.constexpr,
                         IS_BF16: tl.constexpr, BAND: tl.constexpr, PACK: tl.constexpr, SUMS_SLOTS: tl.constexpr,
                         BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAPS: tl.constexpr):
    """Columns of a row of out, of a pair or, with SUMS_SLOTS, the sum of a token's pairs: BLOCK_N rows of an expert's
    matrix, of a gate's activation for half as many columns. Bound: memory, the weights. Launched over (rows of out,
    blocks of columns)."""
    await_stream(OVERLAPS)
    COLUMNS: tl.constexpr = BLOCK_N // 2 if IS_GATED else BLOCK_N
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < columns
    total = tl.zeros((COLUMNS,), tl.float32)
    is_here = False
    for slot in range(0, slots if SUMS_SLOTS else 1):
        pair = row * slots + slot if SUMS_SLOTS else row
        expert = tl.load(experts + pair).to(tl.int64)
        is_here = (expert >= 0) & (expert < count)
        if is_here:
            source = pair if IS_OF_PAIRS else pair // slots
            row_scale = None
            if a_scale is not None and GROUP_SIZE == 0:
                row_scale = tl.load(a_scale + source * a_scale_row)
            weight = None if weights is None else tl.load(weights + pair)
            of_blocks = a_scale + source * a_scale_row if a_scale is not None and GROUP_SIZE > 0 else None
            for half in tl.static_range(2 if IS_GATED else 1):
                rows = half_rows(column, columns, half, IS_INTERLEAVED)
                scale_at = None
                if b_scale is not None:
                    scale_at = b_scale + expert * b_scale_expert + rows // SCALE_ROWS * b_scale_row
                product = _row_products(a + source * a_row, b + expert * b_expert,
                                        scale_at[:, None] if GROUP_SIZE > 0 else None, of_blocks, rows[:, None],
                                        is_column[:, None], depth, b_row, b_depth, b_scale_group, a_scale_block,
                                        FORMAT, GROUP_SIZE, BAND, PACK, BLOCK_K)
                product = finished(product, row_scale, None if GROUP_SIZE > 0 else scale_at,
                                   None if bias is None else bias + expert * bias_expert + rows, weight, is_column)
                if half == 0:
                    gate = product
            total += after(gate, product, limit, ACTIVATION, IS_GATED, IS_BF16)
    tl.store(out + row * out_row + column, total.to(out.dtype.element_ty), mask=is_column & (is_here | SUMS_SLOTS))


def multiply(call: MoeGemmCall, params: dict[str, int]) -> Callable[..., None]:
    """Writes `out`. params: in place of what suits the sizes. What it returns: see Backend.returns_relaunch."""
    chosen = values("moe_gemm", moe_gemm_blocks.FEW_NAMES, moe_gemm_blocks.few(call), params)
    block_n, block_k, num_warps = (chosen[name] for name in moe_gemm_blocks.FEW_NAMES)
    grid = (call.out.shape[0], triton.cdiv(call.out.shape[1], moe_gemm_blocks.columns_of(call, block_n)), 1)
    others = (float(call.limit) or None, *sizes_of(call))
    constants = {"SUMS_SLOTS": call.sums_slots, "BLOCK_N": block_n, "BLOCK_K": max(block_k, call.group_size),
                 **constants_of(call), "options": {"num_warps": num_warps}}
    launch(_moe_gemm_few_kernel, grid, *_tensors(call), *others, **constants)
    again = Launch(_moe_gemm_few_kernel, grid, others, OVERLAPS=overlaps(target_of(call.a.device)), **constants)
    return lambda *fields: again(*_tensors(MoeGemmCall(*fields)))


def _tensors(call: MoeGemmCall) -> tuple[Any, ...]:
    """The kernel's first arguments."""
    return call.out, call.a, call.b, call.experts, call.weights, call.bias, call.a_scale, call.b_scale
