# SPDX-License-Identifier: MIT
"""moe_gemm in Triton: body and launcher, named by ops/moe/moe_gemm.py. Pairs that are not sorted: moe_gemm_few.py; many
rows on Hopper: moe_gemm_hopper.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import facts_of, target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, real
from aiter_like.ops.gemm.parts import is_rough
from aiter_like.ops.gemm.triton.parts import GROUP, ROUGH, tile_place, values
from aiter_like.ops.moe import moe_gemm_blocks
from aiter_like.ops.moe.moe_formats import per_byte
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.triton import moe_gemm_few
from aiter_like.ops.moe.triton.parts import (
    after,
    as_bf16,
    constants_of,
    depth_of,
    finished,
    group_scaled,
    half_rows,
    matrix_at,
    scale_number,
    sizes_of,
    widened,
)


@triton.jit
def _tile_of(places, block, blocks_n, BLOCK_M: tl.constexpr, GROUP: tl.constexpr, XCDS: tl.constexpr):
    """(whether there is one, block of places, first place within it, block of columns) of this program's tile. Tiles of
    neighbouring places and columns go to one XCD."""
    parts = tl.cdiv(block, BLOCK_M)
    slots = tl.cdiv(places, block) * parts
    each = tl.cdiv(slots * blocks_n, XCDS)
    tile = tl.program_id(0) % XCDS * each + tl.program_id(0) // XCDS
    is_there = (tl.program_id(0) // XCDS < each) & (tile < slots * blocks_n)
    slot, block_column = tile_place(tl.where(is_there, tile, 0), slots, blocks_n, GROUP)
    return is_there, slot // parts, slot % parts * BLOCK_M, block_column


@triton.jit
def _add_products(product, right, stored, scale_at, is_scale, row_scale, FORMAT: tl.constexpr, SCALES: tl.constexpr,
                  ROUGH: tl.constexpr):
    """product [columns, rows] + stored weights · right, one step of the depth. SCALES: `scaling` of the call; with
    "sums" the sum over this step is scaled."""
    numbers = widened(stored, FORMAT)
    if SCALES == "weights":
        scale = scale_number(tl.load(scale_at, mask=is_scale, other=0.0), FORMAT)
        return tl.dot(as_bf16(group_scaled(numbers, scale, 32)), right, product)
    left = numbers
    if FORMAT != "same":
        left = numbers.to(tl.float32).to(right.dtype)
    if SCALES == "sums":
        factor = scale_number(tl.load(scale_at, mask=is_scale, other=0.0), FORMAT)
        if row_scale is not None:
            factor = factor * row_scale
        return product + tl.dot(left, right, max_num_imprecise_acc=ROUGH) * factor
    else:
        return tl.dot(left, right, product, max_num_imprecise_acc=ROUGH, out_dtype=product.dtype)


@triton.jit
def _both_products(a_rows, b, expert, scale_at, up_scale_at, a_scale_at, rows, up_rows, first_rows, is_row, is_column,
                   depth, b_expert, b_row, b_depth, a_scale_block, b_scale_group, FORMAT: tl.constexpr,
                   HAS_WORDS: tl.constexpr, SCALES: tl.constexpr, GROUP_SIZE: tl.constexpr, IS_GATED: tl.constexpr,
                   BAND: tl.constexpr, PACK: tl.constexpr, ROUGH: tl.constexpr, IS_MOVED: tl.constexpr,
                   BLOCK_K: tl.constexpr):
    """[columns, BLOCK_M] of the rows of one matrix, and with IS_GATED of up_rows, with rows of a over the whole depth:
    in int32 of integers, else in fp32. a_rows, a_scale_at: [BLOCK_M], where rows of a and their scales begin;
    scale_at, up_scale_at: [columns, 1] of the matrix. With IS_MOVED b is a descriptor of all matrices, and first_rows
    are the first of `rows` and of `up_rows`, which follow one another."""
    PER_BYTE: tl.constexpr = 2 if FORMAT == "int4" or FORMAT == "mxfp4" else 1
    STEP: tl.constexpr = BLOCK_K // PER_BYTE
    k = depth_of(tl.arange(0, BLOCK_K).to(tl.int64), HAS_WORDS)
    byte = tl.arange(0, STEP).to(tl.int64)[None, :]
    a_at = a_rows[None, :] + k[:, None]
    if not IS_MOVED:
        b_at = matrix_at(b + expert * b_expert, rows, byte, b_row, b_depth, BAND, PACK)
        up_at = matrix_at(b + expert * b_expert, up_rows, byte, b_row, b_depth, BAND, PACK)
    IS_INTEGER: tl.constexpr = a_rows.dtype.element_ty == tl.int8
    product = tl.zeros((rows.shape[0], a_rows.shape[0]), tl.int32 if IS_INTEGER else tl.float32)
    up = tl.zeros_like(product)
    for first in range(0, depth, BLOCK_K):
        right = tl.load(a_at, mask=is_row[None, :] & (k < depth - first)[:, None], other=0.0)
        row_scale, is_scale, group = None, is_column, 0
        if SCALES == "weights":
            group = tl.arange(0, BLOCK_K // 32)[None, :]
            is_scale = is_column & (group * 32 < depth - first)
            group = (first // 32 + group).to(tl.int64) * b_scale_group
        elif SCALES == "sums":
            group = (first // GROUP_SIZE).to(tl.int64)
            if a_scale_at is not None:
                row_scale = tl.load(a_scale_at + group * a_scale_block, mask=is_row, other=0.0)[None, :]
            group *= b_scale_group
        if IS_MOVED:
            stored = b.load([expert.to(tl.int32), first_rows[0], first // PER_BYTE]).reshape(rows.shape[0], STEP)
        else:
            is_stored = is_column & (byte < (depth - first) // PER_BYTE)
            stored = tl.load(b_at, mask=is_stored, other=0.0)
        product = _add_products(product, right, stored, None if scale_at is None else scale_at + group, is_scale,
                                row_scale, FORMAT, SCALES, ROUGH)
        if IS_GATED:
            if IS_MOVED:
                stored = b.load([expert.to(tl.int32), first_rows[1], first // PER_BYTE]).reshape(rows.shape[0], STEP)
            else:
                stored = tl.load(up_at, mask=is_stored, other=0.0)
            up = _add_products(up, right, stored, None if scale_at is None else up_scale_at + group, is_scale,
                               row_scale, FORMAT, SCALES, ROUGH)
        a_at += BLOCK_K
        if not IS_MOVED:
            b_at += STEP * (BAND if BAND else b_depth)
            up_at += STEP * (BAND if BAND else b_depth)
    return product, up


@triton.jit
def _moe_gemm_kernel(out, a, b, experts, sorted_ids, valid, weights, bias, a_scale, b_scale, limit, places, block,
                     slots, pairs, count, columns, depth, out_row, a_row, b_expert, b_row, b_depth, bias_expert,
                     a_scale_row, a_scale_block, b_scale_expert, b_scale_row, b_scale_group, FORMAT: tl.constexpr,
                     HAS_WORDS: tl.constexpr, SCALES: tl.constexpr, GROUP_SIZE: tl.constexpr, SCALE_ROWS: tl.constexpr,
                     ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
                     IS_OF_PAIRS: tl.constexpr, IS_BF16: tl.constexpr, BAND: tl.constexpr, PACK: tl.constexpr,
                     ROUGH: tl.constexpr, IS_MOVED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                     BLOCK_K: tl.constexpr, GROUP: tl.constexpr, XCDS: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_M places, of one expert, × BLOCK_N rows of its matrix: of a gate's activation half as many columns of out,
    each of two rows. Bound: memory, the weights of few rows; else the matrix units. Weights stand on the left, so that
    a lane has few of them and few scales. With SCALES "sums" a step of BLOCK_K lies in one group."""
    await_stream(OVERLAPS)
    COLUMNS: tl.constexpr = BLOCK_N // 2 if IS_GATED else BLOCK_N
    places = tl.minimum(tl.maximum(tl.load(valid), 0), places)
    is_there, number, first_place, block_column = _tile_of(places, block, tl.cdiv(columns, COLUMNS), BLOCK_M, GROUP,
                                                           XCDS)
    if not is_there:
        return
    place = first_place + tl.arange(0, BLOCK_M)
    is_place = (place < block) & (place < places - number * block)
    place = number.to(tl.int64) * block + place
    expert = tl.load(experts + number).to(tl.int64)
    ids = tl.load(sorted_ids + place, mask=is_place, other=-1)
    token, slot = (ids & 0xFFFFFF).to(tl.int64), ids >> 24
    pair = token * slots + slot
    is_row = is_place & (slot >= 0) & (slot < slots) & (pair < pairs)
    if (expert < 0) | (expert >= count) | (tl.max(is_row.to(tl.int32), 0) == 0):
        return
    source = pair if IS_OF_PAIRS else token
    column = block_column.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = (column < columns)[:, None]
    rows = half_rows(column, columns, 0, IS_INTERLEAVED)[:, None]
    up_rows = half_rows(column, columns, 1, IS_INTERLEAVED)[:, None]
    scale_at = None if b_scale is None else b_scale + expert * b_scale_expert + rows // SCALE_ROWS * b_scale_row
    up_scale_at = None if b_scale is None else b_scale + expert * b_scale_expert + up_rows // SCALE_ROWS * b_scale_row
    a_scale_at = None if a_scale is None else a_scale + source * a_scale_row
    first_rows = block_column * COLUMNS, columns + block_column * COLUMNS
    product, up = _both_products(a + source * a_row, b, expert, scale_at, up_scale_at, a_scale_at, rows, up_rows,
                                 first_rows, is_row, is_column, depth, b_expert, b_row, b_depth, a_scale_block,
                                 b_scale_group, FORMAT, HAS_WORDS, SCALES, GROUP_SIZE, IS_GATED, BAND, PACK, ROUGH,
                                 IS_MOVED, BLOCK_K)
    row_scale = None
    if a_scale is not None and SCALES == "":
        row_scale = tl.load(a_scale_at, mask=is_row, other=0.0)[None, :]
    weight = None if weights is None else tl.load(weights + place, mask=is_row, other=0.0)[None, :]
    bias_at = None if bias is None else bias + expert * bias_expert
    product = finished(product, row_scale, scale_at if SCALES == "" else None, None if bias is None else bias_at + rows,
                       weight, is_column)
    if IS_GATED:
        up = finished(up, row_scale, up_scale_at if SCALES == "" else None, None if bias is None else bias_at + up_rows,
                      weight, is_column)
    result = after(product, up, limit, ACTIVATION, IS_GATED, IS_BF16).to(out.dtype.element_ty)
    tl.store(out + pair[None, :] * out_row + column[:, None], result, mask=is_row[None, :] & is_column)


