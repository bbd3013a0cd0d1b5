# SPDX-License-Identifier: MIT
"""Which Triton kernels serve a call of gemm_weight_only, and in what blocks. Read by gemm_weight_only.py beside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from aiter_like.device import Target
from aiter_like.ops.gemm import hopper

IN_PLACE, STREAM, WIDE = "gemm_weight_only", "gemm_weight_only_hopper", "gemm_weight_only_wide"
STREAM_ROWS = 64
"""Up to which the kernel that streams weights is faster than 16-bit weights made by a kernel of their own: with 4 bits
in groups of 128 it took 70 µs for 64 × 28672 × 4096, where the two take 61 and some 70; at 256 rows the one for any
rows took 305 µs, where the two take 89 and 70 (H200)."""
_SHARED_BYTES, _REGISTERS = 220 << 10, 1 << 16  # of an SM, where a program needs a little beside its operands
_BYTES_CLK = 2400  # of the memory: 4.2 TB/s at 1.755 GHz (H200)
_START_CLK = 1500  # until a program's first operands are there, a guess from the latency of TMA
_SUM_CLK, _SUM_BYTES_CLK = 2600, 2000  # a second kernel, and partial sums through the L2: guesses
_LATENCY = 3
"""A warp alone takes as many times the clocks in which a scheduler could issue its instructions (from times of an H200
with 1 to 2 warps for each of the 4 schedulers of an SM)."""
_STREAM_BLOCKS = {
    4: {8: ((64, 2, 324, 113), (128, 2, 548, 163)), 16: ((64, 2, 366, 149), (128, 2, 610, 226)),
        32: ((32, 2, 303, 146), (64, 2, 456, 241)), 64: ((32, 2, 467, 242), (128, 4, 566, 255))},
    8: {8: ((64, 2, 378, 80), (128, 2, 679, 128)), 16: ((64, 2, 430, 96), (128, 2, 755, 151)),
        32: ((32, 2, 420, 105), (64, 2, 518, 158)), 64: ((64, 2, 951, 188), (128, 4, 696, 242))}}
"""Of bits and rows: block_n, num_warps, and a warp's instructions for 128 weights of each of its columns and a lane's
registers, in the machine code of Triton 3.9 for sm_90. 4 warps have wgmma, which leaves registers for many rows."""
NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
STREAM_NAMES = (*NAMES[1:], "splits")


def kernels(target: Target, call: Any, **params: int) -> list[str]:
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


def _streams(target: Target, call: Any) -> bool:
    """Whether triton/gemm_weight_only_hopper.py takes the call: few rows, and rows of `a` and `b` that TMA moves."""
    return target.arch == "sm_90" and call.a.shape[0] <= STREAM_ROWS and hopper.serves(call.a, call.b)


def space(target: Target, call: Any) -> Iterator[dict[str, int]]:
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
                yield dict(zip(NAMES, (block_m, block_n, depth, num_warps, num_stages)))
                if target.arch != "sm_90" and m >= 64 and block_k == 64:
                    yield {"wide": 1, **dict(zip(NAMES, (block_m, block_n, block_k, num_warps, num_stages)))}


def stream_blocks(call: Any, cu_num: int) -> tuple[int, int, int, int, int]:
    """(block_n, block_k, num_warps, num_stages, splits) of the kernel that streams weights: those that should take the
    fewest clocks, by counts of instructions, of bytes and of the warps that hide each other's waiting."""
    return _stream_blocks(*call.out.shape, call.a.shape[1], call.bits, call.group_size or 128, cu_num)


@functools.lru_cache(1024)  # a launch asks
def _stream_blocks(m: int, n: int, k: int, bits: int, block_k: int, cu_num: int) -> tuple[int, int, int, int, int]:
    rows, steps = max(8, 1 << (m - 1).bit_length()), math.ceil(k / block_k)
    found = []
    for block_n, num_warps, instructions, registers in _STREAM_BLOCKS[bits][rows]:
        stage = block_k * (block_n * bits // 8 + 2 * rows)
        resident = min(_REGISTERS // (32 * num_warps * registers), _SHARED_BYTES // (2 * stage))
        for splits in range(1, max(min(16, steps // 2), 1) + 1):
            programs = math.ceil(n / block_n) * splits
            each = math.ceil(programs / cu_num)  # of an SM
            waves, rest = divmod(each, resident)
            clocks = instructions * block_k / 128 * math.ceil(steps / splits) * sum(
                max(together * num_warps / 4, _LATENCY) for together in (*[resident] * waves, *[rest][:rest]))
            clocks = max(clocks, n * k * bits / 8 / _BYTES_CLK * each * cu_num / programs)
            clocks += _START_CLK * math.ceil(each / resident)
            if splits > 1:
                clocks += _SUM_CLK + 8 * splits * m * n / _SUM_BYTES_CLK
            num_stages = max(3, min(6, 1 + _SHARED_BYTES // (min(each, resident) * stage)))
            found.append((clocks, block_n, block_k, num_warps, num_stages, splits))
    return min(found)[1:]


def _stream_space(target: Target, call: Any) -> Iterator[dict[str, int]]:
    (m, k), n = call.a.shape, call.b.shape[0]
    rows = max(8, 1 << (m - 1).bit_length())
    for block_k in (call.group_size,) if call.group_size else (128, 256):
        for block_n, num_warps in ((16, 1), (32, 1), (64, 1), (32, 2), (64, 2), (128, 2), (128, 4)):
            stage = block_n * block_k * call.bits // 8 + 2 * rows * block_k
            for splits in (1, 2, 3, 4, 6, 8, 12, 16):
                if splits == 1 or -(-n // block_n) * splits <= 16 * target.cu_num and k >= 2 * splits * block_k:
                    yield from (dict(zip(STREAM_NAMES, (block_n, block_k, num_warps, stages, splits)))
                                for stages in (3, 4, 6) if stages * stage <= _SHARED_BYTES // 2)
