# SPDX-License-Identifier: MIT
"""paged_attention in Triton: the kernel, the sum of its parts, and their launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall, Parts, parts_of, workspace_bytes
from aiter_like.ops.attention.triton.paged_attention_parts import attend, load_rows, power_of_rows
from aiter_like.ops.attention.triton.paged_attention_plan import (
    await_lengths,
    await_parts,
    begin_before_parts,
    find_sequence,
    first_key,
    lengths_of,
)
from aiter_like.ops.attention.triton.paged_attention_shape import scale_strides, shape_of, variant
from aiter_like.ops.attention.triton.parts import LOG2_E, MINIMUM
from aiter_like.ops.attention.triton.strides import stride_of_batch
from aiter_like.ops.attention.triton.terms import alibi_slopes, finish_rows
from aiter_like.ops.common.triton.launch import Launch, config, launch, power_of_2, scratch
from aiter_like.ops.common.triton.overlap import overlaps
from aiter_like.traced import exactly

_FEW_PARTS, _MOST_PARTS = 16, 32  # the sum takes so many parts at a time: where few sequences have any, and at most


@triton.jit
def _part_of_program(source, window_left, bounds, num_blocks, num_kv_heads, SHAPE: tl.constexpr):
    """(block of rows, KV head, sequence, split, slot for its partial sums, parts of the sequence, its lengths_of) of
    this program."""
    index = tl.program_id(0)
    number = index // num_blocks // num_kv_heads
    if SHAPE.IS_SPLIT:
        sequence, split, slot, num_parts, lengths = find_sequence(number, source, window_left, bounds, SHAPE, False)
    else:
        sequence, split, slot, num_parts = number, number * 0, number * 0, number * 0 + 1
        lengths = lengths_of(number, source, SHAPE)
    return index % num_blocks, index // num_blocks % num_kv_heads, sequence, split, slot, num_parts, lengths


@triton.jit
def _keys_of_part(rows, seqlen, window_left, split, num_parts, SHAPE: tl.constexpr):
    """(first, end) of a part of the keys that a sequence's rows see: equal parts, in whole tiles."""
    begin = first_key(rows, seqlen, window_left, SHAPE)
    length = tl.cdiv(tl.cdiv(seqlen - begin, num_parts), SHAPE.N) * SHAPE.N
    begin += split * length
    return begin, tl.minimum(begin + length, seqlen)


@triton.jit
def _scale_of_rows(q_rows, is_row, scale, q_scale, q_scale_at, k_scale, k, SHAPE: tl.constexpr):
    """(factor of rows of q before they are rounded, what their scores are multiplied by)."""
    M: tl.constexpr = SHAPE.M
    k_type: tl.constexpr = k.dtype.element_ty
    q_type: tl.constexpr = q_rows.dtype.element_ty
    factor, row_scale = tl.full([M], 1.0, tl.float32), tl.zeros([M], tl.float32) + scale
    if k_type.primitive_bitwidth == 8 and q_type.primitive_bitwidth == 16:
        factor, inverse = power_of_rows(q_rows, is_row, SHAPE)
        row_scale *= inverse
    if q_scale is not None:
        row_scale *= tl.load(q_scale + q_scale_at, mask=is_row, other=0.0)
    if k_scale is not None:
        if not SHAPE.K_BY_TOKEN:
            row_scale *= tl.load(k_scale)
    return factor, row_scale


@triton.jit
def _visible(positions, window_left, end, tree, SHAPE: tl.constexpr):
    """(first, last) key that rows see; a mask of a tree has the last word among a sequence's own queries."""
    high = positions * 0 + end - 1
    if SHAPE.IS_CAUSAL:
        if tree is None:
            high = tl.minimum(high, positions)
    return positions - window_left, high


@triton.jit(do_not_specialize=["batch", "num_starts", "total_q", "max_seqlen_q", "capacity", "num_pages", "num_blocks",
                               "num_kv_heads", "share", "most", "window_left", "sums"])
