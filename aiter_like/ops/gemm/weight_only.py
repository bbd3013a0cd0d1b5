# SPDX-License-Identifier: MIT
"""Selects the Triton kernels that serve a call of gemm_weight_only, and their blocks. Read by gemm_weight_only.py
beside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from aiter_like.device import Target, model_of
from aiter_like.ops.gemm import hopper
from aiter_like.traced import answered

IN_PLACE, SKINNY, STREAM, WIDE = ("gemm_weight_only", "gemm_weight_only_skinny", "gemm_weight_only_hopper",
                                  "gemm_weight_only_wide")
SKINNY_DEPTH = 1024
"""For so many weights of a row the kernel for few rows has the activations in shared memory."""
NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
SKINNY_NAMES = ("block_n", "num_warps", "num_stages", "splits")
STREAM_NAMES = (*NAMES, "splits")


class Times(NamedTuple):
    """Numbers of configs/sm_90/gemm.toml."""

    few_rows: int
    some_rows: int
    start: float
    alone: float
    per_sum: float


def _times() -> Times:
    return model_of("sm_90", "gemm.weight_only", Times)


def kernels(target: Target, call: Any, **params: int) -> list[str]:
    """Those for few and for some rows on Hopper come first where they serve, and have the parameter splits alone; the
    one that makes 16-bit weights has the parameter wide."""
    if "wide" in params:
        return [WIDE]
    own = [name for name, serves in ((SKINNY, _is_skinny), (STREAM, _streams)) if serves(target, call)]
    if params:
        return [name for name in own if (name == STREAM) == ("block_k" in params)] if "splits" in params else [IN_PLACE]
    if call.a.shape[0] > _times().some_rows and target.arch == "sm_90":
        return [WIDE, IN_PLACE]
    return [*own, IN_PLACE, WIDE]


def _is_skinny(target: Target, call: Any) -> bool:
    """Whether triton/gemm_weight_only_skinny.py takes the call: few rows, and rows of `b` of whole 32-bit words, 16
    bytes apart or a multiple of it."""
    return (call.a.shape[0] <= _times().few_rows and _streams(target, call) and call.b.shape[1] % 4 == 0
            and call.b.storage_offset() % 4 == 0)


def _streams(target: Target, call: Any) -> bool:
    """Whether triton/gemm_weight_only_hopper.py takes the call: integers with scales for each row, and rows of `a` and
    `b` that TMA moves."""
    return (target.arch == "sm_90" and call.a.shape[0] <= _times().some_rows and call.b.dtype == torch.int8
            and call.scale_rows == 1 and hopper.serves(call.a, call.b))


def space(target: Target, call: Any) -> Iterator[dict[str, int]]:
    """Blocks that suit the rows; for few rows on Hopper those of the kernel for them, for many those of a product of
    16-bit weights alone."""
    (m, k), n = call.a.shape, call.b.shape[0]
    if _is_skinny(target, call):
        yield from (dict(zip(SKINNY_NAMES, (block_n, num_warps, num_stages, splits)))
                    for block_n, num_warps in ((64, 4), (128, 8), (256, 16)) for num_stages in (2, 3)
                    for splits in range(1, min(16, math.ceil(k / SKINNY_DEPTH)) + 1))
        return
    if _streams(target, call):
        yield from _stream_space(target, call)
    if target.arch == "sm_90" and m >= 32:
        yield from ({"wide": 1, **blocks} for blocks in hopper.space(m, n, k, 2, target))
        if m > 256:
            return
    for block_m, block_n, block_k, num_warps in ((16, 64, 128, 4), (32, 64, 128, 4), (64, 64, 64, 4), (64, 128, 64, 4),
                                                 (128, 128, 64, 4), (128, 128, 64, 8), (128, 256, 64, 8),
                                                 (256, 128, 64, 8), (128, 128, 128, 8)):
        if block_m <= max(16, 2 * m) and (block_m >= 64 or m < 512):
            for num_stages in (2, 3, 4):
                depth = min(block_k, call.group_size or block_k)
                yield dict(zip(NAMES, (block_m, block_n, depth, num_warps, num_stages)))
                if target.arch != "sm_90" and m >= 64 and block_k == 64:
                    yield {"wide": 1, **dict(zip(NAMES, (block_m, block_n, block_k, num_warps, num_stages)))}


@answered
@functools.lru_cache(1024)
def skinny_blocks(m: int, n: int, k: int, bits: int, cu_num: int) -> tuple[int, int, int, int]:
    """SKINNY_NAMES by the sizes, as they did best on an H100. Two programs of 8 warps share an SM."""
    depths, found = math.ceil(k / SKINNY_DEPTH), []
    times = _times()
    for splits in range(1, min(16, depths) + 1):
        programs = math.ceil(math.ceil(n / 128) * splits / cu_num)  # an SM has so many at most
        takes = (math.ceil(depths / splits) + times.start) * (programs + (times.alone if programs % 2 else 0))
        found.append((takes + (times.start + times.per_sum * splits * m * n if splits > 1 else 0), splits))
    return 128, 8, 3 if m <= 8 and bits == 4 else 2, min(found)[1]


@answered
@functools.lru_cache(1024)
def stream_blocks(m: int, n: int, k: int, bits: int, block_k: int, cu_num: int) -> tuple[int, int, int, int, int, int]:
    """STREAM_NAMES by the sizes, as they did best on an H100: programs of 2 warps have mma.sync, with more wgmma."""
    rows = max(8, 1 << (m - 1).bit_length())
    block_m, block_n, num_warps, num_stages, together = (
        (rows, 64, 2, 4, 4) if m <= 32 else (64, 128, 4, 5, 1) if m <= 64 else (128, 128, 8, 4 if bits == 4 else 3, 1))
    programs = math.ceil(m / block_m) * math.ceil(n / block_n)
    splits = max(1, min(8, together * cu_num // programs, k // (8 * block_k)))
    return block_m, block_n, block_k, num_warps, num_stages, splits


def _stream_space(target: Target, call: Any) -> Iterator[dict[str, int]]:
    (m, k), n = call.a.shape, call.b.shape[0]
    block_m = max(8, min(128, 1 << (m - 1).bit_length()))
    for block_k in (call.group_size,) if call.group_size else (128, 256):
        for block_n, num_warps in ((32, 2), (64, 2), (64, 4), (128, 2), (128, 4), (128, 8)):
            stage = block_n * block_k * call.bits // 8 + 2 * block_m * block_k
            for splits in (1, 2, 3, 4, 6, 8, 12, 16):
                if splits == 1 or -(-n // block_n) * splits <= 16 * target.cu_num and k >= 2 * splits * block_k:
                    yield from (dict(zip(STREAM_NAMES, (block_m, block_n, block_k, num_warps, stages, splits)))
                                for stages in (3, 4, 6) if stages * stage <= hopper.model().stage_bytes)
