# SPDX-License-Identifier: MIT
"""What the Triton kernels of many products share, those of a batch and those of groups of rows: the loop over the depth
and the parameters."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.ops.gemm.triton.parts import values

BLOCKS = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
ROUGH = 128  # products of fp8 that NVIDIA's matrix unit may add up by itself


@triton.jit
def multiply(a_rows, b_columns, is_row, is_column, depth, a_depth, b_depth, IS_INTEGER: tl.constexpr,
             ROUGH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """[BLOCK_M, BLOCK_N] of a · bᵀ over the whole depth, in int32 of integers, else in fp32. a_rows [BLOCK_M, 1] and
    b_columns [1, BLOCK_N] point to where the rows of a and b begin that is_row and is_column have. ROUGH: hopper.py."""
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at, b_at = a_rows + k[None, :] * a_depth, b_columns + k[:, None] * b_depth
    product = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if IS_INTEGER else tl.float32)
    for first in range(0, depth, BLOCK_K):
        is_inside = k < depth - first
        left = tl.load(a_at, mask=is_row & is_inside[None, :], other=0.0)
        right = tl.load(b_at, mask=is_column & is_inside[:, None], other=0.0)
        product = tl.dot(left, right, product, max_num_imprecise_acc=ROUGH, out_dtype=product.dtype)
        a_at += BLOCK_K * a_depth
        b_at += BLOCK_K * b_depth
    return product


@triton.jit
def group_tile(group_offsets, slot, rows, groups, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """(group, first row, end of the group's rows) of the tile of rows with number `slot`, of rows // BLOCK_M + groups;
    no rows where it has no tile. Group i has the slots from offset // BLOCK_M + i on: always as many as it needs, so
    that it is found without adding the sizes of those before it up. GROUPS: a power of two, at least `groups`."""
    index = tl.arange(0, GROUPS)
    offsets = tl.load(group_offsets + index, mask=index < groups, other=0)
    starts = tl.minimum(tl.maximum(offsets, 0), rows) // BLOCK_M + index
    group = tl.maximum(tl.sum(((index < groups) & (starts <= slot)).to(tl.int32)) - 1, 0)
    begin = tl.minimum(tl.maximum(tl.load(group_offsets + group), 0), rows)
    end = tl.minimum(tl.maximum(tl.load(group_offsets + group + 1), 0), rows)
    first = begin + (slot - begin // BLOCK_M - group) * BLOCK_M
    return group, first, tl.where(first >= begin, end, first)


def constants_of(op: str, names: tuple[str, ...], suited: tuple[int, ...],
                 given: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Constants and options of a kernel from its parameters: those that suit the sizes, unless they are given."""
    chosen = values(op, names, suited, given)
    options = {name: chosen.pop(name) for name in ("num_warps", "num_stages")}
    return {name.upper(): value for name, value in chosen.items()}, options


def blocks_for(m: int, platform: str, element_bytes: int) -> tuple[int, int, int, int, int]:
    """(block_m, block_n, block_k, num_warps, num_stages) by rows: what is in LDS or shared memory fits gfx942 too."""
    stages = 2 if platform == "hip" else 4
    if m <= 16:
        block_m, block_n, depth, num_warps = 16, 64, 128, 4
    elif m <= 64:
        block_m, block_n, depth, num_warps = 64, 64, 64, 4
    elif m <= 256:
        block_m, block_n, depth, num_warps = 64, 128, 64, 4
    else:
        block_m, block_n, depth, num_warps = 128, 128, 64, 4 if platform == "hip" else 8
    return block_m, block_n, depth * 2 // element_bytes, num_warps, stages
