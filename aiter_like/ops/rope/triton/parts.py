# SPDX-License-Identifier: MIT
"""Shared by the Triton kernels of rope, rope_2d and fused_qk_rope_cache: angles, pairs of heads, tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from aiter_like.device import model_of, target_of
from aiter_like.ops.common.triton.launch import power_of_2

DEFAULT_ELEMENTS = 4096
"""The elements of either tensor's heads that one program takes."""


class Launching(NamedTuple):
    """Numbers of configs/sm_90/rope.toml."""

    most_warps: int


@triton.jit
def _sine_cosine(angle):
    """Both in fp32, reduced by multiples of π/2 in fp64; polynomials of Cephes' sinf and cosf (Moshier, 1984)."""
    wide = angle.to(tl.float64)
    quarters = tl.floor(wide * 0.63661977236758134308 + 0.5)
    rest = wide - quarters * 1.57079632679489655800 - quarters * 6.12323399573676603587e-17
    y = rest.to(tl.float32)
    z = y * y
    sine = y + y * z * (-1.6666654611e-1 + z * (8.3321608736e-3 + z * -1.9515295891e-4))
    cosine = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    turn = (quarters - 4.0 * tl.floor(quarters * 0.25)).to(tl.int32)
    is_odd = (turn & 1) == 1
    s = tl.where(is_odd, cosine, sine)
    c = tl.where(is_odd, sine, cosine)
    return tl.where((turn & 2) == 2, -s, s), tl.where(((turn + 1) & 2) == 2, -c, c)


@triton.jit
def _angles(cos, sin, columns, mask):
    """Cosines and sines of a table's row at `columns`, in fp32; of its angles where there is no table of sines."""
    c = tl.load(cos + columns, mask=mask, other=float("nan")).to(tl.float32)
    if sin is None:
        s, c = _sine_cosine(c)
    else:
        s = tl.load(sin + columns, mask=mask, other=float("nan")).to(tl.float32)
    return c, s


@triton.jit
def row_angles(cos, sin, is_row, rotary_half, BLOCK_P: tl.constexpr, IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr,
               IS_BACKWARD: tl.constexpr):
    """A row's cosines and sines for the first elements of BLOCK_P pairs and for the second ones, [1, BLOCK_P] each;
    NaN where the table has no such row.
    """
    pairs = tl.arange(0, BLOCK_P)[None, :]
    is_pair = (pairs < rotary_half) & is_row
    if IS_SHARED:
        cos_1, sin_1 = _angles(cos, sin, pairs, is_pair)
        cos_2, sin_2 = cos_1, sin_1
    elif IS_GPTJ:
        flat = tl.arange(0, 2 * BLOCK_P)[None, :]
        cosines, sines = _angles(cos, sin, flat, (flat < 2 * rotary_half) & is_row)
        cos_1, cos_2 = tl.split(tl.reshape(cosines, (1, BLOCK_P, 2)))
        sin_1, sin_2 = tl.split(tl.reshape(sines, (1, BLOCK_P, 2)))
    else:
        cos_1, sin_1 = _angles(cos, sin, pairs, is_pair)
        cos_2, sin_2 = _angles(cos, sin, pairs + rotary_half, is_pair)
    if IS_BACKWARD:
        sin_1, sin_2 = -sin_2, -sin_1
    return cos_1, sin_1, cos_2, sin_2


@triton.jit
def places(head_step, heads, first_head, rotary_begin, rotary_half, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
           IS_GPTJ: tl.constexpr):
    """Offsets of the first elements of BLOCK_H heads' pairs, or of all elements for GPT-J; which of them are there."""
    head = first_head + tl.arange(0, BLOCK_H)[:, None]
    if IS_GPTJ:
        column = tl.arange(0, 2 * BLOCK_P)[None, :]
        is_column = column < 2 * rotary_half
    else:
        column = tl.arange(0, BLOCK_P)[None, :]
        is_column = column < rotary_half
    return head.to(tl.int64) * head_step + (rotary_begin + column), (head < heads) & is_column


