# SPDX-License-Identifier: MIT
"""The builds of csrc/moe/moe_gemm_skinny.hip, for experts with few rows: what they refuse, and which one serves a call.

Read by moe_gemm.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from aiter_like import dtypes
from aiter_like.device import Target, facts_of, model_of, target_of
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.gemm.parts import activation_of, mfma_refusal, rows_refusal
from aiter_like.ops.gemm.problems import SIXTEEN_BITS
from aiter_like.ops.gemm.skinny import UNITS
from aiter_like.ops.moe.moe_formats import per_byte
from aiter_like.ops.moe.moe_gemm_call import SWIGLU, MoeGemmCall, is_gated, pair_count, scaling

_OP = "moe_gemm"
MAX_BLOCK = 64
MAX_SLOTS = 32  # each pair of a sum has a lane, and a warp has 32
MAX_ROWS_OF_EXPERT = 64
_MAX_GROUPS = 2**16
_LEAST_BYTES = 8192  # bytes of a team's weights
_EXCHANGED_BYTES = 4096  # exchanged by the lanes of a wave: 16 rows of a step, in runs of 16 bytes
_MAX_PACKED_BLOCK = 32  # rows of a for weights of fewer bits: a lane has four times as many of its registers


class Sorting(NamedTuple):
    """Numbers of configs/gfx942/moe.toml."""

    unsorted_bytes: float
    unsorted_tokens: int


class Block(NamedTuple):
    """The sizes that tell builds apart: columns of out of a team of waves, teams, a team's waves along the depth, steps
    under way."""

    block_n: int
    teams: int
    waves: int
    stages: int


def rows_of_expert(call: MoeGemmCall) -> float:
    """Pairs of an expert on average, were all of them used alike."""
    return pair_count(call) / min(call.b.shape[0], pair_count(call))


def prefers_unsorted(tokens: int, slots: int, experts: int, expert_bytes: int) -> bool:
    """Whether pairs that are not sorted are sooner done than sorted ones: each reads its expert's matrices, of
    `expert_bytes` in all, for itself, where a sorted expert is read once; but sorting, and the sums of tokens, are
    launches of their own. By the experts that so many tokens have on average, if they choose each alike.
    """
    most = model_of("gfx942", "moe.sorting", Sorting)
    if tokens > most.unsorted_tokens:
        return False
    used = experts * (1 - (1 - slots / experts) ** tokens)
    return (tokens * slots - used) * expert_bytes < most.unsorted_bytes


def refusal(target: Target, call: MoeGemmCall) -> str | None:
    """Says why the kernel does not take a call, or would take longer for it than tiles of many rows."""
    a, b, k = call.a, call.b, call.a.shape[1]
    is_wide = a.dtype in SIXTEEN_BITS
    if target.platform == "hip" and target.arch != "gfx942":
        return mfma_refusal(target)
    if target.platform == "cuda":
        if int(target.arch.removeprefix("sm_").rstrip("af")) < 80:
            return f"matrix instructions of sm_80, not for {target.arch}"
        if not is_wide:
            return f"of 8-bit operands an MFMA kernel for gfx942, not for {target.arch}"
    if call.b_format != "same" and (reason := _packed_refusal(target, call)):
        return reason
    if call.block > MAX_BLOCK or rows_of_expert(call) > MAX_ROWS_OF_EXPERT:
        return (f"a kernel for at most {MAX_BLOCK} rows of an expert, got block = {call.block} and "
                f"{rows_of_expert(call):.0f} rows of an expert on average")
    least = 16 // a.element_size()
    if not least <= k < 2**18 or b.shape[1] >= 2**21:
        return f"k must be from {least} to 2^18 and n less than 2^21, got k = {k} and n = {b.shape[1]}"
    if call.sums_slots and (call.activation != "none" or call.slots > MAX_SLOTS):
        return (f"sums of slots are of at most {MAX_SLOTS}, with activation 'none', got {call.slots} and "
                f"{call.activation!r}")
    if any(size >= _MAX_GROUPS for size in (call.experts.shape[0], call.out.shape[0])):
        return f"experts must have less than 2^16 elements, got {call.experts.shape[0]}"
    return _layout_refusal(call) or rows_refusal(a=a, b=b, out=call.out)


def _packed_refusal(target: Target, call: MoeGemmCall) -> str | None:
    """Refuses weights with fewer bits than a."""
    if target.platform != "hip":
        return f"of {call.b_format} weights an MFMA kernel for gfx942, not for {target.arch}"
    if call.b_format == "int4_words" or call.a.dtype not in SIXTEEN_BITS:
        return f"int4 weights are in the order of pack_int4 beside 16-bit a, got {call.b_format} beside {call.a.dtype}"
    if call.b_format == "mxfp4" and scaling(call) == "sums":
        return f"mxfp4 weights are for a of bf16, got {call.a.dtype}"
    if call.block > _MAX_PACKED_BLOCK:
        return f"{call.b_format} weights are for blocks of at most {_MAX_PACKED_BLOCK} rows, got {call.block}"
    if call.a.shape[1] % packed_run(call.b_format):
        return (f"k must be a multiple of the {packed_run(call.b_format)} {call.b_format} weights in 16 bytes, got "
                f"{call.a.shape[1]}")
    return None


def packed_run(b_format: str) -> int:
    """Weights of a format that a lane reads at once."""
    return 16 * per_byte(b_format)


def _layout_refusal(call: MoeGemmCall) -> str | None:
    n, columns = call.b.shape[1], call.out.shape[1]
    halves = is_gated(call.activation) and not call.is_interleaved
    if halves and columns % 16 and (call.is_shuffled or (call.group_size and call.a_scale is not None)):
        return f"gates and what they let through must be whole bands of 16 rows of b, got n = {n}"
    if call.sorted_ids is not None and call.sorted_ids.stride(0) != 1:
        return f"sorted_ids must be contiguous, got strides {call.sorted_ids.stride()}"
    for name in ("a", "b"):
        one = getattr(call, name)
        rows, k = one.shape[-2:]
        if (rows * max(one.stride(-2), k) + k) * one.element_size() >= 2**32:
            return f"{name} must have matrices within 2^32 bytes, got shape {tuple(one.shape)}"
    for name, first in (("a_scale", 0), ("b_scale", 1)):  # all rows of a, one expert's
        one = getattr(call, name)
        if one is not None and sum(map(math.prod, zip(one.shape[first:], one.stride()[first:]))) >= 2**31:
            return f"{name} must lie within 2^31 elements, got shape {tuple(one.shape)}, strides {one.stride()}"
    return None


def suited(call: MoeGemmCall, target: Target) -> Block:
    """The block that did best for such sizes by the cycle model (version 2) on gfx942. A depth of few steps is for few
    waves, and teams make up for them."""
    unit, halves = UNITS[target.platform], 2 if is_gated(call.activation) else 1
    k, size = call.a.shape[1], call.b.element_size() / per_byte(call.b_format)  # bytes of a weight
    steps = math.ceil(k / (unit.depth * 2 / size)) * (call.slots if call.sums_slots else 1)
    waves = next((count for count in (4, 2) if steps >= 2 * count or steps == count == 2), 1)
    each = math.ceil(steps / waves)
    stages = each if each <= 3 else next((count for count in (2, 3) if each % count == 0), 2)
    if call.b_format != "same" and call.sorted_ids is not None:
        stages = 1  # all rows of a: waves side by side hide more than registers for a second step
    block = Block(unit.columns, 4 // waves, waves, stages)
    wide = block._replace(block_n=2 * unit.columns)
    return wide if unit.columns * halves * k * size < _LEAST_BYTES and _fits_lds(call, wide) else block


def lds_bytes(call: MoeGemmCall, block: Block) -> int:
    """LDS of a workgroup on gfx942, like Memory of csrc/moe/moe_gemm_skinny_pairs.h: each wave's sums or what its lanes
    exchange, and the rows."""
    unit, halves = UNITS["hip"], 2 if is_gated(call.activation) else 1
    units = block.block_n * halves // unit.columns
    exchanged = _EXCHANGED_BYTES
    if _scales(call) == "sums":  # a scale for each group of a step and row of a unit
        exchanged += units * 16 * packed_run(call.b_format) // call.group_size * unit.columns * 4
    sums = units * math.ceil(_rows(call) / unit.rows) * 64 * 16
    return block.teams * block.waves * max(exchanged, sums) + 16 * (MAX_SLOTS if call.sums_slots else _rows(call))


def _fits_lds(call: MoeGemmCall, block: Block) -> bool:
    """Whether a workgroup's LDS suffices; NVIDIA's has none of the exchange, and more of it."""
    target = target_of(call.b.device)
    return target.platform != "hip" or lds_bytes(call, block) <= facts_of(target).lds_bytes


def _rows(call: MoeGemmCall) -> int:
    """Rows of a workgroup."""
    return 1 if call.sorted_ids is None else next(rows for rows in (4, 8, 16, 32, 64) if rows >= call.block)


def _scales(call: MoeGemmCall) -> str:
    """The kind of scales, by its name in C++."""
    if call.a_scale is not None:
        return "blocks" if call.group_size else "rows"
    if call.b_scale is None:
        return "none"
    return "weights" if call.group_size == 0 else "groups" if call.b_format == "mxfp4" else "sums"


def _stored(dtype: torch.dtype) -> str:
    """The element's name in C++; bytes of mxfp4 and their powers of two are no elements."""
    return "uint8_t" if dtype == torch.uint8 else elements.CPP[dtype]


