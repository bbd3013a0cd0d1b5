# SPDX-License-Identifier: MIT
"""AITER's functions on formats of numbers, in torch there as here: scales that are powers of two (e8m0), elements of
fp4 (e2m1), int4 in words.
"""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.objects import MxDtypeInt, MxScaleRoundModeInt

_FORMATS = {MxDtypeInt.FP4_E2M1: (6.0, 4.0, 1), MxDtypeInt.FP8_E4M3: (448.0, 256.0, 3),
            MxDtypeInt.FP8_E4M3_FNUZ: (240.0, 128.0, 3)}
"""Of each format of elements: the largest, the largest power of two, bits of a mantissa."""

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_WORD_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which int4 of a word comes to each place


@aiter("aiter.utility.fp4_utils", stays=True)
def f32_to_mx_e8m0_scale(amax: Tensor, *, mode: int = MxScaleRoundModeInt.RoundUp,
                         dtype: int = MxDtypeInt.FP4_E2M1) -> Tensor:
    """The scale of elements of which `amax` ≥ 0 is the largest magnitude: the biased exponent of a power of two, in
    `dtypes.fp8_e8m0`; 255, which is NaN, where `amax` is not finite.

    Args:
        amax: any shape.
        mode: RoundUp: the power of two at or above amax / the format's largest; of the others, of amax / its largest
            power of two: RoundDown that below, Ceil that above, Even that of amax rounded to the format's mantissa.
        dtype: the format, of MxDtypeInt.

    Raises:
        ValueError: `mode` or `dtype` is none of those.
    """
    name = "f32_to_mx_e8m0_scale"
    check.tensor(name, "amax", amax, last_contiguous=False)
    check.choice(name, "dtype", int(dtype), tuple(map(int, MxDtypeInt)))
    check.choice(name, "mode", int(mode), tuple(map(int, MxScaleRoundModeInt)))
    largest, power, mantissa_bits = _FORMATS[MxDtypeInt(int(dtype))]
    mode, amax = MxScaleRoundModeInt(int(mode)), amax.float()
    if mode is MxScaleRoundModeInt.Even:
        half = 1 << (22 - mantissa_bits)
        amax = torch.where(amax.isfinite(), (_bits(amax) + half & ~0x7FFFFF).view(torch.float32), amax)
    bits = _bits(amax / torch.full_like(amax, largest if mode is MxScaleRoundModeInt.RoundUp else power))
    exponent = bits >> 23 & 0xFF
    if mode in (MxScaleRoundModeInt.RoundUp, MxScaleRoundModeInt.Ceil):
        exponent = (exponent + (bits & 0x7FFFFF != 0)).clamp(max=255)
    return exponent.to(torch.uint8).view(dtypes.fp8_e8m0)


@aiter("aiter.utility.fp4_utils", stays=True)
def fp4_f32_to_e8m0_scale(amax: Tensor) -> Tensor:
    """`f32_to_mx_e8m0_scale` of elements of fp4."""
    return f32_to_mx_e8m0_scale(amax)


@aiter("aiter.utility.fp4_utils", callers="V", stays=True)
def e8m0_to_f32(scale_e8m0_biased: Tensor) -> Tensor:
    """2^(byte - 127) in fp32; NaN of 255."""
    check.tensor("e8m0_to_f32", "scale_e8m0_biased", scale_e8m0_biased, dtypes=(dtypes.fp8_e8m0, torch.uint8),
                 last_contiguous=False)
    biased = scale_e8m0_biased.view(torch.uint8).int()
    bits = torch.where(biased == 0, 0x00400000, biased << 23)  # 2^-127 is a denormal
    return bits.view(torch.float32).where(biased < 255, torch.nan)


