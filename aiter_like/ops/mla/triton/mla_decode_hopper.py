# SPDX-License-Identifier: MIT
"""Latent attention over pages for Hopper in Gluon, Triton's lower level: asynchronous products, specialised warps.

Four warps copy queries and keys into shared memory: row by row, or by TMA where pages hold whole tiles. One warp group
has the scores and the softmax of 64 rows and the sums of the latent's left half, another one the sums of its right
half: all columns of 64 rows are more than the registers of one. What this does not serve is left to mla_decode.py.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from aiter_like.device import target_of
from aiter_like.ops.attention.triton.parts import LOG2_E, MASKED, MINIMUM, clamped
from aiter_like.ops.common.triton import launch as common
from aiter_like.ops.common.triton.launch import Launch, config, launch
from aiter_like.ops.mla.call import MlaDecodeCall
from aiter_like.ops.mla.plan import tiles_of
from aiter_like.ops.mla.triton.mla_decode_hopper_parts import (
    COPIED,
    HALF,
    KEYS,
    ROPE,
    ROWS,
    RUN,
    SCORES,
    STAGES,
    SUMS,
    Shape,
    copy_columns,
    copy_some,
    copy_whole,
    exponentials,
    item_of,
    last_key,
    no_sums,
    places_of,
    softmax,
    store_lse,
    store_sums,
)
from aiter_like.traced import exactly

_clamped, await_stream = gluon.jit(clamped.fn), gluon.jit(common.await_stream.fn)

_COPIERS = gl.constexpr(128)  # lanes, each of which says when its copies are there
_MOST_TILES = gl.constexpr(2**30)
_REGISTERS = (168, 176, 80)  # a lane's at the start; then the right half's group's, and the copying warps'


@gluon.jit
def _items_of(work_indptr, part, num_items):
    first = _clamped(gl.load(work_indptr + part), 0, num_items)
    return first, _clamped(gl.load(work_indptr + part + 1), first, num_items)


@gluon.jit
def _copy(q, kv, boxes, strides, kv_indices, tiles, full, free, channel, bounds, lists, sizes, num_pages,
          SHAPE: gl.constexpr):
    """The warps that copy: each tile as soon as its place is free."""
    first_item, last_item, tile = bounds
    q_tiles, k_tiles, absent = tiles
    q_strides, kv_strides = strides
    num_heads = sizes[2]
    used, turn = 0, 0
    for item in range(first_item, last_item):
        limit, _, q_start, entry, count, _ = item_of(item, tile, lists, sizes, SHAPE)
        if (tile * ROWS < limit * num_heads) & (count > 0):
            rows = tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPIED))
            tokens, heads = rows // num_heads, rows % num_heads
            inside = tokens < limit
            at = (q_start + gl.minimum(tokens, limit - 1)).to(gl.int64)
            mbarrier.wait(channel[1], (turn & 1) ^ 1)
            pointers = q + (at * q_strides[0] + heads.to(gl.int64) * q_strides[1]) * RUN
            copy_columns(q_tiles[0].index(0), pointers, 0, HALF, inside, channel[0])
            copy_columns(q_tiles[1].index(0), pointers, HALF, HALF, inside, channel[0])
            copy_columns(q_tiles[2].index(0), pointers, 2 * HALF, ROPE, inside, channel[0])
            num_tiles = (count + KEYS - 1) // KEYS
            for index in range(num_tiles):
                stage, phase = (used + index) % STAGES, ((used + index) // STAGES & 1) ^ 1
                pointers, inside = places_of(kv, kv_strides, kv_indices, entry, index * KEYS, count, num_pages, SHAPE)
                mbarrier.wait(free[0].index(stage), phase)
                absent.index(stage).store(gl.where(inside, 0.0, -1.0))
                mbarrier.arrive(full[2].index(stage))
                places = k_tiles[0].index(stage), k_tiles[1].index(stage), k_tiles[2].index(stage)
                barriers = full[0].index(stage), full[1].index(stage), full[2].index(stage)
                if SHAPE.HAS_BOXES:
                    page = gl.load(kv_indices + entry + index * KEYS // SHAPE.PAGE)
                    is_page = (page >= 0) & (page < num_pages)
                    if is_page & (index * KEYS + KEYS <= count):
                        row = page * SHAPE.PAGE + index * KEYS % SHAPE.PAGE
                        copy_whole(places, boxes, row, barriers, free[1].index(stage), phase)
                    else:
                        copy_some(places, pointers, inside, barriers, free[1].index(stage), phase)
                else:
                    copy_columns(places[2], pointers, 2 * HALF, ROPE, inside, barriers[2])
                    copy_columns(places[0], pointers, 0, HALF, inside, barriers[0])
                    mbarrier.wait(free[1].index(stage), phase)
                    copy_columns(places[1], pointers, HALF, HALF, inside, barriers[1])
            used += num_tiles
            turn += 1


@gluon.jit
def _start_scores(tiles, full, position, SHAPE: gl.constexpr):
    """Starts q kᵀ of a tile, part by part as they come."""
    q_tiles, k_tiles, _ = tiles
    stage, phase = position % STAGES, position // STAGES & 1
    zero = position // _MOST_TILES  # found here, or the loop would keep all addresses of q, in registers it has not
    scores = gl.full([ROWS, KEYS], 0.0, gl.float32, SCORES)
    mbarrier.wait(full[2].index(stage), phase)
    fence_async_shared()
    scores = warpgroup_mma(q_tiles[2].index(zero), k_tiles[2].index(stage).permute([1, 0]), scores, use_acc=False,
                           is_async=True)
    mbarrier.wait(full[0].index(stage), phase)
    fence_async_shared()
    scores = warpgroup_mma(q_tiles[0].index(zero), k_tiles[0].index(stage).permute([1, 0]), scores, is_async=True)
    mbarrier.wait(full[1].index(stage), phase)
    fence_async_shared()
    return warpgroup_mma(q_tiles[1].index(zero), k_tiles[1].index(stage).permute([1, 0]), scores, is_async=True)


@gluon.jit
def _start_sums(scores, state, acc, exchange, tiles, index, position, last, scale, softcap, SHAPE: gl.constexpr):
    """(sums on their way, p, state) of a tile; the other group gets p and the factor of its sums. The product with
    half of the keys runs beside the exponentials of the others.
    """
    factors, p_tiles, p_full, p_free, _, _ = exchange
    stage = position % STAGES
    absent = tiles[2].index(stage).load(gl.SliceLayout(0, SCORES))
    scores, factor, origin, shrink, state = softmax(scores, state, absent, index * KEYS, last, scale, softcap, SHAPE)
    values = tiles[1][0].index(stage)
    first, second = gl.split(scores.reshape([ROWS, 2, KEYS // 2]).permute([0, 2, 1]))
    p, total = exponentials(first, factor, origin, state[2])
    first = p.to(p_tiles[0].dtype)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, SUMS))[:, None]
    p0 = gl.convert_layout(first, gl.DotOperandLayout(0, SUMS, 2))
    acc = warpgroup_mma(p0, values.slice(0, KEYS // 2), acc, is_async=True)
    p, total = exponentials(second, factor, origin, total)
    second = p.to(p_tiles[0].dtype)
    p1 = gl.convert_layout(second, gl.DotOperandLayout(0, SUMS, 2))
    acc = warpgroup_mma(p1, values.slice(KEYS // 2, KEYS // 2), acc, is_async=True)
    mbarrier.wait(p_free, (position & 1) ^ 1)
    factors.index(0).store(shrink)
    p_tiles[0].store(first)
    p_tiles[1].store(second)
    fence_async_shared()
    mbarrier.arrive(p_full)
    return acc, p0, p1, (state[0], state[1], total)


@gluon.jit
def _left(tiles, full, left_free, channel, exchange, bounds, lists, sizes, results, sums, scale, softcap,
          SHAPE: gl.constexpr):
    """The group that has the scores: softmax, the left half of the sums, and the log-sum-exp."""
    first_item, last_item, tile = bounds
    factors, go, done = exchange[0], exchange[4], exchange[5]
    num_heads = sizes[2]
    rows = tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    used, turn = 0, 0
    for item in range(first_item, last_item):
        limit, place, q_start, _, count, span = item_of(item, tile, lists, sizes, SHAPE)
        if tile * ROWS < limit * num_heads:
            maximum = gl.full([ROWS], MINIMUM, gl.float32, gl.SliceLayout(1, SCORES))
            total = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
            acc = gl.full([ROWS, HALF], 0.0, gl.float32, SUMS)
            if count > 0:
                num_tiles = (count + KEYS - 1) // KEYS
                last = last_key(rows // num_heads, span, SHAPE)
                state = maximum, gl.full([ROWS], MASKED, gl.float32, gl.SliceLayout(1, SCORES)), no_sums()
                mbarrier.wait(channel[0], turn & 1)
                scores = warpgroup_mma_wait(0, deps=[_start_scores(tiles, full, used, SHAPE)])
                for index in range(num_tiles - 1):
                    position = used + index
                    stage = position % STAGES
                    if SHAPE.IS_LATE:
                        mbarrier.arrive(go, pred=index > 0)
                    acc, p0, p1, state = _start_sums(scores, state, acc, exchange, tiles, index, position, last,
                                                     scale, softcap, SHAPE)
                    acc, p0, p1 = warpgroup_mma_wait(0, deps=[acc, p0, p1])
                    mbarrier.arrive(left_free.index(stage))
                    following = _start_scores(tiles, full, position + 1, SHAPE)
                    scores = warpgroup_mma_wait(0, deps=[following])
                mbarrier.arrive(channel[1])
                if SHAPE.IS_LATE:
                    mbarrier.arrive(go, pred=num_tiles > 1)
                position = used + num_tiles - 1
                acc, p0, p1, state = _start_sums(scores, state, acc, exchange, tiles, num_tiles - 1, position, last,
                                                 scale, softcap, SHAPE)
                if SHAPE.IS_LATE:
                    mbarrier.arrive(go)
                acc, p0, p1 = warpgroup_mma_wait(0, deps=[acc, p0, p1])
                mbarrier.arrive(left_free.index(position % STAGES))
                maximum = state[0]
                total = gl.convert_layout(gl.sum(state[2], 1), gl.SliceLayout(1, SCORES))
                factor = gl.where(total == 0.0, 0.0, 1.0 / total)  # 0: no visible key
                factors.index(1 + (turn & 1)).store(factor)
                mbarrier.arrive(done.index(turn & 1))
                acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, SUMS))[:, None]
                used += num_tiles
                turn += 1
            store_lse(maximum, total, rows, limit, place, q_start, num_heads, sums)
            store_sums(acc, 0, tile, limit, place, q_start, num_heads, results)


@gluon.jit
def _right(tiles, full, right_free, exchange, bounds, lists, sizes, results, SHAPE: gl.constexpr):
    """The group that has the right half of the sums."""
    first_item, last_item, tile = bounds
    factors, p_tiles, p_full, p_free, go, done = exchange
    num_heads = sizes[2]
    used, turn = 0, 0
    for item in range(first_item, last_item):
        limit, place, q_start, _, count, _ = item_of(item, tile, lists, sizes, SHAPE)
        if tile * ROWS < limit * num_heads:
            acc = gl.full([ROWS, HALF], 0.0, gl.float32, SUMS)
            if count > 0:
                num_tiles = (count + KEYS - 1) // KEYS
                for index in range(num_tiles):
                    position = used + index
                    stage = position % STAGES
                    mbarrier.wait(p_full, position & 1)
                    acc = acc * factors.index(0).load(gl.SliceLayout(1, SUMS))[:, None]
                    mbarrier.wait(full[1].index(stage), position // STAGES & 1)
                    if SHAPE.IS_LATE:
                        mbarrier.wait(go, position & 1)
                    fence_async_shared()
                    values = tiles[1][1].index(stage)
                    acc = warpgroup_mma(p_tiles[0], values.slice(0, KEYS // 2), acc, is_async=True)
                    acc = warpgroup_mma(p_tiles[1], values.slice(KEYS // 2, KEYS // 2), acc, is_async=True)
                    acc = warpgroup_mma_wait(0, deps=[acc])
                    mbarrier.arrive(p_free)
                    mbarrier.arrive(right_free.index(stage))
                mbarrier.wait(done.index(turn & 1), turn // 2 & 1)
                acc = acc * factors.index(1 + (turn & 1)).load(gl.SliceLayout(1, SUMS))[:, None]
                used += num_tiles
                turn += 1
            store_sums(acc, HALF, tile, limit, place, q_start, num_heads, results)


@gluon.jit(do_not_specialize=["tiles", "batch", "num_items", "total_q", "num_heads", "num_pages", "num_entries",
                              "num_rows", "world_size", "rank"])
def _mla_decode_kernel(out, lse, partial_out, partial_lse, q, kv, kv_indptr, kv_indices, kv_last_page_lens,
                      g_kv_indptr, work_indptr, work_info, latent_box, rope_box, out_strides, lse_strides,
                      part_strides, sum_strides, q_strides, kv_strides, tiles, batch, num_items, total_q, num_heads,
                      num_pages, num_entries, num_rows, world_size, rank, scale, softcap, SHAPE: gl.constexpr,
                      REGISTERS: gl.constexpr, OVERLAPS: gl.constexpr):
    """softmax(q kᵀ · scale) v of one tile of 64 rows over one part of the plan per program; bound: memory while the
    rows are few, the matrix unit from about 128 rows on.

    Shared memory, in KB: q 72, two tiles of keys 72 each, p 8. A tile of keys takes 2176 cycles of the matrix unit,
    and the softmax about 500 beside it. q_strides, kv_strides: in RUNs. scale, softcap: in units of log 2.
    """
    await_stream(OVERLAPS)
    dtype: gl.constexpr = q.dtype.element_ty
    COPIERS: gl.constexpr = 1 if SHAPE.HAS_BOXES else _COPIERS
    WIDE: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    q_tiles = (gl.allocate_shared_memory(dtype, [1, ROWS, HALF], WIDE),
               gl.allocate_shared_memory(dtype, [1, ROWS, HALF], WIDE),
               gl.allocate_shared_memory(dtype, [1, ROWS, ROPE], WIDE))
    k_tiles = (gl.allocate_shared_memory(dtype, [STAGES, KEYS, HALF], WIDE),
               gl.allocate_shared_memory(dtype, [STAGES, KEYS, HALF], WIDE),
               gl.allocate_shared_memory(dtype, [STAGES, KEYS, ROPE], WIDE))
    NARROW: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2)
    p_tiles = (gl.allocate_shared_memory(dtype, [ROWS, KEYS // 2], NARROW),
               gl.allocate_shared_memory(dtype, [ROWS, KEYS // 2], NARROW))
    absent = gl.allocate_shared_memory(gl.float32, [STAGES, KEYS], FLAT)
    factors = gl.allocate_shared_memory(gl.float32, [4, ROWS], FLAT)
    left_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    right_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    rope_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    left_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    right_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    others = gl.allocate_shared_memory(gl.int64, [5, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(left_full.index(stage), COPIERS)
        mbarrier.init(right_full.index(stage), COPIERS)
        mbarrier.init(rope_full.index(stage), COPIERS + 1)
        mbarrier.init(left_free.index(stage), 1)
        mbarrier.init(right_free.index(stage), 1)
    for index in gl.static_range(2):
        mbarrier.init(done.index(index), 1)
    mbarrier.init(others.index(0), 3 * _COPIERS)
    for index in gl.static_range(1, 5):
        mbarrier.init(others.index(index), 1)
    fence_async_shared()

    program = gl.program_id(0)
    first, last = _items_of(work_indptr, program // tiles, num_items)
    bounds = first, last, program % tiles
    lists = work_info, kv_indptr, kv_last_page_lens, g_kv_indptr
    sizes = batch, total_q, num_heads, num_entries, num_rows, world_size, rank
    all_tiles, full = (q_tiles, k_tiles, absent), (left_full, right_full, rope_full)
    channel = others.index(0), others.index(1)
    exchange = factors, p_tiles, others.index(2), others.index(3), others.index(4), done
    results, sums = (out, out_strides, partial_out, part_strides), (lse, lse_strides, partial_lse, sum_strides)
    gl.warp_specialize([
        (_left, (all_tiles, full, left_free, channel, exchange, bounds, lists, sizes, results, sums, scale, softcap,
                 SHAPE)),
        (_right, (all_tiles, full, right_free, exchange, bounds, lists, sizes, results, SHAPE)),
        (_copy, (q, kv, (latent_box, rope_box), (q_strides, kv_strides), kv_indices, all_tiles, full,
                 (left_free, right_free), channel, bounds, lists, sizes, num_pages, SHAPE))], [4, 4], REGISTERS)


def _boxes(kv: Tensor) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Boxes of 64 keys: half of the latent's columns, and the rotated ones; None where pages do not hold whole tiles,
    or do not follow one another."""
    num_pages, page_size, _, dim = kv.shape
    rows = num_pages * page_size
    if page_size % KEYS.value or not 0 < rows < 2**31 or num_pages > 1 and kv.stride(0) != page_size * kv.stride(1):
        return None, None
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return tuple(TensorDescriptor(kv, [rows, dim], [kv.stride(1), 1], [KEYS.value, columns.value], layout)
                 for columns in (HALF, ROPE))