def instance(call: MoeGemmCall, **given: int) -> Instance:
    """The block is that of `suited`, but for what a tuned row names."""
    block = suited(call, target_of(call.b.device))._replace(**given)
    gate, gated = call.activation.removesuffix("_and_mul"), is_gated(call.activation)
    activation = gate if call.activation == SWIGLU else activation_of(call.activation)[0]
    rows = "sorted" if call.sorted_ids is not None else "token" if call.sums_slots else "pair"
    scales = _scales(call)
    bias_dtype = torch.float32 if call.bias is None else call.bias.dtype
    flags = {"bias": call.bias is not None, "weights": call.weights is not None, "shuffled": call.is_shuffled,
             "interleaved": call.is_interleaved}
    scale_dtype = torch.float32 if call.b_scale is None else call.b_scale.dtype
    parts = [dtypes.name(call.a.dtype), *([] if call.b_format == "same" else [call.b_format]),
             f"o{dtypes.name(call.out.dtype)}", rows, *([] if scales == "none" else [scales]),
             *([str(call.group_size)] if scales == "sums" else []),
             *([] if scale_dtype == torch.float32 or scales == "groups" else [dtypes.name(scale_dtype)]),
             f"m{_rows(call)}_n{block.block_n}_t{block.teams}_w{block.waves}_d{block.stages}",
             *([] if call.activation == "none" else [call.activation]),
             *([] if call.bias is None else [dtypes.name(bias_dtype)]),
             *(name for name, is_set in flags.items() if is_set)]
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[call.a.dtype], "WEIGHT": _stored(call.b.dtype), "FORMAT": call.b_format,
        "SCALE": _stored(scale_dtype), "OUT_ELEMENT": elements.CPP[call.out.dtype],
        "BIAS_ELEMENT": elements.CPP[bias_dtype], "ROWS": rows, "SCALES": scales,
        "GROUP": call.group_size if scales == "sums" else 0, "BLOCK_M": _rows(call),
        "BLOCK_N": block.block_n, "TEAMS": block.teams, "WAVES": block.waves,
        "STAGES": block.stages,
        **{f"HAS_{name.upper()}": int(flags[name]) for name in ("bias", "weights")},
        **{f"IS_{name.upper()}": int(flags[name]) for name in ("shuffled", "interleaved")},
        "HAS_ACTIVATION": int(activation != "none"), "ACTIVATION": "silu" if activation == "none" else activation,
        "IS_GATED": int(gated)})


def space(target: Target, call: MoeGemmCall) -> Iterator[dict[str, int]]:
    """Blocks that the tuner tries."""
    if refusal(target, call) is not None:
        return
    unit, halves = UNITS[target.platform], 2 if is_gated(call.activation) else 1
    for block_n in (unit.columns, 2 * unit.columns):
        for teams, waves in ((1, 4), (2, 2), (4, 1), (1, 8), (2, 4)):
            for stages in (1, 2, 3, 4):
                block = Block(block_n, teams, waves, stages)
                is_held = _rows(call) * stages <= 96 and block_n * halves * stages <= 8 * unit.columns
                if is_held and _fits_lds(call, block):
                    yield block._asdict()


@compile_ops("moe/moe_gemm_skinny.hip", "moe_gemm_skinny", gen_func=instance)
def moe_gemm_hip(call: MoeGemmCall) -> None: ...
