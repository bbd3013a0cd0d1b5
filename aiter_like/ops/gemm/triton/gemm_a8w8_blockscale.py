# SPDX-License-Identifier: MIT
"""gemm_a8w8_blockscale in Triton: body and launcher, named by ops/gemm/gemm_a8w8_blockscale.py."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from aiter_like.device import Target, target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.gemm import hopper
from aiter_like.ops.gemm.gemm_a8w8_blockscale import (
    BLOCK,
    HOPPER_NAMES,
    GemmA8w8BlockscaleCall,
    hopper_model,
    hopper_stages,
)
from aiter_like.ops.gemm.triton.parts import (
    GROUP,
    blocks_for,
    constants_of,
    finish,
    tile_place,
    values,
    weights_at,
)
from aiter_like.traced import answered

_OP = "gemm_a8w8_blockscale"
_STEP = tl.constexpr(BLOCK)


@triton.jit
def _gemm_a8w8_blockscale_kernel(out, a, b, a_scale, b_scale, rows, columns, depth, out_row, out_column, a_row, a_depth,
                                 b_column, b_depth, a_scale_row, a_scale_block, b_scale_column, b_scale_block,
                                 IS_PRESHUFFLED: tl.constexpr, IS_BF16: tl.constexpr, BLOCK_M: tl.constexpr,
                                 BLOCK_N: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out, a block of the depth at a time: its product is scaled, then added. BLOCK_N is
    at most a block, so that a tile has one scale of b at a time. Bound: the matrix units, or memory."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    block_row, block_column = tile_place(tl.program_id(0), blocks_m, blocks_n, GROUP)
    row = (block_row.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    column = (block_column.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    k = tl.arange(0, _STEP).to(tl.int64)
    a_at = a + row * a_row + k[None, :] * a_depth
    b_at, b_step = weights_at(b, column, depth if IS_PRESHUFFLED else b_column, b_depth, _STEP,
                              16 if IS_PRESHUFFLED else 0, 16)
    a_scale_at = a_scale + row * a_scale_row
    b_scale_at = b_scale + (block_column * BLOCK_N // _STEP).to(tl.int64) * b_scale_column
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, depth, _STEP):
        is_inside = k < depth - first
        left = tl.load(a_at, mask=(row < rows) & is_inside[None, :], other=0.0)
        right = tl.load(b_at, mask=(column < columns) & is_inside[:, None], other=0.0)
        scale = tl.load(a_scale_at, mask=row < rows, other=0.0) * tl.load(b_scale_at)
        sums += tl.dot(left, right) * scale
        a_at += _STEP * a_depth
        b_at += b_step
        a_scale_at += a_scale_block
        b_scale_at += b_scale_block
    finish(sums, out, None, None, None, None, row, column, rows, columns, out_row, out_column, 0, 0, "none", IS_BF16)


def gemm_a8w8_blockscale(call: GemmA8w8BlockscaleCall, kernel: str = "gemm_a8w8_blockscale",
                         **params: int) -> tuple[Launch, ...]:
    """The launches that write `out`.

    kernel: "gemm_a8w8_blockscale_hopper" is that of gemm_a8w8_blockscale_hopper.py; where an address forbids it the
        other takes over.
    params: values instead of those that suit the rows: block_m, block_n, num_warps, num_stages and, on Hopper, swap and
        splits.
    """
    (m, k), n = call.a.shape, call.b.shape[0]
    target = target_of(call.a.device)
    if kernel == "gemm_a8w8_blockscale_hopper" and call.a.data_ptr() % 16 == 0 == call.b.data_ptr() % 16:
        from aiter_like.ops.gemm.triton import gemm_a8w8_blockscale_hopper  # not every Triton has tensor descriptors

        suited = hopper_blocks(m, n, k, call.out.element_size(), target.cu_num)
        return gemm_a8w8_blockscale_hopper.multiply(call, target, **values(_OP, HOPPER_NAMES, suited, params))
    given = {} if kernel == "gemm_a8w8_blockscale_hopper" else params
    suited = _blocks(m, n, k, target, call.is_preshuffled)
    blocks, options = constants_of(_OP, HOPPER_NAMES[:4], suited, given)
    grid = (triton.cdiv(m, blocks["BLOCK_M"]) * triton.cdiv(n, blocks["BLOCK_N"]),)
    return (launch(
        _gemm_a8w8_blockscale_kernel, grid, call.out, call.a, call.b, call.a_scale, call.b_scale, m, n, k,
        *call.out.stride(), *call.a.stride(), *call.b.stride(), *call.a_scale.stride(), *call.b_scale.stride(),
        IS_PRESHUFFLED=call.is_preshuffled, IS_BF16=call.out.dtype == torch.bfloat16, GROUP=GROUP, **blocks,
        options=options),)


def _blocks(m: int, n: int, k: int, target: Target, is_preshuffled: bool) -> tuple[int, int, int, int]:
    """The first of HOPPER_NAMES by the sizes. On NVIDIA, where shuffled weights come here always, blocks of 64 × 64
    where those of 128 × 128 would leave most SMs without work, and for few rows narrower ones over a long depth: best
    of the tuner's in 15 of 18 shapes of 256 rows or one (H100), by up to a third."""
    if is_preshuffled and target.platform == "cuda":
        if m > 64:
            is_small = 8 * triton.cdiv(m, 128) * triton.cdiv(n, 128) <= 3 * target.cu_num
            return (64, 64, 4, 4) if is_small else (128, 128, 8, 4)
        if m <= 4 and k > 1024 and 4 * triton.cdiv(n, 64) <= 3 * target.cu_num:
            return 16, 32, 4, 4
    block_m, block_n, _, num_warps, num_stages = blocks_for(m, target.platform, 1)
    return block_m, block_n, num_warps, num_stages