def attend(call: MlaDecodeCall, params: dict[str, int]) -> Launch:
    """The launch for a call that `triton_kernels` of ops/mla/hopper.py lets have it, with aligned addresses.

    params: LATE, TMA (IS_LATE, HAS_BOXES of Shape) instead of those of configs/triton/mla_decode_hopper.toml.
    """
    total_q, num_heads, _ = call.q.shape
    tiles = tiles_of(call.max_seqlen_q * exactly(num_heads), least=ROWS.value)
    variant = "one_tile" if tiles == 1 else "more_tiles"
    settings = {**config("mla_decode_hopper", target_of(call.q.device).arch, variant), **params}
    boxes = _boxes(call.kv) if settings["TMA"] else (None, None)
    shape = exactly(Shape(
        PAGE=call.kv.shape[1], IS_LATE=bool(settings["LATE"]), HAS_BOXES=boxes[0] is not None,
        IS_CAUSAL=call.causal and (call.max_seqlen_q > 1 or call.g_kv_indptr is not None),
        HAS_RANKS=call.g_kv_indptr is not None, HAS_SOFTCAP=call.softcap > 0))
    q_steps, kv_steps = (tuple(step // RUN.value for step in tensor.stride()[:2]) for tensor in (call.q, call.kv))
    return launch(
        _mla_decode_kernel, ((call.work_indptr.shape[0] - 1) * tiles, 1, 1), call.out, call.lse, call.partial_out,
        call.partial_lse, call.q, call.kv, call.kv_indptr, call.kv_indices, call.kv_last_page_lens, call.g_kv_indptr,
        call.work_indptr, call.work_info, *boxes, call.out.stride()[:2],
        (0, 0) if call.lse is None else call.lse.stride(), call.partial_out.stride()[:2], call.partial_lse.stride(),
        q_steps, kv_steps, tiles, call.qo_indptr.shape[0] - 1, call.work_info.shape[0], total_q, num_heads,
        call.kv.shape[0], call.kv_indices.shape[0], call.partial_out.shape[0], call.cp_world_size, call.cp_rank,
        call.softmax_scale * LOG2_E.value, call.softcap * LOG2_E.value, SHAPE=shape, REGISTERS=_REGISTERS[1:],
        OVERLAPS=True, options={"num_warps": 4, "maxnreg": _REGISTERS[0]})
