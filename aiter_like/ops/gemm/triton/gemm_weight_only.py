# SPDX-License-Identifier: MIT
"""gemm_weight_only in Triton: body and launcher, named by ops/gemm/gemm_weight_only.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.gemm import weight_only
from aiter_like.ops.gemm.gemm_weight_only import GemmWeightOnlyCall
from aiter_like.ops.gemm.triton import gemm_weight_only_wide
from aiter_like.ops.gemm.triton.parts import GROUP, blocks_for, finish, tile_place, values

_OP = "gemm_weight_only"


@triton.jit
def _gemm_weight_only_kernel(out, a, b, scale, zero_points, bias, residual, rows, columns, depth, groups, out_row,
                             out_column, a_row, a_depth, b_column, b_depth, residual_row, residual_column,
                             BITS: tl.constexpr, GROUP_SIZE: tl.constexpr, SCALE_ROWS: tl.constexpr,
                             ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr, BLOCK_M: tl.constexpr,
                             BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out; bound: the matrix units, or memory. Integers and fp8 are exact in 16 bits:
    their products are scaled, not they, which takes an instruction for each of these instead of each weight. The
    weights stand on the left: a lane then has few of them, and few scales. With GROUP_SIZE > 0 a step of BLOCK_K lies
    in one group; with SCALE_ROWS 0 there is one scale."""
    await_stream(OVERLAPS)
    PER_BYTE: tl.constexpr = 8 // BITS
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    block_row, block_column = tile_place(tl.program_id(0), blocks_m, blocks_n, GROUP)
    row = block_row.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = block_column.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k, byte = tl.arange(0, BLOCK_K).to(tl.int64), tl.arange(0, BLOCK_K // PER_BYTE).to(tl.int64)
    a_at = a + row[None, :] * a_row + k[:, None] * a_depth
    b_at = b + column[:, None] * b_column + byte[None, :] * b_depth
    product = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for first in range(0, depth, BLOCK_K):
        right = tl.load(a_at, mask=(row < rows)[None, :] & (k < depth - first)[:, None], other=0.0)
        is_inside = (column < columns)[:, None] & (byte < (depth - first) // PER_BYTE)[None, :]
        weights = tl.load(b_at, mask=is_inside, other=0.0)
        if BITS == 4:
            weights = tl.join((weights << 4) >> 4, weights >> 4).reshape(BLOCK_N, BLOCK_K)
        if GROUP_SIZE > 0:
            group_at = column // SCALE_ROWS * groups + first // GROUP_SIZE
        else:
            group_at = column
        if zero_points is not None:
            zero = tl.load(zero_points + group_at, mask=column < columns, other=0)
            weights = weights.to(tl.int16) - zero.to(tl.int16)[:, None]
        left = weights.to(tl.float32).to(right.dtype)
        if GROUP_SIZE > 0:
            factor = tl.load(scale + group_at, mask=column < columns, other=0.0)
            product += tl.dot(left, right) * factor.to(tl.float32)[:, None]
        else:
            product = tl.dot(left, right, product)
        a_at += BLOCK_K * a_depth
        b_at += BLOCK_K // PER_BYTE * b_depth
    if SCALE_ROWS == 0:
        product *= tl.load(scale).to(tl.float32)
    finish(product, out, None, None if GROUP_SIZE > 0 or SCALE_ROWS == 0 else scale, bias, residual, row[None, :],
           column[:, None], rows, columns, out_row, out_column, residual_row, residual_column, ACTIVATION, IS_BF16)


def gemm_weight_only(call: GemmWeightOnlyCall, kernel: str = "gemm_weight_only", **params: int) -> tuple[Launch, ...]:
    """The launches that write `out`.

    kernel: "gemm_weight_only_skinny" and "gemm_weight_only_hopper" are those of the files beside this one; where an
        address forbids them the one of this file takes over. "gemm_weight_only_wide" is the two of
        gemm_weight_only_wide.py.
    params: values instead of those that suit the rows; weight_only.py has the names of each kernel. A step of the one
        of this file never goes beyond a group. "gemm_weight_only_wide" has those of gemm_a16w16 beside `wide`.
    """
    if kernel == weight_only.WIDE:
        return gemm_weight_only_wide.multiply(call, {name: value for name, value in params.items() if name != "wide"})
    (m, k), n = call.a.shape, call.b.shape[0]
    target = target_of(call.a.device)
    is_own = kernel in (weight_only.SKINNY, weight_only.STREAM)
    if is_own and call.a.data_ptr() % 16 == 0 == call.b.data_ptr() % 16 and call.a.storage_offset() % 2 == 0:
        # not every Triton has what they import
        if kernel == weight_only.SKINNY:
            from aiter_like.ops.gemm.triton import gemm_weight_only_skinny

            suited = weight_only.skinny_blocks(m, n, k, call.bits, target.cu_num)
            return gemm_weight_only_skinny.multiply(call, **values(_OP, weight_only.SKINNY_NAMES, suited, params))
        from aiter_like.ops.gemm.triton import gemm_weight_only_hopper

        suited = weight_only.stream_blocks(m, n, k, call.bits, call.group_size or 128, target.cu_num)
        return gemm_weight_only_hopper.multiply(call, **values(_OP, weight_only.STREAM_NAMES, suited, params))
    given = {} if is_own else params
    chosen = values(_OP, weight_only.NAMES, blocks_for(m, target.platform, 2, num_stages=3), given)
    block_m, block_n, block_k, num_warps, num_stages = (chosen[name] for name in weight_only.NAMES)
    block_k = min(block_k, call.group_size or block_k)
    residual_strides = (0, 0) if call.residual is None else call.residual.stride()
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    return (launch(
        _gemm_weight_only_kernel, grid, call.out, call.a, call.b, call.scale, call.zero_points, call.bias,
        call.residual, m, n, k, call.scale.shape[1], *call.out.stride(), *call.a.stride(), *call.b.stride(),
        *residual_strides, BITS=call.bits, GROUP_SIZE=call.group_size, SCALE_ROWS=call.scale_rows,
        ACTIVATION=call.activation, IS_BF16=call.out.dtype == torch.bfloat16, BLOCK_M=block_m, BLOCK_N=block_n,
        BLOCK_K=block_k, GROUP=GROUP, options={"num_warps": num_warps, "num_stages": num_stages}),)
