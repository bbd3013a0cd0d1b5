# SPDX-License-Identifier: MIT
"""Shared by the Triton kernels of many products, those of a batch and those of groups of rows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def group_tile(group_offsets, slot, rows, groups, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """(group, first row, end of the group's rows) of the tile of rows with number `slot`, of rows // BLOCK_M + groups;
    no rows where it has no tile. Group i has the slots from offset // BLOCK_M + i on: always as many as it needs, so
    that it is found without adding the sizes of those before it up. GROUPS: a power of two, at least `groups`."""
    index = tl.arange(0, GROUPS)
    offsets = tl.load(group_offsets + index, mask=index < groups, other=0)
    starts = tl.minimum(tl.maximum(offsets, 0), rows) // BLOCK_M + index
    group = tl.maximum(tl.sum(((index < groups) & (starts <= slot)).to(tl.int32)) - 1, 0)
    begin = tl.minimum(tl.maximum(tl.load(group_offsets + group), 0), rows)
    end = tl.minimum(tl.maximum(tl.load(group_offsets + group + 1), 0), rows)
    first = begin + (slot - begin // BLOCK_M - group) * BLOCK_M
    return group, first, tl.where(first >= begin, end, first)