@triton.jit
def load_pairs(x, head_step, heads, first_head, rotary_begin, rotary_half, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
               IS_GPTJ: tl.constexpr):
    """The pairs of BLOCK_H heads: first elements and second ones; neighbours (GPT-J) all in the first tensor."""
    place, mask = places(head_step, heads, first_head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    first = tl.load(x + place, mask=mask, other=0.0)
    second = first
    if not IS_GPTJ:
        second = tl.load(x + place + rotary_half, mask=mask, other=0.0)
    return first, second


@triton.jit
def turned(first, second, cos_1, sin_1, cos_2, sin_2, dtype: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
           IS_GPTJ: tl.constexpr):
    """first' = first · cos - second · sin, second' = second · cos + first · sin, rounded to `dtype`."""
    if IS_GPTJ:
        first, second = tl.split(tl.reshape(first, (BLOCK_H, BLOCK_P, 2)))
    first, second = first.to(tl.float32), second.to(tl.float32)
    return (first * cos_1 - second * sin_1).to(dtype), (second * cos_2 + first * sin_2).to(dtype)


@triton.jit
def store_pairs(out, first, second, head_step, heads, first_head, rotary_begin, rotary_half, BLOCK_H: tl.constexpr,
                BLOCK_P: tl.constexpr, IS_GPTJ: tl.constexpr, IS_IN_PLACE: tl.constexpr):
    """The pairs that `turned` gave, to where load_pairs takes them from."""
    place, mask = places(head_step, heads, first_head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    if IS_IN_PLACE:
        tl.debug_barrier()  # a wave may load what another one, with the same elements, is about to store
    if IS_GPTJ:
        tl.store(out + place, tl.reshape(tl.join(first, second), (BLOCK_H, 2 * BLOCK_P)), mask=mask)
    else:
        tl.store(out + place, first, mask=mask)
        tl.store(out + place + rotary_half, second, mask=mask)


@triton.jit
def copy_rest(out, x, out_head, x_head, heads, first_head, begin, count, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr):
    """Copies what of BLOCK_H heads is not rotated, `count` elements from `begin` on; BLOCK_C 0 copies nothing."""
    if BLOCK_C > 0:
        head = first_head + tl.arange(0, BLOCK_H).to(tl.int64)[:, None]
        column = tl.arange(0, BLOCK_C)[None, :]
        mask = (head < heads) & (column < count)
        column += begin
        tl.store(out + head * out_head + column, tl.load(x + head * x_head + column, mask=mask), mask=mask)


def constants(call: Any, head_dim: int, width: int, tensors: list) -> tuple[list[int], dict[str, int | bool]]:
    """The parts of a head that are rotated and copied, as integers; the constexpr arguments that both kernels share.

    Args:
        call: RopeCall or Rope2dCall.
        head_dim: elements of a head that one row of `width` elements of a table turns.
        width: elements of a table's row.
        tensors: pairs of output and input.
    """
    rotary_half = width if call.reuse_freqs_front_part else width // 2
    rest = head_dim - 2 * rotary_half
    is_in_place = all(x is None or (x.data_ptr() == y.data_ptr() and x.stride() == y.stride()) for x, y in tensors)
    copied = 0 if is_in_place else rest
    blocks = {"BLOCK_P": power_of_2(max(rotary_half, 1)),
              "BLOCK_C": power_of_2(copied) if copied else 0, "IS_GPTJ": call.rotate_style == 1,
              "IS_SHARED": call.reuse_freqs_front_part, "IS_BACKWARD": call.is_backward, "IS_IN_PLACE": is_in_place}
    return [rest if call.nope_first else 0, rotary_half, 0 if call.nope_first else 2 * rotary_half, copied], blocks


def tiles(input: torch.Tensor, counts: list[int], blocks: dict[str, int | bool], elements: int,
          num_warps: int | None) -> tuple[int, list[int], int]:
    """A token's programs; the heads of each tensor that a program takes, a power of two or 0; a program's waves.

    A program takes as many heads as give each lane an access of 16 bytes, even where the tensor has fewer: with a
    smaller tile all lanes would take part, each with a narrower access.
    """
    pairs, wave_size = blocks["BLOCK_P"], target_of(input.device).wave_size
    limit = max(elements // (2 * pairs), 1)
    programs = triton.cdiv(max(counts), 1 << (limit.bit_length() - 1))
    heads = [power_of_2(triton.cdiv(count, programs)) if count else 0 for count in counts]
    most = model_of("sm_90", "rope.launch", Launching).most_warps
    num_warps = num_warps or min(max(max(heads) * pairs // (8 * wave_size), 1), most)
    lane_pairs = 16 // input.element_size() // (2 if blocks["IS_GPTJ"] else 1)
    least = lane_pairs * wave_size * num_warps // pairs
    return programs, [max(count, least) if count else 0 for count in heads], num_warps


def row_count(table: torch.Tensor) -> int:
    """The rows of a table."""
    return table.shape[:-1].numel()


def row_step(table: torch.Tensor) -> int:
    """Elements from row to row."""
    return next((step for size, step in zip(table.shape[:-1], table.stride(), strict=False) if size > 1), 0)
