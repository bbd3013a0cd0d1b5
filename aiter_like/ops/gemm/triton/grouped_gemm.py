# SPDX-License-Identifier: MIT
"""grouped_gemm in Triton: body and launcher, named by ops/gemm/grouped_gemm.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.gemm.grouped_gemm import GroupedGemmCall
from aiter_like.ops.gemm.parts import is_rough
from aiter_like.ops.gemm.triton.parts import (
    BLOCKS,
    GROUP,
    ROUGH,
    blocks_for,
    constants_of,
    finish,
    products,
    tile_place,
    weights_at,
)
from aiter_like.ops.gemm.triton.problems import group_tile


@triton.jit
def _grouped_gemm_kernel(out, a, b, group_offsets, bias, a_scale, b_scale, row_index, rows, a_rows, groups, columns,
                         depth, out_row, out_column, a_row, a_depth, b_group, b_column, b_depth, bias_group,
                         b_scale_group, IS_BF16: tl.constexpr, BAND: tl.constexpr, PACK: tl.constexpr,
                         ROUGH: tl.constexpr, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                         BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M × BLOCK_N elements of out = a_scale · (a · bᵀ) · b_scale + bias, whose rows are of one group; bound: the
    matrix units, or memory. BAND, PACK: of shuffled weights, as in weights_at."""
    await_stream(OVERLAPS)
    slots, blocks_n = rows // BLOCK_M + groups, tl.cdiv(columns, BLOCK_N)
    slot, block_column = tile_place(tl.program_id(0), slots, blocks_n, GROUP)
    group, first, end = group_tile(group_offsets, slot, rows, groups, BLOCK_M, GROUPS)
    if first >= end:
        return
    group = group.to(tl.int64)
    row = (first + tl.arange(0, BLOCK_M))[:, None]
    column = (block_column.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    if row_index is not None:
        source = tl.load(row_index + row, mask=row < end, other=-1)
        is_row = (source >= 0) & (source < a_rows)
        row = tl.where(is_row, row, end)  # finish leaves it out
    else:
        source, is_row = row, row < end
    source = source.to(tl.int64)
    b_at, b_step = weights_at(b + group * b_group, column, b_column, b_depth, BLOCK_K, BAND, PACK)
    product = products(a + source * a_row, b_at, is_row, column < columns, depth, a_depth, b_step,
                       a.dtype.element_ty == tl.int8, ROUGH, BLOCK_M, BLOCK_N, BLOCK_K)
    if bias is not None:
        bias += group * bias_group
    if a_scale is not None:
        product = product.to(tl.float32) * tl.load(a_scale + source, mask=is_row, other=0.0)
        b_scale += group * b_scale_group
    finish(product, out, None, b_scale, bias, None, row, column, end, columns, out_row, out_column, 0, 0, "none",
           IS_BF16)


def grouped_gemm(call: GroupedGemmCall, kernel: str = "grouped_gemm", **params: int) -> Launch:
    """The launch that writes `out`.

    kernel: "grouped_gemm_hopper" is that of problems_hopper.py; where an address forbids it the other takes over.
    params: values instead of those that suit the rows: block_m, block_n, block_k, num_warps, num_stages and, on Hopper,
        swap.
    """
    (groups, n, k), rows, target = call.b.shape, call.out.shape[0], target_of(call.a.device)
    rough = ROUGH if is_rough(call.a, target) else None
    if kernel == "grouped_gemm_hopper" and call.a.data_ptr() % 16 == 0 == call.b.data_ptr() % 16:
        from aiter_like.ops.gemm.triton import problems_hopper  # not every Triton has tensor descriptors

        return problems_hopper.multiply_groups(call, params, rough, target)
    suited = blocks_for(triton.cdiv(rows, groups), target.platform, call.a.element_size())
    blocks, options = constants_of("grouped_gemm", BLOCKS, suited, {} if kernel == "grouped_gemm_hopper" else params)
    strides = [0 if one is None else one.stride(0) for one in (call.bias, call.b_scale)]
    grid = ((rows // blocks["BLOCK_M"] + groups) * triton.cdiv(n, blocks["BLOCK_N"]),)
    return launch(
        _grouped_gemm_kernel, grid, call.out, call.a, call.b, call.group_offsets, call.bias, call.a_scale, call.b_scale,
        call.row_index, rows, call.a.shape[0], groups, n, k, *call.out.stride(), *call.a.stride(), *call.b.stride(),
        *strides, IS_BF16=call.out.dtype == torch.bfloat16, GROUPS=power_of_2(groups),
        BAND=16 if call.is_shuffled else 0, PACK=16 // call.b.element_size(), ROUGH=rough, GROUP=GROUP, **blocks,
        options=options)
