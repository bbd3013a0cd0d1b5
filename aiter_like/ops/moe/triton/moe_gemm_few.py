# SPDX-License-Identifier: MIT
"""moe_gemm of few pairs, which are not sorted: a program multiplies rows of one expert's matrix with one pair's row.
Launched by moe_gemm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, real
from aiter_like.ops.gemm.triton.parts import values
from aiter_like.ops.moe import moe_gemm_blocks
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.triton.parts import (
    after,
    constants_of,
    depth_of,
    finished,
    group_scaled,
    half_rows,
    matrix_at,
    scale_number,
    sizes_of,
    widened,
)


@triton.jit
def _row_products(a, b, b_scale, a_scale, rows, is_row, depth, b_row, b_depth, b_scale_group, a_scale_block,
                  FORMAT: tl.constexpr, HAS_WORDS: tl.constexpr, GROUP_SIZE: tl.constexpr, BAND: tl.constexpr,
                  PACK: tl.constexpr, BLOCK_K: tl.constexpr):
    """[rows] of chosen rows of matrices, each with its row of a, in int32 of integers, else in fp32. a, b, a_scale:
    where a row or a matrix begins, for all or for each of `rows`; b_scale: addresses of the scales of their first
    groups. All but `depth` and strides are of shape [rows, 1] or one number."""
    PER_BYTE: tl.constexpr = 2 if FORMAT == "int4" or FORMAT == "mxfp4" else 1
    k = depth_of(tl.arange(0, BLOCK_K), HAS_WORDS)[None, :]
    byte = tl.arange(0, BLOCK_K // PER_BYTE).to(tl.int64)[None, :]
    b_at = matrix_at(b, rows, byte, b_row, b_depth, BAND, PACK)
    is_integer: tl.constexpr = a.dtype.element_ty == tl.int8
    number: tl.constexpr = tl.int32 if is_integer else tl.float32
    sums = tl.zeros((rows.shape[0], BLOCK_K), number)
    for first in range(0, depth, BLOCK_K):
        row = tl.load(a + first + k, mask=is_row & (k < depth - first), other=0.0)
        numbers = widened(tl.load(b_at, mask=is_row & (byte < (depth - first) // PER_BYTE), other=0.0), FORMAT)
        numbers = numbers.to(number)
        if GROUP_SIZE > 0:
            group = tl.arange(0, BLOCK_K // GROUP_SIZE).to(tl.int64)[None, :]
            is_group = group * GROUP_SIZE < depth - first
            group += first // GROUP_SIZE
            scale = tl.load(b_scale + group * b_scale_group, mask=is_row & is_group, other=0.0)
            scale = scale_number(scale, FORMAT)
            if a_scale is not None:
                scale *= tl.load(a_scale + group * a_scale_block, mask=is_row & is_group, other=0.0)
            numbers = group_scaled(numbers, scale, GROUP_SIZE)
        sums += numbers * row.to(number)
        b_at += BLOCK_K // PER_BYTE * (BAND if BAND else b_depth)
    return tl.sum(sums, 1)


@triton.jit
def _expert_of(experts, pair, is_pair, count):
    """(expert, whether it is here) of a pair, or of each of several; expert 0 where it is not."""
    expert = tl.load(experts + pair, mask=is_pair, other=-1).to(tl.int64)
    is_here = (expert >= 0) & (expert < count)
    return tl.where(is_here, expert, 0), is_here


@triton.jit
def _moe_gemm_few_kernel(out, a, b, experts, weights, bias, a_scale, b_scale, limit, slots, pairs, count, columns,
                         depth, out_row, a_row, b_expert, b_row, b_depth, bias_expert, a_scale_row, a_scale_block,
                         b_scale_expert, b_scale_row, b_scale_group, FORMAT: tl.constexpr, HAS_WORDS: tl.constexpr,
                         SCALES: tl.constexpr, GROUP_SIZE: tl.constexpr, SCALE_ROWS: tl.constexpr,
                         ACTIVATION: tl.constexpr,
                         IS_GATED: tl.constexpr, IS_INTERLEAVED: tl.constexpr, IS_OF_PAIRS: tl.constexpr,
                         IS_BF16: tl.constexpr, BAND: tl.constexpr, PACK: tl.constexpr, SLOTS: tl.constexpr,
                         BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAPS: tl.constexpr):
    """Columns of a row of out, of a pair or, with SLOTS > 0, the sum of a token's pairs, at most SLOTS: BLOCK_N rows of
    each expert's matrix, of a gate's activation for half as many columns. Bound: memory, the weights: all rows of all
    experts are on their way at a time. Launched over (rows of out, blocks of columns)."""
    await_stream(OVERLAPS)
    COLUMNS: tl.constexpr = BLOCK_N // 2 if IS_GATED else BLOCK_N
    SIDES: tl.constexpr = BLOCK_N // COLUMNS
    EACH: tl.constexpr = SLOTS if SLOTS > 0 else 1
    row, first_column = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64) * COLUMNS
    lanes = tl.arange(0, EACH * BLOCK_N)[:, None]
    column = first_column + lanes % COLUMNS
    if EACH > 1:
        slot = lanes // BLOCK_N
        pair = row * slots + slot
        expert, is_here = _expert_of(experts, pair, slot < slots, count)
    else:
        pair = row
        expert, is_here = _expert_of(experts, pair, True, count)
    is_row = is_here & (column < columns)
    source = pair if IS_OF_PAIRS else pair // slots
    rows = half_rows(column, columns, lanes % BLOCK_N // COLUMNS, IS_INTERLEAVED)
    row_scale, weight, of_blocks, scale_at, bias_at = None, None, None, None, None
    if a_scale is not None:
        if GROUP_SIZE > 0:
            of_blocks = a_scale + source * a_scale_row
        else:
            row_scale = tl.load(a_scale + source * a_scale_row, mask=is_here, other=0.0)
    if weights is not None:
        weight = tl.load(weights + pair, mask=is_here, other=0.0)
    if b_scale is not None:
        scale_at = b_scale + expert * b_scale_expert + rows // SCALE_ROWS * b_scale_row
    if bias is not None:
        bias_at = bias + expert * bias_expert + rows
    product = _row_products(a + source * a_row, b + expert * b_expert, scale_at, of_blocks, rows, is_row, depth, b_row,
                            b_depth, b_scale_group, a_scale_block, FORMAT, HAS_WORDS, GROUP_SIZE, BAND, PACK, BLOCK_K)
    product = finished(product[:, None], row_scale, None if GROUP_SIZE > 0 else scale_at, bias_at, weight, is_row)
    product = product.reshape(EACH, SIDES, COLUMNS).permute(0, 2, 1)
    if IS_GATED:
        product, up = product.split()
    else:
        product = product.reshape(EACH, COLUMNS)
        up = product
    # The product of a pair whose expert is not here is 0, and each activation leaves 0 as it is.
    total = tl.sum(after(product, up, limit, ACTIVATION, IS_GATED, IS_BF16), 0)
    column = first_column + tl.arange(0, COLUMNS)
    is_stored = column < columns
    if SLOTS == 0:
        is_stored &= is_here
    tl.store(out + row * out_row + column, total.to(out.dtype.element_ty), mask=is_stored)


def multiply(call: MoeGemmCall, params: dict[str, int]) -> Launch:
    """The launch that writes `out`. params: in place of what suits the sizes."""
    chosen = values("moe_gemm", moe_gemm_blocks.FEW_NAMES, moe_gemm_blocks.few(call), params)
    block_n, block_k, num_warps = (chosen[name] for name in moe_gemm_blocks.FEW_NAMES)
    grid = (call.out.shape[0], triton.cdiv(call.out.shape[1], moe_gemm_blocks.columns_of(call, block_n)))
    slots, options = moe_gemm_blocks.slots_of(call), {"num_warps": num_warps}
    if slots > 1 and target_of(call.a.device).platform == "hip":
        options["enable_fp_fusion"] = False  # a lane's weight and sum in one rounding, which the next lane's are not
    return launch(_moe_gemm_few_kernel, grid, call.out, call.a, call.b, call.experts, call.weights, call.bias,
                  call.a_scale, call.b_scale, real(call.limit) or None, *sizes_of(call), SLOTS=slots, BLOCK_N=block_n,
                  BLOCK_K=max(block_k, call.group_size), **constants_of(call), options=options)
