# SPDX-License-Identifier: MIT
"""Sizes of blocks for the Triton kernels of moe_gemm. Read by moe_gemm.py and triton/moe_gemm.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aiter_like.device import Target, model_of, target_of
from aiter_like.ops.gemm import hopper
from aiter_like.ops.gemm.parts import sum_refusal
from aiter_like.ops.moe.moe_formats import per_byte
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, is_gated, pair_count, scaling

NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
FEW_NAMES = ("block_n", "block_k", "num_warps")  # the kernel of unsorted pairs has these
FEW = "moe_gemm_few"
MOVED = "moe_gemm_moved"  # with weights by TMA
HOPPER = "moe_gemm_hopper"
HOPPER_NAMES = (*NAMES, "programs", "is_flat", "group")
"""Parameters of the kernel for Hopper: `programs` share an SM; `is_flat`: loads go on from tile to tile; `group` blocks
of rows are computed side by side."""
_MIN_ROWS, _MIN_DEPTH = 16, 32  # a matrix unit takes no less
_MOST_PROGRAMS = 2**23  # programs of 8 waves; AMD counts the lanes of a launch in 32 bits
_SHALLOW = 1024  # elements of a depth: a tile's steps are few
_SHORT = 256  # likewise: so few that a tile's results take as long
_MOST_COLUMN_BLOCKS = 65535  # the second dimension of a launch


class HopperNumbers(NamedTuple):
    """Numbers of configs/sm_90/moe.toml."""

    least_rows: int
    many_rows: int
    plenty_rows: int
    cached_bytes: int


def _model() -> HopperNumbers:
    return model_of("sm_90", "moe.hopper", HopperNumbers)


def columns_of(call: MoeGemmCall, block_n: int) -> int:
    """Columns of out of a program that has so many rows of a matrix."""
    return block_n // 2 if is_gated(call.activation) else block_n


def _power_of_two(size: int) -> int:
    """The next one that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def mean_rows(call: MoeGemmCall) -> int:
    """Pairs of an expert if all have as many."""
    return -(-pair_count(call) // call.b.shape[0])


def _most_rows(call: MoeGemmCall) -> int:
    """The most rows of a program: as many as divide a block, or a matrix unit's least."""
    return max(_MIN_ROWS, call.block & -call.block)


def suited(call: MoeGemmCall, platform: str) -> tuple[int, ...]:
    """NAMES by the mean rows of an expert: what is in LDS or shared memory fits gfx942 too."""
    m, num_warps = mean_rows(call), 4
    if m <= 16:
        block_m, block_n, depth = 16, 64, 128
        if platform != "hip" and call.a.shape[1] <= _SHALLOW and not is_gated(call.activation):
            block_n, depth = 128, 64
    elif m <= 64:
        block_m, block_n, depth = (32, 128, 64) if m <= 32 else (64, 128, 64)
    else:
        block_m, block_n, depth = 128, 128, 64
        if platform != "hip" and scaling(call) != "weights":  # a group of four warps shares what it makes of weights
            num_warps = 8
    block_m = min(block_m, _most_rows(call))
    if is_gated(call.activation) and platform != "hip":
        block_n = max(block_n, 128)  # wgmma takes 64 rows of a matrix
    return block_m, block_n, depth * 2 // call.a.element_size(), num_warps, 2 if platform == "hip" else 3


def step(call: MoeGemmCall, block_k: int) -> int:
    """The depth of a step: one that lies in one group where the sums over groups are scaled."""
    return min(block_k, call.group_size) if scaling(call) == "sums" else max(block_k, _MIN_DEPTH)


def suited_to_hopper(call: MoeGemmCall) -> tuple[int, ...]:
    """HOPPER_NAMES by the sizes (H100, Triton 3.6: Mixtral, Qwen3, DeepSeek-V3 and GPT-OSS, 4096 to 16384 tokens; short
    depths, 192 and 256, at 4096: 4 to 16 %). What goes on from tile to tile needs room for a tile of out beside the
    steps: of fp32 there is none."""
    block_m, block_k = 64 if call.block % 128 else 128, 128 // call.a.element_size()
    goes_on, model = int(call.out.element_size() == 2), _model()
    if goes_on and call.a.shape[1] <= _SHORT and not is_gated(call.activation):  # writing out bounds it
        if call.group_size:
            return 64, 128, block_k, 4, 4, 2, 1, 16
        if call.a.element_size() == 2:
            return block_m, 128, block_k, 4, 3, 2, 1, 8
    if call.group_size:
        chosen = (64, 256, block_k, 4, 2, 2, 0) if block_m == 64 else (
            128, 256, block_k, 8, 4 if mean_rows(call) >= model.plenty_rows else 3, 1, 0)
    elif block_m == 64:
        chosen = 64, 128, block_k, 4, 3, 3, 0
    elif call.a.element_size() == 1:
        chosen = 128, 128, block_k, 8, 4, 1, goes_on
    elif mean_rows(call) < model.many_rows:  # the weights bound it: more tiles are on their way where two share an SM
        chosen = 128, 128, block_k, 8, 3, 2, 0
    else:
        chosen = 128, 256, block_k, 8, 4, 1, goes_on
    is_cached = call.b[0].numel() * call.b.element_size() <= model.cached_bytes
    return *chosen, 1 if chosen[-1] and is_cached else 8


def slots_of(call: MoeGemmCall) -> int:
    """Places of a token's pairs in a program that adds them up; 0: it has one pair and adds up none."""
    return _power_of_two(call.slots) if call.sums_slots else 0


def few(call: MoeGemmCall) -> tuple[int, ...]:
    """FEW_NAMES: few rows of the matrices, so that there are many programs, each with as little at a time (H100: four
    rows are at most 13 % from the best of 48 choices for seven gates, sixteen were 20 to 70 %). On gfx942 sixteen
    where each compute unit has two programs then: modelled 10 to 32 % less for ten calls with weights of 8 and 4 bits,
    12 % more for one, and 49 and 70 % more for two with fewer programs."""
    slots, depth = max(slots_of(call), 1), call.a.shape[1]
    least = 2 if is_gated(call.activation) else 1
    most = min(512 * per_byte(call.b_format), max(_power_of_two(depth), 128))
    target = target_of(call.a.device)
    if target.platform == "hip":
        block_n = max(16 // slots, least)
        programs = call.out.shape[0] * -(-call.out.shape[1] // columns_of(call, block_n))
        if programs >= 2 * target.cu_num:
            return block_n, min(512 if depth > _SHALLOW and depth % 512 == 0 else 256, most), 4
    return max(4 // slots, least), most, 4


def _is_moved(target: Target, call: MoeGemmCall) -> bool:
    """Whether TMA can move the weights, and the rows of both halves of a gate's follow one another."""
    return (target.arch == "sm_90" and call.sorted_ids is not None and not call.is_shuffled and not call.is_interleaved
            and call.b.numel() < 2**31 and hopper.serves(call.b))


def _is_for_hopper(target: Target, call: MoeGemmCall) -> bool:
    """Whether the kernel for Hopper takes the call: blocks of the rows that its matrix unit wants, weights by TMA, rows
    of a by 16 bytes within 2^31 elements, rows of out likewise, and a block's scale for each 128 rows of a tile."""
    if target.arch != "sm_90" or call.sorted_ids is None or call.is_shuffled or call.b_format != "same":
        return False
    if call.block % 64 or not hopper.serves(call.a, call.b) or call.a.shape[0] * call.a.stride(0) >= 2**31:
        return False
    if call.a.shape[1] % 16 or call.out.shape[1] % 16 or call.out.stride(0) % 16:
        return False
    halves = is_gated(call.activation)
    return not (call.group_size and halves and (call.is_interleaved or call.out.shape[1] % call.group_size))


def kernels(target: Target, call: MoeGemmCall, **params: int) -> list[str]:
    """Its kernels; the parameter `moved` asks for the one with weights by TMA, where that serves, and `programs` for
    the one for Hopper. That comes first where it was timed and took less time: of many rows, but not of 8 bits with a
    scale for each."""
    if call.sorted_ids is None:
        return [FEW]
    on_hopper = [HOPPER] if _is_for_hopper(target, call) else []
    if "programs" in params:
        return on_hopper
    if params:
        return [MOVED] if params.get("moved") and _is_moved(target, call) else ["moe_gemm"]
    is_timed = call.a.element_size() > 1 or call.group_size > 0
    if mean_rows(call) < _model().least_rows or not is_timed:
        return ["moe_gemm", *on_hopper]
    return [*on_hopper, "moe_gemm"]


def refusal(target: Target, call: MoeGemmCall) -> str | None:
    """Says why no kernel takes a call."""
    columns = call.out.shape[1]
    if call.sorted_ids is None:
        most, rows = 8, call.out.shape[0]
        if -(-columns // most) > _MOST_COLUMN_BLOCKS or rows >= _MOST_PROGRAMS:
            return (f"out must have less than 2^23 rows and at most {most * _MOST_COLUMN_BLOCKS} columns without "
                    f"sorted_ids, got shape {tuple(call.out.shape)}")
    elif (call.sorted_ids.shape[0] // _MIN_ROWS + call.experts.shape[0]) * -(-columns // 16) >= _MOST_PROGRAMS:
        return (f"sorted_ids and out must give less than 2^23 tiles, got {call.sorted_ids.shape[0]} places × {columns} "
                "columns")
    return sum_refusal(target, call)


def space(target: Target, call: MoeGemmCall) -> Iterator[dict[str, int]]:
    """Blocks that suit the rows; deep ones for few rows, which are bound by memory."""
    if call.sorted_ids is None:
        each = max(slots_of(call), 1)
        for block_n in (1, 2, 4, 8, 16):
            if block_n == 1 and is_gated(call.activation):
                continue
            for block_k in (256, 512, 1024, 2048):
                for num_warps in (2, 4, 8):
                    if 16 <= each * block_n * block_k // (num_warps * target.wave_size) <= 64:
                        yield dict(zip(FEW_NAMES, (block_n, block_k, num_warps)))
        return
    if _is_for_hopper(target, call):
        yield from _hopper_space(call)
    m, most = mean_rows(call), _most_rows(call)
    for block_m, block_n, depth, num_warps in ((16, 64, 128, 4), (16, 128, 64, 4), (32, 64, 64, 4), (32, 128, 64, 4),
                                               (64, 64, 64, 4), (64, 128, 64, 4), (128, 128, 64, 4), (128, 128, 64, 8),
                                               (128, 256, 64, 8)):
        if block_m <= min(most, max(16, 2 * m)) and (block_m >= 64 or m < 512 or block_m == most):
            blocks = block_m, block_n, depth * 2 // call.a.element_size(), num_warps
            for num_stages in (2, 3, 4):
                yield dict(zip(NAMES, (*blocks, num_stages)))
            if _is_moved(target, call):
                for num_stages in (3, 4, 5):
                    yield dict(zip(NAMES, (*blocks, num_stages))) | {"moved": 1}


def _hopper_space(call: MoeGemmCall) -> Iterator[dict[str, int]]:
    """Settings of the kernel for Hopper that fit its registers and shared memory."""
    if call.group_size:
        tiles: tuple[tuple[int, ...], ...] = (
            (128, 256, 8, 4, 1, 0), (128, 256, 8, 3, 1, 0), (64, 256, 4, 2, 2, 0), (64, 256, 4, 2, 2, 1))
        if not is_gated(call.activation):
            tiles += ((128, 128, 8, 4, 1, 1), (64, 128, 4, 3, 3, 0), (64, 128, 4, 4, 2, 1))
    elif call.a.element_size() == 1:
        tiles = (128, 128, 8, 4, 1, 1), (128, 128, 8, 4, 1, 0), (64, 128, 4, 3, 3, 0)
    else:
        tiles = ((128, 256, 8, 4, 1, 1), (128, 256, 8, 4, 1, 0), (128, 128, 8, 3, 2, 0), (128, 128, 4, 3, 2, 1),
                 (64, 256, 4, 2, 2, 1), (64, 128, 4, 3, 3, 0), (64, 128, 4, 3, 2, 1))
    for block_m, block_n, num_warps, num_stages, programs, is_flat in tiles:
        if call.block % block_m or is_flat and call.out.element_size() > 2:
            continue
        for group in (8, 16):
            yield dict(zip(HOPPER_NAMES, (block_m, block_n, 128 // call.a.element_size(), num_warps, num_stages,
                                          programs, is_flat, group)))