def _attend_kernel(out, lse, parts, q, k, v, block_table, seqlens_k, page_starts, cu_seqlens_q, q_scale, k_scale,
                   v_scale, out_scale, slopes, sink, tree, out_strides, lse_strides, q_strides, k_strides, v_strides,
                   q_scale_strides, k_scale_strides, v_scale_strides, small_strides, tree_strides, batch, num_starts,
                   total_q, max_seqlen_q, capacity, num_pages, num_blocks, num_kv_heads, share, most, window_left, sums,
                   scale, softcap, SHAPE: tl.constexpr, OVERLAPS: tl.constexpr):
    """A part of the keys of one KV head of a sequence, for a block of its rows; bound: memory.

    scale, softcap: in units of log 2. sums: elements of `parts` before the weights and maxima. small_strides: of a
    batch of slopes, of the block table.
    """
    await_lengths(OVERLAPS)
    source = (cu_seqlens_q, seqlens_k, page_starts, batch, num_starts, total_q, max_seqlen_q, capacity)
    block, kv_head, sequence, split, slot, num_parts, lengths = _part_of_program(
        source, window_left, (share, most), num_blocks, num_kv_heads, SHAPE)
    row, num_queries, entry, seqlen = lengths  # no rows beyond the batch
    first_query, computed = block * SHAPE.M // SHAPE.GROUP, tl.minimum(num_queries, max_seqlen_q)
    if first_query >= computed:
        return
    lanes = block * SHAPE.M + tl.arange(0, SHAPE.M)
    queries, heads = lanes // SHAPE.GROUP, kv_head * SHAPE.GROUP + lanes % SHAPE.GROUP
    is_row, rows, first_own = queries < computed, (row + queries).to(tl.int64), seqlen - num_queries
    k_type: tl.constexpr = k.dtype.element_ty
    dtype: tl.constexpr = tl.float16 if k_type.primitive_bitwidth == 8 else k_type  # fp16 holds all bytes exactly
    q_rows = q + rows * q_strides[0] + heads * q_strides[1]
    factor, row_scale = _scale_of_rows(
        q_rows, is_row, scale, q_scale, rows * q_scale_strides[0] + heads * q_scale_strides[1], k_scale, k, SHAPE)
    q_tile, q_tail = load_rows(q_rows, is_row, factor, 0, SHAPE.D, SHAPE, dtype), None
    if SHAPE.D_TAIL > 0:
        q_tail = load_rows(q_rows, is_row, factor, SHAPE.D, SHAPE.D_TAIL, SHAPE, dtype)
    kv_head = kv_head.to(tl.int64)
    values = v
    if SHAPE.IN_PAIRS:
        values = v.to(tl.pointer_type(tl.int16))
    k_scales, v_scales = k_scale, v_scale
    if SHAPE.K_BY_TOKEN:
        k_scales += kv_head * k_scale_strides[2]
    if SHAPE.V_BY_TOKEN:
        v_scales += kv_head * v_scale_strides[2]
    pages = (k + kv_head * k_strides[2], k_strides, values + kv_head * v_strides[2], v_strides,
             k_scales, k_scale_strides, v_scales, v_scale_strides,
             block_table + sequence.to(tl.int64) * small_strides[1] + entry, num_pages)
    row_slopes, tree_rows = None, None
    if slopes is not None:
        row_slopes = alibi_slopes(tl.load(slopes + sequence * small_strides[0] + heads, mask=is_row, other=0.0))
    if tree is not None:
        tree_rows = tree + sequence.to(tl.int64) * tree_strides[0]
    # Triton 3.6 loses a stride of 1 on its way through two functions, unless something is computed from it.
    tree_row, tree_column = num_queries * 0 + tree_strides[1], num_queries * 0 + tree_strides[2]
    begin, end = _keys_of_part(num_queries, seqlen, window_left, split, num_parts, SHAPE)
    if SHAPE.IS_CAUSAL:
        if tree is None:  # no row of the block sees a key behind its last one
            end = tl.minimum(end, first_own + tl.minimum((lanes.max(0)) // SHAPE.GROUP, num_queries - 1) + 1)
    acc, total, maximum = attend((q_tile, q_tail), pages, begin, end, row_scale,
                                 (queries, queries + first_own, first_own),
                                 (softcap, row_slopes, tree_rows, tree_row, tree_column, num_queries, window_left),
                                 _visible(queries + first_own, window_left, end, tree, SHAPE), SHAPE, dtype)
    if SHAPE.IS_SPLIT:
        place = slot.to(tl.int64) * (max_seqlen_q * num_kv_heads * SHAPE.GROUP) + heads * max_seqlen_q + queries
        _store_part(parts, sums, place, is_row & (num_parts > 1), acc, total, maximum, SHAPE)
        is_row = is_row & (num_parts == 1)
    sinks, lse_rows = None, None
    if sink is not None:
        sinks = tl.load(sink + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    if lse is not None:
        lse_rows = lse + heads * lse_strides[0] + rows * lse_strides[1]
    finish_rows(out + rows * out_strides[0] + heads * out_strides[1], lse_rows, is_row, acc, total, maximum, sinks,
                _value_scale(v_scale, out_scale, SHAPE), SHAPE.HEAD_DIM_V, SHAPE.DV, 0)


@triton.jit
def _store_part(parts, sums, place, is_part, acc, total, maximum, SHAPE: tl.constexpr):
    """Stores a part's sums, weights and maxima of its rows, for _merge_kernel."""
    dims = tl.arange(0, SHAPE.DV)
    tl.store(parts + place[:, None] * SHAPE.HEAD_DIM_V + dims[None, :], acc,
             mask=is_part[:, None] & (dims < SHAPE.HEAD_DIM_V)[None, :])
    tl.store(parts + sums + 2 * place, total, mask=is_part)
    tl.store(parts + sums + 2 * place + 1, maximum, mask=is_part)


@triton.jit
def _value_scale(v_scale, out_scale, SHAPE: tl.constexpr):
    """The factor of the sums in the end."""
    result = 1.0
    if v_scale is not None:
        if not SHAPE.V_BY_TOKEN:
            result *= tl.load(v_scale)
    if out_scale is not None:
        result /= tl.load(out_scale)
    return result


@triton.jit(do_not_specialize=["batch", "num_starts", "total_q", "max_seqlen_q", "capacity", "num_heads", "share",
                               "most", "window_left", "sums"])
def _merge_kernel(out, lse, parts, seqlens_k, page_starts, cu_seqlens_q, v_scale, out_scale, sink, out_strides,
                  lse_strides, batch, num_starts, total_q, max_seqlen_q, capacity, num_heads, share, most, window_left,
                  sums, SHAPE: tl.constexpr, AT_ONCE: tl.constexpr, OVERLAPS: tl.constexpr):
    """Adds up the parts of one row of one head of a sequence that has several, in their order; bound: memory."""
    begin_before_parts(OVERLAPS)
    index = tl.program_id(0)
    query, head, number = index % max_seqlen_q, index // max_seqlen_q % num_heads, index // max_seqlen_q // num_heads
    source = (cu_seqlens_q, seqlens_k, page_starts, batch, num_starts, total_q, max_seqlen_q, capacity)
    _, _, slot, num_parts, lengths = find_sequence(number, source, window_left, (share, most), SHAPE, True)
    row, num_queries, _, _ = lengths  # no rows beyond the batch
    await_parts(OVERLAPS)
    if query >= num_queries:
        return
    dims, one = tl.arange(0, SHAPE.DV), tl.zeros([1], tl.int32)
    DV: tl.constexpr = SHAPE.DV
    acc, total, maximum = tl.zeros([DV], tl.float32), 0.0, tl.max(one.to(tl.float32) + MINIMUM, 0)
    stride = max_seqlen_q * num_heads
    for first in range(0, num_parts, AT_ONCE):
        numbers = first + tl.arange(0, AT_ONCE)
        is_part = numbers < num_parts
        place = (slot + numbers).to(tl.int64) * stride + head * max_seqlen_q + query
        maxima = tl.load(parts + sums + 2 * place + 1, mask=is_part, other=MINIMUM)
        new_maximum = tl.maximum(maximum, tl.max(maxima, 0))
        weights, rescale = tl.exp2(maxima - new_maximum), tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(tl.load(parts + sums + 2 * place, mask=is_part, other=0.0) * weights, 0)
        values = tl.load(parts + place[:, None] * SHAPE.HEAD_DIM_V + dims[None, :],
                         mask=is_part[:, None] & (dims < SHAPE.HEAD_DIM_V)[None, :], other=0.0)
        acc = acc * rescale + tl.sum(values * weights[:, None], 0)
        maximum = new_maximum
    at, sinks, lse_rows = (row + query).to(tl.int64), None, None
    if sink is not None:
        sinks = tl.load(sink + head + one).to(tl.float32) * LOG2_E
    if lse is not None:
        lse_rows = lse + head * lse_strides[0] + at * lse_strides[1] + one
    finish_rows(out + at * out_strides[0] + head * out_strides[1] + one, lse_rows, one == 0, acc[None, :], total + one,
                maximum + one, sinks, _value_scale(v_scale, out_scale, SHAPE), SHAPE.HEAD_DIM_V, SHAPE.DV, 0)


def paged_attention(call: PagedAttentionCall, **params: int) -> tuple[Launch, ...]:
    """Writes `out` and `lse`: the launch of the kernel, and that of the sum of parts where there may be several.

    params: a tuned row's values instead of those of configs/triton/paged_attention.toml.
    """
    target = target_of(call.q.device)
    exactly((call.num_heads, call.num_kv_heads))
    bounds, early = parts_of(call), overlaps(target)
    settings = {**config("paged_attention", target.arch, variant(call, target, bounds)), **params}
    shape = shape_of(call, settings, bounds)
    num_blocks = triton.cdiv(call.max_seqlen_q * call.group, shape.M)
    strides = call.out.stride()[:2], (0, 0) if call.lse is None else call.lse.stride()
    table, starts = call.block_table, call.cu_seqlens_q
    lengths = (call.batch, 0 if starts is None else starts.shape[0], call.q.shape[0], call.max_seqlen_q,
               table.shape[0] if call.page_starts is not None else table.shape[1] * shape.PAGE)
    plan = (max(bounds.share, 1), bounds.most, max(call.window_left, 0))
    sums = bounds.slots * call.num_heads * call.max_seqlen_q * call.head_dim_v
    scales = call.q_scale, call.k_scale, call.v_scale
    tree, tree_strides, parts = call.tree_mask, (0, 0, 0), _partial_sums(call, bounds)
    if tree is not None:
        tree, tree_strides = tree.view(torch.uint8), (0, 0, *tree.stride())[-3:]
    attend = launch(
        _attend_kernel, (bounds.grid * call.num_kv_heads * num_blocks, 1, 1), call.out, call.lse, parts, call.q,
        call.k, call.v, table, call.seqlens_k, call.page_starts, starts, *scales, call.out_scale, call.alibi_slopes,
        call.sink, tree, *strides, call.q.stride()[:2], _cache_strides(call.k),
        _cache_strides(call.v, 2 if shape.IN_PAIRS else 1), *map(scale_strides, scales),
        (stride_of_batch(call.alibi_slopes), stride_of_batch(table)), tree_strides, *lengths, call.k.shape[0],
        num_blocks, call.num_kv_heads, *plan, sums, call.softmax_scale * LOG2_E.value, call.softcap * LOG2_E.value,
        SHAPE=shape, OVERLAPS=early, options={name: value for name, value in settings.items() if not name.isupper()})
    if parts is None:
        return (attend,)
    return attend, launch(
        _merge_kernel, (bounds.split * call.num_heads * call.max_seqlen_q, 1, 1), call.out, call.lse, parts,
        call.seqlens_k, call.page_starts, starts, call.v_scale, call.out_scale, call.sink, *strides, *lengths,
        call.num_heads, *plan, sums, SHAPE=shape, AT_ONCE=_parts_at_once(call.batch, bounds), OVERLAPS=early,
        options={"num_warps": 4, "enable_fp_fusion": False})


def _partial_sums(call: PagedAttentionCall, bounds: Parts) -> torch.Tensor | None:
    """Memory for partial sums, fp32: the caller's or new; None where a call never has any."""
    if not bounds.slots:
        return None
    size = workspace_bytes(call, bounds)
    if call.workspace is not None:
        return call.workspace[:size].view(torch.float32)
    return scratch((size // 4,), torch.float32, call.q)


def _parts_at_once(batch: int, bounds: Parts) -> int:
    """Parts of a sequence that _merge_kernel looks at together: all where sequences have one length."""
    parts = bounds.most if not bounds.share else bounds.share // batch if bounds.share > batch else _FEW_PARTS
    return min(max(power_of_2(parts), 4), _MOST_PARTS)


def _cache_strides(cache: torch.Tensor, pair: int = 1) -> tuple[int, ...]:
    """Strides of page, key (or keys that lie together), head and column (or columns that do), in elements or pairs of
    them."""
    *strides, column = cache.stride()[:4]
    return *(stride // pair for stride in strides), column
