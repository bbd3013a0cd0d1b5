# SPDX-License-Identifier: MIT
"""What the compiler makes of the tiles of batched_gemm and grouped_gemm, by metadata and the simulator's counters."""

import pytest
import torch
from kernel_gates import check_fit, counted
from test_gemm_gates import WORKGROUPS

from aiter_like.dispatch import OPS
from aiter_like.ops.gemm import tiles
from aiter_like.ops.gemm.batched_gemm import BatchedGemmCall
from aiter_like.ops.gemm.grouped_gemm import GroupedGemmCall

pytestmark = pytest.mark.rotating


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(0)).float().to(dtype)


def batched(dtype: torch.dtype) -> BatchedGemmCall:
    k = 1024 // dtype.itemsize
    call = BatchedGemmCall(torch.empty(2, 300, 256).bfloat16(), random(dtype, 2, 300, k), random(dtype, 2, 256, k))
    return call if dtype.itemsize == 2 else call._replace(a_scale=torch.ones(2, 300), b_scale=torch.ones(2, 256))


def grouped(dtype: torch.dtype, is_gathered: bool) -> GroupedGemmCall:
    """Groups of half a tile, of several and of none."""
    k, index = 1024 // dtype.itemsize, torch.arange(430, dtype=torch.int32).flip(0) if is_gathered else None
    offsets = torch.tensor([0, 128, 128, 430], dtype=torch.int32)
    call = GroupedGemmCall(torch.empty(430, 256).bfloat16(), random(dtype, 430, k), random(dtype, 3, 256, k), offsets,
                           row_index=index)
    return call if dtype.itemsize == 2 else call._replace(a_scale=torch.ones(430), b_scale=torch.ones(3, 256))


CALLS = {"batched": lambda: batched(torch.bfloat16), "batched int8": lambda: batched(torch.int8),
         "grouped": lambda: grouped(torch.bfloat16, False), "chosen rows": lambda: grouped(torch.bfloat16, True),
         "chosen rows fp8": lambda: grouped(torch.float8_e4m3fnuz, True)}


@pytest.mark.parametrize("name, tile", (
    *(("chosen rows", tile) for tile in tiles.TILES), *(("grouped", tile) for tile in tiles.PIPELINED),
    *(("batched int8", tile) for tile in tiles.PIPELINED[:4]), ("batched", tiles.PIPELINED[0]),
    ("chosen rows fp8", tiles.TILES[0])))
def test_registers_and_banks(tile_of, tile, name):
    """No scratch memory, no bank conflicts, and as many workgroups of a CU as of a single product."""
    tile_of(tile)
    operator = OPS["batched_gemm" if name.startswith("batched") else "grouped_gemm"]
    check_fit(counted(operator, CALLS[name]()), WORKGROUPS[tile])
