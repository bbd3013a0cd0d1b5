# SPDX-License-Identifier: MIT
"""Derivatives of dense attention for Hopper in Gluon: TMA, asynchronous products, specialised warps.

As in flash_attn_bwd.py one kernel for dK and dV by blocks of keys, one for dQ by blocks of rows, and no atomics. One
warp loads what the loop walks along into rings in shared memory; each of two warp groups has 64 keys or rows of its
own, and starts products before it needs them: those of one group run while the other computes probabilities. What this
does not serve is left to the kernels of flash_attn_bwd.py.
"""

from __future__ import annotations

import triton
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

from aiter_like.device import Target
from aiter_like.ops.attention.call import AttentionBackwardCall
from aiter_like.ops.attention.checks import has_aligned_strides
from aiter_like.ops.attention.triton.boxes import head_box
from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_parts import (
    OWN,
    block_of_program,
    copy_tile,
    load_own,
    of_columns,
    place_of,
    release,
    ring_barriers,
    start_product,
    store_own,
)
from aiter_like.ops.attention.triton.flash_attn_bwd_hopper_wide import of_shared_keys
from aiter_like.ops.attention.triton.parts import LOG2_E
from aiter_like.ops.common.triton.launch import Launch, launch, power_of_2

# Registers of a lane: at the start, and then in a warp group and in the warp that loads.
_REGISTERS = 168
_GROUP_REGISTERS = gl.constexpr(240)
_LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def _load_for_keys(own_boxes, boxes, own, own_full, tiles, rings, place, counts, M: gl.constexpr, D: gl.constexpr,
                   STAGES: gl.constexpr, PARTS: gl.constexpr):
    """The warp that loads in _dkdv_kernel: of each head the row blocks with a mask, then of each head the others."""
    batch, kv_head, first_key, num_heads, group_size = place
    first, inner, end = counts
    load_own(own_boxes, own, own_full, batch, kv_head, first_key, D, PARTS)
    masked = group_size * (inner - first)
    block, head = first, kv_head * group_size
    for index in range(group_size * (end - first)):
        if index == masked:
            block, head = inner, kv_head * group_size
        for which in gl.static_range(2):  # rows of q with their LSE, of dout with their delta
            stage, full = place_of(rings[which], index, M * D * 2 + M * 4, STAGES)
            copy_tile(boxes[which], [batch, block * M, head, 0], full, tiles[which].index(stage))
            copy_tile(boxes[2 + which], [batch * num_heads + head, block * M], full, tiles[2 + which].index(stage))
        block += 1
        if block == gl.where(index < masked, inner, end):
            block = gl.where(index < masked, first, inner)
            head += 1


@gluon.jit
def _walk_rows(sums, own, tiles, rings, begin, end, mask, scale, LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
               M: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr, IS_MASKED: gl.constexpr):
    """Adds to dK and dV what tiles begin … end − 1 contribute, UNROLL of them in one turn, whose products overlap.

    mask: the first row that sees each key; the first row block of each head, and the one after the last.
    """
    dk, dv = sums
    k, v = own
    first_seeing, first, inner = mask
    block = first
    for turn in range(begin, end, UNROLL):
        scores = start_product(k, tiles[0], rings[0], turn, LAYOUT, M, D, STAGES)
        dp = start_product(v, tiles[1], rings[1], turn, LAYOUT, M, D, STAGES)
        for step in gl.static_range(UNROLL):
            index = turn + step
            q = tiles[0].index(index % STAGES).reshape([M, D])
            dout = tiles[1].index(index % STAGES).reshape([M, D])
            scores = warpgroup_mma_wait(1, deps=[scores])
            exponent = scores * scale - of_columns(tiles[2], index, LAYOUT, M, STAGES)
            if IS_MASKED:
                rows = block * M + gl.arange(0, M, gl.SliceLayout(0, LAYOUT))
                visible = rows[None, :] >= first_seeing[:, None]
                exponent = gl.where(visible, exponent, float("-inf"))
            p = gl.exp2(exponent)
            p_operand = gl.convert_layout(p.to(k.dtype), P_LAYOUT)
            dv = warpgroup_mma(p_operand, dout, dv, is_async=True)
            dp = warpgroup_mma_wait(1, deps=[dp])
            slope = dp - of_columns(tiles[3], index, LAYOUT, M, STAGES)
            if IS_MASKED:
                slope = gl.where(visible, slope, 0.0)  # also where dp is NaN
            ds_operand = gl.convert_layout((p * slope).to(k.dtype), P_LAYOUT)
            dk = warpgroup_mma(ds_operand, q, dk, is_async=True)
            if step + 1 < UNROLL:
                dv, p_operand = warpgroup_mma_wait(1, deps=[dv, p_operand])
                release(rings[1], index, STAGES)
                scores = start_product(k, tiles[0], rings[0], index + 1, LAYOUT, M, D, STAGES)
                dk, ds_operand = warpgroup_mma_wait(1, deps=[dk, ds_operand])
                release(rings[0], index, STAGES)
                dp = start_product(v, tiles[1], rings[1], index + 1, LAYOUT, M, D, STAGES)
            else:
                dv, p_operand = warpgroup_mma_wait(1, deps=[dv, p_operand])
                release(rings[1], index, STAGES)
                dk, ds_operand = warpgroup_mma_wait(0, deps=[dk, ds_operand])
                release(rings[0], index, STAGES)
        block = gl.where(block + 1 == inner, first, block + 1)
    return dk, dv


