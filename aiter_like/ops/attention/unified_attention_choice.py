# SPDX-License-Identifier: MIT
"""Chooses the first backend of unified_attention on gfx942, by what calls of bf16 take on the cycle model, version 3.

The host knows how many queries there are in all, and the longest sequences. It takes the sequences to be of two kinds,
as engines' batches are: as many of the longest length as the queries allow, and others of one query, all with the
longest keys. Every number is modelled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from aiter_like.device import Facts, Target, arch_facts, model_of
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.decode_call import MOST_QUERIES
from aiter_like.ops.attention.paged_attention_hip import unified_hip_refusal
from aiter_like.ops.attention.unified_attention_ck import takes_turns
from aiter_like.ops.common.headers import constant

_PLAN = "attention/flash_attn_plan.h"
_TURNS_ROWS = {64: 512, 128: 384}  # A workgroup whose waves take turns has so many, by head dimension.
_TRITON_ROWS = 128


class Turns(NamedTuple):
    """Numbers of configs/gfx942/attention.toml."""

    start: float
    block: float
    short_block: float
    tail: float
    merge: float
    merged_bytes: float


class TritonTimes(NamedTuple):
    """Numbers of configs/gfx942/attention.toml; dicts are by head dimension."""

    start: float
    block: dict[int, float]
    full_start: float
    full_block: dict[int, float]
    short_tail: float
    tail: float


class Tiles(NamedTuple):
    """Numbers of configs/gfx942/attention.toml."""

    least_queries: int
    narrow_dims: int


def _block_keys() -> int:
    return constant(_PLAN, "kBlockN")


def _least_split() -> int:
    """Blocks of keys from which on workgroups share those of one sequence where they do not fill the device."""
    return constant(_PLAN, "kLeastSplitBlocks")


def _kinds(call: PagedCall) -> tuple[float, float]:
    """How many sequences are long and short."""
    long = call.batch
    if call.max_seqlen_q > 1:
        long = min(max(call.q.shape[0] - call.batch, 1) / (call.max_seqlen_q - 1), call.batch)
    return long, call.batch - long


def _key_blocks(call: PagedCall) -> tuple[float, float]:
    """Blocks of keys that a row sees: the most, and a long sequence's on average."""
    keys = _block_keys()
    most = max(call.max_seqlen_k, 1) / keys
    hidden = min(call.max_seqlen_q, call.max_seqlen_k) / 2 / keys if call.window_right == 0 else 0
    if call.window_left >= 0:
        seen = (call.window_left + 1) / keys + 1
        return min(most, seen), min(most - hidden + 0.5, seen)
    return most, most - hidden + 0.5


def _turns_cost(call: PagedCall, facts: Facts) -> float:
    """Modelled us of csrc/attention/unified_attention_ping_pong.h."""
    model, units, kv_heads = facts.model("attention.unified_turns", Turns), facts.cu_num, call.k.shape[2]
    group, block, mean = call.q.shape[1] // kv_heads, _TURNS_ROWS[call.q.shape[2]], call.q.shape[0] / call.batch
    pack = min((math.ceil(max(mean, 1) * pack / block) * (group // pack), -pack, pack)
               for pack in range(1, group + 1) if group % pack == 0)[2]
    columns, (long, short), (most, mean_blocks) = group // pack * kv_heads, _kinds(call), _key_blocks(call)
    long_tasks, short_tasks = long * math.ceil(call.max_seqlen_q * pack / block) * columns, short * columns

    def unmerged(parts: int) -> float:
        longest = model.start + model.block * math.ceil(most / parts)
        total = (model.start * parts * (long_tasks + short_tasks)
                 + model.block * mean_blocks * long_tasks + model.short_block * most * short_tasks) / units
        return max(longest, total + (model.tail * longest if (long_tasks + short_tasks) * parts > units else 0))

    least, slots = unmerged(1), call.q.shape[0] * pack // block + call.batch
    part_bytes = call.q.shape[0] * call.q.shape[1] * (call.q.shape[2] + 2) * 4
    if most >= _least_split() and call.window_left < 0:
        at_most = constant(_PLAN, "kMostRoundsOfAll") * units // (slots * columns)
        for parts in range(2, int(min(at_most, most // constant(_PLAN, "kLeastPartBlocks"))) + 1):
            least = min(least, unmerged(parts) + model.merge + 2 * parts * part_bytes / model.merged_bytes)
    return least


def is_few(call: PagedCall, units: int) -> bool:
    """Whether Triton's kernel for long sequences has so few programs that most are alone on their unit."""
    rows = call.q.shape[0] * call.q.shape[1] // _TRITON_ROWS
    return 2 * (rows + call.batch * call.k.shape[2]) <= 3 * units


def _triton_cost(call: PagedCall, facts: Facts) -> float:
    """Modelled us of ops/attention/triton/unified_attention.py."""
    model, units, kv_heads = facts.model("attention.unified_triton", TritonTimes), facts.cu_num, call.k.shape[2]
    (long, short), (most, mean_blocks) = _kinds(call), _key_blocks(call)
    long *= math.ceil(call.max_seqlen_q * call.q.shape[1] // kv_heads / _TRITON_ROWS) * kv_heads
    short *= kv_heads
    block, block_of_full = (of[call.q.shape[2]] for of in (model.block, model.full_block))
    longest, alone = model.start + block * most, block * most * short
    if not is_few(call, units):
        tail = block * most * model.short_tail if short > 0 else 0
        return max(longest, (block_of_full * mean_blocks * long + alone) / units + model.full_start + tail)
    total = ((model.start + block * mean_blocks) * long + model.start * short + alone) / units
    return max(longest, total + (longest * model.tail if long + short > units else 0))


def prefers(target: Target, call: PagedCall) -> str | None:
    """The backend that goes before the order of the operator's declaration."""
    if target.platform != "hip" or target.arch != "gfx942":
        return None
    if call.max_seqlen_q <= MOST_QUERIES:
        return None if unified_hip_refusal(target, call) is None else "triton"
    if takes_turns(call):
        is_long = (call.batch == 1 and call.window_left < 0
                   and call.max_seqlen_k >= _least_split() * _block_keys())
        facts = arch_facts("gfx942")
        return None if is_long or _turns_cost(call, facts) <= _triton_cost(call, facts) else "triton"
    tiles = model_of("gfx942", "attention.unified_tiles", Tiles)
    has_terms = call.softcap > 0 or call.alibi_slopes is not None or call.q.shape[2] > tiles.narrow_dims
    return None if has_terms and call.q.shape[0] >= tiles.least_queries * call.batch else "triton"
