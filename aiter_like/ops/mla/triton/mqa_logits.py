# SPDX-License-Identifier: MIT
"""mqa_logits in Triton: kernel and launcher, named by ops/mla/mqa_logits.py."""

from __future__ import annotations

import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import Launch, await_stream, launch, power_of_2
from aiter_like.ops.mla.mqa_logits import MqaLogitsCall
from aiter_like.traced import exactly

# A product fused into a sum across lanes differs between lanes that hold the same element.
_OPTIONS = {"enable_fp_fusion": False, "num_warps": 4, "num_stages": 2, "BLOCK_KEYS": 64}
_MOST_ROWS = 128  # A product has so many at most: the heads of a program's rows.
_PROGRAMS_PER_CU = 4
_LEAST_BLOCKS = 2  # A program, which loads its rows' heads first, has so many of keys at least.


@triton.jit
def _range_of(starts, ends, context, row, rows_of_sequence, is_row, first_row, columns):
    """The columns that rows see, first and end, [ROWS] each; those that see none have 2^31 − 1 and 0."""
    if starts is not None:
        first = tl.maximum(tl.load(starts + row, mask=is_row, other=0), 0)
        end = tl.minimum(tl.load(ends + row, mask=is_row, other=0), columns)
    else:
        first = tl.zeros_like(first_row)
        end = tl.minimum(context - rows_of_sequence + first_row + 1, columns)
    is_any = is_row & (end > first)
    return tl.where(is_any, first, 2147483647), tl.where(is_any, end, 0)


@triton.jit
def _fill(out, is_row, fill_end, first_block, end_block, split, num_splits, ROWS: tl.constexpr,
          BLOCK_KEYS: tl.constexpr):
    """−inf in columns before fill_end and outside of the blocks first_block … end_block − 1, a part of them of each
    split.
    """
    nothing = tl.full([ROWS, BLOCK_KEYS], -float("inf"), tl.float32)
    for block in range(split, tl.cdiv(fill_end, BLOCK_KEYS), num_splits):
        if (block < first_block) | (block >= end_block):
            column = block * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
            tl.store(out[:, None] + column[None, :], nothing, mask=is_row[:, None] & (column < fill_end)[None, :])


@triton.jit
def _heads_of(q, weights, sequence_row, first_row, rows_of_sequence, q_row, q_head, weights_row, HEADS: tl.constexpr,
              DIM: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr):
    """The heads of ROWS rows, [ROWS · HP, DP], and their weights; zeros where there are none."""
    nth, dim = tl.arange(0, ROWS * HP), tl.arange(0, DP)
    head, row = nth % HP, first_row + nth // HP
    is_head = (head < HEADS) & (row < rows_of_sequence)
    at = sequence_row + row
    heads = tl.load(q + (at * q_row + head * q_head)[:, None] + dim[None, :],
                    mask=is_head[:, None] & (dim < DIM)[None, :], other=0.0)
    return heads, tl.load(weights + at * weights_row + head, mask=is_head, other=0.0)


