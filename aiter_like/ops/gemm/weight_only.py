# SPDX-License-Identifier: MIT
"""Which Triton kernels serve a call of gemm_weight_only, and in what blocks. Read by gemm_weight_only.py beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aiter_like.device import Target
from aiter_like.ops.gemm import hopper

if TYPE_CHECKING:
    from aiter_like.ops.gemm.gemm_weight_only import GemmWeightOnlyCall

IN_PLACE, STREAM, WIDE = "gemm_weight_only", "gemm_weight_only_hopper", "gemm_weight_only_wide"
STREAM_ROWS = 64
"""Up to which the kernel that streams weights is faster than 16-bit weights made by a kernel of their own: with 4 bits
in groups of 128 it took 70 µs for 64 × 28672 × 4096, where the two take 61 and some 70; at 256 rows the one for any
rows took 305 µs, where the two take 89 and 70 (H200)."""
_STAGE_BYTES = 220 << 10  # an SM has 227 KB of shared memory; a kernel needs a little beside its operands
_NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
_STREAM_NAMES = (*_NAMES[1:], "splits")


def kernels(target: Target, call: GemmWeightOnlyCall, **params: int) -> list[str]:
    """The one for few rows comes first where it serves, and has the parameter splits alone; the one that makes 16-bit
    weights has the parameter wide."""
    stream = [STREAM] if _streams(target, call) else []
    if "wide" in params:
        return [WIDE]
    if params:
        return stream if "splits" in params else [IN_PLACE]
    if call.a.shape[0] > STREAM_ROWS and target.arch == "sm_90":
        return [WIDE, IN_PLACE]
    return [*stream, IN_PLACE, WIDE]


def _streams(target: Target, call: GemmWeightOnlyCall) -> bool:
    """Whether triton/gemm_weight_only_hopper.py takes the call: few rows, and rows of `a` and `b` that TMA moves."""
    m, k = call.a.shape
    return target.arch == "sm_90" and 0 < m <= STREAM_ROWS and k > 0 and all(
        one.stride(1) == 1 and one.stride(0) >= one.shape[1] and one.stride(0) * one.element_size() % 16 == 0
        for one in (call.a, call.b))


def space(target: Target, call: GemmWeightOnlyCall) -> Iterator[dict[str, int]]:
    """Blocks that suit the rows; for few rows on Hopper those of the kernel that streams the weights, for many those of
    a product of 16-bit weights alone."""
    (m, k), n = call.a.shape, call.b.shape[0]
    if _streams(target, call):
        yield from _stream_space(target, call)
        if m <= 16:
            return
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
                yield dict(zip(_NAMES, (block_m, block_n, depth, num_warps, num_stages)))
                if target.arch != "sm_90" and m >= 64 and block_k == 64:
                    yield {"wide": 1, **dict(zip(_NAMES, (block_m, block_n, block_k, num_warps, num_stages)))}


def _stream_space(target: Target, call: GemmWeightOnlyCall) -> Iterator[dict[str, int]]:
    (m, k), n = call.a.shape, call.b.shape[0]
    rows = max(16, 1 << (m - 1).bit_length())
    for block_k in (call.group_size,) if call.group_size else (128, 256):
        for block_n, num_warps in ((16, 1), (32, 1), (64, 1), (32, 2), (64, 2), (128, 2), (128, 4)):
            stage = block_n * block_k * call.bits // 8 + 2 * rows * block_k
            for splits in (1, 2, 4, 8):
                if splits == 1 or -(-n // block_n) * splits <= 24 * target.cu_num and k >= 4 * splits * block_k:
                    yield from (dict(zip(_STREAM_NAMES, (block_n, block_k, num_warps, stages, splits)))
                                for stages in (3, 4, 6, 8) if stages * stage <= _STAGE_BYTES // 2)
