# SPDX-License-Identifier: MIT
"""AITER's rotations of activations before they are quantised: a Hadamard transform, with or without RoPE before it.

FP4 is made of torch's functions: no arithmetic of this hardware has it, but its caches may hold it.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.quant.formats import e8m0_to_f32, f32_to_mx_e8m0_scale, f32_to_mxfp4
from aiter_like.ops.common import elements

_ROTATE, _ROPE = "rotate_activation", "rope_rotate_activation"
_SMALLEST_AMAX = 6.0 * 2.0**-126  # a group of FP4: smaller ones have the scale of this one
_GPTJ = 1  # neighbours rotate together


@aiter("aiter aiter.ops.quant")
def rotate_activation(out: Tensor, input: Tensor, scale: Tensor | None = None, group_size: int | None = None,
                      shuffle_scale: bool = True) -> None:
    """`hadamard_transform` of each row, rounded to `out`.

    Args:
        out: [..., heads, n], written: bf16|fp16|fp32; or [..., heads, n / 2] `dtypes.fp4x2`.
        input: [..., heads, n] bf16|fp16|fp32, n a power of two.
        scale: of FP4, written: one byte (e8m0) for each `group_size` columns: [..., heads, n / group_size]; with
            `shuffle_scale` [..., n / group_size / 4, 4, 16, heads / 16], the last dimension padded with zeros to a
            multiple of four.
        group_size: of FP4; default: 32.
    """
    check.tensor(_ROTATE, "input", input, dtypes=elements.FLOATS)
    check.tensor(_ROTATE, "out", out)
    if out.dtype != dtypes.fp4x2:
        aiter_like.hadamard_transform(input, out=out)
        return
    x = aiter_like.hadamard_transform(input.float())
    _write_fp4(_ROTATE, out, x, scale, 32 if group_size is None else group_size, shuffle_scale)


@aiter("aiter aiter.ops.quant", callers="S")
def rope_rotate_activation(out: Tensor, input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rope_dim: int,
                           out_scale: Tensor | None = None, group_size: int | None = None, shuffle_scale: bool = True,
                           do_rotate_act: bool = True) -> None:
    """RoPE of the last `rope_dim` elements of each head, whose neighbours rotate together; then `rotate_activation`.
    Nothing between is rounded to fewer bits than fp32 has.

    Args:
        out: as for `rotate_activation`; or [tokens, heads, n] of the device's fp8.
        input: [tokens, heads, n] bf16|fp16|fp32.
        cos, sin: [positions, rope_dim / 2] bf16|fp16|fp32.
        positions: [tokens] int32|int64.
        out_scale: `scale` of `rotate_activation`; of fp8, tokens · heads · n / group_size numbers in fp32, contiguous:
            the largest magnitude of each `group_size` columns, 32, 64 or 128, divided by that of fp8.
        group_size: default: 32 of FP4, 128 of fp8.
        do_rotate_act: False: no Hadamard transform.
    """
    check.tensor(_ROPE, "input", input, rank=3, dtypes=elements.FLOATS)
    check.integer(_ROPE, "rope_dim", rope_dim, 2, input.shape[2])
    check.flag(_ROPE, "do_rotate_act", do_rotate_act)
    for name, table in (("cos", cos), ("sin", sin)):
        check.tensor(_ROPE, name, table, dtypes=elements.FLOATS, shape=(None, rope_dim // 2), device=input.device)
    check.tensor(_ROPE, "positions", positions, dtypes=elements.INTEGERS, shape=input.shape[:1], device=input.device)
    check.tensor(_ROPE, "out", out, device=input.device)
    is_fp8, is_fp4 = out.dtype in elements.FP8, out.dtype == dtypes.fp4x2
    if not is_fp4:
        check.tensor(_ROPE, "out", out, dtypes=(*elements.FLOATS, *elements.FP8), shape=input.shape)
    if is_fp8:
        group_size = 128 if group_size is None else group_size
        scales = _fp8_scales(input, out_scale, group_size)
    x = input.float() if input.dtype != torch.float32 else input.clone()
    tables = [table.float()[:, None, None] for table in (cos, sin)]
    aiter_like.rope_cached_positions_fwd_inplace(x[..., -rope_dim:].unsqueeze(1), *tables, positions[:, None], _GPTJ,
                                                 True, False)
    if do_rotate_act:
        aiter_like.hadamard_transform(x, out=x)
    if is_fp4:
        _write_fp4(_ROPE, out, x, out_scale, 32 if group_size is None else group_size, shuffle_scale)
    elif is_fp8:
        aiter_like.dynamic_per_token_scaled_quant(out, x, scales)
    else:
        out.copy_(x)


def _fp8_scales(input: Tensor, scale: Tensor | None, group_size: int) -> Tensor:
    """`out_scale` of fp8, [tokens, heads, groups]."""
    check.choice(_ROPE, "group_size", group_size, (32, 64, 128))
    if input.shape[2] % group_size:
        raise ValueError(f"{_ROPE}: group_size must divide the rows, got {group_size} for shape {tuple(input.shape)}")
    check.tensor(_ROPE, "out_scale", scale, dtypes=(torch.float32,), device=input.device)
    shape = (*input.shape[:2], input.shape[2] // group_size)
    if scale.numel() != torch.Size(shape).numel() or not scale.is_contiguous():
        raise ValueError(f"{_ROPE}: out_scale must be contiguous with {torch.Size(shape).numel()} elements, got shape "
                         f"{tuple(scale.shape)}, strides {scale.stride()}")
    return scale.view(shape)


def _write_fp4(op: str, out: Tensor, x: Tensor, scale: Tensor | None, group_size: int, is_shuffled: bool) -> None:
    """Rounds `x`, in fp32, to FP4 with a power of two for each group."""
    check.integer(op, "group_size", group_size, 2)
    check.flag(op, "shuffle_scale", is_shuffled)
    columns = x.shape[-1]
    if columns % group_size:
        raise ValueError(f"{op}: group_size must divide the rows, got {group_size} for shape {tuple(x.shape)}")
    check.tensor(op, "out", out, shape=(*x.shape[:-1], columns // 2), device=x.device)
    check.tensor(op, "scale", scale, dtypes=(dtypes.fp8_e8m0, torch.uint8), device=x.device)
    groups = x.unflatten(-1, (-1, group_size))
    scales = f32_to_mx_e8m0_scale(groups.abs().amax(-1).clamp(min=_SMALLEST_AMAX))
    ordered = _shuffled(op, scales.view(torch.uint8)) if is_shuffled else scales.view(torch.uint8)
    if scale.numel() < ordered.numel() or not scale.is_contiguous():
        raise ValueError(f"{op}: scale must be contiguous with at least {ordered.numel()} elements, got shape "
                         f"{tuple(scale.shape)}, strides {scale.stride()}")
    codes = f32_to_mxfp4((groups / e8m0_to_f32(scales)[..., None]).flatten(-2))
    dtypes.viewed(out, torch.uint8).copy_(codes.view(torch.uint8))
    dtypes.viewed(scale, torch.uint8).flatten()[:ordered.numel()] = ordered.flatten()


def _shuffled(op: str, scales: Tensor) -> Tensor:
    """[..., groups / 4, 4, 16, heads / 16 and padding] of scales [..., heads, groups]: what a lane of a product of
    16 heads with 4 groups reads at once lies side by side."""
    if scales.ndim < 2 or scales.shape[-2] % 16 or scales.shape[-1] % 4:
        raise ValueError(f"{op}: shuffle_scale is for multiples of 16 heads and of 4 groups, got scales of shape "
                         f"{tuple(scales.shape)}")
    tiles = scales.shape[-2] // 16
    apart = scales.unflatten(-2, (tiles, 16)).unflatten(-1, (-1, 4))  # [..., tiles, 16, groups / 4, 4]
    return torch.nn.functional.pad(apart.movedim((-2, -1, -3, -4), (-4, -3, -2, -1)), (0, -tiles % 4))
