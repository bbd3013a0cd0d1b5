# SPDX-License-Identifier: MIT
"""Rotary position embedding in Triton: bodies and launchers, named by the operators of ops/rope.py and rope_2d.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aiter_like.device import target_of
from aiter_like.triton_kernels.launch import await_stream, launch

_ELEMENTS = {64: 4096, 32: 8192}  # of the heads that one program takes, by the lanes of a wave
_MAX_WARPS = {64: 8, 32: 4}  # 40 heads of 128 on an H200: 42.4 us of 8192 tokens, with 4096 elements on 8 waves 46.5


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
def _turn(out, x, out_head, x_head, heads, first_head, cos, sin, rotary_begin, rotary_half, copied_begin, copied,
          BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, IS_GPTJ: tl.constexpr,
          IS_SHARED: tl.constexpr, IS_BACKWARD: tl.constexpr, IS_IN_PLACE: tl.constexpr):
    """first' = first · cos - second · sin, second' = second · cos + first · sin for BLOCK_H heads; copies the rest."""
    pairs = tl.arange(0, BLOCK_P)
    is_pair = pairs < rotary_half
    head = first_head + tl.arange(0, BLOCK_H)
    is_head = (head < heads)[:, None]
    x_heads = x + head.to(tl.int64)[:, None] * x_head  # [BLOCK_H, 1]
    out_heads = out + head.to(tl.int64)[:, None] * out_head
    # The heads are loaded first: the table's row is known only after a load of its own.
    if IS_GPTJ:
        flat = rotary_begin + tl.arange(0, 2 * BLOCK_P)[None, :]
        is_flat = is_head & (flat < rotary_begin + 2 * rotary_half)
        values = tl.load(x_heads + flat, mask=is_flat, other=0.0)
    else:
        low = rotary_begin + pairs[None, :]
        mask = is_head & is_pair[None, :]
        first = tl.load(x_heads + low, mask=mask, other=0.0)
        second = tl.load(x_heads + low + rotary_half, mask=mask, other=0.0)
    if IS_SHARED:
        cos_1, sin_1 = _angles(cos, sin, pairs, is_pair)
        cos_2, sin_2 = cos_1, sin_1
    elif IS_GPTJ:
        cos_1, sin_1 = _angles(cos, sin, 2 * pairs, is_pair)
        cos_2, sin_2 = _angles(cos, sin, 2 * pairs + 1, is_pair)
    else:
        cos_1, sin_1 = _angles(cos, sin, pairs, is_pair)
        cos_2, sin_2 = _angles(cos, sin, pairs + rotary_half, is_pair)
    if IS_BACKWARD:
        sin_1, sin_2 = -sin_2, -sin_1
    if IS_GPTJ:
        first, second = tl.split(tl.reshape(values.to(tl.float32), (BLOCK_H, BLOCK_P, 2)))
    else:
        first, second = first.to(tl.float32), second.to(tl.float32)
    turned_1 = first * cos_1[None, :] - second * sin_1[None, :]
    turned_2 = second * cos_2[None, :] + first * sin_2[None, :]
    if IS_IN_PLACE:
        tl.debug_barrier()  # a wave may load what another one, with the same elements, is about to store
    if IS_GPTJ:
        values = tl.reshape(tl.join(turned_1, turned_2), (BLOCK_H, 2 * BLOCK_P))
        tl.store(out_heads + flat, values.to(out.dtype.element_ty), mask=is_flat)
    else:
        tl.store(out_heads + low, turned_1.to(out.dtype.element_ty), mask=mask)
        tl.store(out_heads + low + rotary_half, turned_2.to(out.dtype.element_ty), mask=mask)
    if BLOCK_C > 0:
        rest = tl.arange(0, BLOCK_C)[None, :]
        is_rest = is_head & (rest < copied)
        rest = copied_begin + rest
        tl.store(out_heads + rest, tl.load(x_heads + rest, mask=is_rest), mask=is_rest)


@triton.jit
def _rope_kernel(out, out_y, x, y, cos, sin, positions, offsets, out_s, out_b, out_head, x_s, x_b, x_head, out_y_s,
                 out_y_b, out_y_head, y_s, y_b, y_head, heads, y_heads, cos_row, sin_row, positions_s, positions_b,
                 offsets_s, offsets_b, batch, x_blocks, rotary_begin, rotary_half, copied_begin, copied, sequences,
                 BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
                 IS_GPTJ: tl.constexpr, IS_SHARED: tl.constexpr, IS_BACKWARD: tl.constexpr, IS_IN_PLACE: tl.constexpr,
                 OVERLAPS: tl.constexpr):
    """One token's BLOCK_H heads of `x`, or of `y` from block `x_blocks` on; bound: memory."""
    await_stream(OVERLAPS)
    s = (tl.program_id(0) // batch).to(tl.int64)
    b = (tl.program_id(0) % batch).to(tl.int64)
    row = s
    if BLOCK_S > 0:
        sequence = tl.arange(0, BLOCK_S)
        starts = tl.load(positions + sequence, mask=sequence < sequences, other=0).to(tl.int64)
        row = s - tl.max(tl.where(starts <= s, starts, 0), 0)
    elif positions is not None:
        row = tl.load(positions + s * positions_s + b * positions_b).to(tl.int64)
    if offsets is not None:
        row += tl.load(offsets + s * offsets_s + b * offsets_b).to(tl.int64)
    cos += row * cos_row
    if sin is not None:
        sin += row * sin_row
    block = tl.program_id(1)
    if block < x_blocks:
        _turn(out + s * out_s + b * out_b, x + s * x_s + b * x_b, out_head, x_head, heads, block * BLOCK_H, cos, sin,
              rotary_begin, rotary_half, copied_begin, copied, BLOCK_H, BLOCK_P, BLOCK_C, IS_GPTJ, IS_SHARED,
              IS_BACKWARD, IS_IN_PLACE)
    elif y is not None:
        _turn(out_y + s * out_y_s + b * out_y_b, y + s * y_s + b * y_b, out_y_head, y_head, y_heads,
              (block - x_blocks) * BLOCK_H, cos, sin, rotary_begin, rotary_half, copied_begin, copied, BLOCK_H, BLOCK_P,
              BLOCK_C, IS_GPTJ, IS_SHARED, IS_BACKWARD, IS_IN_PLACE)


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
    first_head = tl.program_id(1) * BLOCK_H
    row, column = s // img_width, s % img_width
    _turn(out, x, out_head, x_head, heads, first_head, cos_h + row * cos_h_row, sin_h + row * sin_h_row, rotary_begin,
          rotary_half, copied_begin, copied, BLOCK_H, BLOCK_P, BLOCK_C, IS_GPTJ, IS_SHARED, IS_BACKWARD, IS_IN_PLACE)
    _turn(out + half_dim, x + half_dim, out_head, x_head, heads, first_head, cos_w + column * cos_w_row,
          sin_w + column * sin_w_row, rotary_begin, rotary_half, copied_begin, copied, BLOCK_H, BLOCK_P, BLOCK_C,
          IS_GPTJ, IS_SHARED, IS_BACKWARD, IS_IN_PLACE)


def rope(out: torch.Tensor, out_y: torch.Tensor | None, input: torch.Tensor, input_y: torch.Tensor | None,
         cos: torch.Tensor, sin: torch.Tensor | None, positions: torch.Tensor | None, offsets: torch.Tensor | None,
         *flags: bool, elements: int | None = None, num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends; writes `out` and `out_y`.

    `elements` of the heads are one program's; None for either: what suits most sizes.
    """
    batch, wave_size = input.shape[1] if input.ndim == 4 else 1, target_of(input.device).wave_size
    is_packed = positions is not None and input.ndim == 3
    parts, blocks = _constants(input.shape[-1], cos.shape[-1], flags, [(out, input), (out_y, input_y)],
                                elements or _ELEMENTS[wave_size])
    sequences = positions.shape[0] - 1 if is_packed else 0
    heads, y_heads = input.shape[-2], 0 if input_y is None else input_y.shape[-2]
    x_blocks, y_blocks = (triton.cdiv(count, blocks["BLOCK_H"]) for count in (heads, y_heads))
    strides = [stride for tensor in (out, input, out_y, input_y) for stride in _strides(tensor)]
    indices = [stride for tensor in (positions, offsets)
               for stride in ((0, 0) if tensor is None or tensor.ndim == 1 else tensor.stride())]
    if input.shape[0] * batch and x_blocks + y_blocks:
        launch(_rope_kernel, (input.shape[0] * batch, x_blocks + y_blocks), out, out_y, input, input_y, cos, sin,
               positions, offsets, *strides, heads, y_heads, row_step(cos), 0 if sin is None else row_step(sin),
               *indices, batch, x_blocks, *parts, sequences, **blocks,
               BLOCK_S=triton.next_power_of_2(sequences) if sequences else 0,
               options={"num_warps": num_warps or _num_warps(blocks, wave_size)})


def rope_2d(out: torch.Tensor, input: torch.Tensor, cos_h: torch.Tensor, sin_h: torch.Tensor, cos_w: torch.Tensor,
            sin_w: torch.Tensor, img_height: int, img_width: int, *flags: bool, elements: int | None = None,
            num_warps: int | None = None) -> None:
    """Same arguments as the operator's other backends, and rope's parameters; writes `out`."""
    half_dim = input.shape[-1] // 2
    wave_size = target_of(input.device).wave_size
    parts, blocks = _constants(half_dim, cos_h.shape[-1], flags, [(out, input)], elements or _ELEMENTS[wave_size])
    batch, patches, heads, _ = input.shape
    launch(_rope_2d_kernel, (batch * patches, triton.cdiv(heads, blocks["BLOCK_H"])), out, input, cos_h, sin_h, cos_w,
           sin_w, *out.stride()[:3], *input.stride()[:3], heads, *map(row_step, (cos_h, sin_h, cos_w, sin_w)), patches,
           img_width, half_dim, *parts, **blocks, options={"num_warps": num_warps or _num_warps(blocks, wave_size)})


def _constants(head_dim: int, width: int, flags: tuple, tensors: list,
               elements: int) -> tuple[list[int], dict[str, int | bool]]:
    """What of a head is rotated and copied, as integers; the constexpr arguments that both kernels share."""
    rotate_style, is_shared, nope_first, is_backward = flags
    rotary_half = width if is_shared else width // 2
    rest = head_dim - 2 * rotary_half
    is_in_place = all(x is None or (x.data_ptr() == y.data_ptr() and x.stride() == y.stride()) for x, y in tensors)
    copied = 0 if is_in_place else rest
    heads = max(x.shape[-2] for x, _ in tensors if x is not None)
    block_p = triton.next_power_of_2(max(rotary_half, 1))
    blocks = {"BLOCK_H": min(triton.next_power_of_2(heads), max(elements // (2 * block_p), 1)), "BLOCK_P": block_p,
              "BLOCK_C": triton.next_power_of_2(copied) if copied else 0, "IS_GPTJ": rotate_style == 1,
              "IS_SHARED": is_shared, "IS_BACKWARD": is_backward, "IS_IN_PLACE": is_in_place}
    return [rest if nope_first else 0, rotary_half, 0 if nope_first else 2 * rotary_half, copied], blocks


def _num_warps(blocks: dict[str, int | bool], wave_size: int) -> int:
    """Of which each lane takes at least 8 elements on a wave of 64."""
    return min(max(blocks["BLOCK_H"] * 2 * blocks["BLOCK_P"] // 512, 1), _MAX_WARPS[wave_size])


def _strides(tensor: torch.Tensor | None) -> tuple[int, int, int]:
    """Of s, b and head."""
    if tensor is None:
        return 0, 0, 0
    return (*tensor.stride()[:2], tensor.stride(-2)) if tensor.ndim == 4 else (tensor.stride(0), 0, tensor.stride(1))


def row_step(table: torch.Tensor) -> int:
    """Elements from row to row."""
    return next((step for size, step in zip(table.shape[:-1], table.stride(), strict=False) if size > 1), 0)
