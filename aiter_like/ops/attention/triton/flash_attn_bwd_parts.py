# SPDX-License-Identifier: MIT
"""Parts of flash_attn_bwd.py: a call's tensors and rules, addresses, which pairs are visible, P from the LSE."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language.target_info import is_hip_cdna3
from triton.runtime.jit import constexpr_function

from aiter_like.ops.attention.triton import parts
from aiter_like.ops.attention.triton.parts import round_finite, tanh
from aiter_like.ops.attention.triton.terms import alibi_slopes, minus_alibi, plus_bias

PADDING = tl.constexpr(128)  # rows in the scratch of _delta_kernel fill this: a multiple of every BLOCK_M


class View(NamedTuple):
    """A tensor's first element and its strides in elements."""

    data: Any
    batch: Any
    row: Any
    head: Any


class Bias(NamedTuple):
    """The same of a bias, which has a stride of keys too; of none, data is None."""

    data: Any
    batch: Any
    row: Any
    head: Any
    key: Any


class Dropout(NamedTuple):
    """Dropout of one head's probabilities: those that survive, and their factor; rng_state None: all survive, by 1."""

    rng_state: Any
    seed: Any
    offset: Any
    head: Any  # batch · num_heads + head
    threshold: Any
    scale: Any


class Rule(NamedTuple):
    """How q·k of one head becomes a score, and which keys a row sees; None: the call has no such thing."""

    seqlen_q: Any
    seqlen_k: Any
    left: Any
    right: Any
    sink_size: Any
    scale: Any  # softmax_scale · log2 e; with a softcap softmax_scale / softcap
    cap_log2: Any  # softcap · log2 e
    slopes: Any
    slope_log2: Any  # this head's, times log2 e
    bias: Any
    bias_at: Any  # row 0 of this head
    rests: Any  # LSE - lse2, to base 2
    rests_at: Any  # row 0 of this head


@triton.jit
def sequence(cu_seqlens, batch, total, max_seqlen):
    """First row and length of a sequence: inside the tensor and max_seqlen, whatever cu_seqlens holds."""
    if cu_seqlens is None:
        return batch * 0, max_seqlen
    else:
        start, length = parts.sequence(cu_seqlens, batch, total)
        return start, tl.minimum(length, max_seqlen)


@triton.jit
def place_of_program(right):
    """(block, head, batch, number of blocks) of a program; the grid is that of _grid.

    gfx942 deals programs to its eight XCDs in turn. A causal mask makes blocks of unequal length: there they come last,
    so that each XCD gets the same ones, the longest of all heads first. Else an XCD walks along fewer heads at a time.
    """
    if right is not None and is_hip_cdna3():
        return tl.program_id(2), tl.program_id(0), tl.program_id(1), tl.num_programs(2)
    else:
        return tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(0)


@triton.jit
def view_of(data, strides):
    """A tensor with its strides of batch, row and head."""
    return View(data, strides[0], strides[1], strides[2])


@triton.jit
def address(view, batch, start, head):
    """Address of row `start` of a head."""
    return view.data + batch.to(tl.int64) * view.batch + start.to(tl.int64) * view.row + head.to(tl.int64) * view.head


@triton.jit
def rows_index(cu_seqlens, batch, start, head, num_heads, total, seqlen):
    """Index of row `start` of a head in [batch, heads, seqlen] or, packed, [heads, total]."""
    if cu_seqlens is None:
        return (batch * num_heads + head).to(tl.int64) * seqlen
    else:
        return head.to(tl.int64) * total + start


@triton.jit
def scratch_index(cu_seqlens, batch, start, head, num_heads, scratch_rows):
    """Index of a sequence's first row in a scratch of scratch_rows rows for each head (and sequence, if not packed).

    A multiple of PADDING, and so far from the next sequence that both can be padded to one.
    """
    if cu_seqlens is None:
        index = (batch * num_heads + head).to(tl.int64) * scratch_rows
    else:
        index = head.to(tl.int64) * scratch_rows + (start + batch * PADDING) // PADDING * PADDING
    return tl.multiple_of(index, PADDING)


