# SPDX-License-Identifier: MIT
"""moe_permute in Triton: bodies and launcher, named by ops/moe/moe_permute.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2, scratch
from aiter_like.ops.moe.moe_permute import MoePermuteCall

_PAIRS = 1024  # that a program looks at in one step
_TILE = 2048  # columns of one program
_MAX_GRID = 65535  # programs along the second and third dimension


@triton.jit
def _expert_of(ids, expert_map, pair, ids_stride, slots, pairs, experts, mapped):
    """The expert here of each pair; `experts` where it does not count."""
    token = pair // slots
    expert = tl.load(ids + token.to(tl.int64) * ids_stride + (pair - token * slots), mask=pair < pairs, other=-1)
    if expert_map is not None:
        is_known = (expert >= 0) & (expert < mapped)
        expert = tl.load(expert_map + expert, mask=is_known, other=-1)
    return tl.where((expert >= 0) & (expert < experts), expert, experts).to(tl.int32)


@triton.jit
def _count_kernel(counts, ids, expert_map, ids_stride, slots, pairs, experts, mapped, BLOCK: tl.constexpr,
                  OVERLAPS: tl.constexpr):
    """The pairs of an expert; each program looks at all of them."""
    await_stream(OVERLAPS)
    own = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, pairs, BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        expert = _expert_of(ids, expert_map, pair, ids_stride, slots, pairs, experts, mapped)
        found += tl.where(expert == own, 1, 0)
    tl.store(counts + own, tl.sum(found, axis=0))


@triton.jit
def _place_kernel(index, inverse, first, counts, ids, expert_map, ids_stride, slots, pairs, experts, mapped, rows,
                  block, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr, OVERLAPS: tl.constexpr):
    """The rows of an expert's pairs, in their order; the last program has the pairs that do not count."""
    await_stream(OVERLAPS)
    own = tl.program_id(0)
    number = tl.arange(0, BLOCK_E)
    count = tl.load(counts + number, mask=number < experts, other=0)
    padded = (count + block - 1) // block * block
    begin_row = tl.sum(tl.where(number < own, padded, 0), axis=0)
    next_row = begin_row
    for begin in range(0, pairs, BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        expert = _expert_of(ids, expert_map, pair, ids_stride, slots, pairs, experts, mapped)
        is_own = (expert == own) & (pair < pairs)
        row = next_row + tl.cumsum(is_own.to(tl.int32), axis=0) - 1
        tl.store(index + row, pair, mask=is_own & (own < experts))
        tl.store(inverse + pair, tl.where(own < experts, row, -1), mask=is_own)
        next_row += tl.sum(is_own.to(tl.int32), axis=0)
    tl.store(first + own, begin_row.to(tl.int64))  # the last program's is where all rows end
    end_row = begin_row + tl.sum(tl.where(number == own, padded, 0), axis=0)
    unused = tl.where(own < experts, next_row, begin_row)  # padding, or beyond all rows
    end_row = tl.where(own < experts, end_row, rows)
    for begin in range(unused, end_row, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        tl.store(index + row, tl.zeros((BLOCK,), tl.int32) + pairs, mask=row < end_row)


@triton.jit
def _copy_kernel(output, input, output_scales, scales, inverse, output_stride, input_stride, output_scales_stride,
                 token_stride, group_stride, tokens, slots, columns, groups, BLOCK_N: tl.constexpr,
                 BLOCK_G: tl.constexpr, OVERLAPS: tl.constexpr):
    """BLOCK_N columns of a token, read once, and written for each slot that counts; bound: memory."""
    await_stream(OVERLAPS)
    token = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    if token < tokens:
        column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = column < columns
        values = tl.load(input + token * input_stride + column, mask=inside)
        for slot in range(0, slots):
            row = tl.load(inverse + token * slots + slot).to(tl.int64)
            tl.store(output + row * output_stride + column, values, mask=inside & (row >= 0))
            if scales is not None:
                if tl.program_id(0) == 0:
                    for begin in range(0, groups, BLOCK_G):
                        group = begin + tl.arange(0, BLOCK_G)
                        is_group = (group < groups) & (row >= 0)
                        scale = tl.load(scales + token * token_stride + group * group_stride, mask=is_group)
                        tl.store(output_scales + row * output_scales_stride + group, scale, mask=is_group)


def moe_permute(call: MoePermuteCall) -> tuple[Launch, ...]:
    """The launches that write what `moe_permute_ref` writes."""
    (tokens, slots), pairs, experts = call.ids.shape, call.ids.numel(), call.experts
    counts = scratch((experts,), torch.int32, call.ids)
    mapped = 0 if call.expert_map is None else call.expert_map.numel()
    where = (call.ids, call.expert_map, call.ids.stride(0), slots, pairs, experts, mapped)
    block = power_of_2(min(max(pairs, 64), _PAIRS))
    places = (launch(_count_kernel, (experts,), counts, *where, BLOCK=block, options={"num_warps": 4}),
              launch(_place_kernel, (experts + 1,), call.index, call.inverse, call.first, counts, *where,
                     call.output.shape[0], call.block, BLOCK=block, BLOCK_E=power_of_2(experts),
                     options={"num_warps": 4}))
    columns = call.input.shape[1]
    if pairs == 0 or columns == 0:
        return places
    output, x = _bytes(call.output), _bytes(call.input)
    groups = 0 if call.scales is None else call.scales.shape[1]
    strides = (call.output_scales.stride(0), *call.scales.stride()) if groups else (0, 0, 0)
    block_n = power_of_2(min(columns, _TILE))
    grid = (triton.cdiv(columns, block_n), min(tokens, _MAX_GRID), triton.cdiv(tokens, _MAX_GRID))
    return *places, launch(
        _copy_kernel, grid, output, x, call.output_scales if groups else None, call.scales if groups else None,
        call.inverse, output.stride(0), x.stride(0), *strides, tokens, slots, columns, groups, BLOCK_N=block_n,
        BLOCK_G=power_of_2(min(max(groups, 1), 128)), options={"num_warps": 4})


def _bytes(rows: Tensor) -> Tensor:
    """fp8 as plain bytes, which every version of Triton copies."""
    return rows.view(torch.uint8) if rows.element_size() == 1 else rows
