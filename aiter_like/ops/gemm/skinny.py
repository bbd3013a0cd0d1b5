# SPDX-License-Identifier: MIT
"""The builds of csrc/gemm/gemm_a16w16_skinny.hip: which one serves a shape that no row was tuned for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiter_like.device import Target
from aiter_like.ops.gemm.parts import mfma_refusal, rows_refusal

MAX_ROWS = 16
MIN_DEPTH = 8  # a lane reads so many elements at once
_SPLIT_DEPTH = 8192  # at least, for each of the workgroups that share the depth


class Unit(NamedTuple):
    """Sizes of a matrix instruction, as in skinny_unit.h: columns of out, rows, and a step's depth."""

    columns: int
    rows: int
    depth: int


UNITS = {"hip": Unit(16, 16, 128), "cuda": Unit(16, 8, 32)}


class Block(NamedTuple):
    """The sizes that tell builds apart: columns of out of a workgroup, waves and workgroups along the depth, steps
    under way."""

    block_n: int
    waves: int
    stages: int
    splits: int


def refusal(target: Target, call: Any) -> str | None:
    """Says why the kernel does not take a [m, k] and b [n, k]."""
    (m, k), b = call.a.shape, call.b
    if target.platform == "hip" and target.arch != "gfx942":
        return mfma_refusal(target)
    if target.platform == "cuda" and int(target.arch.removeprefix("sm_").rstrip("af")) < 80:
        return f"matrix instructions of sm_80, not for {target.arch}"
    if m > MAX_ROWS or k < MIN_DEPTH:
        return f"a must have at most {MAX_ROWS} rows and at least {MIN_DEPTH} columns, got [{m}, {k}]"
    if call.is_shuffled:
        return "b must not be shuffled, got a result of shuffle_weight"
    if b.shape[0] >= 2**21:
        return f"b must have less than 2^21 rows, got {b.shape[0]}"
    return rows_refusal(a=call.a, b=b)


def build(m: int, block: Block) -> tuple[str, dict[str, int]]:
    """The name and the macros of the build for m rows of a."""
    rows = next(rows for rows in (4, 8, MAX_ROWS) if rows >= m)
    return f"m{rows}_n{block.block_n}_w{block.waves}_d{block.stages}_s{block.splits}", {
        "BLOCK_M": rows, "BLOCK_N": block.block_n, "WAVES": block.waves, "STAGES": block.stages,
        "SPLITS": block.splits}


def suited(n: int, k: int, target: Target) -> Block:
    """The block that did best for such sizes by the cycle model (version 1) on gfx942. A second kernel costs more than
    splits gain where the workgroups fill half of the CUs, or the depth is short."""
    unit, is_hip = UNITS[target.platform], target.platform == "hip"
    waves = 4 if is_hip else 8
    steps = math.ceil(k / (unit.depth * waves))  # a wave's; those left of rounds of `stages` overlap nothing
    stages = next((count for count in (4, 2, 3) if steps % count == 0 and steps >= 2 * count), max(2, min(steps, 4)))
    groups = math.ceil(n / unit.columns) * (2 if is_hip else 1)
    return Block(unit.columns, waves, stages, max(1, min(target.cu_num // groups, k // _SPLIT_DEPTH)))


def trials(k: int, target: Target) -> Iterator[Block]:
    """Blocks that the tuner tries: their splits leave each wave a step."""
    unit = UNITS[target.platform]
    for block_n in (unit.columns, 2 * unit.columns):
        for waves in (4, 8):
            for stages in (2, 3, 4, 6):
                if block_n * stages <= 6 * unit.columns:
                    for splits in (1, 2, 4):
                        if splits == 1 or k >= splits * waves * unit.depth:
                            yield Block(block_n, waves, stages, splits)
