# SPDX-License-Identifier: MIT
"""Many products on Hopper: operands by TMA, programs that go on from tile to tile. Launched by batched_gemm.py and
grouped_gemm.py.

Weights stand on the left of the matrix unit (SWAP), and the tile of out is computed transposed, where `a` has fewer
rows than are wanted there, like in hopper.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import bfloat16, int8
from triton.tools.tensor_descriptor import TensorDescriptor

from aiter_like.device import Target
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.gemm import hopper
from aiter_like.ops.gemm.batched_gemm import BatchedGemmCall
from aiter_like.ops.gemm.grouped_gemm import GroupedGemmCall
from aiter_like.ops.gemm.triton.hopper import add_products, placed
from aiter_like.ops.gemm.triton.parts import GROUP, constants_of, finish, tile_place

_NAMES = hopper.Blocks._fields[:-1]  # these kernels do not split the depth


@triton.jit
def _batched_gemm_hopper_kernel(a, b, out, bias, a_scale, b_scale, batch, rows, columns, depth, out_batch, out_row,
                                out_column, bias_batch, a_scale_batch, b_scale_batch, IS_BF16: tl.constexpr,
                                IS_INTEGER: tl.constexpr, ROUGH: tl.constexpr, SWAP: tl.constexpr,
                                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                                GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = a_scale · (a · bᵀ) · b_scale + bias of a batch, BLOCK_M × BLOCK_N elements at a time; bound: the matrix
    units, or memory. ROUGH: as in hopper.py."""
    await_stream(OVERLAPS)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    tiles, steps = blocks_m * blocks_n, tl.cdiv(depth, BLOCK_K)
    for index in tl.range(tl.program_id(0), batch * tiles, tl.num_programs(0), flatten=True):
        matrix = index // tiles
        block_row, block_column = tile_place(index % tiles, blocks_m, blocks_n, GROUP)
        first_row, first_column = block_row * BLOCK_M, block_column * BLOCK_N
        if SWAP:
            product = tl.zeros((BLOCK_N, BLOCK_M), tl.int32 if IS_INTEGER else tl.float32)
        else:
            product = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if IS_INTEGER else tl.float32)
        for k in range(steps):
            left = a.load([matrix, first_row, k * BLOCK_K]).reshape(BLOCK_M, BLOCK_K)
            right = b.load([matrix, first_column, k * BLOCK_K]).reshape(BLOCK_N, BLOCK_K)
            product = add_products(product, left, right, SWAP, ROUGH)
        row, column = placed(first_row + tl.arange(0, BLOCK_M), first_column + tl.arange(0, BLOCK_N), SWAP)
        at = matrix.to(tl.int64)
        of_columns = None if bias is None else bias + at * bias_batch
        row_scale = None if a_scale is None else a_scale + at * a_scale_batch
        column_scale = None if b_scale is None else b_scale + at * b_scale_batch
        finish(product, out + at * out_batch, row_scale, column_scale, of_columns, None, row, column, rows, columns,
               out_row, out_column, 0, 0, "none", IS_BF16)


@triton.jit
def _grouped_gemm_hopper_kernel(a, b, out, group_offsets, bias, a_scale, b_scale, row_index, rows, a_rows, groups,
                                columns, depth, out_row, out_column, a_row, bias_group, b_scale_group,
                                IS_BF16: tl.constexpr, IS_INTEGER: tl.constexpr, ROUGH: tl.constexpr,
                                SWAP: tl.constexpr, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                                BLOCK_K: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """out = a_scale · (a · bᵀ) · b_scale + bias of groups of rows, BLOCK_M × BLOCK_N elements of one group at a time;
    bound: the matrix units, or memory. a is a descriptor, or with row_index a pointer: no copy by descriptor chooses
    rows. The programs share the tiles that there are, which only the device knows. ROUGH: as in hopper.py. GROUPS: a
    power of two, at least `groups`."""
    await_stream(OVERLAPS)
    each = tl.arange(0, GROUPS)
    begins = tl.minimum(tl.maximum(tl.load(group_offsets + each, mask=each < groups, other=0), 0), rows)
    ends = tl.minimum(tl.maximum(tl.load(group_offsets + 1 + each, mask=each < groups, other=0), 0), rows)
    slots = tl.cdiv(tl.maximum(ends - begins, 0), BLOCK_M)  # tiles of rows of each group
    last_slots = tl.cumsum(slots, 0)
    blocks_m, blocks_n, steps = tl.sum(slots), tl.cdiv(columns, BLOCK_N), tl.cdiv(depth, BLOCK_K)
    for index in tl.range(tl.program_id(0), blocks_m * blocks_n, tl.num_programs(0), flatten=True):
        slot, block_column = tile_place(index, blocks_m, blocks_n, GROUP)
        group = tl.sum((last_slots <= slot).to(tl.int32))  # groups whose tiles all come before
        is_group = each == group
        end = tl.sum(tl.where(is_group, ends, 0))
        first_row = tl.sum(tl.where(is_group, begins + (slot - last_slots + slots) * BLOCK_M, 0))
        first_column = block_column * BLOCK_N
        row = first_row + tl.arange(0, BLOCK_M)
        if row_index is not None:
            source = tl.load(row_index + row, mask=row < end, other=-1)
            is_row = (source >= 0) & (source < a_rows)
            row = tl.where(is_row, row, end)  # finish leaves it out
            inside = tl.arange(0, BLOCK_K)
            a_at = a + source.to(tl.int64)[:, None] * a_row + inside[None, :]
        else:
            source, is_row = row, row < end
        if SWAP:
            product = tl.zeros((BLOCK_N, BLOCK_M), tl.int32 if IS_INTEGER else tl.float32)
        else:
            product = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if IS_INTEGER else tl.float32)
        for k in range(steps):
            if row_index is not None:
                is_there = is_row[:, None] & (inside[None, :] < depth - k * BLOCK_K)
                left = tl.load(a_at + k * BLOCK_K, mask=is_there, other=0.0)
            else:
                left = a.load([first_row, k * BLOCK_K])
            right = b.load([group, first_column, k * BLOCK_K]).reshape(BLOCK_N, BLOCK_K)
            product = add_products(product, left, right, SWAP, ROUGH)
        at = group.to(tl.int64)
        of_columns = None if bias is None else bias + at * bias_group
        column_scale = None if b_scale is None else b_scale + at * b_scale_group
        if a_scale is not None:
            row_scale = tl.load(a_scale + source, mask=is_row, other=0.0)
            product = product.to(tl.float32) * (row_scale[None, :] if SWAP else row_scale[:, None])
        row, column = placed(row, first_column + tl.arange(0, BLOCK_N), SWAP)
        finish(product, out, None, column_scale, of_columns, None, row, column, end, columns, out_row, out_column, 0, 0,
               "none", IS_BF16)