def moe_gemm(call: MoeGemmCall, kernel: str = "moe_gemm", **params: int) -> Launch | None:
    """The launch that writes `out`; None where it has no tiles.

    kernel: "moe_gemm_few" is that of moe_gemm_few.py, for pairs that are not sorted, "moe_gemm_hopper" that of
        moe_gemm_hopper.py; where an address forbids it this one takes over. With "moe_gemm_moved" TMA moves the
        weights, where their address allows it.
    params: values instead of those that suit the rows: block_m, block_n, block_k, num_warps and num_stages; without
        block_m and num_stages for pairs that are not sorted; and what moe_gemm_blocks.py says of the one for Hopper.
        `moved` chose the kernel.
    """
    if kernel == moe_gemm_blocks.FEW:
        return moe_gemm_few.multiply(call, params)
    target = target_of(call.a.device)
    if kernel == moe_gemm_blocks.HOPPER:
        if call.a.data_ptr() % 16 == 0 == call.b.data_ptr() % 16:
            from aiter_like.ops.moe.triton import moe_gemm_hopper  # not every Triton has tensor descriptors

            return moe_gemm_hopper.multiply(call, params, target)
        return moe_gemm(call)
    params.pop("moved", None)
    chosen = values("moe_gemm", moe_gemm_blocks.NAMES, moe_gemm_blocks.suited(call, target.platform), params)
    block_m, block_n, block_k, num_warps, num_stages = (chosen[name] for name in moe_gemm_blocks.NAMES)
    xcds = facts_of(target).xcds if target.arch == "gfx942" else 1  # programs in a row are on different ones
    places = min(call.sorted_ids.shape[0], call.experts.shape[0] * call.block)
    tiles = (triton.cdiv(places, call.block) * triton.cdiv(call.block, block_m)
             * triton.cdiv(call.out.shape[1], moe_gemm_blocks.columns_of(call, block_n)))
    if tiles == 0:
        return None
    block_k, rows = moe_gemm_blocks.step(call, block_k), moe_gemm_blocks.columns_of(call, block_n)
    has_rough_sums = is_rough(call.a, target)
    if has_rough_sums and call.b_format != "same":
        block_k = min(block_k, ROUGH)  # Triton 3.6 gives each 32 of a step's converted weights their part of ROUGH
    b = call.b
    is_moved = kernel == moe_gemm_blocks.MOVED and b.data_ptr() % 16 == 0
    if is_moved:
        from triton.tools.tensor_descriptor import TensorDescriptor  # not every Triton has it

        b = TensorDescriptor(b, list(b.shape), list(b.stride()), [1, rows, block_k // per_byte(call.b_format)])
    return launch(
        _moe_gemm_kernel, (triton.cdiv(tiles, xcds) * xcds,), call.out, call.a, b, call.experts, call.sorted_ids,
        call.valid, call.weights, call.bias, call.a_scale, call.b_scale, real(call.limit) or None, places, call.block,
        *sizes_of(call), ROUGH=ROUGH if has_rough_sums else None, IS_MOVED=is_moved, BLOCK_M=block_m, BLOCK_N=block_n,
        BLOCK_K=block_k, GROUP=GROUP, XCDS=xcds, **constants_of(call),
        options={"num_warps": num_warps, "num_stages": num_stages})
