# SPDX-License-Identifier: MIT
"""The call object of moe_gemm, and what follows from one. Read by the operator and by each of its backends."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like.device import model_of
from aiter_like.dispatch import STRIDED
from aiter_like.ops.common import elements
from aiter_like.ops.gemm.parts import GATED
from aiter_like.ops.gemm.problems import DTYPES
from aiter_like.ops.moe.moe_formats import SCALE_BLOCK

SWIGLU = "swiglu_and_mul"
"""act(gate) · (up + 1), as GPT-OSS has it."""

TOKENS = 1 << 24
"""`sorted_ids` can tell so many tokens apart."""

_LARGEST_ON_HOPPER = 128  # moe_gemm_hopper.py has tiles of 64 and 128 rows


class Blocks(NamedTuple):
    """Numbers of configs/gfx942/moe.toml."""

    by_rows: tuple[tuple[int, int], ...]
    largest: int


class MoeGemmCall(NamedTuple):
    """One call of moe_gemm: its arguments in the order of the functions that the sources export.

    A pair is a token's row for one of its experts, pair token · slots + slot. A product is multiplied out of `a` and
    `b`, takes the bias and then the weight, and passes the activation.

    Attributes:
        out: [pairs, columns], or with `sums_slots` [tokens, columns]. Rows of pairs whose expert is not here are left
            as they are.
        a: [tokens, k], or [pairs, k] where each pair has a row of its own.
        b: [experts, n, k], n = columns or, where `activation` is a gate's, 2 · columns: gates, then what they let
            through. By `b_format` elements of `a`'s dtype, int8 or fp8, or [experts, n, k / 2] bytes.
        experts: [blocks]: the expert of each block; one that `b` does not have: the block is left out.
        sorted_ids: [blocks · block]: slot << 24 | token, and other numbers in padding; or None: pair i is block i,
            `block` is 1 and `experts` has an element for each pair.
        valid: [1] or more: as many places of `sorted_ids` count, a multiple of `block`; None without it.
        weights: [blocks · block] like `sorted_ids`, or [pairs] without it: a factor of each product.
        bias: [experts, n].
        a_scale: [rows of a], or [rows of a, ceil(k / 128)] where `group_size` is 128 of two fp8 operands; given where
            `a` has 8 bits.
        b_scale: fp32, or 8 bits without sign (powers of two) in mxfp4, or the dtype of `a` where that has 16 bits:
            [experts, n] with `group_size` 0; [experts, ceil(n / 128), ceil(k / 128)] of two fp8 operands and of fp8
            weights; [experts, n, ceil(k / group_size)] of int8, int4 and mxfp4 ones of 16-bit activations.
        slots: experts of a token.
        block: places of `sorted_ids` that share an expert.
        activation: "none", one of GATED, SWIGLU, or one of ACTIVATIONS.
        limit: above 0: gates are at most, the other half at most and at least, this far from 0.
        b_format: one of FORMATS.
        group_size: weights along k that share a scale: 0 for all, 128 for blocks of 128 × 128 of fp8 weights; of int8
            and int4 ones of 16-bit activations 32, 64 or 128.
        is_shuffled: each matrix of `b` is in the order of `shuffle_weight`, layout (16, 16).
        is_interleaved: gates are the even rows of `b`, and what they let through the odd ones.
        sums_slots: each row of out is the sum of its token's pairs, in the order of their slots, in Triton in another
            order that is as fixed; without `sorted_ids` alone.
    """

    out: Annotated[Tensor, "_ _", elements.FLOATS]
    a: Annotated[Tensor, "_ _", DTYPES]
    b: Annotated[Tensor, "_ _ _", STRIDED]
    experts: Annotated[Tensor, "_", torch.int32]
    sorted_ids: Annotated[Tensor | None, "_", torch.int32] = None
    valid: Annotated[Tensor | None, "_", torch.int32] = None
    weights: Annotated[Tensor | None, "_", torch.float32] = None
    bias: Annotated[Tensor | None, "_ _", elements.FLOATS] = None
    a_scale: Annotated[Tensor | None, "*of_a", torch.float32, STRIDED] = None
    b_scale: Annotated[Tensor | None, "*of_b", STRIDED] = None
    slots: int = 1
    block: int = 1
    activation: str = "none"
    limit: float = 0.0
    b_format: str = "same"
    group_size: int = 0
    is_shuffled: bool = False
    is_interleaved: bool = False
    sums_slots: bool = False


def is_gated(activation: str) -> bool:
    """Whether an activation lets one half of the columns through by the other."""
    return activation in GATED or activation == SWIGLU


def pair_count(call: MoeGemmCall) -> int:
    """Pairs of tokens and experts."""
    return call.out.shape[0] * (call.slots if call.sums_slots else 1)


def scaling(call: MoeGemmCall) -> str:
    """Says what a kernel scales before it is added to the sum of a product: "" nothing, "weights" weights of mxfp4,
    which are exact in bf16 with their scales, "sums" the sums over groups of the depth."""
    if call.group_size == 0:
        return ""
    return "weights" if call.b_format == "mxfp4" and call.a.dtype == torch.bfloat16 else "sums"


def has_block_scales(call: MoeGemmCall) -> bool:
    """Whether as many rows of the weights as of the depth share a scale."""
    return call.group_size > 0 and call.b_format in ("same", "fp8")


def blocks(size: int) -> int:
    """How many scales there are along `size` elements of fp8."""
    return -(-size // SCALE_BLOCK)


def block_for(pairs: int, experts: int, arch: str = "") -> int:
    """Places of a block that suit the rows which an expert has in the mean: for sm_90 those of moe_gemm_hopper.py's
    tiles, which takes each tile of a block whether it has rows or not."""
    mean = pairs / min(pairs, experts)
    known = model_of("gfx942", "moe.blocks", Blocks)
    suited = next((block for most, block in known.by_rows if mean <= most), known.largest)
    return min(suited, _LARGEST_ON_HOPPER) if arch == "sm_90" else suited