@answered
def hopper_blocks(m: int, n: int, k: int, out_bytes: int, cu_num: int) -> tuple[int, int, int, int, int, int]:
    """HOPPER_NAMES by the sizes. Operands of few rows come the faster the more programs ask for them, two of 4 warps on
    an SM: the depth is split until there are as many. Wider blocks have fewer beginnings where there are more programs
    anyway: 16 × 24576 × 1536 takes 23.4 µs instead of 27.2, 16 × 28672 × 4096 56 instead of 63 (H100). For more rows,
    the block and the splits are chosen with which the SM that has most to do needs the least time."""
    return _hopper_blocks(hopper.alike(m), n, k, out_bytes, cu_num)


@functools.lru_cache(1024)
def _hopper_blocks(m: int, n: int, k: int, out_bytes: int, cu_num: int) -> tuple[int, int, int, int, int, int]:
    steps = -(-k // BLOCK)
    if m <= 64:
        block_m = max(16, power_of_2(m))  # up to 32 rows stand on the narrow side of the matrix unit
        block_n = 64 if -(-n // 64) < 2 * cu_num else 128
        rest = -(-n // block_n) % cu_num if block_n == 64 else 0
        splits = max(1, min(8, 2 * cu_num // rest, steps // 4)) if rest else 1
        stages = _hopper_stages(block_m, block_n, 4, splits, out_bytes)
        return block_m, block_n, 4, stages, int(m <= 32), splits
    found, times = [], hopper_model()
    for block_m, block_n, num_warps, step, alone, edges in times.tiles:
        tiles, on_sm = -(-m // block_m) * -(-n // block_n), 8 // num_warps
        rest = tiles % cu_num
        for splits in range(1, max(min(8, on_sm * cu_num // max(rest, 1), steps // 4), 1) + 1 if rest else 2):
            whole, parts = (tiles - rest, rest * splits) if splits > 1 else (tiles, 0)
            whole_on_sm, parts_on_sm = -(-whole // cu_num), -(-parts // cu_num)
            time = steps * max((whole_on_sm + parts_on_sm / splits) * step, alone if whole else alone / splits)
            time += (whole_on_sm + parts_on_sm) * edges
            if parts:  # they are written and read, by a second kernel
                time += times.second_kernel + times.summed * parts * block_m * block_n / (cu_num * BLOCK)
            found.append((time, block_m, block_n, num_warps, splits))
    _, *tile, splits = min(found)
    return *tile, _hopper_stages(*tile, splits, out_bytes), 0, splits


def _hopper_stages(*tile: int) -> int:
    """Half the steps that shared memory holds: all of them took 4 to 9 % more time (H100)."""
    return max(hopper_stages(*tile) // 2, 3)
