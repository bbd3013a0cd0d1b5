# SPDX-License-Identifier: MIT
"""gemm_a16w16 in Triton: body and launcher, named by ops/gemm/gemm_a16w16.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.gemm import hopper
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.gemm.parts import activation_of
from aiter_like.ops.gemm.triton.parts import (
    BLOCKS,
    GROUP,
    blocks_for,
    constants_of,
    finish,
    rows_and_columns,
    values,
    weights_at,
)


@triton.jit
def _gemm_a16w16_kernel(out, a, b, column_scale, bias, residual, rows, columns, depth, out_row, out_column, a_row,
                        a_depth, b_column, b_depth, residual_row, residual_column, ACTIVATION: tl.constexpr,
                        IS_BF16: tl.constexpr, IS_GATED: tl.constexpr, IS_SHUFFLED: tl.constexpr, BLOCK_M: tl.constexpr,
                        BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out = act(a · bᵀ · column_scale + bias) + residual; bound: the matrix units, or
    memory.

    IS_GATED: b has the rows of gate, then those of up: out = act(gate) · up + residual.
    IS_SHUFFLED: b is in bands of 16 rows, as in weights_at."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    row, column = rows_and_columns(tl.program_id(0), blocks_m, blocks_n, BLOCK_M, BLOCK_N, GROUP)
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at = a + row * a_row + k[None, :] * a_depth
    b_at, b_step = weights_at(b, column, b_column, b_depth, BLOCK_K, 16 if IS_SHUFFLED else 0, 8)
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, depth, BLOCK_K):
        is_inside = k < depth - first
        left = tl.load(a_at, mask=(row < rows) & is_inside[None, :], other=0.0)
        right = tl.load(b_at, mask=(column < columns) & is_inside[:, None], other=0.0)
        product = tl.dot(left, right, product)
        if IS_GATED:
            other = tl.load(b_at + tl.cast(columns, tl.int64) * b_column, mask=(column < columns) & is_inside[:, None],
                            other=0.0)
            up = tl.dot(left, other, up)
        a_at += BLOCK_K * a_depth
        b_at += b_step
    finish(product, out, None, column_scale, bias, residual, row, column, rows, columns, out_row, out_column,
           residual_row, residual_column, ACTIVATION, IS_BF16, up=up if IS_GATED else None)


def gemm_a16w16(call: GemmA16w16Call, kernel: str = "gemm_a16w16", **params: int) -> tuple[Launch, ...]:
    """The launches that write `out`.

    kernel: "gemm_a16w16_hopper" is that of hopper.py; where an address forbids it the other takes over.
    params: values instead of those that suit the rows: block_m, block_n (rows of b), block_k, num_warps, num_stages
        and, on Hopper, swap and splits.
    """
    return multiply(call, None, kernel, params)


def multiply(call: GemmA16w16Call, column_scale: Tensor | None, kernel: str,
             params: dict[str, int]) -> tuple[Launch, ...]:
    """gemm_a16w16 with a scale [n] or [n, 1] of each column, contiguous, before what is added."""
    (m, k), b_rows = call.a.shape, call.b.shape[0]
    target, (activation, is_gated) = target_of(call.a.device), activation_of(call.activation)
    if kernel == "gemm_a16w16_hopper" and call.a.data_ptr() % 16 == 0 == call.b.data_ptr() % 16:
        from aiter_like.ops.gemm.triton.hopper import Finish  # not every Triton has tensor descriptors
        from aiter_like.ops.gemm.triton.hopper import multiply as multiply_on_hopper

        suited = hopper.suited(m, b_rows, k, 2, target.cu_num)
        blocks = hopper.Blocks(**values("gemm_a16w16", suited._fields, suited, params))
        blocks = hopper.gated(blocks) if is_gated else blocks
        then = Finish(b_scale=column_scale, bias=call.bias, activation=activation, residual=call.residual,
                      is_gated=is_gated)
        return multiply_on_hopper(call.out, call.a, call.b, then, blocks, target)
    given = {} if kernel == "gemm_a16w16_hopper" else params
    blocks, options = constants_of("gemm_a16w16", BLOCKS, blocks_for(m, target.platform, 2), given)
    if is_gated:
        blocks["BLOCK_N"] = max(blocks["BLOCK_N"] // 2, 16)
    n, residual_strides = call.out.shape[1], (0, 0) if call.residual is None else call.residual.stride()
    grid = (triton.cdiv(m, blocks["BLOCK_M"]) * triton.cdiv(n, blocks["BLOCK_N"]),)
    return (launch(
        _gemm_a16w16_kernel, grid, call.out, call.a, call.b, column_scale, call.bias, call.residual, m, n, k,
        *call.out.stride(), *call.a.stride(), *call.b.stride(), *residual_strides, ACTIVATION=activation,
        IS_BF16=call.out.dtype == torch.bfloat16, IS_GATED=is_gated, IS_SHUFFLED=call.is_shuffled, GROUP=GROUP,
        **blocks, options=options),)
