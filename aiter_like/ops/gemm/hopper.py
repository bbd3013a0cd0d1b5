# SPDX-License-Identifier: MIT
"""Selects the products that the Triton kernel for Hopper (triton/hopper.py) takes, and their blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from aiter_like.device import Target, model_of
from aiter_like.traced import answered


class Blocks(NamedTuple):
    """The parameters of the kernel.

    Attributes:
        block_m, block_n, block_k: rows and columns of out, and the depth, that a program takes at a time.
        num_warps, num_stages: Triton's.
        swap: whether the weights stand on the left of the matrix unit.
        splits: of the depth, for tiles that do not fill all SMs.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    swap: int
    splits: int


class Times(NamedTuple):
    """Numbers of configs/sm_90/gemm.toml."""

    wide: tuple[tuple[float, ...], ...]
    narrow: tuple[tuple[float, ...], ...]
    second_kernel: float
    elements_per_step: float
    stage_bytes: int


def model() -> Times:
    """The numbers of the kernel's time and memory on Hopper."""
    return model_of("sm_90", "gemm.products", Times)


def serves(*operands: Tensor) -> bool:
    """Whether TMA moves them, matrices or batches of such: contiguous rows that do not overlap, all 16 bytes apart or a
    multiple of it."""
    return all(one.numel() > 0 and one.stride(-1) == 1 and one.stride(-2) >= one.shape[-1]
               and all(stride > 0 and stride * one.element_size() % 16 == 0 for stride in one.stride()[:-1])
               for one in operands)


@answered
def suited(m: int, n: int, k: int, element_bytes: int, cu_num: int, is_narrow: bool = False,
           most_splits: int = 16) -> Blocks:
    """The blocks by the sizes, as they did best on Hopper; is_narrow: blocks of at most 128 columns, since registers
    hold the sums of a matrix instruction twice."""
    return _suited(alike(m), n, k, element_bytes, cu_num, is_narrow, most_splits)


def alike(m: int) -> int:
    """The most rows that come in as many tiles as `m`: up to 128 a power of two, of which one tile has all."""
    return 1 << (m - 1).bit_length() if m <= 128 else -(-m // 64) * 64


@functools.lru_cache(1024)
def _suited(m: int, n: int, k: int, element_bytes: int, cu_num: int, is_narrow: bool, most_splits: int) -> Blocks:
    if m <= 128:  # the rows are the narrow side of the matrix unit, and the weights stream
        block_m, block_n, num_warps, swap = max(16, 1 << (m - 1).bit_length()), 64, 4, 1
        bytes_k, stages = (512, 5) if m <= 16 else (256, 6 if m <= 64 else 4)
    else:
        return _suited_to_many(m, n, k * element_bytes, element_bytes, cu_num, is_narrow, most_splits)
    block_k = bytes_k // element_bytes
    tiles = math.ceil(m / block_m) * math.ceil(n / block_n)
    splits = max(1, min(cu_num // tiles, k // (8 * block_k)))
    return Blocks(block_m, block_n, block_k, num_warps, stages, swap, splits)


def gated(blocks: Blocks) -> Blocks:
    """The same for rows of gate and of up, a sum of each: half as many of each, but the matrix unit's left side has at
    least 64, which shared memory holds in half the depth."""
    block_n = max(blocks.block_n // 2, 64) if blocks.swap else blocks.block_n // 2
    return blocks._replace(block_n=block_n, block_k=blocks.block_k * blocks.block_n // (2 * block_n))


def _suited_to_many(m: int, n: int, row_bytes: int, element_bytes: int, cu_num: int, is_narrow: bool,
                    most_splits: int) -> Blocks:
    """For more than 128 rows: the block and the splits of the last tiles that take the least time, in steps of 128
    bytes of the depth of a block of 128 × 128."""
    steps, times = math.ceil(row_bytes / 128), model()
    found = []
    for block_m, block_n, bytes_k, num_warps, stages, takes in times.narrow if is_narrow else times.wide:
        waves, rest = divmod(math.ceil(m / block_m) * math.ceil(n / block_n), cu_num)
        most = max(min(cu_num // rest, steps * 128 // (8 * bytes_k), most_splits), 1) if rest else 1
        for splits in range(1, most + 1):
            time = steps * takes * (waves + bool(rest) / splits)
            if splits > 1:  # a second kernel, and what it reads and the first one writes
                time += times.second_kernel + splits * rest * block_m * block_n / times.elements_per_step
            found.append((time, (block_m, block_n, bytes_k // element_bytes, num_warps, stages, 0, splits)))
    return Blocks(*min(found)[1])


def space(m: int, n: int, k: int, element_bytes: int, target: Target, is_narrow: bool = False) -> Iterator[
        dict[str, int]]:
    """Settings that are worth a trial: blocks that fit shared memory, and splits that have work."""
    rows = max(16, 1 << (m - 1).bit_length())
    few = [(rows, block_n, bytes_k, 4, 1) for block_n in (64, 128) for bytes_k in (128, 256, 512)] if m <= 256 else []
    many = [(*tile, 0) for tile in ((64, 64, 256, 4), (64, 128, 128, 4), (128, 128, 128, 4), (128, 128, 128, 8),
                                    (128, 128, 256, 8), (128, 256, 128, 8), (256, 128, 128, 8))
            if m > 32 and tile[0] <= 2 * m]
    for block_m, block_n, bytes_k, num_warps, swap in (*few, *many):
        if is_narrow and block_n > 128:
            continue
        block_k = bytes_k // element_bytes
        most = min(8, model().stage_bytes // (bytes_k * (block_m + block_n)))
        tiles = math.ceil(m / block_m) * math.ceil(n / block_n)
        for splits in (1, 2, 3, 4, 6, 8):
            rest = tiles % target.cu_num
            if splits == 1 or 0 < splits * rest <= 2 * target.cu_num and k >= 4 * splits * block_k:
                yield from (Blocks(block_m, block_n, block_k, num_warps, stages, swap, splits)._asdict()
                            for stages in {most, max(most // 2, 3)} if 3 <= stages <= most)


PLAIN = ((16, 32, 256, 4), (16, 64, 128, 4), (32, 64, 128, 4), (64, 64, 64, 4), (64, 128, 64, 4), (128, 128, 64, 4),
         (128, 128, 64, 8), (128, 256, 64, 8), (256, 128, 64, 8))
"""Rows, columns, depth and warps that suit products of 16 bits; deep ones for few rows, which are bound by memory."""


def plain_space(m: int, blocks: Iterable[tuple[int, ...]] = PLAIN,
                names: tuple[str, ...] = Blocks._fields) -> Iterator[dict[str, int]]:
    """The same for a kernel without TMA, on any GPU: of `blocks`, rows first, those that suit m; the last of their
    `names` is num_stages."""
    for block in blocks:
        if block[0] <= max(16, 2 * m) and (block[0] >= 64 or m < 512):
            yield from (dict(zip(names, (*block, num_stages))) for num_stages in (2, 3, 4))


def kernels_of(name: str, is_for_hopper: Callable[[Target, Any], bool]) -> Callable[..., list[str]]:
    """The `kernels` of a Triton backend: the one for Hopper comes first where it serves; only it has the parameter
    swap."""
    def kernels(target: Target, call: Any, **params: int) -> list[str]:
        own = [f"{name}_hopper"] if is_for_hopper(target, call) else []
        if params:
            return own if "swap" in params else [name]
        return [*own, name]

    return kernels
