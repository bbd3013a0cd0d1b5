# SPDX-License-Identifier: MIT
"""Rotary position embedding in Triton: bodies and launchers, named by the operators of ops/rope/rope.py and
rope_2d.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.ops.common.triton.launch import await_stream, launch

_ELEMENTS = 4096  # of either tensor's heads that one program takes
_MAX_WARPS = 4  # of a trial of this layout on an H200, 16 + 2 heads of 128, 16384 tokens: 39.3 us, on 8 waves 41.9


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
    c = tl.load(cos + columns, mask=mask, other=0.0).to(tl.float32)
    if sin is None:
        s, c = _sine_cosine(c)
    else:
        s = tl.load(sin + columns, mask=mask, other=0.0).to(tl.float32)
    return c, s


@triton.jit
def row_angles(cos, sin, rotary_half, BLOCK_P: tl.constexpr, IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr,
               IS_BACKWARD: tl.constexpr):
    """A row's cosines and sines for the first elements of BLOCK_P pairs and for the second ones, [1, BLOCK_P] each."""
    pairs = tl.arange(0, BLOCK_P)[None, :]
    is_pair = pairs < rotary_half
    if IS_SHARED:
        cos_1, sin_1 = _angles(cos, sin, pairs, is_pair)
        cos_2, sin_2 = cos_1, sin_1
    elif IS_GPTJ:
        flat = tl.arange(0, 2 * BLOCK_P)[None, :]
        cosines, sines = _angles(cos, sin, flat, flat < 2 * rotary_half)
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
def _turn(out, x, first, second, out_head, x_head, heads, first_head, cos_1, sin_1, cos_2, sin_2, rotary_begin,
          rotary_half, copied_begin, copied, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
          IS_GPTJ: tl.constexpr, IS_IN_PLACE: tl.constexpr):
    """first' = first · cos - second · sin, second' = second · cos + first · sin; then copies the rest."""
    if IS_GPTJ:
        first, second = tl.split(tl.reshape(first, (BLOCK_H, BLOCK_P, 2)))
    first, second = first.to(tl.float32), second.to(tl.float32)
    turned_1 = (first * cos_1 - second * sin_1).to(out.dtype.element_ty)
    turned_2 = (second * cos_2 + first * sin_2).to(out.dtype.element_ty)
    place, mask = places(out_head, heads, first_head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    if IS_IN_PLACE:
        tl.debug_barrier()  # a wave may load what another one, with the same elements, is about to store
    if IS_GPTJ:
        tl.store(out + place, tl.reshape(tl.join(turned_1, turned_2), (BLOCK_H, 2 * BLOCK_P)), mask=mask)
    else:
        tl.store(out + place, turned_1, mask=mask)
        tl.store(out + place + rotary_half, turned_2, mask=mask)
    if BLOCK_C > 0:
        head = first_head + tl.arange(0, BLOCK_H).to(tl.int64)[:, None]
        column = tl.arange(0, BLOCK_C)[None, :]
        mask = (head < heads) & (column < copied)
        column += copied_begin
        tl.store(out + head * out_head + column, tl.load(x + head * x_head + column, mask=mask), mask=mask)


@triton.jit
def _rope_kernel(out, out_y, x, y, cos, sin, positions, offsets, out_s, out_b, out_head, x_s, x_b, x_head, out_y_s,
                 out_y_b, out_y_head, y_s, y_b, y_head, heads, y_heads, cos_row, sin_row, positions_s, positions_b,
                 offsets_s, offsets_b, batch, rotary_begin, rotary_half, copied_begin, copied, sequences,
                 BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_P: tl.constexpr,
                 BLOCK_C: tl.constexpr, IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr, IS_BACKWARD: tl.constexpr,
                 IS_IN_PLACE: tl.constexpr, OVERLAPS: tl.constexpr):
    """One token's BLOCK_H heads of `x` and BLOCK_Y heads of `y`, all loaded before any is turned; bound: memory."""
    await_stream(OVERLAPS)
    s = (tl.program_id(0) // batch).to(tl.int64)
    b = (tl.program_id(0) % batch).to(tl.int64)
    head, y_first = tl.program_id(1) * BLOCK_H, tl.program_id(1) * BLOCK_Y
    if BLOCK_H > 0:
        x += s * x_s + b * x_b
        first, second = load_pairs(x, x_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    if BLOCK_Y > 0:
        y += s * y_s + b * y_b
        first_y, second_y = load_pairs(y, y_head, y_heads, y_first, rotary_begin, rotary_half, BLOCK_Y, BLOCK_P,
                                       IS_GPTJ)
    tl.debug_barrier()  # heads first: ptxas would wait for the position before it loads x, and load y after turning x
    row = s
    if BLOCK_S > 0:
        sequence = tl.arange(0, BLOCK_S)
        starts = tl.load(positions + sequence, mask=sequence < sequences, other=0).to(tl.int64)
        row = s - tl.max(tl.where(starts <= s, starts, 0), 0)
    elif positions is not None:
        row = tl.load(positions + s * positions_s + b * positions_b).to(tl.int64)
    if offsets is not None:
        row += tl.load(offsets + s * offsets_s + b * offsets_b).to(tl.int64)
    sines = sin
    if sin is not None:
        sines = sin + row * sin_row
    cos_1, sin_1, cos_2, sin_2 = row_angles(cos + row * cos_row, sines, rotary_half, BLOCK_P, IS_GPTJ, IS_SHARED,
                                            IS_BACKWARD)
    if BLOCK_H > 0:
        _turn(out + s * out_s + b * out_b, x, first, second, out_head, x_head, heads, head, cos_1, sin_1, cos_2, sin_2,
              rotary_begin, rotary_half, copied_begin, copied, BLOCK_H, BLOCK_P, BLOCK_C, IS_GPTJ, IS_IN_PLACE)
    if BLOCK_Y > 0:
        _turn(out_y + s * out_y_s + b * out_y_b, y, first_y, second_y, out_y_head, y_head, y_heads, y_first, cos_1,
              sin_1, cos_2, sin_2, rotary_begin, rotary_half, copied_begin, copied, BLOCK_Y, BLOCK_P, BLOCK_C, IS_GPTJ,
              IS_IN_PLACE)


@triton.jit
def _rope_2d_kernel(out, x, cos_h, sin_h, cos_w, sin_w, out_b, out_s, out_head, x_b, x_s, x_head, heads, cos_h_row,
                    sin_h_row, cos_w_row, sin_w_row, patches, img_width, half_dim, rotary_begin, rotary_half,
                    copied_begin, copied, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
                    IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr, IS_BACKWARD: tl.constexpr,
                    IS_IN_PLACE: tl.constexpr, OVERLAPS: tl.constexpr):
    """One patch's BLOCK_H heads: the first half by its row, the second by its column; bound: memory."""
    await_stream(OVERLAPS)
    b = (tl.program_id(0) // patches).to(tl.int64)
    s = (tl.program_id(0) % patches).to(tl.int64)
    out += s * out_s + b * out_b
    x += s * x_s + b * x_b
    head = tl.program_id(1) * BLOCK_H
    row, column = s // img_width, s % img_width
    first, second = load_pairs(x, x_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P, IS_GPTJ)
    first_w, second_w = load_pairs(x + half_dim, x_head, heads, head, rotary_begin, rotary_half, BLOCK_H, BLOCK_P,
                                   IS_GPTJ)
    cos_1, sin_1, cos_2, sin_2 = row_angles(cos_h + row * cos_h_row, sin_h + row * sin_h_row, rotary_half, BLOCK_P,
                                            IS_GPTJ, IS_SHARED, IS_BACKWARD)
    cos_3, sin_3, cos_4, sin_4 = row_angles(cos_w + column * cos_w_row, sin_w + column * sin_w_row, rotary_half,
                                            BLOCK_P, IS_GPTJ, IS_SHARED, IS_BACKWARD)
    _turn(out, x, first, second, out_head, x_head, heads, head, cos_1, sin_1, cos_2, sin_2, rotary_begin, rotary_half,
          copied_begin, copied, BLOCK_H, BLOCK_P, BLOCK_C, IS_GPTJ, IS_IN_PLACE)
    _turn(out + half_dim, x + half_dim, first_w, second_w, out_head, x_head, heads, head, cos_3, sin_3, cos_4, sin_4,
          rotary_begin, rotary_half, copied_begin, copied, BLOCK_H, BLOCK_P, BLOCK_C, IS_GPTJ, IS_IN_PLACE)


def rope(out: torch.Tensor, out_y: torch.Tensor | None, input: torch.Tensor, input_y: torch.Tensor | None,
         cos: torch.Tensor, sin: torch.Tensor | None, positions: torch.Tensor | None, offsets: torch.Tensor | None,
         *flags: bool, elements: int | None = None, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends; writes `out` and `out_y`.

    `elements` of either tensor's heads are one program's; None for either: what suits most sizes.
    """
    batch = input.shape[1] if input.ndim == 4 else 1
    sequences = positions.shape[0] - 1 if positions is not None and input.ndim == 3 else 0
    heads, y_heads = input.shape[-2], 0 if input_y is None else input_y.shape[-2]
    parts, blocks = _constants(input.shape[-1], cos.shape[-1], flags, [(out, input), (out_y, input_y)])
    programs, (block_h, block_y), num_warps = _tiles(input, [heads, y_heads], blocks, elements or _ELEMENTS, num_warps)
    strides = [stride for tensor in (out, input, out_y, input_y) for stride in _strides(tensor)]
    indices = [stride for tensor in (positions, offsets)
               for stride in ((0, 0) if tensor is None or tensor.ndim == 1 else tensor.stride())]
    if input.shape[0] * batch and programs:
        launch(_rope_kernel, (input.shape[0] * batch, programs), out, out_y, input, input_y, cos, sin, positions,
               offsets, *strides, heads, y_heads, row_step(cos), 0 if sin is None else row_step(sin), *indices, batch,
               *parts, sequences, **blocks, BLOCK_H=block_h, BLOCK_Y=block_y,
               BLOCK_S=triton.next_power_of_2(sequences) if sequences else 0, options={"num_warps": num_warps})


def rope_2d(out: torch.Tensor, input: torch.Tensor, cos_h: torch.Tensor, sin_h: torch.Tensor, cos_w: torch.Tensor,
            sin_w: torch.Tensor, img_height: int, img_width: int, *flags: bool, elements: int | None = None,
            num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and rope's parameters; writes `out`."""
    half_dim = input.shape[-1] // 2
    batch, patches, heads, _ = input.shape
    parts, blocks = _constants(half_dim, cos_h.shape[-1], flags, [(out, input)])
    programs, (block_h,), num_warps = _tiles(input, [heads], blocks, (elements or _ELEMENTS) // 2, num_warps)
    launch(_rope_2d_kernel, (batch * patches, programs), out, input, cos_h, sin_h, cos_w, sin_w, *out.stride()[:3],
           *input.stride()[:3], heads, *map(row_step, (cos_h, sin_h, cos_w, sin_w)), patches, img_width, half_dim,
           *parts, **blocks, BLOCK_H=block_h, options={"num_warps": num_warps})


def _constants(head_dim: int, width: int, flags: tuple, tensors: list) -> tuple[list[int], dict[str, int | bool]]:
    """What of a head is rotated and copied, as integers; the constexpr arguments that both kernels share."""
    rotate_style, is_shared, nope_first, is_backward = flags
    rotary_half = width if is_shared else width // 2
    rest = head_dim - 2 * rotary_half
    is_in_place = all(x is None or (x.data_ptr() == y.data_ptr() and x.stride() == y.stride()) for x, y in tensors)
    copied = 0 if is_in_place else rest
    blocks = {"BLOCK_P": triton.next_power_of_2(max(rotary_half, 1)),
              "BLOCK_C": triton.next_power_of_2(copied) if copied else 0, "IS_GPTJ": rotate_style == 1,
              "IS_SHARED": is_shared, "IS_BACKWARD": is_backward, "IS_IN_PLACE": is_in_place}
    return [rest if nope_first else 0, rotary_half, 0 if nope_first else 2 * rotary_half, copied], blocks


def _tiles(input: torch.Tensor, counts: list[int], blocks: dict[str, int | bool], elements: int,
           num_warps: int | None) -> tuple[int, list[int], int]:
    """A token's programs; the heads of each tensor that one takes, powers of two or 0 of none; its waves.

    As many heads as give each lane 16 bytes of an access, even where the tensor has fewer: with a tile of fewer
    elements all lanes would take part, in accesses of less.
    """
    pairs, wave_size = blocks["BLOCK_P"], target_of(input.device).wave_size
    limit = max(elements // (2 * pairs), 1)
    programs = triton.cdiv(max(counts), 1 << (limit.bit_length() - 1))
    heads = [triton.next_power_of_2(triton.cdiv(count, programs)) if count else 0 for count in counts]
    num_warps = num_warps or min(max(max(heads) * pairs // (8 * wave_size), 1), _MAX_WARPS)
    lane_pairs = 16 // input.element_size() // (2 if blocks["IS_GPTJ"] else 1)
    least = lane_pairs * wave_size * num_warps // pairs
    return programs, [max(count, least) if count else 0 for count in heads], num_warps


def _strides(tensor: torch.Tensor | None) -> tuple[int, int, int]:
    """Of s, b and head."""
    if tensor is None:
        return 0, 0, 0
    return (*tensor.stride()[:2], tensor.stride(-2)) if tensor.ndim == 4 else (tensor.stride(0), 0, tensor.stride(1))


def row_step(table: torch.Tensor) -> int:
    """Elements from row to row."""
    return next((step for size, step in zip(table.shape[:-1], table.stride(), strict=False) if size > 1), 0)
