# SPDX-License-Identifier: MIT
"""Weights and scales in the order in which AITER's matrix kernels read them, once per model: in torch, no kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.common.marks import mark

__all__ = ["shuffle_scale", "shuffle_weight", "unshuffle_weight"]

_WAVE = 64  # lanes that share a tile of the interleaved form


def shuffle_weight(x: Tensor, layout: tuple[int, int] = (16, 16), use_int4: bool = False, is_guinterleave: bool = False,
                   gate_up: bool = False, pad_k_to: int = 0) -> Tensor:
    """Weights in bands of R rows, each cut into packs of 16 bytes that follow one another row by row; a permutation,
    which `unshuffle_weight` undoes.

    Element (n, k) goes to (n // R) · R·K + (k // P) · R·P + (n % R) · P + k % P, with layout = (R, C) and P the
    elements of 16 bytes: row-major [N/R, K/P, R, P].

    Args:
        x: [..., N, K] of 1, 2 or 4 bytes per element; N a multiple of R, K of 2 · C and of P.
        layout: (R, C), as (16, 16) or (32, 16).
        use_int4: `x` holds 4-bit numbers, one per element, that are packed later: P = 32.
        is_guinterleave: the form of 4-bit experts, `x` [E, N, K]: row-major [E, N/R, K/(L·C), L, R, C], L = 64 / R.
        gate_up: with is_guinterleave: N is gate and up one after the other; each band of gate is followed by up's.
        pad_k_to: above 0: K is first filled up with zeros to a multiple of it.

    Returns:
        A new tensor of the same dtype and (padded) shape, with the attributes is_shuffled and shuffle_layout, the
        layout; where pad_k_to is given also aiter_original_k and aiter_padded_k. Attributes do not survive
        nn.Parameter, .to or slices.

    Notes: Exact.
    """
    _check("shuffle_weight", x, layout, use_int4, is_guinterleave, gate_up)
    check.integer("shuffle_weight", "pad_k_to", pad_k_to, low=0)
    original = x.shape[-1]
    if pad_k_to and original % pad_k_to:
        filled = x.new_zeros(*x.shape[:-1], -(-original // pad_k_to) * pad_k_to)
        filled[..., :original] = x
        x = filled
    sizes, order = _tiles("shuffle_weight", x.shape, x.element_size(), layout, use_int4, is_guinterleave, gate_up)
    shuffled = mark(x.reshape(sizes).permute(order).contiguous().view(x.shape), tuple(layout))
    if pad_k_to:
        shuffled.aiter_original_k, shuffled.aiter_padded_k = original, x.shape[-1]
    return shuffled


def unshuffle_weight(x: Tensor, layout: tuple[int, int] = (16, 16), use_int4: bool = False,
                     is_guinterleave: bool = False, gate_up: bool = False) -> Tensor:
    """Undoes `shuffle_weight` with the same arguments; a padded K stays padded. Like `shuffle_weight` otherwise.

    Args:
        x: [..., N, K], contiguous, as `shuffle_weight` returned it.

    Returns: A new tensor of the same dtype and shape.

    Source: the inverse of AITER's `shuffle_weight`.
    """
    _check("unshuffle_weight", x, layout, use_int4, is_guinterleave, gate_up)
    sizes, order = _tiles("unshuffle_weight", x.shape, x.element_size(), layout, use_int4, is_guinterleave, gate_up)
    back = [order.index(dimension) for dimension in range(len(order))]
    return x.reshape([sizes[dimension] for dimension in order]).permute(back).contiguous().view(x.shape)


def shuffle_scale(src: Tensor | None, experts_cnt: int | None = None, is_guinterleave: bool = False,
                  gate_up: bool = False) -> Tensor | None:
    """Block exponents of MXFP4 weights in tiles of 32 rows × 8 groups; fp32 block scales stay as they are.

    Exponent (m, g) of the filled matrix goes to row-major [M/32, G/8, 4, 16, 2, 2] at (m // 32, g // 8, g % 4, m % 16,
    g % 8 // 4, m % 32 // 16).

    Args:
        src: [M, G] of 1-byte exponents, one per 32 columns; fp32 scales of any shape; or None.
        experts_cnt: with is_guinterleave, how many experts have M / experts_cnt rows each, multiples of 32; else None.
        is_guinterleave: the same tiles, of the form that goes with `shuffle_weight`'s of that name: M stays as it is.
        gate_up: with is_guinterleave only: the two sixteens of a tile are rows of the two halves of an expert.

    Returns:
        [M filled up to a multiple of 256, or with is_guinterleave M, G to one of 8], new, filled with exponents of 1
        (0x7F); fp32 `src` itself.

    Notes: A permutation: exact.
    """
    if src is None or (isinstance(src, Tensor) and src.dtype == torch.float32):
        return src
    op = "shuffle_scale"
    check.tensor(op, "src", src, rank=2, last_contiguous=False)
    if src.element_size() != 1:
        raise TypeError(f"{op}: src must have 1 byte per element, or be fp32, got {src.dtype}")
    for name, value in (("is_guinterleave", is_guinterleave), ("gate_up", gate_up)):
        check.flag(op, name, value)
    if not is_guinterleave and (gate_up or experts_cnt is not None):
        raise ValueError(f"{op}: gate_up and experts_cnt must not be given unless is_guinterleave is True")
    rows, groups = src.shape[0] if is_guinterleave else -(-src.shape[0] // 256) * 256, -(-src.shape[1] // 8) * 8
    if is_guinterleave:
        check.integer(op, "experts_cnt", experts_cnt, low=1)
        if rows % (32 * experts_cnt):
            raise ValueError(f"{op}: src must have a multiple of 32 rows for each of {experts_cnt} experts, got shape "
                             f"{tuple(src.shape)}")
    filled = torch.full((rows, groups), 0x7F, dtype=torch.uint8, device=src.device)
    filled[:src.shape[0], :src.shape[1]] = src.view(torch.uint8)
    if gate_up:
        parts = filled.view(experts_cnt, 2, rows // experts_cnt // 32, 16, groups // 8, 2, 4)
        return parts.permute(0, 2, 4, 6, 3, 5, 1).reshape(rows, groups).view(src.dtype)
    tiles = filled.view(rows // 32, 2, 16, groups // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    return tiles.reshape(rows, groups).view(src.dtype)


def _check(op: str, x: Tensor, layout: tuple[int, int], use_int4: bool, is_guinterleave: bool, gate_up: bool) -> None:
    check.tensor(op, "x", x, last_contiguous=False)
    if x.ndim < 2 or x.element_size() not in (1, 2, 4):
        raise ValueError(f"{op}: x must be [..., N, K] of 1, 2 or 4 bytes per element, got {x.dtype} of shape "
                         f"{tuple(x.shape)}")
    if len(layout) != 2:
        raise ValueError(f"{op}: layout must have two numbers, got {layout}")
    for value in layout:
        check.integer(op, "layout", value, low=1)
    for name, value in (("use_int4", use_int4), ("is_guinterleave", is_guinterleave), ("gate_up", gate_up)):
        check.flag(op, name, value)
    if gate_up and not is_guinterleave:
        raise ValueError(f"{op}: gate_up must be False unless is_guinterleave is True")
    if is_guinterleave and (x.ndim != 3 or use_int4):
        raise ValueError(f"{op}: with is_guinterleave x must be [E, N, K] and use_int4 False, got shape "
                         f"{tuple(x.shape)}, use_int4 {use_int4}")


def _tiles(op: str, shape: torch.Size, element_bytes: int, layout: tuple[int, int], use_int4: bool,
           is_guinterleave: bool, gate_up: bool) -> tuple[list[int], list[int]]:
    """The shape of `x` cut into tiles, and the order of these dimensions in memory.

    Raises:
        ValueError: N or K are no multiples of a tile's sides.
    """
    (n, k), (rows, columns) = shape[-2:], layout
    band = 2 * rows if gate_up else rows
    if is_guinterleave:
        if _WAVE % rows:
            raise ValueError(f"{op}: layout must have a divisor of {_WAVE} rows with is_guinterleave, got {layout}")
        lanes = _WAVE // rows
        piece = lanes * columns
    else:
        pack = 32 if use_int4 else 16 // element_bytes
        piece = math.lcm(2 * columns, pack)
    if n % band or k % piece:
        raise ValueError(f"{op}: N must be a multiple of {band} and K of {piece} for layout {layout}, got N {n}, K {k}")
    if not is_guinterleave:
        return [math.prod(shape[:-2]), n // rows, rows, k // pack, pack], [0, 1, 3, 2, 4]
    if gate_up:
        return [shape[0], 2, n // band, rows, k // piece, lanes, columns], [0, 2, 1, 4, 5, 3, 6]
    return [shape[0], n // rows, rows, k // piece, lanes, columns], [0, 1, 3, 4, 2, 5]
