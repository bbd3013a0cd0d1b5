# SPDX-License-Identifier: MIT
"""Chooses the first backend of unified_attention on gfx942, by what calls of bf16 take on the cycle model, version 3.

The host knows how many queries there are in all, and the longest sequences. It takes the sequences to be of two kinds,
as engines' batches are: as many of the longest length as the queries allow, and others of one query, all with the
longest keys. Every number is modelled.
"""

from __future__ import annotations

import math

from aiter_like.device import Target, arch_facts
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.decode_call import MOST_QUERIES
from aiter_like.ops.attention.paged_attention_hip import unified_hip_refusal
from aiter_like.ops.attention.unified_attention_ck import takes_turns

_BLOCK_KEYS = 64
_LEAST_QUERIES = 32
"""Of a sequence on average for tiles: these take 128 rows of one head, and read all keys for them, however few."""
_TURNS_ROWS = {64: 512, 128: 384}  # A workgroup whose waves take turns has so many, by head dimension.
_TURNS_START, _TURNS_BLOCK, _TURNS_SHORT = 13.0, 3.2, 2.4
"""us of a workgroup: before and after its keys; for a block of keys; and for one where rows fill one tile."""
_TURNS_PARTS, _TURNS_MERGE, _MERGED_BYTES = 3, 4.0, 4.1e6
"""Parts of the keys on all units at most, us of their merge, and bytes that it moves in one (flash_attn_plan.h)."""
_SPLIT_KEYS = 1024
"""From which on workgroups share the keys of one sequence where they do not fill the device (flash_attn_plan.h)."""
_TRITON_ROWS = 128
_TRITON_START, _TRITON_ALONE = 8.0, {64: 2.1, 128: 3.0}  # us of a program, and for its block of keys
_TRITON_FULL_START, _TRITON_FULL = 12.0, {64: 1.2, 128: 2.0}  # … of a unit that several programs share


def _kinds(call: PagedCall) -> tuple[float, float]:
    """How many sequences are long and short."""
    long = call.batch
    if call.max_seqlen_q > 1:
        long = min(max(call.q.shape[0] - call.batch, 1) / (call.max_seqlen_q - 1), call.batch)
    return long, call.batch - long


def _key_blocks(call: PagedCall) -> tuple[float, float]:
    """Blocks of keys that a row sees: the most, and a long sequence's on average."""
    most = max(call.max_seqlen_k, 1) / _BLOCK_KEYS
    hidden = min(call.max_seqlen_q, call.max_seqlen_k) / 2 / _BLOCK_KEYS if call.window_right == 0 else 0
    if call.window_left >= 0:
        seen = (call.window_left + 1) / _BLOCK_KEYS + 1
        return min(most, seen), min(most - hidden + 0.5, seen)
    return most, most - hidden + 0.5


def _turns_us(call: PagedCall) -> float:
    """Modelled us of csrc/attention/unified_attention_ping_pong.h."""
    units, kv_heads = arch_facts("gfx942")["cu_num"], call.k.shape[2]
    group, block, mean = call.q.shape[1] // kv_heads, _TURNS_ROWS[call.q.shape[2]], call.q.shape[0] / call.batch
    pack = min((math.ceil(max(mean, 1) * pack / block) * (group // pack), -pack, pack)
               for pack in range(1, group + 1) if group % pack == 0)[2]
    columns, (long, short), (most, mean_blocks) = group // pack * kv_heads, _kinds(call), _key_blocks(call)
    long_tasks, short_tasks = long * math.ceil(call.max_seqlen_q * pack / block) * columns, short * columns

    def unmerged(parts: int) -> float:
        longest = _TURNS_START + _TURNS_BLOCK * math.ceil(most / parts)
        total = (_TURNS_START * parts * (long_tasks + short_tasks)
                 + _TURNS_BLOCK * mean_blocks * long_tasks + _TURNS_SHORT * most * short_tasks) / units
        return max(longest, total + (0.4 * longest if (long_tasks + short_tasks) * parts > units else 0))

    least, slots = unmerged(1), call.q.shape[0] * pack // block + call.batch
    part_bytes = call.q.shape[0] * call.q.shape[1] * (call.q.shape[2] + 2) * 4
    if most * _BLOCK_KEYS >= _SPLIT_KEYS and call.window_left < 0:
        for parts in range(2, int(min(_TURNS_PARTS * units // (slots * columns), most // 4)) + 1):
            least = min(least, unmerged(parts) + _TURNS_MERGE + 2 * parts * part_bytes / _MERGED_BYTES)
    return least


def is_few(call: PagedCall, units: int) -> bool:
    """Whether Triton's kernel for long sequences has so few programs that most are alone on their unit."""
    rows = call.q.shape[0] * call.q.shape[1] // _TRITON_ROWS
    return 2 * (rows + call.batch * call.k.shape[2]) <= 3 * units


def _triton_us(call: PagedCall) -> float:
    """Modelled us of ops/attention/triton/unified_attention.py."""
    units, kv_heads = arch_facts("gfx942")["cu_num"], call.k.shape[2]
    (long, short), (most, mean_blocks) = _kinds(call), _key_blocks(call)
    long *= math.ceil(call.max_seqlen_q * call.q.shape[1] // kv_heads / _TRITON_ROWS) * kv_heads
    short *= kv_heads
    block, block_of_full = (of[call.q.shape[2]] for of in (_TRITON_ALONE, _TRITON_FULL))
    longest, alone = _TRITON_START + block * most, block * most * short
    if not is_few(call, units):
        tail = block * most / 4 if short > 0 else 0  # short ones begin last, and end one by one
        return max(longest, (block_of_full * mean_blocks * long + alone) / units + _TRITON_FULL_START + tail)
    total = ((_TRITON_START + block * mean_blocks) * long + _TRITON_START * short + alone) / units
    return max(longest, total + (longest / 2 if long + short > units else 0))


def prefers(target: Target, call: PagedCall) -> str | None:
    """The backend that goes before the order of the operator's declaration."""
    if target.platform != "hip" or target.arch != "gfx942":
        return None
    if call.max_seqlen_q <= MOST_QUERIES:
        return None if unified_hip_refusal(target, call) is None else "triton"
    if takes_turns(call):
        is_long = call.batch == 1 and call.window_left < 0 and call.max_seqlen_k >= _SPLIT_KEYS
        return None if is_long or _turns_us(call) <= _triton_us(call) else "triton"
    # Tiles gain where a score has further terms, or rows are wide: 52 us beside 72 for four sequences of 512, 8 heads.
    has_terms = call.softcap > 0 or call.alibi_slopes is not None or call.q.shape[2] > 128
    return None if has_terms and call.q.shape[0] >= _LEAST_QUERIES * call.batch else "triton"
