# SPDX-License-Identifier: MIT
"""The kernel behind Triton's flash_attn_fwd and unified_attention: dense, varlen and paged keys, and its launches."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from aiter_like.ops.attention.call import AttentionCall
from aiter_like.ops.attention.checks import is_aligned
from aiter_like.ops.attention.triton.parts import (
    LOG2_E,
    MASKED,
    MINIMUM,
    clamped,
    descaled,
    exponent_of,
    is_visible,
    key_pointers,
    key_ranges,
    keys_of,
    load_box,
    load_rows,
    load_tile,
    no_keys,
    packed,
    positive_scale,
    round_finite,
    row_pointers,
    sequence,
    signed,
    store_part,
    tile_of_program,
    value_factor,
)
from aiter_like.ops.attention.triton.shape import Shape, shape_of, splits_of
from aiter_like.ops.attention.triton.strides import (
    stride_of_batch,
    strides_of_bias,
    strides_of_descale,
    strides_of_keys,
    strides_of_lse,
    strides_of_rows,
)
from aiter_like.ops.attention.triton.terms import adjusted, alibi_slopes, bias_of, finish_rows, sink_score
from aiter_like.ops.common import philox
from aiter_like.ops.common.triton.launch import Launch, launch, power_of_2, scratch
from aiter_like.ops.common.triton.philox import attention_kept
from aiter_like.traced import exactly

# A product fused into a sum across lanes differs between lanes that hold the same element.
_COMBINE = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def _attend(state, q_tiles, source, first, last, visibility, extras, SHAPE: tl.constexpr, IS_MASKED: tl.constexpr):
    """One online-softmax pass over the keys [first, last) in tiles from `first` on. state: of no_keys.

    visibility: first and last key of each row, those of all rows, sink tokens. Memory where no row sees a key is not
    loaded: engines give pages before a window away, and 0 · NaN is no 0. extras: scale, positions of the rows on the
    keys' axis, what adjusted takes, what dropout takes.
    """
    acc, total, maximum, highest = state
    q_tile, q_tail = q_tiles
    k_base, v_base, k_strides, v_strides, pages, seqlen_k, boxes = source
    low, high, lowest, highest_key, sink_size = visibility
    scale, positions, adjust, dropout = extras
    # Triton 3.6 cannot compare a tuple that holds None, as adjust does, with None: its members are asked.
    IS_ADJUSTED: tl.constexpr = SHAPE.HAS_SOFTCAP or adjust[1] is not None or adjust[2] is not None
    dims, dims_v, lanes = tl.arange(0, SHAPE.D), tl.arange(0, SHAPE.DV), tl.arange(0, SHAPE.N)
    tail = SHAPE.D + tl.arange(0, SHAPE.D_TAIL if SHAPE.D_TAIL > 0 else 16)
    P: tl.constexpr = tl.float16 if q_tile.dtype.is_fp8() else q_tile.dtype  # e4m3 is exact in fp16
    for start in range(first, last, SHAPE.N):
        keys = start + lanes
        inside = is_visible(keys, lowest, highest_key, sink_size, SHAPE.HAS_LEFT, SHAPE.HAS_SINK_TOKENS)
        if SHAPE.HAS_BOXES and not IS_MASKED:
            k_tile = tl.trans(load_box(boxes[0], boxes, start, SHAPE.N, SHAPE.D))
        else:
            k_rows, k_at = key_pointers(k_base, k_strides, pages, start, seqlen_k, 0, SHAPE)
            k_tile = load_tile(k_rows + (k_at[None, :] + packed(dims, k_strides[3], SHAPE.X)[:, None]),
                               inside[None, :], dims[:, None], SHAPE.HEAD_DIM, SHAPE.D, IS_MASKED)  # [D, N]
        scores = tl.dot(q_tile, k_tile.to(q_tile.dtype))
        if SHAPE.D_TAIL > 0:
            k_tail = load_tile(k_rows + (k_at[None, :] + packed(tail, k_strides[3], SHAPE.X)[:, None]),
                               inside[None, :], tail[:, None], SHAPE.HEAD_DIM, SHAPE.D + SHAPE.D_TAIL, IS_MASKED)
            scores = tl.dot(q_tail, k_tail.to(q_tile.dtype), scores)
        if IS_ADJUSTED:
            scores = adjusted(scores * scale, keys, positions, adjust, SHAPE)
        if IS_MASKED:
            visible = is_visible(keys[None, :], low[:, None], high[:, None], sink_size, SHAPE.HAS_LEFT,
                                 SHAPE.HAS_SINK_TOKENS)
            scores = tl.where(visible, scores, MASKED)
        if IS_ADJUSTED:
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            p = tl.exp2(scores - new_maximum[:, None])
        else:
            highest = tl.maximum(highest, tl.max(scores, 1))
            new_maximum = tl.maximum(maximum, highest * scale)
            factor, origin = exponent_of(highest, new_maximum, scale)
            p = tl.exp2(scores * factor[:, None] - origin[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None]
        maximum = new_maximum
        if dropout is not None:
            seed, offset, threshold, head, queries = dropout
            p = tl.where(attention_kept(seed, offset, head, queries, start, threshold, SHAPE.N), p, 0.0)
        if SHAPE.HAS_BOXES and not IS_MASKED:
            v_tile = load_box(boxes[1], boxes, start, SHAPE.N, SHAPE.DV)
        else:
            v_rows, v_at = key_pointers(v_base, v_strides, pages, start, seqlen_k, SHAPE.X, SHAPE)
            v_tile = load_tile(v_rows + (v_at[:, None] + (dims_v * v_strides[3])[None, :]), inside[:, None],
                               dims_v[None, :], SHAPE.HEAD_DIM_V, SHAPE.DV, IS_MASKED)  # [N, DV]
        acc = tl.dot(round_finite(p, P, SHAPE.ROUNDING), v_tile.to(P), acc)
    return acc, total, maximum, highest


@triton.jit
def _attend_all(state, q_tiles, source, first, last, window, split, num_splits, extras, SHAPE: tl.constexpr):
    """The passes of a tile of rows: sink tokens and left edge masked, interior, right edge masked.

    first, last: positions of the tile's rows. A split sees its share of the tiles of keys; split 0 the sink tokens.
    """
    left, right, sink_size = window
    seqlen_k, positions = source[5], extras[1]
    sinks_end, begin, interior, interior_end, end = key_ranges(first, last, seqlen_k, left, right, sink_size,
                                                               SHAPE.HAS_LEFT, SHAPE.HAS_RIGHT, SHAPE.N)
    if SHAPE.IS_SPLIT:
        share = tl.cdiv(tl.cdiv(end - begin, SHAPE.N), num_splits) * SHAPE.N
        lower = begin + split * share
        begin, end = lower, tl.minimum(end, lower + share)
        interior, interior_end = clamped(interior, lower, lower + share), clamped(interior_end, lower, lower + share)
        sinks_end = tl.where(split == 0, sinks_end, 0)
    high = positions * 0 + (seqlen_k - 1)
    if SHAPE.HAS_RIGHT:
        high = tl.minimum(positions + right, high)
    visibility = (positions - left, high, first - left, end - 1, sink_size)
    if SHAPE.HAS_LEFT:
        if SHAPE.HAS_SINK_TOKENS:
            state = _attend(state, q_tiles, source, 0, sinks_end, visibility, extras, SHAPE, True)
        state = _attend(state, q_tiles, source, begin, tl.minimum(interior, end), visibility, extras, SHAPE, True)
    state = _attend(state, q_tiles, source, interior, interior_end, visibility, extras, SHAPE, False)
    return _attend(state, q_tiles, source, interior_end, end, visibility, extras, SHAPE, True)


# Lengths and counts vary from call to call: variants for those that are 1 or a multiple of 16 only cost compilations.
@triton.jit(do_not_specialize=["num_blocks", "num_heads", "group_size", "num_splits", "num_pages", "seqlen_q",
                               "seqlen_k", "window_left", "window_right", "sink_size", "num_biases", "threshold"])
def _attention_kernel(out, lse, q, k, v, cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, bias, slopes, sink,
                      q_descale, k_descale, v_descale, rng_state, out_scale, k_box, v_box, out_strides, lse_strides,
                      q_strides, k_strides, v_strides, bias_strides, small_strides, split_strides, num_blocks,
                      num_heads, group_size, num_splits, num_pages, seqlen_q, seqlen_k, window_left, window_right,
                      sink_size, num_biases, threshold, scale, softcap, value_scale, SHAPE: tl.constexpr):
    """out = softmax(q kᵀ · scale + mask) v for a tile of rows per program; bound: matrix unit.

    Key blocks that every row sees run without a mask; those at an edge of the window or at the end run with one.
    seqlen_q, seqlen_k: of the tensors' axes, where varlen in total. scale, softcap: in units of log 2. IS_SPLIT: out
    and lse are what _combine_kernel reads. small_strides: of a batch of slopes, of the block table, and of batch and
    head of k_descale and of v_descale.
    """
    block, split, head, batch = tile_of_program(num_blocks, num_splits, num_heads // SHAPE.PACK, SHAPE.XCDS,
                                                SHAPE.PAGE > 0)
    start_q, q_batch, k_batch = batch * 0, batch, batch if cu_seqlens_k is None else batch * 0
    if cu_seqlens_q is not None:
        start_q, seqlen_q = sequence(cu_seqlens_q, batch, seqlen_q)
        q_batch = batch * 0
    start_k, seqlen_k = keys_of(batch, cu_seqlens_k, seqlens_k, seqlen_k, SHAPE.PAGE)
    first_query, first_head = block * SHAPE.M // SHAPE.PACK, head * SHAPE.PACK
    if cu_seqlens_q is not None:
        if first_query >= seqlen_q:
            return
    packed = block * SHAPE.M + tl.arange(0, SHAPE.M)
    queries, heads = packed // SHAPE.PACK, packed % SHAPE.PACK
    is_row, delta = queries < seqlen_q, seqlen_k - seqlen_q
    tile = (start_q + first_query, first_head, queries - first_query, heads)

    q_rows = row_pointers(q, q_strides, q_batch, tile, SHAPE)
    q_tile, q_tail = load_rows(q_rows, is_row, 0, SHAPE.D, SHAPE.HEAD_DIM), None
    if SHAPE.D_TAIL > 0:
        q_tail = load_rows(q_rows, is_row, SHAPE.D, SHAPE.D_TAIL, SHAPE.HEAD_DIM)
    kv_head = (first_head // group_size).to(tl.int64)
    k_base, v_base, pages = k + kv_head * k_strides[2], v + kv_head * v_strides[2], None
    if block_table is not None:
        pages = (block_table + k_batch * small_strides[1] + start_k, num_pages)
    else:
        k_base += k_batch * k_strides[0] + start_k.to(tl.int64) * k_strides[1]
        v_base += k_batch * v_strides[0] + start_k.to(tl.int64) * v_strides[1]
    if q_descale is not None or k_descale is not None:
        sign = descaled(scale, q_descale, k_descale, batch, kv_head, small_strides[2:4])
        q_tile, scale = signed(q_tile, sign), positive_scale(sign)
        if SHAPE.D_TAIL > 0:
            q_tail = signed(q_tail, sign)
    dropout, boxes, row_slopes, row_biases = None, None, None, None
    if SHAPE.HAS_BOXES:
        boxes = (k_box, v_box, k_batch.to(tl.int32), start_k, kv_head.to(tl.int32))
    if slopes is not None:
        row_slopes = alibi_slopes(tl.load(slopes + batch * small_strides[0] + first_head + heads))
    if bias is not None:
        row_biases = bias_of(bias, bias_strides, q_batch, tile, queries, is_row, delta, num_biases, SHAPE)
    if rng_state is not None:
        dropout = (tl.load(rng_state), tl.load(rng_state + 1), threshold, batch * num_heads + first_head, queries)
    source = (k_base, v_base, k_strides, v_strides, pages, seqlen_k, boxes)
    last_query = tl.minimum((block * SHAPE.M + SHAPE.M - 1) // SHAPE.PACK, seqlen_q - 1)
    extras = (scale, queries + delta, (softcap, row_slopes, row_biases), dropout)
    acc, total, maximum, _ = _attend_all(no_keys(SHAPE.M, SHAPE.DV), (q_tile, q_tail), source, first_query + delta,
                                         last_query + delta, (window_left, window_right, sink_size), split, num_splits,
                                         extras, SHAPE)

    out_rows, lse_rows, sinks = row_pointers(out, out_strides, q_batch, tile, SHAPE), None, None
    if lse is not None:
        lse_rows = row_pointers(lse, lse_strides, q_batch, tile, SHAPE)
    if SHAPE.IS_SPLIT:
        store_part(out_rows, lse_rows, split_strides, split, is_row, acc, total, maximum, SHAPE.HEAD_DIM_V, SHAPE.DV)
        return
    if sink is not None:
        sinks = sink_score(tl.load(sink + first_head + heads), bias is not None)
    value_scale = value_factor(value_scale, v_descale, out_scale, batch, kv_head, small_strides[4:6])
    finish_rows(out_rows, lse_rows, is_row, acc, total, maximum, sinks, value_scale, SHAPE.HEAD_DIM_V, SHAPE.DV,
                SHAPE.ROUNDING, bias is not None)


@triton.jit(do_not_specialize=["seqlen_q", "num_heads", "num_splits", "max_seqlen_q", "group_size"])
def _combine_kernel(out, lse, parts, sums, cu_seqlens_q, sink, v_descale, out_scale, out_strides, lse_strides,
                   part_strides, sum_strides, split_strides, descale_strides, seqlen_q, max_seqlen_q, num_heads,
                   group_size, num_splits, value_scale, SPLITS: tl.constexpr, HEAD_DIM_V: tl.constexpr,
                   DV: tl.constexpr, ROUNDING: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Adds the parts of one row of one head, always in the same order; bound: memory."""
    index = tl.program_id(0)
    query, head, batch = index % max_seqlen_q, index // max_seqlen_q % num_heads, index // max_seqlen_q // num_heads
    batch, head, start, row_batch = batch.to(tl.int64), head.to(tl.int64), batch.to(tl.int64) * 0, batch.to(tl.int64)
    if cu_seqlens_q is not None:
        start, seqlen_q = sequence(cu_seqlens_q, batch, seqlen_q)
        row_batch = batch * 0
    if query >= seqlen_q:
        return
    row = (start + query).to(tl.int64)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DV)
    is_split = splits < num_splits
    at = sums + row_batch * sum_strides[0] + row * sum_strides[1] + head * sum_strides[2] + splits * split_strides[1]
    maxima = tl.load(at + split_strides[2], mask=is_split, other=MINIMUM)
    maximum = tl.max(maxima, 0)
    weights = tl.exp2(maxima - maximum)
    total = tl.sum(tl.load(at, mask=is_split, other=0.0) * weights, 0)
    at = parts + row_batch * part_strides[0] + row * part_strides[1] + head * part_strides[2]
    acc = tl.load(at + splits.to(tl.int64)[:, None] * split_strides[0] + dims[None, :],
                  mask=is_split[:, None] & (dims < HEAD_DIM_V)[None, :], other=0.0)
    acc = tl.sum(acc * weights[:, None], 0)[None, :]
    one = tl.zeros([1], tl.int32)
    out_rows = out + row_batch * out_strides[0] + row * out_strides[1] + head * out_strides[2] + one
    lse_rows, sinks = None, None
    if lse is not None:
        lse_rows = lse + row_batch * lse_strides[0] + row * lse_strides[1] + head * lse_strides[2] + one
    if sink is not None:
        sinks = sink_score(tl.load(sink + head + one), HAS_BIAS)
    value_scale = value_factor(value_scale, v_descale, out_scale, batch, head // group_size, descale_strides)
    finish_rows(out_rows, lse_rows, one == 0, acc, total + one, maximum + one, sinks, value_scale, HEAD_DIM_V, DV,
                ROUNDING, HAS_BIAS)


def width(call: AttentionCall) -> str:
    """The name of a configuration: padded head dimensions; "d192" is 192 and 128, as of DeepSeek's latent attention."""
    head_dim, head_dim_v = exactly((call.head_dim, call.head_dim_v))
    if 128 < head_dim <= 192 and head_dim_v <= 128:
        return "d192"
    return f"d{max(power_of_2(max(head_dim, head_dim_v)), 32)}"


def attend(call: AttentionCall, settings: dict[str, int], block_table: Tensor | None = None,
           out_scale: Tensor | None = None) -> tuple[Launch, ...]:
    """The launch of the kernel, and that of the sum of its parts where the keys are split.

    settings: BLOCK_M, BLOCK_N, XCDS, TMA, launch options. With a block table, k and v are pages [num_pages, page_size,
    num_kv_heads, head_dim], and the bias is one of queries and their own keys, [seqlen, seqlen].
    """
    shape = shape_of(call, settings, block_table)
    boxes = _boxes(call, shape) if settings.get("TMA") else (None, None)
    num_blocks = triton.cdiv(call.max_seqlen_q * shape.PACK, shape.M)
    programs = num_blocks * (call.num_heads // shape.PACK) * call.batch
    num_splits = splits_of(call, num_blocks, programs, shape.N)
    shape = replace(shape, IS_SPLIT=num_splits > 1, HAS_BOXES=boxes[0] is not None)
    out, lse, split_strides = call.out, call.lse, (0, 0, 0)
    out_strides, lse_strides = strides_of_rows(call.out), strides_of_lse(call.lse)
    if shape.IS_SPLIT:  # parts of the keys give sums, and their weights and maxima
        out = scratch((num_splits, *call.out.shape), torch.float32, call.q)
        lse = scratch((num_splits, 2, *call.out.shape[:-1]), torch.float32, call.q)
        split_strides = (out.stride(0), lse.stride(0), lse.stride(1))
        out_strides, lse_strides = strides_of_rows(out[0]), strides_of_rows(lse[0, 0, ..., None])
    is_varlen_k = call.cu_seqlens_k is not None
    seqlen_q, seqlen_k = call.q.shape[0 if call.is_varlen else 1], call.k.shape[0 if is_varlen_k else 1]
    if block_table is not None:
        seqlen_k = block_table.shape[0] if is_varlen_k else block_table.shape[1] * shape.PAGE
    q_descale, k_descale, v_descale = _descales(call)
    v_strides, group_size = strides_of_descale(v_descale), call.num_heads // call.num_kv_heads
    small = (stride_of_batch(call.alibi_slopes), stride_of_batch(block_table), *strides_of_descale(k_descale),
             *v_strides)
    value_scale = 1.0 / (1.0 - call.dropout_p)
    attention = launch(
        _attention_kernel, (programs * num_splits, 1, 1), out, lse, call.q, call.k, call.v, call.cu_seqlens_q,
        call.cu_seqlens_k, call.seqlens_k, block_table, call.bias, call.alibi_slopes, call.sink, q_descale, k_descale,
        v_descale, call.rng_state if call.dropout_p > 0 else None, out_scale, *boxes, out_strides, lse_strides,
        strides_of_rows(call.q), strides_of_keys(call.k), strides_of_keys(call.v), strides_of_bias(call.bias), small,
        split_strides, num_blocks, call.num_heads, group_size, num_splits, call.k.shape[0], seqlen_q, seqlen_k,
        max(call.window_left, 0), max(call.window_right, 0), call.sink_size,
        call.bias.shape[-1] if call.bias is not None else 0, philox.threshold(call.dropout_p),
        call.softmax_scale * LOG2_E.value, call.softcap * LOG2_E.value, value_scale, SHAPE=shape,
        options=_options(shape, settings))
    if not shape.IS_SPLIT:
        return (attention,)
    return attention, launch(
        _combine_kernel, (call.max_seqlen_q * call.num_heads * call.batch, 1, 1), call.out, call.lse, out, lse,
        call.cu_seqlens_q, call.sink, v_descale, out_scale, strides_of_rows(call.out), strides_of_lse(call.lse),
        out_strides, lse_strides, split_strides, v_strides, seqlen_q, call.max_seqlen_q, call.num_heads, group_size,
        num_splits, value_scale, SPLITS=power_of_2(num_splits), HEAD_DIM_V=shape.HEAD_DIM_V, DV=shape.DV,
        ROUNDING=shape.ROUNDING, HAS_BIAS=call.bias is not None, options=_COMBINE)


def _options(shape: Shape, settings: dict[str, int]) -> dict[str, int]:
    """Launch options, as the rows of a tile allow them."""
    options = {name: value for name, value in settings.items() if not name.isupper()}
    if shape.M <= 32:
        options["num_warps"] = min(options["num_warps"], 4)
    if shape.M < 32 * options["num_warps"] and options.get("matrix_instr_nonkdim") == 32:
        options["matrix_instr_nonkdim"] = 16  # At 32, several waves would compute the same rows.
    return options


def _descales(call: AttentionCall) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The descales of q, k and v where these are fp8: engines pass them whatever the tensors hold."""
    q_descale = call.q_descale if call.q.element_size() == 1 else None
    return (q_descale, call.k_descale, call.v_descale) if call.k.element_size() == 1 else (q_descale, None, None)


def _boxes(call: AttentionCall, shape: Shape) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Descriptors of k and v as [batch, keys, heads, dim], or None for both where a stride or an address forbids."""
    boxes = []
    for tensor, dim in ((call.k, shape.D), (call.v, shape.DV)):
        if shape.D_TAIL or shape.PAGE or not is_aligned(tensor):
            return None, None
        dense = tensor if tensor.ndim == 4 else tensor.unsqueeze(0)
        boxes.append(TensorDescriptor(dense, list(dense.shape), list(dense.stride()), [1, shape.N, 1, dim]))
    return boxes[0], boxes[1]