@gluon.jit
def _of_keys(dk, dv, own, own_full, tiles, rings, strides, place, counts, limits, scales, GROUP: gl.constexpr,
             M: gl.constexpr, D: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr):
    """One warp group of _dkdv_kernel: OWN keys from place[2] + GROUP · OWN on. counts: see _dkdv_kernel."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, M, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    batch, kv_head, first_key, num_heads, group_size = place
    first, inner, end = counts
    seqlen_k, edge = limits
    scale, softmax_scale = scales
    first_key += GROUP * OWN
    both = own[0].index(GROUP).reshape([OWN, D]), own[1].index(GROUP).reshape([OWN, D])
    mask = first_key + gl.arange(0, OWN, gl.SliceLayout(1, LAYOUT)) - edge, first, inner
    masked = group_size * (inner - first)
    mbarrier.wait(own_full, 0)
    sums = gl.zeros([OWN, D], gl.float32, SUMS), gl.zeros([OWN, D], gl.float32, SUMS)
    sums = _walk_rows(sums, both, tiles, rings, 0, masked, mask, scale, LAYOUT, P_LAYOUT, M, D, STAGES, 1, True)
    dk_sum, dv_sum = _walk_rows(sums, both, tiles, rings, masked, group_size * (end - first), mask, scale, LAYOUT,
                                P_LAYOUT, M, D, STAGES, UNROLL, False)
    store_own(dk, strides[0], batch, kv_head, first_key, seqlen_k, dk_sum * softmax_scale, D, COLUMNS)
    store_own(dv, strides[1], batch, kv_head, first_key, seqlen_k, dv_sum, D, COLUMNS)


@gluon.jit(do_not_specialize=["num_blocks", "num_heads", "kv_heads", "total_heads", "group_size", "heads", "seqlen_q",
                              "seqlen_k", "edge"])
def _dkdv_kernel(dk, dv, q_box, dout_box, k_box, v_box, lse_box, delta_box, strides, num_blocks, num_heads, kv_heads,
                 total_heads, group_size, heads, seqlen_q, seqlen_k, edge, scale, softmax_scale, M: gl.constexpr,
                 D: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr):
    """dV = Pᵀ dO and dK = softmax_scale · dSᵀ Q of PARTS · OWN keys of one KV head; bound: matrix unit.

    A row sees keys up to row + edge. scale: softmax_scale in units of log 2.
    """
    PARTS: gl.constexpr = 2 if D <= 128 else 1  # 1: registers hold dK in one warp group, dV in the other
    block, kv_head, batch = block_of_program(num_blocks, kv_heads, total_heads, heads)
    dtype: gl.constexpr = q_box.dtype
    k_tiles = gl.allocate_shared_memory(dtype, [PARTS, 1, OWN, 1, D], k_box.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [PARTS, 1, OWN, 1, D], v_box.layout)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, M, 1, D], q_box.layout)
    dout_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, M, 1, D], dout_box.layout)
    lse_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 1, M], lse_box.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 1, M], delta_box.layout)
    own_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(own_full, 1)
    rings = ring_barriers(STAGES), ring_barriers(STAGES)
    fence_async_shared()  # the barriers are there for the copies

    # Row blocks first … end − 1 see any of the keys; those from inner on see them all.
    first_key = block * (PARTS * OWN)
    end = (seqlen_q + M - 1) // M
    first = gl.minimum(gl.maximum(first_key - edge, 0) // M, end)
    inner = gl.minimum((gl.maximum(first_key + PARTS * OWN - 1 - edge, 0) + M - 1) // M, end)
    inner += (end - inner) % UNROLL  # a block more with the mask that it does not need
    own, tiles = (k_tiles, v_tiles), (q_tiles, dout_tiles, lse_tiles, delta_tiles)
    place, counts = (batch, kv_head, first_key, num_heads, group_size), (first, inner, end)
    limits, scales = (seqlen_k, edge), (scale, softmax_scale)
    boxes = (q_box, dout_box, lse_box, delta_box)
    if PARTS == 1:
        gl.warp_specialize([
            (of_shared_keys, (dv, 1.0, own, own_full, tiles, rings, strides[1], place, counts, limits, scale, False, M,
                              D, COLUMNS, STAGES)),
            (of_shared_keys, (dk, softmax_scale, own, own_full, tiles, rings, strides[0], place, counts, limits, scale,
                              True, M, D, COLUMNS, STAGES)),
            (_load_for_keys, ((k_box, v_box), boxes, own, own_full, tiles, rings, place, counts, M, D, STAGES, PARTS))],
            [4, 1], [_GROUP_REGISTERS, _LOADER_REGISTERS])
    else:
        gl.warp_specialize([
            (_of_keys, (dk, dv, own, own_full, tiles, rings, strides, place, counts, limits, scales, 0, M, D, COLUMNS,
                        STAGES, UNROLL)),
            (_of_keys, (dk, dv, own, own_full, tiles, rings, strides, place, counts, limits, scales, 1, M, D, COLUMNS,
                        STAGES, UNROLL)),
            (_load_for_keys, ((k_box, v_box), boxes, own, own_full, tiles, rings, place, counts, M, D, STAGES, PARTS))],
            [4, 1], [_GROUP_REGISTERS, _LOADER_REGISTERS])


@gluon.jit
def _load_for_rows(own_boxes, boxes, own, own_full, tiles, rings, place, kv_head, num_tiles, N: gl.constexpr,
                   D: gl.constexpr, STAGES: gl.constexpr):
    """The warp that loads in _dq_kernel."""
    batch, head, first_row = place
    load_own(own_boxes, own, own_full, batch, head, first_row, D)
    for index in range(num_tiles):
        for which in gl.static_range(2):  # keys, values
            stage, full = place_of(rings[which], index, N * D * 2, STAGES)
            copy_tile(boxes[which], [batch, index * N, kv_head, 0], full, tiles[which].index(stage))


@gluon.jit
def _walk_keys(dq, own, tiles, rings, begin, end, high, of_rows, scale, LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
               N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr, IS_MASKED: gl.constexpr):
    """Adds to dQ what key tiles begin … end − 1 contribute, UNROLL of them in one turn, whose products overlap.

    high: the last key that each row sees. of_rows: LSE and delta.
    """
    q, dout = own
    lse2, delta = of_rows
    ds_operand = gl.zeros([OWN, N], q.dtype, P_LAYOUT)  # operand of the product that dQ waits for
    for turn in range(begin, end, UNROLL):
        scores = start_product(q, tiles[0], rings[0], turn, LAYOUT, N, D, STAGES)
        dp = start_product(dout, tiles[1], rings[1], turn, LAYOUT, N, D, STAGES)
        scores = warpgroup_mma_wait(1, deps=[scores])
        for step in gl.static_range(UNROLL):
            index = turn + step
            exponent = scores * scale - lse2[:, None]
            if IS_MASKED:
                keys = index * N + gl.arange(0, N, gl.SliceLayout(0, LAYOUT))
                visible = keys[None, :] <= high[:, None]
                exponent = gl.where(visible, exponent, float("-inf"))
            p = gl.exp2(exponent)
            if step + 1 < UNROLL:
                scores = start_product(q, tiles[0], rings[0], index + 1, LAYOUT, N, D, STAGES)
                dp = warpgroup_mma_wait(1, deps=[dp])
            else:
                dp = warpgroup_mma_wait(0, deps=[dp])
            if step > 0:  # the product before dp's
                dq, ds_operand = warpgroup_mma_wait(1, deps=[dq, ds_operand])
                release(rings[0], index - 1, STAGES)
            release(rings[1], index, STAGES)
            slope = dp - delta[:, None]
            if IS_MASKED:
                slope = gl.where(visible, slope, 0.0)  # also where dp is NaN
            ds_operand = gl.convert_layout((p * slope).to(q.dtype), P_LAYOUT)
            dq = warpgroup_mma(ds_operand, tiles[0].index(index % STAGES).reshape([N, D]), dq, is_async=True)
            if step + 1 < UNROLL:
                dp = start_product(dout, tiles[1], rings[1], index + 1, LAYOUT, N, D, STAGES)
                scores = warpgroup_mma_wait(2, deps=[scores])
        dq = warpgroup_mma_wait(0, deps=[dq, ds_operand])[0]
        release(rings[0], turn + UNROLL - 1, STAGES)
    return dq


@gluon.jit
def _of_rows(dq, lse2, delta, own, own_full, tiles, rings, strides, place, counts, limits, scales, GROUP: gl.constexpr,
             N: gl.constexpr, D: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr):
    """One warp group of _dq_kernel: OWN rows from place[2] + GROUP · OWN on. counts: tiles without a mask, tiles."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    batch, head, first_row = place
    num_open, num_tiles = counts
    seqlen_q, last_key, edge, rows_at = limits
    scale, softmax_scale = scales
    first_row += GROUP * OWN
    rows = first_row + gl.arange(0, OWN, gl.SliceLayout(1, LAYOUT))
    high = gl.minimum(rows + edge, last_key)
    of_rows = gl.load(lse2 + rows_at + rows), gl.load(delta + rows_at + rows)
    both = own[0].index(GROUP).reshape([OWN, D]), own[1].index(GROUP).reshape([OWN, D])
    mbarrier.wait(own_full, 0)
    total = gl.zeros([OWN, D], gl.float32, SUMS)
    total = _walk_keys(total, both, tiles, rings, 0, num_open, high, of_rows, scale, LAYOUT, P_LAYOUT, N, D, STAGES,
                       UNROLL, False)
    total = _walk_keys(total, both, tiles, rings, num_open, num_tiles, high, of_rows, scale, LAYOUT, P_LAYOUT, N, D,
                       STAGES, 1, True)
    store_own(dq, strides, batch, head, first_row, seqlen_q, total * softmax_scale, D, COLUMNS)


