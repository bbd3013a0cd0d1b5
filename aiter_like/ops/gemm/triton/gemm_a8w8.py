# SPDX-License-Identifier: MIT
"""gemm_a8w8 in Triton: body and launcher, named by ops/gemm/gemm_a8w8.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import await_stream, launch
from aiter_like.ops.gemm import hopper
from aiter_like.ops.gemm.gemm_a8w8 import GemmA8w8Call, keeps_sums_apart
from aiter_like.ops.gemm.triton.parts import GROUP, finish, tile_place, values

_NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
_ROUGH = 128  # products of fp8 that NVIDIA's matrix unit may add up by itself


@triton.jit
def _gemm_a8w8_kernel(out, a, b, a_scale, b_scale, bias, rows, columns, depth, out_row, out_column, a_row, a_depth,
                      b_column, b_depth, IS_BF16: tl.constexpr, ROW_SCALES: tl.constexpr, COLUMN_SCALES: tl.constexpr,
                      BAND: tl.constexpr, ROUGH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                      BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out = (a · bᵀ) · scales + bias; bound: the matrix units, or memory.

    BAND: b is in bands of so many rows, cut into packs of 16 columns that follow one another row by row: b_column from
    band to band is that of BAND rows, b_depth is 1. ROUGH: as in hopper.py."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    block_row, block_column = tile_place(tl.program_id(0), blocks_m, blocks_n, GROUP)
    row = (block_row.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    column = (block_column.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at = a + row * a_row + k[None, :] * a_depth
    if BAND:
        pack = (k // 16 * (16 * BAND) + k % 16)[:, None]
        b_at = b + column // BAND * (b_column * BAND) + column % BAND * 16 + pack
        b_step = BLOCK_K * BAND
    else:
        b_at = b + column * b_column + k[:, None] * b_depth
        b_step = BLOCK_K * b_depth
    if a.dtype.element_ty == tl.int8:
        product = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    else:
        product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, depth, BLOCK_K):
        is_inside = k < depth - first
        left = tl.load(a_at, mask=(row < rows) & is_inside[None, :], other=0.0)
        right = tl.load(b_at, mask=(column < columns) & is_inside[:, None], other=0.0)
        product = tl.dot(left, right, product, max_num_imprecise_acc=ROUGH, out_dtype=product.dtype)
        a_at += BLOCK_K * a_depth
        b_at += b_step
    finish(product, out, a_scale, b_scale, bias, None, row, column, rows, columns, out_row, out_column, 0, 0, "none",
           IS_BF16, ROW_SCALES, COLUMN_SCALES)


def gemm_a8w8(call: GemmA8w8Call, kernel: str = "gemm_a8w8", **params: int) -> None:
    """Writes `out`.

    kernel: "gemm_a8w8_hopper" is that of hopper.py; where an address forbids it the other takes over.
    params: values instead of those that suit the rows: block_m, block_n, block_k, num_warps, num_stages and, on Hopper,
        swap and splits.
    """
    (m, k), n = call.a.shape, call.b.shape[0]
    target = target_of(call.a.device)
    rough = _ROUGH if keeps_sums_apart(call, target) else None
    if kernel == "gemm_a8w8_hopper" and call.a.data_ptr() % 16 == call.b.data_ptr() % 16 == 0:
        from aiter_like.ops.gemm.triton.hopper import Finish, multiply  # not every Triton has tensor descriptors

        suited = hopper.suited(m, n, k, 1, target.cu_num, is_narrow=rough is not None)
        blocks = hopper.Blocks(**values("gemm_a8w8", suited._fields, suited, params))
        multiply(call.out, call.a, call.b, Finish(call.a_scale, call.b_scale, call.bias), blocks, target, rough)
        return
    given = {} if kernel == "gemm_a8w8_hopper" else params
    chosen = values("gemm_a8w8", _NAMES, _blocks(m, target.platform), given)
    block_m, block_n, block_k, num_warps, num_stages = (chosen[name] for name in _NAMES)
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    launch(_gemm_a8w8_kernel, grid, call.out, call.a, call.b, call.a_scale, call.b_scale, call.bias, m, n, k,
           *call.out.stride(), *call.a.stride(), *call.b.stride(), IS_BF16=call.out.dtype == torch.bfloat16,
           ROW_SCALES=call.a_scale.numel() > 1, COLUMN_SCALES=call.b_scale.numel() > 1, BAND=call.band, ROUGH=rough,
           BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=GROUP,
           options={"num_warps": num_warps, "num_stages": num_stages})


def _blocks(m: int, platform: str) -> tuple[int, int, int, int, int]:
    """(block_m, block_n, block_k, num_warps, num_stages) by rows: what is in LDS or shared memory fits gfx942 too."""
    stages = 2 if platform == "hip" else 4
    if m <= 16:
        return 16, 64, 256, 4, stages
    if m <= 64:
        return 64, 64, 128, 4, stages
    if m <= 256:
        return 64, 128, 128, 4, stages
    return 128, 128, 128, 4 if platform == "hip" else 8, stages
