# SPDX-License-Identifier: MIT
"""Dense attention forward for Hopper in Gluon, Triton's lower level: TMA, asynchronous products, specialised warps.

One warp loads tiles of keys and values into rings in shared memory; each of GROUPS warp groups attends for BLOCK_M rows
of queries. A group starts the product of the next keys and that of the present values together, and the other group's
products run while it computes exponentials. What this does not serve is left to the kernel of attention.py.

Source: the schedule is that of FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608), sections 3.1 and 3.2.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from aiter_like.attention_call import AttentionCall
from aiter_like.device import Target
from aiter_like.triton_kernels.attention_parts import LN_2, LOG2_E, MASKED, MINIMUM, round_to
from aiter_like.triton_kernels.launch import launch

_rounded = gluon.jit(round_to.fn)
_copy_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # since Triton 3.7

# By groups: the registers of a lane at the start, and in the warp that loads; the groups take what it leaves. Two
# programs of one group share an SM, or a program of two groups has it alone.
_REGISTERS = {1: (128, 40), 2: (168, 24)}


@gluon.jit
def _load_tiles(boxes, tiles, barriers, batch, head, num_tiles, N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):
    """The warp that loads: each tile as soon as its place in the ring is free."""
    BYTES: gl.constexpr = N * D * 2
    for index in range(num_tiles):
        stage, phase = index % STAGES, (index // STAGES & 1) ^ 1
        for which in gl.static_range(2):  # keys, values
            full, free = barriers[2 * which].index(stage), barriers[2 * which + 1].index(stage)
            mbarrier.wait(free, phase)
            mbarrier.expect(full, BYTES)
            _copy_tile(boxes[which], [batch, index * N, head, 0], full, tiles[which].index(stage))


@gluon.jit
def _softmax(scores, maximum, total, high, start, scale, IS_MASKED: gl.constexpr):
    """(p, maximum, Σ p, what earlier sums shrink by) with the scores of the keys from `start` on."""
    if IS_MASKED:
        keys = start + gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(keys[None, :] <= high[:, None], scores, MASKED)
    new_maximum = gl.maximum(maximum, gl.max(scores, 1) * scale)
    p = gl.exp2(scores * scale - new_maximum[:, None])
    shrink = gl.exp2(maximum - new_maximum)
    return p, new_maximum, total * shrink + gl.sum(p, 1), shrink


@gluon.jit
def _start_scores(q, tiles, barriers, index, LAYOUT: gl.constexpr, M: gl.constexpr, N: gl.constexpr, D: gl.constexpr,
                  STAGES: gl.constexpr):
    """Starts q kᵀ of tile `index`, once it is there."""
    stage = index % STAGES
    mbarrier.wait(barriers[0].index(stage), index // STAGES & 1)
    keys = tiles[0].index(stage).reshape([N, D]).permute([1, 0])
    return warpgroup_mma(q, keys, gl.zeros([M, N], gl.float32, LAYOUT), use_acc=False, is_async=True)


@gluon.jit
def _start_output(acc, p, tiles, barriers, index, N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):
    """Starts acc + p v of tile `index`, once it is there."""
    stage = index % STAGES
    mbarrier.wait(barriers[2].index(stage), index // STAGES & 1)
    return warpgroup_mma(p, tiles[1].index(stage).reshape([N, D]), acc, is_async=True)


@gluon.jit
def _walk(state, q, tiles, barriers, first, last, high, scale, LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
          M: gl.constexpr, N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, ROUNDING: gl.constexpr,
          IS_MASKED: gl.constexpr):
    """Tiles [first, last): the product with a tile's values waits for the next tile's scores, beside which it runs."""
    acc, p, maximum, total = state
    for index in range(first, last):
        scores = _start_scores(q, tiles, barriers, index, LAYOUT, M, N, D, STAGES)
        acc = _start_output(acc, p, tiles, barriers, index - 1, N, D, STAGES)
        scores = warpgroup_mma_wait(1, deps=[scores])
        mbarrier.arrive(barriers[1].index(index % STAGES))
        next_p, maximum, total, shrink = _softmax(scores, maximum, total, high, index * N, scale, IS_MASKED)
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        mbarrier.arrive(barriers[3].index((index - 1) % STAGES))
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = gl.convert_layout(_rounded(next_p, q.dtype, ROUNDING), P_LAYOUT)
    return acc, p, maximum, total


@gluon.jit
def _attend(q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, GROUP: gl.constexpr,
            M: gl.constexpr, N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, ROUNDING: gl.constexpr):
    """One warp group: rows `place[2]` + GROUP · M and on. counts: tiles without a mask, tiles."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, ACC_LAYOUT, 2)
    batch, head, first_row = place
    num_open, num_tiles = counts
    seqlen_q, last_key, right = limits
    q = q_tiles.index(GROUP)
    rows = first_row + GROUP * M + gl.arange(0, M, gl.SliceLayout(1, LAYOUT))
    high = gl.minimum(rows + right, last_key)

    scores = warpgroup_mma_wait(0, deps=[_start_scores(q, tiles, barriers, 0, LAYOUT, M, N, D, STAGES)])
    mbarrier.arrive(barriers[1].index(0))
    zeros = gl.zeros([M], gl.float32, gl.SliceLayout(1, LAYOUT))
    p, maximum, total, _ = _softmax(scores, zeros + MINIMUM, zeros, high, 0, scale, True)
    p = gl.convert_layout(_rounded(p, q.dtype, ROUNDING), P_LAYOUT)
    state = gl.zeros([M, D], gl.float32, ACC_LAYOUT), p, maximum, total
    state = _walk(state, q, tiles, barriers, 1, num_open, high, scale, LAYOUT, P_LAYOUT, M, N, D, STAGES, ROUNDING,
                  False)
    acc, p, maximum, total = _walk(state, q, tiles, barriers, gl.maximum(num_open, 1), num_tiles, high, scale, LAYOUT,
                                   P_LAYOUT, M, N, D, STAGES, ROUNDING, True)
    acc = _start_output(acc, p, tiles, barriers, num_tiles - 1, N, D, STAGES)
    acc, p = warpgroup_mma_wait(0, deps=[acc, p])

    factor = gl.where(total == 0.0, 0.0, 1.0 / total)  # 0: no visible key
    acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, ACC_LAYOUT))[:, None]
    STORED: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    result = gl.convert_layout(_rounded(acc, q.dtype, ROUNDING), STORED)
    base = out + batch * strides[0] + head * strides[2]
    to = first_row + GROUP * M + gl.arange(0, M, gl.SliceLayout(1, STORED))
    gl.store(base + (to.to(gl.int64) * strides[1])[:, None] + gl.arange(0, D, gl.SliceLayout(0, STORED))[None, :],
             result, mask=(to < seqlen_q)[:, None])
    if lse is not None:
        sums = gl.where(total == 0.0, float("-inf"), (maximum + gl.log2(total)) * LN_2)
        gl.store(lse + batch * strides[3] + head * strides[5] + rows.to(gl.int64) * strides[4], sums,
                 mask=rows < seqlen_q)