@triton.jit
def load_rows(base, first_row, row_stride, inside, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a matrix, zeros where they are not `inside`, [ROWS] or None for all: [ROWS, BLOCK]."""
    lanes, dims = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    pointers = base + first_row.to(tl.int64) * row_stride + (lanes[:, None] * row_stride + dims[None, :])
    if inside is not None:
        return tl.load(pointers, mask=inside[:, None] & (dims < DIM)[None, :], other=0.0)
    elif DIM != BLOCK:
        return tl.load(pointers, mask=(dims < DIM)[None, :], other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def rows_at(rows_of, block, rule, DIM: tl.constexpr, BLOCK_D: tl.constexpr, DIM_V: tl.constexpr,
            BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, IS_MASKED: tl.constexpr):
    """q, dout, lse2 and delta of a block of rows, zeros in the former for those that see none of the keys: 0 · NaN is
    no 0. rows_of: of dkdv_rows."""
    q, q_row, dout, dout_row, delta, lse2, first_key, last_key = rows_of
    first_row = block * BLOCK_M
    rows, inside = first_row + tl.arange(0, BLOCK_M), None
    if IS_MASKED:
        inside = rows < rule.seqlen_q
        diagonal = rule.seqlen_k - rule.seqlen_q
        if rule.right is not None:
            inside &= rows >= first_key - diagonal - rule.right
        if rule.left is not None:
            inside &= (rows <= last_key - diagonal + rule.left) | (first_key < rule.sink_size)
    q_tile = load_rows(q, first_row, q_row, inside, BLOCK_M, DIM, BLOCK_D)
    dout_tile = load_rows(dout, first_row, dout_row, inside, BLOCK_M, DIM_V, BLOCK_DV)
    return q_tile, dout_tile, tl.load(lse2 + rows), tl.load(delta + rows)


@triton.jit
def keys_at(keys_of, block, rule, DIM: tl.constexpr, BLOCK_D: tl.constexpr, DIM_V: tl.constexpr,
            BLOCK_DV: tl.constexpr, BLOCK_N: tl.constexpr, IS_MASKED: tl.constexpr):
    """k and v of a block of keys, zeros for those that none of the rows sees. keys_of: of dq_keys."""
    k, k_row, v, v_row, first_row, last_row = keys_of
    first_key, inside = block * BLOCK_N, None
    if IS_MASKED:
        keys = first_key + tl.arange(0, BLOCK_N)
        inside = keys < rule.seqlen_k
        diagonal = rule.seqlen_k - rule.seqlen_q
        if rule.right is not None:
            inside &= keys <= last_row + diagonal + rule.right
        if rule.left is not None:
            inside &= (keys >= first_row + diagonal - rule.left) | (keys < rule.sink_size)
    k_tile = load_rows(k, first_key, k_row, inside, BLOCK_N, DIM, BLOCK_D)
    return k_tile, load_rows(v, first_key, v_row, inside, BLOCK_N, DIM_V, BLOCK_DV)


@triton.jit
def store_rows(view, batch, start, head, rows, num_rows, tile, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the rows that exist."""
    dims = tl.arange(0, BLOCK)
    pointers = address(view, batch, start, head) + rows.to(tl.int64)[:, None] * view.row + dims[None, :]
    tl.store(pointers, tile.to(view.data.dtype.element_ty), mask=(rows < num_rows)[:, None] & (dims < DIM)[None, :])


@constexpr_function
def loads_ahead(is_masked):
    """Whether a loop asks for the next tile before the products of this one, and holds it in registers.

    Triton's pipeline (num_stages) does the same for gfx942, but keeps a tile that two products read in one layout of
    local memory, where one of them meets bank conflicts: modelled, the loop for dQ took 2.3 times as long with it.
    """
    return is_hip_cdna3() and not is_masked


@triton.jit
def is_visible(rule, row, key):
    """Whether the row sees the key, of vectors that broadcast to a tile; rows past the end are not told apart."""
    visible = key < rule.seqlen_k
    position = row + (rule.seqlen_k - rule.seqlen_q)
    if rule.right is not None:
        visible &= key <= position + rule.right
    if rule.left is not None:
        visible &= (key >= position - rule.left) | (key < rule.sink_size)
    return visible


@triton.jit
def score_of(rule, products, row, key, visible, IS_MASKED: tl.constexpr):
    """The score in base 2, and its derivative by softmax_scale · q·k."""
    slope = 1.0
    if rule.cap_log2 is not None:
        capped = tanh(products * rule.scale)
        slope = 1.0 - capped * capped
        score = capped * rule.cap_log2
    else:
        score = products * rule.scale
    if rule.bias.data is not None:
        bias_row = tl.minimum(row, rule.seqlen_q - 1).to(tl.int64)  # a block of rows may end past the sequence
        pointers = rule.bias_at + bias_row * rule.bias.row + key.to(tl.int64) * rule.bias.key
        if IS_MASKED:
            score = plus_bias(score, tl.load(pointers, mask=visible, other=0.0))
        else:
            score = plus_bias(score, tl.load(pointers))
    if rule.slopes is not None:
        score = minus_alibi(score, rule.slope_log2, row + (rule.seqlen_k - rule.seqlen_q) - key)
    return score, slope


@triton.jit
def probability(rule, products, row, key, lse2, visible, IS_MASKED: tl.constexpr):
    """p = exp2(score − LSE), 0 where not visible, and the derivative of the score by softmax_scale · q·k."""
    score, slope = score_of(rule, products, row, key, visible, IS_MASKED)
    exponent = score - lse2
    if rule.rests is not None:
        exponent -= tl.load(rule.rests + rule.rests_at + row)
    p = tl.exp2(exponent)
    if IS_MASKED:
        p = tl.where(visible, p, 0.0)
    return p, slope


@triton.jit
def narrowed(x, rule, dtype: tl.constexpr):
    """P or dS in 16 bits, to nearest.

    gfx942 has no instruction that rounds to bfloat16. There an addition does, which would turn a NaN with all of its
    lower bits set into zero. Only a call's fp32 tensors can hold one; those of rows are rid of it in _delta_kernel.
    """
    if dtype == tl.bfloat16 and is_hip_cdna3() and rule.bias.data is None and rule.slopes is None:
        return round_finite(x, dtype, 1)
    else:
        return x.to(dtype)


@triton.jit
def plain(x):
    """x with the usual NaN for any NaN, where `narrowed` depends on it."""
    if is_hip_cdna3():
        return tl.where(x == x, x, float("nan"))
    else:
        return x


@triton.jit
def alibi_slope(slopes, batch, slopes_batch, head):
    """ALiBi's slope of a head, times log2 e."""
    if slopes is None:
        return 0.0
    else:
        return alibi_slopes(tl.load(slopes + batch * slopes_batch + head))


@triton.jit
def bias_address(bias, batch, start, head):
    """Address of the bias of a sequence's first row."""
    if bias.data is None:
        return 0
    else:
        return address(bias, batch, start, head)


@triton.jit
def random_word(rng_state, index: tl.constexpr):
    """Seed or offset."""
    if rng_state is None:
        return 0
    else:
        return tl.load(rng_state + index)


@triton.jit
def seen_by(first_key, last_key, seqlen_q, seqlen_k, left, right, sink_size, BLOCK_M: tl.constexpr,
            BLOCK_N: tl.constexpr):
    """Row blocks that see any of the keys: [first, end), and of them [inner, inner_end), whose rows see every key."""
    diagonal = seqlen_k - seqlen_q
    low, high, all_low, all_high = 0, seqlen_q, 0, seqlen_q
    if right is not None:
        low = tl.maximum(first_key - diagonal - right, 0)
        all_low = tl.maximum(last_key - diagonal - right, 0)
    if left is not None:
        high = tl.where(first_key < sink_size, high, tl.minimum(last_key - diagonal + left + 1, high))
        all_high = tl.where(last_key < sink_size, high, tl.minimum(first_key - diagonal + left + 1, high))
    first = low // BLOCK_M
    end = tl.maximum(tl.cdiv(high, BLOCK_M), first)
    inner = tl.minimum(tl.maximum(tl.cdiv(all_low, BLOCK_M), first), end)
    inner_end = tl.maximum(all_high // BLOCK_M, inner)
    inner_end = tl.where(last_key - first_key + 1 < BLOCK_N, inner, inner_end)  # keys past the end
    return first, end, inner, inner_end


@triton.jit
def seen_from(first_row, last_row, seqlen_q, seqlen_k, left, right, sink_size, BLOCK_N: tl.constexpr):
    """Key blocks of which a row sees any key: [first, end), and of them [inner, inner_end), which every row sees whole;
    and how many blocks of sink tokens lie before `first`.
    """
    diagonal = seqlen_k - seqlen_q
    low, high, all_low, all_high = 0, seqlen_k, 0, seqlen_k
    if right is not None:
        high = tl.minimum(tl.maximum(last_row + diagonal + right + 1, 0), high)
        all_high = tl.minimum(tl.maximum(first_row + diagonal + right + 1, 0), all_high)
    if left is not None:
        low = tl.maximum(first_row + diagonal - left, 0)
        all_low = tl.maximum(last_row + diagonal - left, 0)
    first = low // BLOCK_N
    end = tl.maximum(tl.cdiv(high, BLOCK_N), first)
    inner = tl.minimum(tl.maximum(tl.cdiv(all_low, BLOCK_N), first), end)
    inner_end = tl.maximum(all_high // BLOCK_N, inner)
    sinks = 0
    if left is not None:
        sinks = tl.minimum(tl.minimum(tl.cdiv(sink_size, BLOCK_N), first), tl.cdiv(high, BLOCK_N))
    return first, end, inner, inner_end, sinks
