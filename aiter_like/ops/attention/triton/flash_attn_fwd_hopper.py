# SPDX-License-Identifier: MIT
"""Attention forward for Hopper in Gluon, Triton's lower level: TMA, asynchronous products, specialised warps.

One warp loads tiles of queries, keys and values into shared memory; each of GROUPS warp groups attends for BLOCK_M rows
of queries. A group starts the product of the next keys and that of the present values together, and the other groups'
products run while it computes exponentials. What this does not serve is left to the kernel of flash_attn_fwd_parts.py.

Source: the schedule is that of FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608), sections 3.1 and 3.2.
"""

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from aiter_like.device import Target, model_of
from aiter_like.ops.attention.call import AttentionCall
from aiter_like.ops.attention.flash_attn_fwd import HopperNumbers
from aiter_like.ops.attention.triton.boxes import head_box
from aiter_like.ops.attention.triton.flash_attn_fwd_hopper_parts import (
    KEYS,
    VALUES,
    Shape,
    clear_rows,
    finish,
    free,
    packed,
    softmax,
    start_output,
    start_scores,
    tile_of,
    unpacked,
    wait_full,
)
from aiter_like.ops.attention.triton.parts import LOG2_E, MINIMUM, clamped, key_ranges, keys_of, sequence
from aiter_like.ops.attention.triton.strides import strides_of_lse, strides_of_rows
from aiter_like.ops.common.triton.launch import Launch, launch, power_of_2
from aiter_like.traced import exactly

_clamped, _key_ranges, _keys_of, _sequence = (gluon.jit(function.fn)
                                              for function in (clamped, key_ranges, keys_of, sequence))
_copy_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # since Triton 3.7

# Groups and programs that share an SM → the registers of a lane at the start, and in the warp that loads; the groups
# take what it leaves.
_REGISTERS = {(1, 2): (128, 40), (1, 3): (80, 24), (2, 1): (168, 24)}