@aiter("aiter.utility.fp4_utils", stays=True)
def f32_to_mxfp4(x: Tensor) -> Tensor:
    """`x` [..., n] rounded to the nearest fp4, ties to the even code, saturated; two in a byte, the first in its low
    half: [..., n / 2] in `dtypes.fp4x2`. The format has no NaN: one becomes 0.
    """
    check.tensor("f32_to_mxfp4", "x", x, last_contiguous=False)
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"f32_to_mxfp4: x must have an even last dimension, got shape {tuple(x.shape)}")
    magnitude, code = x.float().abs(), torch.zeros_like(x, dtype=torch.int32)
    for lower, upper in zip(range(7), range(1, 8)):
        middle = (_FP4[lower] + _FP4[upper]) / 2
        code += (magnitude > middle) | ((magnitude == middle) & (upper % 2 == 0))
    code |= (x.signbit() & ~x.isnan()).int() << 3
    pairs = code.unflatten(-1, (-1, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8).view(dtypes.fp4x2)


@aiter("aiter.utility.fp4_utils", callers="V", stays=True)
def mxfp4_to_f32(x: Tensor) -> Tensor:
    """The fp4 of bytes [..., n] as fp32 [..., 2 · n]; its inverse."""
    check.tensor("mxfp4_to_f32", "x", x, dtypes=(dtypes.fp4x2, torch.uint8), last_contiguous=False)
    values = torch.tensor([*_FP4, *(-value for value in _FP4)], device=x.device, dtype=torch.float32)
    codes = x.view(torch.uint8).int()
    return values[torch.stack((codes & 15, codes >> 4), -1).flatten(-2)]


@aiter("aiter.int4_utils", stays=True)
def convert_int8_to_uint32_int4(tensor: Tensor) -> Tensor:
    """Eight int8 of the last dimension, of which each is from -8 to 7, as one uint32, the first in its lowest bits:
    [..., k] → [..., k / 8].
    """
    name = "convert_int8_to_uint32_int4"
    check.tensor(name, "tensor", tensor, dtypes=(torch.int8,), last_contiguous=False)
    if tensor.ndim == 0 or tensor.shape[-1] % 8:
        raise ValueError(f"{name}: tensor must have a last dimension of whole eights, got shape {tuple(tensor.shape)}")
    return _word_of((tensor & 15).int().unflatten(-1, (-1, 8)))


@aiter("aiter.ops.quant", callers="V", stays=True)
def per_1x32_i4_quant(weight: Tensor, group_size: int = 32) -> tuple[Tensor, Tensor]:
    """int4 from −7 to 7, each in an int8, and what `group_size` of them count, as `fused_moe` takes these with
    `QuantType.per_1x32`, the former packed by `pack_int4`. In arithmetic of the dtype of `weight`.

    Args:
        weight: [..., n, k] floating point.
        group_size: divides k.

    Returns:
        int8 [..., n, k] and bf16 [..., k / group_size, n].
    """
    name = "per_1x32_i4_quant"
    check.tensor(name, "weight", weight, dtypes=(torch.bfloat16, torch.float16, torch.float32), last_contiguous=False)
    check.integer(name, "group_size", group_size, 1)
    if weight.ndim < 2 or weight.shape[-1] % group_size:
        raise ValueError(f"{name}: group_size must divide the rows of weight, got {group_size} for shape "
                         f"{tuple(weight.shape)}")
    groups = weight.unflatten(-1, (-1, group_size))
    scale = groups.abs().amax(-1).clamp(min=1e-6) / 7.0
    narrow = (groups / scale[..., None]).round().clamp(-7, 7).to(torch.int8).flatten(-2)
    return narrow, scale.mT.contiguous().to(torch.bfloat16)


@aiter("aiter.int4_utils", stays=True)
def rearrange_4bit_elements(tensor: Tensor) -> Tensor:
    """Words of eight int4 in another order, as uint32: the even ones, counted from the highest bits, come first."""
    name = "rearrange_4bit_elements"
    check.tensor(name, "tensor", tensor, dtypes=(torch.uint32, torch.int32), last_contiguous=False)
    words = tensor.view(torch.int32)[..., None] >> 4 * torch.tensor(_WORD_ORDER, device=tensor.device)
    return _word_of(words & 15)


def _word_of(parts: Tensor) -> Tensor:
    """[..., 8] numbers below 16, the first in the lowest bits of the word."""
    shifted = parts.long() << 4 * torch.arange(8, device=parts.device)
    return shifted.sum(-1).to(torch.uint32)


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


@aiter("aiter aiter.ops.quant", stays=True)
def mxfp4_moe_sort_hip(out_scale: Tensor, scale: Tensor, sorted_ids: Tensor, num_valid_ids: Tensor, token_num: int,
                       cols: int) -> None:
    """`moe_mxfp4_sort` into `out_scale`, contiguous, of one byte, with as many elements at least: its first ones are
    written. `cols` is 32 times the groups.
    """
    name = "mxfp4_moe_sort_hip"
    check.tensor(name, "out_scale", out_scale)
    check.tensor(name, "scale", scale)
    if scale.ndim and cols // 32 != scale.shape[-1]:
        raise ValueError(f"{name}: cols must be {32 * scale.shape[-1]}, 32 times the columns of scale, got {cols}")
    ordered = _sorted_scales(name, scale, sorted_ids, num_valid_ids, token_num)
    if out_scale.element_size() != 1 or not out_scale.is_contiguous() or out_scale.numel() < ordered.numel():
        raise ValueError(f"{name}: out_scale must be contiguous with at least {ordered.numel()} elements of 1 byte, "
                         f"got shape {tuple(out_scale.shape)}, {out_scale.dtype}")
    dtypes.viewed(out_scale.view(-1)[:ordered.numel()], torch.uint8).copy_(ordered.flatten())


def _sorted_scales(name: str, scale: Tensor, sorted_ids: Tensor, num_valid_ids: Tensor, token_num: int) -> Tensor:
    """[pairs rounded up to 32, groups rounded up to 8] uint8, in the order that `shuffle_scale` gives."""
    check.tensor(name, "scale", scale)
    if scale.element_size() != 1 or scale.ndim not in (2, 3) or len(scale) < token_num:
        raise ValueError(f"{name}: scale must have 1 byte per element and 2 or 3 dimensions, the first of at least "
                         f"{token_num}, got {scale.dtype}, shape {tuple(scale.shape)}")
    check.tensor(name, "sorted_ids", sorted_ids, rank=1, dtypes=(torch.int32,), device=scale.device)
    check.tensor(name, "num_valid_ids", num_valid_ids, dtypes=(torch.int32,), device=scale.device)
    if not num_valid_ids.numel():
        raise ValueError(f"{name}: num_valid_ids must have 1 element or more, got none")
    experts, groups = scale.shape[1] if scale.ndim == 3 else 1, scale.shape[-1]
    token, expert = (sorted_ids & 0xFFFFFF).long(), (sorted_ids >> 24).long()
    place = torch.arange(len(sorted_ids), device=scale.device)
    is_there = (token < token_num) & (place < num_valid_ids.flatten()[0])
    if scale.ndim == 3:
        is_there &= (expert >= 0) & (expert < experts)
        token = token * experts + expert
    rows = scale.view(torch.uint8).reshape(-1, groups)
    found = rows.new_zeros(-(-len(place) // 32) * 32, -(-groups // 8) * 8)
    if len(rows):
        found[:len(place), :groups] = torch.where(is_there[:, None], rows[token.where(is_there, 0)], 0)
    return aiter_like.shuffle_scale(found, experts_cnt=1, is_guinterleave=True)
