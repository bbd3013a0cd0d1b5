# SPDX-License-Identifier: MIT
"""gemm_a16w16 in Triton: body and launcher, named by ops/gemm/gemm_a16w16.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import Target, target_of
from aiter_like.ops.common.triton.launch import await_stream, launch
from aiter_like.ops.gemm.gemm_a16w16 import GemmA16w16Call
from aiter_like.ops.gemm.triton.parts import GROUP, finish, tile_place

_NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
_HOPPER_NAMES = (*_NAMES, "swap", "splits")


@triton.jit
def _gemm_a16w16_kernel(out, a, b, bias, residual, rows, columns, depth, out_row, out_column, a_row, a_depth, b_column,
                        b_depth, residual_row, residual_column, ACTIVATION: tl.constexpr, IS_BF16: tl.constexpr,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
                        OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out = act(a · bᵀ + bias) + residual; bound: the matrix units, or memory."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    block_row, block_column = tile_place(tl.program_id(0), blocks_m, blocks_n, GROUP)
    row = (block_row.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    column = (block_column.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at = a + row * a_row + k[None, :] * a_depth
    b_at = b + column * b_column + k[:, None] * b_depth
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, depth, BLOCK_K):
        is_inside = k < depth - first
        left = tl.load(a_at, mask=(row < rows) & is_inside[None, :], other=0.0)
        right = tl.load(b_at, mask=(column < columns) & is_inside[:, None], other=0.0)
        product = tl.dot(left, right, product)
        a_at += BLOCK_K * a_depth
        b_at += BLOCK_K * b_depth
    finish(product, out, None, None, bias, residual, row, column, rows, columns, out_row, out_column, residual_row,
           residual_column, ACTIVATION, IS_BF16)


def gemm_a16w16(call: GemmA16w16Call, kernel: str = "gemm_a16w16", **params: int) -> None:
    """Writes `out`.

    kernel: "gemm_a16w16_hopper" is that of gemm_a16w16_hopper.py; where an address forbids it the other takes over.
    params: values instead of those that suit the rows: block_m, block_n, block_k, num_warps, num_stages and, on Hopper,
        swap and splits.
    """
    (m, k), n = call.a.shape, call.b.shape[0]
    target = target_of(call.a.device)
    if kernel == "gemm_a16w16_hopper" and call.a.data_ptr() % 16 == call.b.data_ptr() % 16 == 0:
        from aiter_like.ops.gemm.triton import gemm_a16w16_hopper  # not every Triton has tensor descriptors

        values = dict(zip(_HOPPER_NAMES, _values(_HOPPER_NAMES, hopper_blocks(m, n, k, target), params)))
        gemm_a16w16_hopper.multiply(call, tuple(values[name] for name in _NAMES[:3]), values["num_warps"],
                                    values["num_stages"], bool(values["swap"]), values["splits"], target)
        return
    given = {} if kernel == "gemm_a16w16_hopper" else params
    block_m, block_n, block_k, num_warps, num_stages = _values(_NAMES, _blocks(m, target.platform), given)
    residual_strides = (0, 0) if call.residual is None else call.residual.stride()
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    launch(_gemm_a16w16_kernel, grid, call.out, call.a, call.b, call.bias, call.residual, m, n, k, *call.out.stride(),
           *call.a.stride(), *call.b.stride(), *residual_strides, ACTIVATION=call.activation,
           IS_BF16=call.out.dtype == torch.bfloat16, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=GROUP,
           options={"num_warps": num_warps, "num_stages": num_stages})


def _values(names: tuple[str, ...], suited: tuple[int, ...], given: dict[str, int]) -> tuple[int, ...]:
    unknown = given.keys() - set(names)
    if unknown:
        raise ValueError(f"gemm_a16w16: parameters must be of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    return tuple(given.get(name, value) for name, value in zip(names, suited))


def hopper_blocks(m: int, n: int, k: int, target: Target) -> tuple[int, int, int, int, int, int, int]:
    """(block_m, block_n, block_k, num_warps, num_stages, swap, splits) by the sizes, as they did best on an H200."""
    if m <= 128:  # the rows are the narrow side of the matrix unit, and the weights stream
        block_m, block_n, num_warps, swap = max(16, triton.next_power_of_2(m)), 64, 4, 1
        block_k, stages = (256, 5) if m <= 16 else (128, 6 if m <= 64 else 4)
    else:
        # A block of twice the columns takes 1.9 times as long.
        narrow, wide = (triton.cdiv(triton.cdiv(m, 128) * triton.cdiv(n, size), target.cu_num) for size in (128, 256))
        block_m, block_k, swap = 128, 64, 0
        block_n, num_warps, stages = (128, 4, 6) if narrow <= 1.9 * wide else (256, 8, 4)
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    splits = max(1, min(target.cu_num // tiles, k // (8 * block_k)))
    return block_m, block_n, block_k, num_warps, stages, swap, splits


def _blocks(m: int, platform: str) -> tuple[int, int, int, int, int]:
    """(block_m, block_n, block_k, num_warps, num_stages) by rows: what is in LDS or shared memory fits gfx942 too."""
    stages = 2 if platform == "hip" else 4
    if m <= 16:
        return 16, 64, 128, 4, stages
    if m <= 64:
        return 64, 64, 64, 4, stages
    if m <= 256:
        return 64, 128, 64, 4, stages
    return 128, 128, 64, 4 if platform == "hip" else 8, stages