@gluon.jit
def _work_of(index, lengths, counts, SHAPE: gl.constexpr):
    """(any rows, head, first row, rows and keys of the sequence, where they start) of a piece of work.

    `heads` heads at a time, whose keys and values stay in L2; their longest blocks first. Starts: batch and row of q,
    batch and row of k.
    """
    num_blocks, num_heads, total_heads, heads = counts
    cu_seqlens_q, cu_seqlens_k, seqlens_k, seqlen_q, seqlen_k = lengths
    chunk = index // (num_blocks * heads)
    count = gl.minimum(total_heads - chunk * heads, heads)
    rest = index - chunk * num_blocks * heads
    both = chunk * heads + rest % count
    first_row = (num_blocks - 1 - rest // count) * (SHAPE.GROUPS * SHAPE.M)
    head, batch = both % num_heads, both // num_heads
    start_q, q_batch = batch * 0, batch
    if cu_seqlens_q is not None:
        start_q, seqlen_q = _sequence(cu_seqlens_q, batch, seqlen_q)
        q_batch = batch * 0
    start_k, seqlen_k = _keys_of(batch, cu_seqlens_k, seqlens_k, seqlen_k, 0)
    k_batch = batch if cu_seqlens_k is None else batch * 0
    return first_row < seqlen_q, head, first_row, (seqlen_q, seqlen_k), (q_batch, start_q, k_batch, start_k)


@gluon.jit
def _tiles_of(first_row, rows, sizes, window, SHAPE: gl.constexpr):
    """(first tile of keys, first that every row sees, end of these, end) for some rows, as `key_ranges` has them."""
    seqlen_q, seqlen_k = sizes
    first = first_row + (seqlen_k - seqlen_q)
    last = first + gl.minimum(rows, seqlen_q - first_row) - 1
    _, begin, inner, inner_end, end = _key_ranges(first, last, seqlen_k, window[0], window[1], 0, SHAPE.HAS_LEFT, True,
                                                  SHAPE.N)
    low, high = begin // SHAPE.N, (end + SHAPE.N - 1) // SHAPE.N
    return low, inner // SHAPE.N, inner_end // SHAPE.N, gl.maximum(high, low + 1)


@gluon.jit
def _load(boxes, tiles, barriers, total, lengths, counts, group_size, window, SHAPE: gl.constexpr):
    """The warp that loads: each tile as soon as its place is free, the last keys first."""
    GROUPS: gl.constexpr = SHAPE.GROUPS
    used, turn = 0, 0
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        is_any, head, first_row, sizes, starts = _work_of(index, lengths, counts, SHAPE)
        if is_any:
            q_batch, start_q, k_batch, start_k = starts
            first, _, _, end = _tiles_of(first_row, SHAPE.GROUPS * SHAPE.M, sizes, window, SHAPE)
            for group in gl.static_range(GROUPS):
                full = barriers[4].index(group)
                mbarrier.wait(barriers[5].index(group), (turn & 1) ^ 1)
                mbarrier.expect(full, SHAPE.M * SHAPE.D * 2)
                _copy_tile(boxes[2], [q_batch, start_q + first_row + group * SHAPE.M, head, 0], full,
                           tiles[2].index(group))
            for tile in range(end - first):
                stage, phase = (used + tile) % SHAPE.STAGES, ((used + tile) // SHAPE.STAGES & 1) ^ 1
                for which in gl.static_range(2):  # keys, values
                    full = barriers[2 * which].index(stage)
                    mbarrier.wait(barriers[2 * which + 1].index(stage), phase)
                    mbarrier.expect(full, SHAPE.N * SHAPE.D * 2)
                    _copy_tile(boxes[which], [k_batch, start_k + (end - 1 - tile) * SHAPE.N, head // group_size, 0],
                               full, tiles[which].index(stage))
            used += end - first
            turn += 1


@gluon.jit
def _walk(state, q, ring, first, last, top, visibility, scale, SHAPE: gl.constexpr, IS_MASKED: gl.constexpr):
    """Tiles [first, last) from `top` down: the product with a tile's values waits for the next tile's scores, beside
    which it runs.
    """
    acc, words, maximum, total = state
    LAYOUT: gl.constexpr = maximum.type.layout.parent
    for tile in range(first, last):
        scores = start_scores(q, ring, tile, LAYOUT, SHAPE)
        p = unpacked(words, acc, q.dtype, SHAPE)
        acc = start_output(acc, p, ring, tile - 1, SHAPE)
        scores = warpgroup_mma_wait(1, deps=[scores])
        free(ring, KEYS, tile, SHAPE)
        next_p, sums, new_maximum = softmax(scores, maximum, (top - tile) * SHAPE.N, visibility, scale, SHAPE,
                                            IS_MASKED)
        shrink = gl.exp2(maximum - new_maximum)
        maximum = new_maximum
        total = total * gl.convert_layout(shrink, gl.SliceLayout(1, total.type.layout))[:, None] + sums
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        free(ring, VALUES, tile - 1, SHAPE)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
        words = packed(next_p, q.dtype, SHAPE)
    return acc, words, maximum, total


@gluon.jit
def _pass_over(ring, first, last, SHAPE: gl.constexpr):
    """Tiles [first, last), which only other groups need."""
    for tile in range(first, last):
        wait_full(ring, KEYS, tile, SHAPE)
        free(ring, KEYS, tile, SHAPE)
        wait_full(ring, VALUES, tile, SHAPE)
        free(ring, VALUES, tile, SHAPE)


@gluon.jit
def _attend(q, ring, bounds, visibility, scale, SHAPE: gl.constexpr):
    """(acc, maximum, Σ p) of a group's rows. bounds: tiles of all groups, and its own; keys of the sequence, and the
    first one that any of its rows sees.
    """
    LAYOUT: gl.constexpr = visibility[1].type.layout.parent
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1],
                                                         instr_shape=[16, SHAPE.D, 16])
    begin, end, low, inner, inner_end, high, seqlen_k, seen_from = bounds
    top, first, last = end - 1, end - high, end - low
    _pass_over(ring, 0, first, SHAPE)
    scores = warpgroup_mma_wait(0, deps=[start_scores(q, ring, first, LAYOUT, SHAPE)])
    free(ring, KEYS, first, SHAPE)
    start = (top - first) * SHAPE.N
    none = gl.full([SHAPE.M], MINIMUM, gl.float32, gl.SliceLayout(1, LAYOUT))
    p, total, maximum = softmax(scores, none, start, visibility, scale, SHAPE, True)
    if SHAPE.HAS_ENDS:
        if start + SHAPE.N > seqlen_k:
            wait_full(ring, VALUES, first, SHAPE)
            clear_rows(tile_of(ring, VALUES, first, SHAPE), 0, seqlen_k - start, SHAPE)
    acc = gl.full([SHAPE.M, SHAPE.D], 0.0, gl.float32, ACC_LAYOUT)
    state = acc, packed(p, q.dtype, SHAPE), maximum, total

    open_first = gl.maximum(end - inner_end, first + 1)
    state = _walk(state, q, ring, first + 1, gl.minimum(open_first, last), top, visibility, scale, SHAPE, True)
    if SHAPE.HAS_LEFT:
        open_last = gl.maximum(end - inner, open_first)
        state = _walk(state, q, ring, open_first, open_last, top, visibility, scale, SHAPE, False)
        open_first = open_last
    acc, words, maximum, total = _walk(state, q, ring, open_first, last, top, visibility, scale, SHAPE, SHAPE.HAS_LEFT)
    p = unpacked(words, acc, q.dtype, SHAPE)
    if SHAPE.HAS_LEFT:  # no other tile has keys that are seen, and before them such that no row sees
        start = (top - last + 1) * SHAPE.N
        if start < seen_from:
            wait_full(ring, VALUES, last - 1, SHAPE)
            clear_rows(tile_of(ring, VALUES, last - 1, SHAPE), seen_from - start, SHAPE.N, SHAPE)
    acc, p = warpgroup_mma_wait(0, deps=[start_output(acc, p, ring, last - 1, SHAPE), p])
    free(ring, VALUES, last - 1, SHAPE)
    _pass_over(ring, last, end - begin, SHAPE)
    return acc, maximum, gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, LAYOUT))