@triton.jit
def _mqa_logits_kernel(logits, q, keys, k_scale, weights, starts, ends, context_lens, block_table, page_starts,
                       logits_row, q_row, q_head, page_step, key_step, scale_page, scale_key, weights_row, table_row,
                       columns, num_pages, page_size, num_keys, num_entries, rows_of_sequence, num_splits,
                       HEADS: tl.constexpr, DIM: tl.constexpr, HP: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
                       BLOCK_KEYS: tl.constexpr, IS_SHUFFLED: tl.constexpr, IS_CLEAN: tl.constexpr,
                       OVERLAPS: tl.constexpr):
    """ROWS rows of a sequence and a part of their keys, HP and DP: heads and elements rounded up to powers of two.

    Bound: of decoding memory, of prompts the matrix units.
    """
    await_stream(OVERLAPS)
    tiles_of_sequence = tl.cdiv(rows_of_sequence, ROWS)
    tiles = tl.num_programs(0) // num_splits
    split, tile = tl.program_id(0) // tiles, tiles - 1 - tl.program_id(0) % tiles
    sequence, own_row = tile // tiles_of_sequence, tile % tiles_of_sequence * ROWS + tl.arange(0, ROWS)
    is_row = own_row < rows_of_sequence
    row = sequence.to(tl.int64) * rows_of_sequence + own_row
    context, fill_end, entries = 0, 0, block_table
    if page_starts is not None:
        begin = tl.minimum(tl.maximum(tl.load(page_starts + sequence), 0), num_entries)
        behind = tl.minimum(tl.maximum(tl.load(page_starts + sequence + 1), 0), num_entries)
        entries = block_table + begin
        context = tl.maximum(behind - begin, 0) * page_size
        num_keys = context
    elif block_table is not None:
        entries = block_table + sequence.to(tl.int64) * table_row
        context = tl.maximum(tl.load(context_lens + sequence), 0)
    if block_table is not None:
        fill_end = tl.minimum(context, columns)
    if IS_CLEAN:
        fill_end = columns
    first, end = _range_of(starts, ends, context, row, rows_of_sequence, is_row, own_row, columns)
    if num_pages == 0:
        first, end = tl.full([ROWS], 2147483647, tl.int32), tl.zeros([ROWS], tl.int32)
    seen_end = tl.max(end, 0)
    first_block = tl.where(seen_end > 0, tl.min(first, 0) // BLOCK_KEYS, 0)
    end_block = tl.cdiv(seen_end, BLOCK_KEYS)
    out = logits + row * logits_row  # [ROWS]
    _fill(out, is_row, fill_end, first_block, end_block, split, num_splits, ROWS, BLOCK_KEYS)
    dim = tl.arange(0, DP)
    first_row = tile % tiles_of_sequence * ROWS
    heads, weight = _heads_of(q, weights, sequence.to(tl.int64) * rows_of_sequence, first_row, rows_of_sequence, q_row,
                              q_head, weights_row, HEADS, DIM, HP, DP, ROWS)
    blocks = (end_block - first_block).to(tl.int64)
    begin = first_block + (blocks * split // num_splits).to(tl.int32)
    stop = first_block + (blocks * (split + 1) // num_splits).to(tl.int32)
    for block in range(begin, stop):
        column = block * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
        is_there = (column < num_keys) & (column < seen_end)
        page, at = tl.zeros([BLOCK_KEYS], tl.int64), column
        if block_table is not None:
            page = tl.load(entries + column // page_size, mask=is_there, other=-1).to(tl.int64)
            at = column % page_size
            is_there = is_there & (page >= 0) & (page < num_pages)
        if IS_SHUFFLED:
            key_at = page * page_step + at // 16 * 16 * DIM + at % 16 * 16
            dim_at = dim // 16 * 256 + dim % 16
        else:
            key_at = page * page_step + at.to(tl.int64) * key_step
            dim_at = dim
        block_keys = tl.load(keys + key_at[None, :] + dim_at[:, None], mask=is_there[None, :] & (dim < DIM)[:, None],
                             other=0.0)  # [DP, BLOCK_KEYS]
        scale = tl.load(k_scale + page * scale_page + at.to(tl.int64) * scale_key, mask=is_there, other=0.0)
        products = tl.maximum(tl.dot(heads, block_keys), 0.0) * weight[:, None]
        result = tl.sum(tl.reshape(products, [ROWS, HP, BLOCK_KEYS]), 1) * scale[None, :]
        is_seen = (column[None, :] >= first[:, None]) & (column[None, :] < end[:, None])
        result = tl.where(is_seen & is_there[None, :], result, -float("inf"))
        tl.store(out[:, None] + column[None, :], result,
                 mask=is_row[:, None] & (is_seen | (column < fill_end)[None, :]))


def mqa_logits(call: MqaLogitsCall, **params: int) -> Launch:
    """Writes `logits`.

    params: a tuned row's launch options and BLOCK_KEYS.
    """
    rows, columns = call.q.shape[0], call.logits.shape[1]
    heads, dim = exactly(call.q.shape[1:])
    heads_padded, dim_padded = max(power_of_2(heads), 16), max(power_of_2(dim), 32)
    own_rows = exactly(min(power_of_2(call.rows_of_sequence), max(_MOST_ROWS // heads_padded, 1)))
    options = {**_OPTIONS, **params}
    block = options.pop("BLOCK_KEYS")
    tiles = rows // call.rows_of_sequence * triton.cdiv(call.rows_of_sequence, own_rows)
    most = triton.cdiv(columns, block * _LEAST_BLOCKS)
    splits = min(triton.cdiv(_PROGRAMS_PER_CU * target_of(call.q.device).cu_num, tiles), most)
    pages, page_size, _ = call.keys.shape
    table = call.block_table
    table_row, entries = (0, 0) if table is None else (table.stride(0), table.shape[0])
    return launch(
        _mqa_logits_kernel, (tiles * splits, 1, 1), *call[:10], call.logits.stride(0), *call.q.stride()[:2],
        *call.keys.stride()[:2], *call.k_scale.stride(), call.weights.stride(0), table_row, columns,
        pages if call.max_keys else 0, page_size, call.max_keys, entries, call.rows_of_sequence, splits, HEADS=heads,
        DIM=dim, HP=heads_padded, DP=dim_padded, ROWS=own_rows, BLOCK_KEYS=block, IS_SHUFFLED=call.preshuffle,
        IS_CLEAN=call.clean_logits, options=options)
