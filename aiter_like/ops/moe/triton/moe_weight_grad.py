# SPDX-License-Identifier: MIT
"""moe_weight_grad in Triton: body and launcher, named by ops/moe/moe_weight_grad.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch
from aiter_like.ops.gemm.triton.parts import GROUP, constants_of, tile_place
from aiter_like.ops.moe.moe_weight_grad import BLOCKS, MoeWeightGradCall

_SCAN = 1024  # blocks whose experts are looked at at a time


@triton.jit
def _blocks_of(experts, expert, blocks, SCAN: tl.constexpr):
    """(first, end) of the blocks of an expert, between which others may be; the end is 0 where it has none."""
    each = tl.arange(0, SCAN)
    begin, end = blocks, 0
    for first in range(0, blocks, SCAN):
        number = first + each
        mine = tl.load(experts + number, mask=number < blocks, other=-1) == expert
        begin = tl.minimum(begin, tl.min(tl.where(mine, number, blocks), 0))
        end = tl.maximum(end, tl.max(tl.where(mine, number + 1, 0), 0))
    return begin, end


@triton.jit
def _moe_weight_grad_kernel(out, g, a, experts, sorted_ids, valid, places, block, tokens, slots, columns, depth,
                            out_expert, out_row, g_row, a_row, G_OF_PAIRS: tl.constexpr, A_OF_PAIRS: tl.constexpr,
                            BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, SCAN: tl.constexpr,
                            GROUP: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_N × BLOCK_K elements of one expert's out = Σ g[pair]ᵀ · a[pair], BLOCK_P places at a time in their order.
    Bound: the matrix units; of few pairs memory, out. Launched over (tiles of a matrix, experts)."""
    await_stream(OVERLAPS)
    expert = tl.program_id(1)
    block_row, block_column = tile_place(tl.program_id(0), tl.cdiv(columns, BLOCK_N), tl.cdiv(depth, BLOCK_K), GROUP)
    row = block_row.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = block_column.to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)
    places = tl.minimum(tl.maximum(tl.load(valid), 0), places)
    begin, end = _blocks_of(experts, expert, tl.cdiv(places, block), SCAN)
    sums = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for first in range(begin * block, tl.minimum(end * block, places), BLOCK_P):
        place = first + tl.arange(0, BLOCK_P)
        is_place = place < tl.minimum(end * block, places)
        of_place = tl.load(experts + place // block, mask=is_place, other=-1)
        ids = tl.load(sorted_ids + place, mask=is_place, other=-1)
        token, slot = (ids & 0xFFFFFF).to(tl.int64), ids >> 24
        is_pair = (of_place == expert) & (slot >= 0) & (slot < slots) & (token < tokens)
        pair = token * slots + slot
        g_at = g + (pair if G_OF_PAIRS else token)[None, :] * g_row + row[:, None]
        a_at = a + (pair if A_OF_PAIRS else token)[:, None] * a_row + column[None, :]
        left = tl.load(g_at, mask=is_pair[None, :] & (row < columns)[:, None], other=0.0)
        right = tl.load(a_at, mask=is_pair[:, None] & (column < depth)[None, :], other=0.0)
        sums = tl.dot(left, right, sums)
    out_at = out + expert.to(tl.int64) * out_expert + row[:, None] * out_row + column[None, :]
    tl.store(out_at, sums.to(out.dtype.element_ty), mask=(row < columns)[:, None] & (column < depth)[None, :])


def moe_weight_grad(call: MoeWeightGradCall, **params: int) -> Launch:
    """The launch that writes `out`. params: block_n, block_k, block_p, num_warps and num_stages in place of what suits
    the sizes."""
    experts, n, k = call.out.shape
    is_hip = target_of(call.g.device).platform == "hip"
    small = min(n, k) <= 64
    suited = (64, 64, 64, 4, 2) if small else (128, 128, 32 if is_hip else 64, 4 if is_hip else 8, 2 if is_hip else 3)
    blocks, options = constants_of("moe_weight_grad", BLOCKS, suited, params)
    tiles = triton.cdiv(n, blocks["BLOCK_N"]) * triton.cdiv(k, blocks["BLOCK_K"])
    places = min(call.sorted_ids.shape[0], call.experts.shape[0] * call.block)
    return launch(
        _moe_weight_grad_kernel, (tiles, experts), call.out, call.g, call.a, call.experts, call.sorted_ids, call.valid,
        places, call.block, call.tokens, call.slots, n, k, *call.out.stride()[:2], call.g.stride(0), call.a.stride(0),
        G_OF_PAIRS=call.g.shape[0] != call.tokens, A_OF_PAIRS=call.a.shape[0] != call.tokens, SCAN=_SCAN, GROUP=GROUP,
        **blocks, options=options)
