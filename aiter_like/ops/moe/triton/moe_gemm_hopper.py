# SPDX-License-Identifier: MIT
"""moe_gemm on Hopper for many rows: weights by TMA, chosen rows by cp.async, programs that go on from tile to tile.
Launched by moe_gemm.py.

TMA of this generation chooses no rows; to copy them into sorted order first and move them by TMA took longer of every
model (H100). Gates and what they let through are one box of the descriptor, so that one product of the matrix unit has
both, and a lane has the same columns of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from aiter_like.device import Target
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, real
from aiter_like.ops.gemm.parts import is_rough
from aiter_like.ops.gemm.triton.parts import ROUGH, tile_place, values
from aiter_like.ops.moe import moe_gemm_blocks
from aiter_like.ops.moe.moe_formats import SCALE_BLOCK
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, is_gated, pair_count
from aiter_like.ops.moe.triton.parts import after, finished, half_rows

_STEP = tl.constexpr(SCALE_BLOCK)
_COUNTS = ["places", "block", "slots", "pairs", "count"]  # nothing is gained by a kernel for multiples of 16
_REGISTERS, _MOST_REGISTERS = 65536, 255  # An SM has so many, and a lane can.


@dataclass(frozen=True)
class Shape:
    """The constants that the kernel is compiled for, besides which tensors there are.

    Attributes:
        M, N, K: rows of a tile, rows of a matrix for it (of a gate's activation half as many columns of out), and the
            depth of a step.
        GROUP: tiles of rows that are computed side by side.
        IS_FLAT: loads go on from tile to tile.
        IS_SCALED: fp8 with blocks of scales: N is 128 or twice 128, of a gate's activation the latter; K is 128.
        ROUGH: gemm/triton/hopper.py.
        PACK: elements of `a` in 16 bytes.
        IS_WHOLE: steps of K fill the depth.
        IS_OF_PAIRS: `a` has a row for each pair.
        ACTIVATION, IS_GATED, IS_INTERLEAVED, IS_BF16: parts.py.
    """

    M: int
    N: int
    K: int
    GROUP: int
    IS_FLAT: bool
    IS_SCALED: bool
    ROUGH: int | None
    PACK: int
    IS_WHOLE: bool
    IS_OF_PAIRS: bool
    ACTIVATION: str
    IS_GATED: bool
    IS_INTERLEAVED: bool
    IS_BF16: bool


@triton.jit
def _rows_of(order, number, first_place, SHAPE: tl.constexpr):
    """(expert, place, pair, row of a, whether there is such a row) of a tile's places; expert and row 0 where there is
    none."""
    experts, sorted_ids, places, block, slots, pairs, count = order
    inside = first_place + tl.arange(0, SHAPE.M)
    place = number * block + inside
    expert = tl.load(experts + number)
    is_expert = (expert >= 0) & (expert < count)
    ids = tl.load(sorted_ids + place, mask=(inside < block) & (place < places) & is_expert, other=-1)
    token, slot = ids & 0xFFFFFF, ids >> 24
    pair = token * slots + slot
    is_row = (slot >= 0) & (slot < slots) & (pair < pairs)
    source = tl.where(is_row, pair if SHAPE.IS_OF_PAIRS else token, 0)
    return tl.where(is_expert, expert, 0), place, pair, source, is_row


@triton.jit
def _loaded(a, a_at, is_row, begin, depth, SHAPE: tl.constexpr):
    """[rows, K] of a from column `begin` on; a_at: where the rows begin, and K columns. Its rows are 16 bytes apart or
    a multiple of it."""
    PACK: tl.constexpr = SHAPE.PACK
    is_there = is_row[:, None]
    if not SHAPE.IS_WHOLE:
        is_there = is_there & (tl.arange(0, SHAPE.K)[None, :] < depth - begin)
    at = tl.max_contiguous(tl.multiple_of(a_at + begin, (1, PACK)), (1, PACK))
    return tl.load(a + at, mask=is_there, other=0.0)


@triton.jit
def _store(product, up, rows, columns_of, result, row_scale, b_scale, weight, after_product, SHAPE: tl.constexpr,
           IS_GATED: tl.constexpr):
    """Finishes a tile's products, and with IS_GATED those of `up`, and writes their rows."""
    ACTIVATION: tl.constexpr = SHAPE.ACTIVATION
    IS_INTERLEAVED: tl.constexpr = SHAPE.IS_INTERLEAVED
    IS_BF16: tl.constexpr = SHAPE.IS_BF16
    pair, is_row = rows
    expert, column, columns = columns_of
    out, out_row = result
    bias, limit, b_scale_expert, b_scale_row, bias_expert = after_product
    expert, column = expert.to(tl.int64), column[None, :]
    is_column = column < columns
    row = half_rows(column, columns, 0, IS_INTERLEAVED)
    scale_at = None if b_scale is None else b_scale + expert * b_scale_expert + row * b_scale_row
    bias_at = None if bias is None else bias + expert * bias_expert + row
    product = finished(product, row_scale, scale_at, bias_at, weight, is_column)
    if IS_GATED:
        row = half_rows(column, columns, 1, IS_INTERLEAVED)
        scale_at = None if b_scale is None else b_scale + expert * b_scale_expert + row * b_scale_row
        bias_at = None if bias is None else bias + expert * bias_expert + row
        up = finished(up, row_scale, scale_at, bias_at, weight, is_column)
    stored = after(product, up, limit, ACTIVATION, IS_GATED, IS_BF16).to(out.dtype.element_ty)
    tl.store(out + pair.to(tl.int64)[:, None] * out_row + column, stored, mask=is_row[:, None] & is_column)


@triton.jit
def _multiply(order, operands, scales, sizes, result, after_product, number, first_place, block_column,
              SHAPE: tl.constexpr):
    """M places × N rows of a matrix."""
    M: tl.constexpr = SHAPE.M
    a, b, weights, a_row = operands
    a_scale, b_scale, a_scale_row, _, _, _, _ = scales
    columns, depth = sizes
    N: tl.constexpr = SHAPE.N
    K: tl.constexpr = SHAPE.K
    COLUMNS: tl.constexpr = N // 2 if SHAPE.IS_GATED else N
    first_column = block_column * COLUMNS
    expert, place, pair, source, is_row = _rows_of(order, number, first_place, SHAPE)
    a_at = source[:, None] * a_row + tl.arange(0, K)[None, :]
    product = tl.zeros((M, N), tl.int32 if a.dtype.element_ty == tl.int8 else tl.float32)
    for step in range(tl.cdiv(depth, K)):
        left = _loaded(a, a_at, is_row, step * K, depth, SHAPE)
        if SHAPE.IS_GATED and not SHAPE.IS_INTERLEAVED:
            right = b.load([expert, 0, first_column, step * K]).reshape(N, K)
        else:
            right = b.load([expert, block_column * N, step * K]).reshape(N, K)
        product = tl.dot(left, right.T, product, max_num_imprecise_acc=SHAPE.ROUGH, out_dtype=product.dtype)
    up = product
    if SHAPE.IS_GATED:
        if SHAPE.IS_INTERLEAVED:
            product, up = product.reshape(M, COLUMNS, 2).split()
        else:
            product, up = product.reshape(M, 2, COLUMNS).permute(0, 2, 1).split()
    row_scale = None
    if a_scale is not None:
        row_scale = tl.load(a_scale + source.to(tl.int64) * a_scale_row)[:, None]
    weight = None if weights is None else tl.load(weights + place, mask=is_row, other=0.0)[:, None]
    _store(product, up, (pair, is_row), (expert, first_column + tl.arange(0, COLUMNS), columns), result, row_scale,
           b_scale, weight, after_product, SHAPE, SHAPE.IS_GATED)


@triton.jit
def _added(sums):
    """`sums`, added up before what follows: else the compiler puts the additions of both halves behind both products,
    whose registers are then needed at once, and some of them spill."""
    return tl.inline_asm_elementwise("mov.f32 $0, $1;", "=f,f", [sums], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def _multiply_scaled(order, operands, scales, sizes, result, after_product, number, first_place, block_column,
                     SHAPE: tl.constexpr):
    """M places × 128 rows of a matrix, or twice 128, which have a scale each: those of gates and of what they let
    through, or such as follow one another. A step is a block of the depth."""
    M: tl.constexpr = SHAPE.M
    N: tl.constexpr = SHAPE.N
    IS_WIDE: tl.constexpr = N > _STEP
    a, b, weights, a_row = operands
    a_scale, b_scale, a_scale_row, a_scale_block, b_scale_expert, b_scale_row, b_scale_block = scales
    columns, depth = sizes
    expert, place, pair, source, is_row = _rows_of(order, number, first_place, SHAPE)
    first_row = block_column * _STEP if SHAPE.IS_GATED else block_column * N
    second_row = columns + first_row if SHAPE.IS_GATED else first_row + _STEP
    last_row = columns * 2 - 1 if SHAPE.IS_GATED else columns - 1
    steps = tl.cdiv(depth, _STEP)
    a_at = source[:, None] * a_row + tl.arange(0, _STEP)[None, :]
    a_scale_at = a_scale + source.to(tl.int64) * a_scale_row
    b_scale_at = b_scale + expert.to(tl.int64) * b_scale_expert + (first_row // _STEP).to(tl.int64) * b_scale_row
    # TMA reads zeros past the edges: a scale of another row does no harm.
    next_row = (tl.minimum(second_row, last_row) // _STEP - first_row // _STEP).to(tl.int64) * b_scale_row
    sums, more = tl.zeros((M, _STEP), tl.float32), tl.zeros((M, _STEP), tl.float32)
    a_next, b_next, more_next = tl.load(a_scale_at), tl.load(b_scale_at), tl.load(b_scale_at + next_row)
    for step in range(steps):
        a_now, b_now, more_now = a_next, b_next, more_next  # scales are on their way while a step is multiplied
        then = tl.minimum(step + 1, steps - 1).to(tl.int64)
        a_next, b_next = tl.load(a_scale_at + then * a_scale_block), tl.load(b_scale_at + then * b_scale_block)
        more_next = tl.load(b_scale_at + next_row + then * b_scale_block)
        left = _loaded(a, a_at, is_row, step * _STEP, depth, SHAPE)
        right = b.load([expert, first_row, step * _STEP]).reshape(_STEP, _STEP)
        sums += tl.dot(left, right.T) * (a_now * b_now)[:, None]
        if IS_WIDE:
            sums = _added(sums)
            right = b.load([expert, second_row, step * _STEP]).reshape(_STEP, _STEP)
            more += tl.dot(left, right.T) * (a_now * more_now)[:, None]
    weight = None if weights is None else tl.load(weights + place, mask=is_row, other=0.0)[:, None]
    rows, column = (pair, is_row), first_row + tl.arange(0, _STEP)
    _store(sums, more, rows, (expert, column, columns), result, None, None, weight, after_product, SHAPE,
           SHAPE.IS_GATED)
    if IS_WIDE and not SHAPE.IS_GATED:
        _store(more, more, rows, (expert, column + _STEP, columns), result, None, None, weight, after_product, SHAPE,
               False)


@triton.jit(do_not_specialize=_COUNTS)
def _moe_gemm_hopper_kernel(out, a, b, experts, sorted_ids, valid, weights, bias, a_scale, b_scale, limit, places,
                            block, slots, pairs, count, columns, depth, out_row, a_row, bias_expert,
                            a_scale_row, a_scale_block, b_scale_expert, b_scale_row, b_scale_block,
                            SHAPE: tl.constexpr, OVERLAPS: tl.constexpr):
    """M places, of one expert, × N rows of its matrix at a time; bound: the matrix units, or of few rows the weights;
    with blocks of scales also the lanes that scale what the matrix units give."""
    await_stream(OVERLAPS)
    parts = tl.cdiv(block, SHAPE.M)  # tiles of a block
    places = tl.minimum(tl.maximum(tl.load(valid), 0), places)
    order, sizes = (experts, sorted_ids, places, block, slots, pairs, count), (columns, depth)
    operands, result = (a, b, weights, a_row), (out, out_row)
    scales = (a_scale, b_scale, a_scale_row, a_scale_block, b_scale_expert, b_scale_row, b_scale_block)
    after_product = (bias, limit, b_scale_expert, b_scale_row, bias_expert)
    blocks_m = tl.cdiv(places, block) * parts
    blocks_n = tl.cdiv(columns, SHAPE.N // 2 if SHAPE.IS_GATED else SHAPE.N)
    for index in tl.range(tl.program_id(0), blocks_m * blocks_n, tl.num_programs(0), flatten=SHAPE.IS_FLAT):
        slot, block_column = tile_place(index, blocks_m, blocks_n, SHAPE.GROUP)
        number, first_place = slot // parts, slot % parts * SHAPE.M
        if SHAPE.IS_SCALED:
            _multiply_scaled(order, operands, scales, sizes, result, after_product, number, first_place, block_column,
                             SHAPE)
        else:
            _multiply(order, operands, scales, sizes, result, after_product, number, first_place, block_column, SHAPE)


def multiply(call: MoeGemmCall, params: dict[str, int], target: Target) -> Launch | None:
    """The launch that writes `out`; None where it has no tiles."""
    blocks = values("moe_gemm", moe_gemm_blocks.HOPPER_NAMES, moe_gemm_blocks.suited_to_hopper(call), params)
    k, columns = call.a.shape[1], call.out.shape[1]
    is_of_pairs = call.a.shape[0] == pair_count(call)
    shape = Shape(
        M=blocks["block_m"], N=blocks["block_n"], K=blocks["block_k"], GROUP=blocks["group"],
        IS_FLAT=bool(blocks["is_flat"]), IS_SCALED=call.group_size > 0,
        ROUGH=ROUGH if is_rough(call.a, target) else None, PACK=16 // call.a.element_size(),
        IS_WHOLE=k % blocks["block_k"] == 0, IS_OF_PAIRS=is_of_pairs,
        ACTIVATION=call.activation.removesuffix("_and_mul"), IS_GATED=is_gated(call.activation),
        IS_INTERLEAVED=call.is_interleaved, IS_BF16=call.out.dtype == torch.bfloat16)
    places = min(call.sorted_ids.shape[0], call.experts.shape[0] * call.block)
    tiles = (triton.cdiv(places, call.block) * triton.cdiv(call.block, shape.M)
             * triton.cdiv(columns, moe_gemm_blocks.columns_of(call, shape.N)))
    if tiles == 0:
        return None
    a_scale, b_scale = ((0, 0, 0) if one is None else (*one.stride(), 0, 0) for one in (call.a_scale, call.b_scale))
    return launch(
        _moe_gemm_hopper_kernel, (min(tiles, target.cu_num * blocks["programs"]),), call.out, call.a,
        _boxes(call, shape), call.experts, call.sorted_ids, call.valid, call.weights, call.bias, call.a_scale,
        call.b_scale, real(call.limit) or None, places, call.block, call.slots, pair_count(call), call.b.shape[0],
        columns, k, call.out.stride(0), call.a.stride(0), 0 if call.bias is None else call.bias.stride(0), *a_scale[:2],
        *b_scale[:3], SHAPE=shape, options=_options(blocks))


def _options(blocks: dict[str, int]) -> dict[str, int]:
    """Triton's, with as many registers as let `programs` share an SM."""
    options = {name: blocks[name] for name in ("num_warps", "num_stages")}
    registers = _REGISTERS // (blocks["programs"] * blocks["num_warps"] * 32) // 8 * 8
    return options | ({"maxnreg": registers} if registers < _MOST_REGISTERS else {})


def _boxes(call: MoeGemmCall, shape: Shape) -> TensorDescriptor:
    """The matrices as the kernel loads them."""
    (experts, n, k), strides = call.b.shape, call.b.stride()
    if shape.IS_SCALED:
        return TensorDescriptor(call.b, [experts, n, k], [*strides], [1, SCALE_BLOCK, shape.K])
    if shape.IS_GATED and not shape.IS_INTERLEAVED:
        halves = [strides[0], n // 2 * strides[1], *strides[1:]]
        return TensorDescriptor(call.b, [experts, 2, n // 2, k], halves, [1, 2, shape.N // 2, shape.K])
    return TensorDescriptor(call.b, [experts, n, k], [*strides], [1, shape.N, shape.K])
