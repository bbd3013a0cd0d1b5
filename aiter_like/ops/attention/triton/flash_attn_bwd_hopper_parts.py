# SPDX-License-Identifier: MIT
"""Parts of flash_attn_bwd_hopper.py: its constants, the order of programs, rings of tiles that TMA fills, rows that are
written."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma

copy_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # since Triton 3.7

OWN = gl.constexpr(64)  # keys or rows of a warp group: what one product of four warps has


@dataclass(frozen=True)
class Shape:
    """The constants that a kernel is compiled for.

    Attributes:
        KEYS, ROWS: there are programs that have keys of their own, such that have rows.
        GROUPS: warp groups of a program. OWNERS: times OWN keys or rows of a program: 1 where all groups have the same.
        WALKED: rows or keys of a tile.
        D: head dimension in shared memory and registers. COLUMNS: the true one; beyond it there are zeros.
        STAGES: tiles in flight, of each of the two tensors.
        KEYS_UNROLL, ROWS_UNROLL: tiles whose products overlap, of programs with keys, with rows.
    """

    KEYS: bool
    ROWS: bool
    GROUPS: int
    OWNERS: int
    WALKED: int
    D: int
    COLUMNS: int
    STAGES: int
    KEYS_UNROLL: int
    ROWS_UNROLL: int


@gluon.jit
def block_of_program(index, order):
    """(block, head, batch): `heads` heads at a time, whose tensors stay in L2; block 0 of each first.

    order: blocks of a head, heads of a sequence, of all sequences, at a time.
    """
    num_blocks, num_heads, total_heads, heads = order
    chunk = index // (num_blocks * heads)
    count = gl.minimum(total_heads - chunk * heads, heads)
    rest = index - chunk * num_blocks * heads
    both = chunk * heads + rest % count
    return rest // count, both % num_heads, both // num_heads


@gluon.jit
def ring_barriers(STAGES: gl.constexpr, GROUPS: gl.constexpr):
    """(full, free) of each place in a ring: its tile is there; all warp groups are done with it."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), 1)
        mbarrier.init(free.index(stage), GROUPS)
    return full, free


@gluon.jit
def place_of(ring, index, BYTES: gl.constexpr, STAGES: gl.constexpr):
    """(place, barrier) for tile `index` of BYTES, once the place is free. ring: full, free."""
    stage = index % STAGES
    mbarrier.wait(ring[1].index(stage), (index // STAGES & 1) ^ 1)
    mbarrier.expect(ring[0].index(stage), BYTES)
    return stage, ring[0].index(stage)


@gluon.jit
def load_own(boxes, own, full, batch, head, first, D: gl.constexpr, OWNERS: gl.constexpr):
    """Loads what a program keeps: OWNERS times OWN rows, from `first` on, of two tensors."""
    mbarrier.expect(full, 2 * OWNERS * OWN * D * 2)
    for which in gl.static_range(2):
        for group in gl.static_range(OWNERS):
            copy_tile(boxes[which], [batch, first + group * OWN, head, 0], full, own[which].index(group))


@gluon.jit
def start_product(own, tiles, ring, index, LAYOUT: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr,
                  STAGES: gl.constexpr):
    """Starts own · tileᵀ with tile `index`, once that is there."""
    mbarrier.wait(ring[0].index(index % STAGES), index // STAGES & 1)
    tile = tiles.index(index % STAGES).reshape([ROWS, D]).permute([1, 0])
    return warpgroup_mma(own, tile, gl.zeros([OWN, ROWS], gl.float32, LAYOUT), use_acc=False, is_async=True)


@gluon.jit
def of_columns(tiles, index, LAYOUT: gl.constexpr, M: gl.constexpr, STAGES: gl.constexpr):
    """A number of each row of tile `index`, for the columns of a product."""
    return tiles.index(index % STAGES).reshape([M]).load(gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def release(ring, index, STAGES: gl.constexpr):
    """This warp group is done with tile `index`."""
    mbarrier.arrive(ring[1].index(index % STAGES))


@gluon.jit
def store_own(out, strides, batch, head, first, num_rows, result, D: gl.constexpr,
              COLUMNS: gl.constexpr):
    """OWN rows of one head, rounded; rows past the end are none, nor are columns from COLUMNS on."""
    STORED: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    result = gl.convert_layout(result.to(out.dtype.element_ty), STORED)
    rows = first + gl.arange(0, OWN, gl.SliceLayout(1, STORED))
    base = out + batch.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[2]
    columns = gl.arange(0, D, gl.SliceLayout(0, STORED))[None, :]
    mask = (rows < num_rows)[:, None]
    if COLUMNS < D:
        mask = mask & (columns < COLUMNS)
    gl.store(base + (rows.to(gl.int64) * strides[1])[:, None] + columns, result, mask=mask)