def multiply_batch(call: BatchedGemmCall, params: dict[str, int], rough: int | None, target: Target) -> Launch:
    """The launch that writes `out` of a batch of products, with at most a program for each SM. params: in place of what
    suits the sizes."""
    (batch, m, k), n = call.a.shape, call.b.shape[1]
    suited = hopper.suited(m, n, k, call.a.element_size(), max(target.cu_num // batch, 1), rough is not None, 1)[:-1]
    blocks, options = constants_of("batched_gemm", _NAMES, suited, params)
    block_m, block_n, block_k = (blocks[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    left, right = (TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], [1, rows, block_k])
                   for matrix, rows in ((call.a, block_m), (call.b, block_n)))
    strides = [0 if one is None else one.stride(0) for one in (call.bias, call.a_scale, call.b_scale)]
    tiles = batch * triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    return launch(
        _batched_gemm_hopper_kernel, (min(tiles, target.cu_num),), left, right, call.out, call.bias, call.a_scale,
        call.b_scale, batch, m, n, k, *call.out.stride(), *strides, IS_BF16=call.out.dtype == bfloat16,
        IS_INTEGER=call.a.dtype == int8, ROUGH=rough, GROUP=GROUP, options=options,
        **blocks | {"SWAP": bool(blocks["SWAP"])})


def multiply_groups(call: GroupedGemmCall, params: dict[str, int], rough: int | None, target: Target) -> Launch:
    """The launch that writes `out` of groups of rows, with a program for each SM, or fewer where fewer tiles are
    possible. Blocks have twice the rows of a group where it has few: then fewer groups of unequal size take two."""
    (groups, n, k), rows, element_bytes = call.b.shape, call.out.shape[0], call.a.element_size()
    m = min(rows, triton.cdiv(2 * rows, groups))
    suited = hopper.suited(m, n, k, element_bytes, max(target.cu_num // groups, 1), rough is not None, 1)[:-1]
    if call.row_index is not None and m > 128:  # the addresses of chosen rows leave room for the sums of such a block
        suited = (128, 128, 128 // element_bytes, 8, 4, 0)
    blocks, options = constants_of("grouped_gemm", _NAMES, suited, params)
    block_m, block_n, block_k = (blocks[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    left = call.a if call.row_index is not None else TensorDescriptor(
        call.a, [*call.a.shape], [*call.a.stride()], [block_m, block_k])
    right = TensorDescriptor(call.b, [*call.b.shape], [*call.b.stride()], [1, block_n, block_k])
    strides = [0 if one is None else one.stride(0) for one in (call.bias, call.b_scale)]
    most = min(rows, rows // block_m + groups) * triton.cdiv(n, block_n)
    return launch(
        _grouped_gemm_hopper_kernel, (min(most, target.cu_num),), left, right, call.out, call.group_offsets, call.bias,
        call.a_scale, call.b_scale, call.row_index, rows, call.a.shape[0], groups, n, k, *call.out.stride(),
        call.a.stride(0), *strides, IS_BF16=call.out.dtype == bfloat16, IS_INTEGER=call.a.dtype == int8, ROUGH=rough,
        GROUPS=power_of_2(groups), GROUP=GROUP, options=options, **blocks | {"SWAP": bool(blocks["SWAP"])})
