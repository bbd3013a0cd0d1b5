# SPDX-License-Identifier: MIT
"""gemm_a8w8 in Triton: body and launcher, named by ops/gemm/gemm_a8w8.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.gemm import hopper
from aiter_like.ops.gemm.gemm_a8w8 import GemmA8w8Call, keeps_sums_apart
from aiter_like.ops.gemm.triton.parts import (
    BLOCKS,
    GROUP,
    ROUGH,
    blocks_for,
    constants_of,
    finish,
    products,
    rows_and_columns,
    values,
    weights_at,
)


@triton.jit
def _gemm_a8w8_kernel(out, a, b, a_scale, b_scale, bias, rows, columns, depth, out_row, out_column, a_row, a_depth,
                      b_column, b_depth, IS_BF16: tl.constexpr, ROW_SCALES: tl.constexpr, COLUMN_SCALES: tl.constexpr,
                      BAND: tl.constexpr, ROUGH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                      BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out = (a · bᵀ) · scales + bias; bound: the matrix units, or memory.

    BAND: of shuffled weights, as in weights_at. ROUGH: as in hopper.py."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    row, column = rows_and_columns(tl.program_id(0), blocks_m, blocks_n, BLOCK_M, BLOCK_N, GROUP)
    b_at, b_step = weights_at(b, column, b_column, b_depth, BLOCK_K, BAND, 16)
    product = products(a + row * a_row, b_at, row < rows, column < columns, depth, a_depth, b_step,
                       a.dtype.element_ty == tl.int8, ROUGH, BLOCK_M, BLOCK_N, BLOCK_K)
    finish(product, out, a_scale, b_scale, bias, None, row, column, rows, columns, out_row, out_column, 0, 0, "none",
           IS_BF16, ROW_SCALES, COLUMN_SCALES)


def gemm_a8w8(call: GemmA8w8Call, kernel: str = "gemm_a8w8", **params: int) -> tuple[Launch, ...]:
    """The launches that write `out`.

    kernel: "gemm_a8w8_hopper" is that of hopper.py; where an address forbids it the other takes over.
    params: values instead of those that suit the rows: block_m, block_n, block_k, num_warps, num_stages and, on Hopper,
        swap and splits.
    """
    (m, k), n = call.a.shape, call.b.shape[0]
    target = target_of(call.a.device)
    rough = ROUGH if keeps_sums_apart(call, target) else None
    if kernel == "gemm_a8w8_hopper" and call.a.data_ptr() % 16 == 0 == call.b.data_ptr() % 16:
        from aiter_like.ops.gemm.triton.hopper import Finish, multiply  # not every Triton has tensor descriptors

        suited = hopper.suited(m, n, k, 1, target.cu_num, is_narrow=rough is not None)
        blocks = hopper.Blocks(**values("gemm_a8w8", suited._fields, suited, params))
        then = Finish(call.a_scale, call.b_scale, call.bias)
        return multiply(call.out, call.a, call.b, then, blocks, target, rough)
    given = {} if kernel == "gemm_a8w8_hopper" else params
    blocks, options = constants_of("gemm_a8w8", BLOCKS, blocks_for(m, target.platform, 1), given)
    grid = (triton.cdiv(m, blocks["BLOCK_M"]) * triton.cdiv(n, blocks["BLOCK_N"]),)
    return (launch(
        _gemm_a8w8_kernel, grid, call.out, call.a, call.b, call.a_scale, call.b_scale, call.bias, m, n, k,
        *call.out.stride(), *call.a.stride(), *call.b.stride(), IS_BF16=call.out.dtype == torch.bfloat16,
        ROW_SCALES=call.a_scale.numel() > 1, COLUMN_SCALES=call.b_scale.numel() > 1, BAND=call.band, ROUGH=rough,
        GROUP=GROUP, **blocks, options=options),)
