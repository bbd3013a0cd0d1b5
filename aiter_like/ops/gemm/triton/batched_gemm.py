# SPDX-License-Identifier: MIT
"""batched_gemm in Triton: body and launcher, named by ops/gemm/batched_gemm.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.gemm.batched_gemm import BatchedGemmCall
from aiter_like.ops.gemm.parts import is_rough
from aiter_like.ops.gemm.triton.parts import (
    BLOCKS,
    GROUP,
    ROUGH,
    blocks_for,
    constants_of,
    finish,
    products,
    rows_and_columns,
    weights_at,
)


@triton.jit
def _batched_gemm_kernel(out, a, b, bias, a_scale, b_scale, rows, columns, depth, out_batch, out_row, out_column,
                         a_batch, a_row, a_depth, b_batch, b_column, b_depth, bias_batch, a_scale_batch, b_scale_batch,
                         IS_BF16: tl.constexpr, ROUGH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                         BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of a matrix of out = a_scale · (a · bᵀ) · b_scale + bias; bound: the matrix units, or
    memory."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    matrix = (tl.program_id(0) // (blocks_m * blocks_n)).to(tl.int64)
    row, column = rows_and_columns(tl.program_id(0) % (blocks_m * blocks_n), blocks_m, blocks_n, BLOCK_M, BLOCK_N,
                                   GROUP)
    b_at, b_step = weights_at(b + matrix * b_batch, column, b_column, b_depth, BLOCK_K, 0, 0)
    product = products(a + matrix * a_batch + row * a_row, b_at, row < rows, column < columns, depth, a_depth, b_step,
                       a.dtype.element_ty == tl.int8, ROUGH, BLOCK_M, BLOCK_N, BLOCK_K)
    if bias is not None:
        bias += matrix * bias_batch
    if a_scale is not None:
        a_scale += matrix * a_scale_batch
        b_scale += matrix * b_scale_batch
    finish(product, out + matrix * out_batch, a_scale, b_scale, bias, None, row, column, rows, columns, out_row,
           out_column, 0, 0, "none", IS_BF16)


def batched_gemm(call: BatchedGemmCall, kernel: str = "batched_gemm", **params: int) -> Launch:
    """The launch that writes `out`.

    kernel: "batched_gemm_hopper" is that of problems_hopper.py; where an address forbids it the other takes over.
    params: values instead of those that suit the rows: block_m, block_n, block_k, num_warps, num_stages and, on Hopper,
        swap.
    """
    (batch, m, k), n, target = call.a.shape, call.b.shape[1], target_of(call.a.device)
    rough = ROUGH if is_rough(call.a, target) else None
    if kernel == "batched_gemm_hopper" and call.a.data_ptr() % 16 == 0 == call.b.data_ptr() % 16:
        from aiter_like.ops.gemm.triton import problems_hopper  # not every Triton has tensor descriptors

        return problems_hopper.multiply_batch(call, params, rough, target)
    suited = blocks_for(m, target.platform, call.a.element_size())
    blocks, options = constants_of("batched_gemm", BLOCKS, suited, {} if kernel == "batched_gemm_hopper" else params)
    strides = [0 if one is None else one.stride(0) for one in (call.bias, call.a_scale, call.b_scale)]
    grid = (batch * triton.cdiv(m, blocks["BLOCK_M"]) * triton.cdiv(n, blocks["BLOCK_N"]),)
    return launch(_batched_gemm_kernel, grid, call.out, call.a, call.b, call.bias, call.a_scale, call.b_scale, m, n, k,
                  *call.out.stride(), *call.a.stride(), *call.b.stride(), *strides,
                  IS_BF16=call.out.dtype == torch.bfloat16, ROUGH=rough, GROUP=GROUP, **blocks, options=options)