@gluon.jit(do_not_specialize=["num_blocks", "num_heads", "total_heads", "group_size", "heads", "seqlen_q", "seqlen_k",
                              "edge", "scratch_rows"])
def _dq_kernel(dq, q_box, dout_box, k_box, v_box, lse2, delta, strides, num_blocks, num_heads, total_heads, group_size,
               heads, seqlen_q, seqlen_k, edge, scratch_rows, scale, softmax_scale, N: gl.constexpr, D: gl.constexpr,
               COLUMNS: gl.constexpr, STAGES: gl.constexpr, UNROLL: gl.constexpr):
    """dQ = softmax_scale · dS K of 2 · OWN rows of one head; bound: matrix unit. edge, scale: see _dkdv_kernel."""
    block, head, batch = block_of_program(num_blocks, num_heads, total_heads, heads)
    dtype: gl.constexpr = q_box.dtype
    q_tiles = gl.allocate_shared_memory(dtype, [2, 1, OWN, 1, D], q_box.layout)
    dout_tiles = gl.allocate_shared_memory(dtype, [2, 1, OWN, 1, D], dout_box.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, N, 1, D], k_box.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, N, 1, D], v_box.layout)
    own_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(own_full, 1)
    rings = ring_barriers(STAGES), ring_barriers(STAGES)
    fence_async_shared()  # the barriers are there for the copies

    first_row = (num_blocks - 1 - block) * (2 * OWN)  # causal: the longest first
    last_row = gl.minimum(first_row + 2 * OWN, seqlen_q) - 1
    end = gl.maximum(gl.minimum(last_row + edge + 1, seqlen_k), 0)
    num_open = gl.maximum(gl.minimum(first_row + edge + 1, seqlen_k), 0) // (N * UNROLL) * UNROLL
    counts, place = (num_open, (end + N - 1) // N), (batch, head, first_row)
    rows_at = (batch * num_heads + head).to(gl.int64) * scratch_rows
    limits, scales = (seqlen_q, seqlen_k - 1, edge, rows_at), (scale, softmax_scale)
    own, tiles = (q_tiles, dout_tiles), (k_tiles, v_tiles)
    gl.warp_specialize([
        (_of_rows, (dq, lse2, delta, own, own_full, tiles, rings, strides, place, counts, limits, scales, 0, N, D,
                    COLUMNS, STAGES, UNROLL)),
        (_of_rows, (dq, lse2, delta, own, own_full, tiles, rings, strides, place, counts, limits, scales, 1, N, D,
                    COLUMNS, STAGES, UNROLL)),
        (_load_for_rows, ((q_box, dout_box), (k_box, v_box), own, own_full, tiles, rings, place, head // group_size,
                          counts[1], N, D, STAGES))],
        [4, 1], [_GROUP_REGISTERS, _LOADER_REGISTERS])


def serves(call: AttentionBackwardCall, target: Target) -> bool:
    """Whether products_on_hopper takes such calls: dense, no mask but an upper end, no row without keys, as its tiles
    come whole from memory and 0 · NaN is no 0. A head dimension between 64, 128 and 256 is filled up with zeros in
    shared memory.
    """
    forward = call.forward
    if target.arch != "sm_90" or forward.is_varlen or not call.max_seqlen_k:
        return False
    if not 32 < forward.head_dim <= 256 or forward.head_dim % 8 or forward.head_dim_v != forward.head_dim:
        return False
    if call.softcap > 0 or call.dropout_p > 0 or 0 <= call.window_left < call.max_seqlen_k:
        return False
    if call.bias is not None or call.alibi_slopes is not None:
        return False
    if 0 <= call.window_right < call.max_seqlen_q - call.max_seqlen_k:
        return False
    return all(has_aligned_strides(tensor) for tensor in (call.q, call.k, call.v, call.dout))


def products_on_hopper(call: AttentionBackwardCall, settings: dict[str, int], delta: Tensor,
                       lse2: Tensor) -> tuple[Launch, Launch]:
    """The launches for a call that is served, with aligned addresses; they write dq, dk and dv.

    settings: those of configs/triton/flash_attn_bwd_hopper.toml. delta, lse2: as flash_attn_bwd.py has them.
    """
    forward = call.forward
    num_heads, kv_heads, batch = forward.num_heads, forward.num_kv_heads, forward.batch
    edge = call.max_seqlen_k - call.max_seqlen_q
    edge += call.window_right if call.window_right >= 0 else call.max_seqlen_q
    limits = call.max_seqlen_q, call.max_seqlen_k, edge
    scales = call.softmax_scale * LOG2_E.value, call.softmax_scale
    options = {"num_warps": 4, "maxnreg": _REGISTERS}
    m, n, own = settings["dkdv_BLOCK_M"], settings["dq_BLOCK_N"], OWN.value
    dims = {"D": power_of_2(forward.head_dim), "COLUMNS": forward.head_dim}

    def boxes(q_rows: int, k_rows: int) -> list[TensorDescriptor]:
        return [head_box(tensor, rows, dims["D"]) for tensor, rows in (
            (call.q, q_rows), (call.dout, q_rows), (call.k, k_rows), (call.v, k_rows))]

    blocks = triton.cdiv(call.max_seqlen_k, own * (2 if dims["D"] <= 128 else 1))
    dkdv = launch(
        _dkdv_kernel, (blocks * kv_heads * batch, 1, 1), call.dk, call.dv, *boxes(m, own), _row_box(lse2, m),
        _row_box(delta, m), (call.dk.stride()[:3], call.dv.stride()[:3]), blocks, num_heads, kv_heads, kv_heads * batch,
        num_heads // kv_heads, settings["dkdv_HEADS"], *limits, *scales, M=m, STAGES=settings["dkdv_STAGES"],
        UNROLL=settings["dkdv_UNROLL"], **dims, options=options)
    blocks = triton.cdiv(call.max_seqlen_q, 2 * own)
    dq = launch(
        _dq_kernel, (blocks * num_heads * batch, 1, 1), call.dq, *boxes(own, n), lse2, delta, call.dq.stride()[:3],
        blocks, num_heads, num_heads * batch, num_heads // kv_heads, settings["dq_HEADS"], *limits, delta.shape[1],
        *scales, N=n, STAGES=settings["dq_STAGES"], UNROLL=settings["dq_UNROLL"], **dims, options=options)
    return dkdv, dq


def _row_box(numbers: Tensor, rows: int) -> TensorDescriptor:
    """A box of [heads, rows], a number each: `rows` rows of one head."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(numbers, list(numbers.shape), list(numbers.stride()), [1, rows], layout)