@gluon.jit
def _group(results, tiles, barriers, total, lengths, counts, window, scale, GROUP: gl.constexpr, SHAPE: gl.constexpr):
    """One warp group: M rows of each piece of work."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1],
                                                     instr_shape=[16, SHAPE.N, 16])
    used, turn = 0, 0
    q = tiles[2].index(GROUP).reshape([SHAPE.M, SHAPE.D])
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        is_any, head, first_row, sizes, starts = _work_of(index, lengths, counts, SHAPE)
        if is_any:
            seqlen_q, seqlen_k = sizes
            begin, _, _, end = _tiles_of(first_row, SHAPE.GROUPS * SHAPE.M, sizes, window, SHAPE)
            first_row += GROUP * SHAPE.M
            low, inner, inner_end, high = _tiles_of(first_row, SHAPE.M, sizes, window, SHAPE)
            high = _clamped(high, begin + 1, end)
            low = _clamped(low, begin, high - 1)
            rows = first_row + gl.arange(0, SHAPE.M, gl.SliceLayout(1, LAYOUT))
            positions = rows + (seqlen_k - seqlen_q)
            visibility = (positions - window[0], gl.minimum(positions + window[1], seqlen_k - 1))
            mbarrier.wait(barriers[4].index(GROUP), turn & 1)
            bounds = (begin, end, low, inner, inner_end, high, seqlen_k, seqlen_k - seqlen_q - window[0])
            acc, maximum, sums = _attend(q, (tiles, barriers, used), bounds, visibility, scale, SHAPE)
            mbarrier.arrive(barriers[5].index(GROUP))
            finish(acc, maximum, sums, results, head, starts, rows, first_row, seqlen_q, SHAPE)
            used += end - begin
            turn += 1


@gluon.jit(do_not_specialize=["lse_batch", "lse_row", "lse_head", "total", "num_blocks", "num_heads", "total_heads",
                              "group_size", "heads", "seqlen_q", "seqlen_k", "window_left", "window_right"])
def _attention_kernel(out, lse, sink, q_box, k_box, v_box, cu_seqlens_q, cu_seqlens_k, seqlens_k, out_strides,
                      lse_batch, lse_row, lse_head, total, num_blocks, num_heads, total_heads, group_size, heads,
                      seqlen_q, seqlen_k, window_left, window_right, scale, SHAPE: gl.constexpr,
                      REGISTERS: gl.constexpr):
    """out = softmax(q kᵀ · scale + mask) v for GROUPS · M rows of a head at a time; bound: matrix unit.

    out_strides: of batch, row and head. total: pieces of work, which programs take in turn. seqlen_q, seqlen_k: of the
    tensors' axes. scale: in units of log 2.
    """
    dtype: gl.constexpr = q_box.dtype
    STAGES: gl.constexpr = SHAPE.STAGES
    GROUPS: gl.constexpr = SHAPE.GROUPS
    q_tiles = gl.allocate_shared_memory(dtype, [GROUPS, 1, SHAPE.M, 1, SHAPE.D], q_box.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, SHAPE.N, 1, SHAPE.D], k_box.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, SHAPE.N, 1, SHAPE.D], v_box.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), 1)
        mbarrier.init(k_free.index(stage), GROUPS)
        mbarrier.init(v_full.index(stage), 1)
        mbarrier.init(v_free.index(stage), GROUPS)
    for group in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(group), 1)
        mbarrier.init(q_free.index(group), 1)
    fence_async_shared()  # the barriers are there for the copies

    tiles, barriers = (k_tiles, v_tiles, q_tiles), (k_full, k_free, v_full, v_free, q_full, q_free)
    lengths, window = (cu_seqlens_q, cu_seqlens_k, seqlens_k, seqlen_q, seqlen_k), (window_left, window_right)
    boxes, counts = (k_box, v_box, q_box), (num_blocks, num_heads, total_heads, heads)
    results = (out, out_strides, lse, (lse_batch, lse_row, lse_head), sink)
    if GROUPS == 1:
        gl.warp_specialize([
            (_group, (results, tiles, barriers, total, lengths, counts, window, scale, 0, SHAPE)),
            (_load, (boxes, tiles, barriers, total, lengths, counts, group_size, window, SHAPE))], [1], [REGISTERS])
    else:
        gl.warp_specialize([
            (_group, (results, tiles, barriers, total, lengths, counts, window, scale, 0, SHAPE)),
            (_group, (results, tiles, barriers, total, lengths, counts, window, scale, 1, SHAPE)),
            (_load, (boxes, tiles, barriers, total, lengths, counts, group_size, window, SHAPE))], [4, 1],
            [240, REGISTERS])


def attend(call: AttentionCall, settings: dict[str, int], target: Target) -> tuple[Launch, ...]:
    """The launch for a call that `hopper_serves` of ops/attention/flash_attn_fwd.py names, with aligned addresses; it
    writes out and lse.

    settings: GROUPS, PROGRAMS (that share an SM), BLOCK_M (of a group), BLOCK_N, STAGES, HEADS (0: as many as L2 holds
    the keys and values of).
    """
    left, right, longest = call.window_left, call.window_right, call.max_seqlen_q
    shape = exactly(Shape(
        GROUPS=settings["GROUPS"], M=settings["BLOCK_M"], N=settings["BLOCK_N"], D=power_of_2(call.head_dim),
        COLUMNS=call.head_dim, STAGES=settings["STAGES"], ROUNDING=call.rounding,
        HAS_LEFT=0 <= left < call.max_seqlen_k, HAS_ENDS=call.is_varlen or call.seqlens_k is not None))
    boxes = (head_box(tensor, rows, shape.D) for tensor, rows in ((call.q, shape.M), (call.k, shape.N),
                                                                  (call.v, shape.N)))
    blocks, total_heads = triton.cdiv(longest, shape.GROUPS * shape.M), call.num_heads * call.batch
    total = blocks * total_heads
    # An SM's only program goes on where pieces differ, and loads the next one beside the end of this; even ones do
    # better apart, and so do programs that share an SM (measured).
    goes_on = settings["PROGRAMS"] == 1 and (call.mask != "none" or call.is_varlen)
    programs = min(total, target.cu_num) if goes_on else total
    registers, of_loader = _REGISTERS[shape.GROUPS, settings["PROGRAMS"]]
    seqlen_q, seqlen_k = (tensor.shape[0 if call.is_varlen else 1] for tensor in (call.q, call.k))
    group_size = call.num_heads // call.num_kv_heads
    kept = model_of("sm_90", "attention.flash_attn_hopper", HopperNumbers)
    fitting = kept.kept_bytes // (4 * call.max_seqlen_k * shape.D) * group_size
    heads = settings["HEADS"] or max(fitting, kept.least_heads)
    return (launch(
        _attention_kernel, (programs, 1, 1), call.out, call.lse, call.sink, *boxes, call.cu_seqlens_q,
        call.cu_seqlens_k, call.seqlens_k, strides_of_rows(call.out), *strides_of_lse(call.lse), total, blocks,
        call.num_heads, total_heads, group_size, heads, seqlen_q, seqlen_k, max(left, 0),
        min(right, longest) if right >= 0 else longest, call.softmax_scale * LOG2_E.value, SHAPE=shape,
        REGISTERS=of_loader, options={"num_warps": 4, "maxnreg": registers}),)