@gluon.jit
def _attend_first(q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, M: gl.constexpr,
                  N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, ROUNDING: gl.constexpr):
    _attend(q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, 0, M, N, D, STAGES, ROUNDING)


@gluon.jit
def _attend_second(q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, M: gl.constexpr,
                   N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, ROUNDING: gl.constexpr):
    _attend(q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, 1, M, N, D, STAGES, ROUNDING)


@gluon.jit
def _tile_of_program(num_blocks, num_heads, total_heads, heads):
    """(block, head, batch): `heads` heads at a time, whose keys and values stay in L2; their longest blocks first."""
    index = gl.program_id(0)
    chunk = index // (num_blocks * heads)
    count = gl.minimum(total_heads - chunk * heads, heads)
    rest = index - chunk * num_blocks * heads
    both = chunk * heads + rest % count
    return num_blocks - 1 - rest // count, both % num_heads, both // num_heads


@gluon.jit(do_not_specialize=["num_blocks", "num_heads", "total_heads", "group_size", "heads", "seqlen_q", "seqlen_k",
                              "right"])
def _attention_kernel(out, lse, q, k_box, v_box, strides, q_strides, num_blocks, num_heads, total_heads, group_size,
                      heads, seqlen_q, seqlen_k, right, scale, GROUPS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
                      D: gl.constexpr, STAGES: gl.constexpr, ROUNDING: gl.constexpr, REGISTERS: gl.constexpr):
    """out = softmax(q kᵀ · scale + mask) v for GROUPS · M rows of one head; bound: matrix unit.

    strides: of batch, row and head of out and of lse. right: the last key that row 0 sees. scale: in units of log 2.
    """
    block, head, batch = _tile_of_program(num_blocks, num_heads, total_heads, heads)
    dtype: gl.constexpr = q.dtype.element_ty
    first_row, batch_offset = block * (GROUPS * M), batch.to(gl.int64)
    q_tiles = gl.allocate_shared_memory(dtype, [GROUPS, M, D], gl.NVMMASharedLayout.get_default_for([M, D], dtype))
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    dims = gl.arange(0, D, gl.SliceLayout(0, LOADED))
    for group in gl.static_range(GROUPS):
        rows = first_row + group * M + gl.arange(0, M, gl.SliceLayout(1, LOADED))
        pointers = q + batch_offset * q_strides[0] + head * q_strides[2] + (rows.to(gl.int64) * q_strides[1])[:, None]
        q_tiles.index(group).store(gl.load(pointers + dims[None, :], mask=(rows < seqlen_q)[:, None], other=0.0))

    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, N, 1, D], k_box.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, N, 1, D], v_box.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), 1)
        mbarrier.init(k_free.index(stage), GROUPS)
        mbarrier.init(v_full.index(stage), 1)
        mbarrier.init(v_free.index(stage), GROUPS)
    fence_async_shared()  # q and the barriers are there for the products and the copies

    last_row = gl.minimum(first_row + GROUPS * M, seqlen_q) - 1
    end = gl.maximum(gl.minimum(last_row + right + 1, seqlen_k), 0)
    num_open = gl.maximum(gl.minimum(first_row + right + 1, seqlen_k), 0) // N
    counts, limits = (num_open, gl.maximum((end + N - 1) // N, 1)), (seqlen_q, seqlen_k - 1, right)
    tiles, barriers, place = (k_tiles, v_tiles), (k_full, k_free, v_full, v_free), (batch_offset, head, first_row)
    if GROUPS == 1:
        gl.warp_specialize([
            (_attend_first, (q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, M, N, D, STAGES,
                             ROUNDING)),
            (_load_tiles, ((k_box, v_box), tiles, barriers, batch, head // group_size, counts[1], N, D, STAGES))],
            [1], [REGISTERS])
    else:
        gl.warp_specialize([
            (_attend_first, (q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, M, N, D, STAGES,
                             ROUNDING)),
            (_attend_second, (q_tiles, tiles, barriers, out, lse, strides, place, counts, limits, scale, M, N, D,
                              STAGES, ROUNDING)),
            (_load_tiles, ((k_box, v_box), tiles, barriers, batch, head // group_size, counts[1], N, D, STAGES))],
            [4, 1], [240, REGISTERS])


def serves(call: AttentionCall, target: Target) -> bool:
    """Whether `attend` takes the call: dense, 16 bits, head dimension 64 or 128, no mask but an upper end."""
    if target.arch != "sm_90" or call.is_varlen or call.seqlens_k is not None or call.num_splits > 1:
        return False
    if call.head_dim not in (64, 128) or call.head_dim_v != call.head_dim or call.q.element_size() != 2:
        return False
    if call.softcap > 0 or call.dropout_p > 0 or 0 <= call.window_left < call.max_seqlen_k:
        return False
    if not all(tensor is None for tensor in (call.bias, call.alibi_slopes, call.sink)):
        return False
    return call.max_seqlen_k > 0 and not any(step % 16 for tensor in (call.k, call.v)
                   for step in (tensor.data_ptr(), *(2 * stride for stride in tensor.stride()[:3])))


def attend(call: AttentionCall, settings: dict[str, int]) -> None:
    """Writes call.out and call.lse. settings: GROUPS, BLOCK_M (of a group), BLOCK_N, STAGES, HEADS."""
    groups, block_m, block_n = settings["GROUPS"], settings["BLOCK_M"], settings["BLOCK_N"]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    boxes = [TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, block_n, 1, call.head_dim], layout)
             for tensor in (call.k, call.v)]
    blocks, total_heads = triton.cdiv(call.max_seqlen_q, groups * block_m), call.num_heads * call.batch
    delta = call.max_seqlen_k - call.max_seqlen_q
    right = delta + (call.window_right if call.window_right >= 0 else call.max_seqlen_q)
    lse_strides = (0, 0, 0) if call.lse is None else (call.lse.stride(0), call.lse.stride(2), call.lse.stride(1))
    registers, of_loader = _REGISTERS[groups]
    launch(_attention_kernel, (blocks * total_heads,), call.out, call.lse, call.q, *boxes,
           (*call.out.stride()[:3], *lse_strides), call.q.stride()[:3], blocks, call.num_heads, total_heads,
           call.num_heads // call.num_kv_heads, settings["HEADS"], call.max_seqlen_q, call.max_seqlen_k, right,
           call.softmax_scale * LOG2_E.value, GROUPS=groups, M=block_m, N=block_n, D=call.head_dim,
           STAGES=settings["STAGES"],
           ROUNDING=call.how_v3_bf16_cvt if call.out.dtype == torch.bfloat16 or call.how_v3_bf16_cvt == 2 else 0,
           REGISTERS=of_loader, options={"num_warps": 4, "maxnreg": registers})
