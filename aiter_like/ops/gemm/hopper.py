# SPDX-License-Identifier: MIT
"""Which products the Triton kernel for Hopper (triton/hopper.py) takes, and in what blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from aiter_like.device import Target

NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "swap", "splits")
"""The parameters of the kernel."""

_STAGE_BYTES = 220 << 10  # an SM has 227 KB of shared memory; a kernel needs a little beside its operands


def serves(a: Tensor, b: Tensor) -> bool:
    """Whether rows of `a` [m, k] and `b` [n, k] are what TMA moves: contiguous, 16 bytes apart or a multiple of it."""
    k = a.shape[1]
    return k > 0 and all(one.stride(1) == 1 and one.stride(0) >= k and one.stride(0) * one.element_size() % 16 == 0
                         for one in (a, b))


def suited(m: int, n: int, k: int, element_bytes: int, cu_num: int, is_narrow: bool = False) -> tuple[int, ...]:
    """NAMES by the sizes, as they did best for 16 bits on an H200; is_narrow: blocks of at most 128 columns, since
    registers hold the sums of a matrix instruction twice."""
    if m <= 128:  # the rows are the narrow side of the matrix unit, and the weights stream
        block_m, block_n, num_warps, swap = max(16, 1 << (m - 1).bit_length()), 64, 4, 1
        bytes_k, stages = (512, 5) if m <= 16 else (256, 6 if m <= 64 else 4)
    else:
        bytes_k, swap, large = 128, 0, (256, 128) if is_narrow else (128, 256)
        # A block twice as large takes 1.9 times as long.
        some, half = (math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / cu_num)
                      for rows, columns in ((128, 128), large))
        (block_m, block_n), num_warps, stages = ((128, 128), 8 if is_narrow else 4, 6) if some <= 1.9 * half else (
            large, 8, 4)
    block_k = bytes_k // element_bytes
    tiles = math.ceil(m / block_m) * math.ceil(n / block_n)
    splits = max(1, min(cu_num // tiles, k // (8 * block_k)))
    return block_m, block_n, block_k, num_warps, stages, swap, splits


def space(m: int, n: int, k: int, element_bytes: int, target: Target, is_narrow: bool = False) -> Iterator[
        dict[str, int]]:
    """What is worth a trial: blocks that fit shared memory, and splits that have work."""
    rows = max(16, 1 << (m - 1).bit_length())
    few = [(rows, block_n, bytes_k, 4, 1) for block_n in (64, 128) for bytes_k in (128, 256, 512)] if m <= 256 else []
    many = [(*tile, 0) for tile in ((64, 128, 128, 4), (128, 128, 128, 4), (128, 128, 128, 8), (128, 256, 128, 8),
                                    (256, 128, 128, 8)) if m > 32 and tile[0] <= 2 * m]
    for block_m, block_n, bytes_k, num_warps, swap in (*few, *many):
        if is_narrow and block_n > 128:
            continue
        block_k = bytes_k // element_bytes
        most = min(8, _STAGE_BYTES // (bytes_k * (block_m + block_n)))
        tiles = math.ceil(m / block_m) * math.ceil(n / block_n)
        for splits in (1, 2, 3, 4, 6, 8):
            if splits == 1 or splits * tiles <= 2 * target.cu_num and k >= 4 * splits * block_k:
                yield from (dict(zip(NAMES, (block_m, block_n, block_k, num_warps, stages, swap, splits)))
                            for stages in {most, max(most // 2, 3)} if 3 <= stages <= most)
