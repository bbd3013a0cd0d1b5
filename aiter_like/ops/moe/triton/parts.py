# SPDX-License-Identifier: MIT
"""Shared by the kernels of moe_gemm: where weights stand, what numbers they are, what follows a product."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from aiter_like.ops.activation.triton.parts import activated, gated
from aiter_like.ops.moe.moe_formats import SCALE_BLOCK
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall, has_block_scales, is_gated, pair_count, scaling


@triton.jit
def matrix_at(b, row, k, b_row, b_depth, BAND: tl.constexpr, PACK: tl.constexpr):
    """Addresses of the stored elements (row, k) of a matrix, of shapes that broadcast. With BAND > 0 it is in bands of
    so many rows, cut into packs of PACK elements (16 bytes) that follow one another row by row; b_row is then the
    length of a row, b_depth is not read."""
    if BAND:
        return b + row // BAND * (b_row * BAND) + row % BAND * PACK + k // PACK * (PACK * BAND) + k % PACK
    else:
        return b + row * b_row + k * b_depth


@triton.jit
def depth_of(place, HAS_WORDS: tl.constexpr):
    """The place along the depth of what a step widens. With HAS_WORDS a word of eight weights has the even ones in its
    lower half."""
    if HAS_WORDS:
        return place // 8 * 8 + place % 4 * 2 + place % 8 // 4
    else:
        return place


@triton.jit
def widened(stored, FORMAT: tl.constexpr):
    """Stored weights as numbers without their scales: mxfp4 as fp32, int4 as int8 [rows, k], others as they are."""
    if FORMAT == "int4":
        both = tl.join((stored << 4) >> 4, stored >> 4)
        return both.reshape(stored.shape[0], 2 * stored.shape[1])
    elif FORMAT == "mxfp4":
        # The lower three bits of e2m1 are, as the lowest of the exponent and the highest of the mantissa of an fp32,
        # 2^-126 times the number: also 0.5, which is denormal in both.
        x = stored.to(tl.uint32)
        both = tl.join(((x & 7) << 22) | ((x & 8) << 28), ((x & 112) << 18) | ((x & 128) << 24))
        numbers = both.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126
        return numbers.reshape(stored.shape[0], 2 * stored.shape[1])
    else:
        return stored


@triton.jit
def scale_number(scale, FORMAT: tl.constexpr):
    """Scales as fp32; of mxfp4 2^(scale − 127), 255 is NaN."""
    if FORMAT == "mxfp4":
        x = scale.to(tl.int32)
        bits = tl.where(x == 0, 0x400000, tl.where(x == 255, 0x7FC00000, x << 23))
        return bits.to(tl.float32, bitcast=True)
    else:
        return scale.to(tl.float32)


@triton.jit
def group_scaled(numbers, scale, GROUP_SIZE: tl.constexpr):
    """Numbers [rows, k] in fp32 times scales [rows, k / GROUP_SIZE]."""
    rows: tl.constexpr = numbers.shape[0]
    depth: tl.constexpr = numbers.shape[1]
    parts = numbers.reshape(rows, depth // GROUP_SIZE, GROUP_SIZE) * scale[:, :, None]
    return parts.reshape(rows, depth)


@triton.jit
def as_bf16(x):
    """An fp32 that a bf16 can hold, as one: its upper half."""
    return (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def half_rows(column, columns, half, IS_INTERLEAVED: tl.constexpr):
    """The rows of a matrix whose products are columns of out; of a gate's activation the rows of gates are half 0."""
    if IS_INTERLEAVED:
        return 2 * column + half
    else:
        return column + half * columns


@triton.jit
def finished(product, row_scale, column_scale, bias, weight, is_column):
    """(product · row_scale · column_scale + bias) · weight in fp32. row_scale and weight are of the product's rows,
    column_scale and bias addresses of its columns' numbers; each may be None."""
    product = product.to(tl.float32)
    if row_scale is not None:
        product *= row_scale
    if column_scale is not None:
        product *= tl.load(column_scale, mask=is_column, other=0.0).to(tl.float32)
    if bias is not None:
        product += tl.load(bias, mask=is_column, other=0.0).to(tl.float32)
    if weight is not None:
        product *= weight
    return product


@triton.jit
def after(product, up, limit, ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr, IS_BF16: tl.constexpr):
    """Applies the activation to a product and, if that is a gate's, multiplies what it lets through."""
    if IS_GATED:
        return gated(product, up, limit, ACTIVATION, IS_BF16)
    elif ACTIVATION != "none":
        return activated(product, ACTIVATION, IS_BF16)
    else:
        return product


def constants_of(call: MoeGemmCall) -> dict[str, Any]:
    """Those that each kernel takes alike."""
    has_words = call.b_format == "int4_words"
    return {"FORMAT": "int4" if has_words else call.b_format, "HAS_WORDS": has_words, "SCALES": scaling(call),
            "GROUP_SIZE": call.group_size, "SCALE_ROWS": SCALE_BLOCK if has_block_scales(call) else 1,
            "ACTIVATION": call.activation.removesuffix("_and_mul"),
            "IS_GATED": is_gated(call.activation), "IS_INTERLEAVED": call.is_interleaved,
            "IS_OF_PAIRS": call.a.shape[0] == pair_count(call), "IS_BF16": call.out.dtype == torch.bfloat16,
            "BAND": 16 if call.is_shuffled else 0, "PACK": 16 // call.b.element_size()}


def sizes_of(call: MoeGemmCall) -> tuple[int, ...]:
    """The arguments from `slots` to the last stride."""
    a_scale, b_scale = ((0, 0, 0) if one is None else (*one.stride(), 0, 0) for one in (call.a_scale, call.b_scale))
    return (call.slots, pair_count(call), call.b.shape[0], call.out.shape[1], call.a.shape[1], call.out.stride(0),
            call.a.stride(0), *call.b.stride(), 0 if call.bias is None else call.bias.stride(0), *a_scale[:2],
            *b_scale[:3])
