# SPDX-License-Identifier: MIT
"""Reads from fused_moe's arguments how its weights are stored and scaled. Read by fused_moe.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.ops.activation.parts import SWIGLU_LIMIT
from aiter_like.ops.common import elements, quant_rule
from aiter_like.ops.common.marks import LAYOUT, Layout
from aiter_like.ops.gemm.problems import SIXTEEN_BITS
from aiter_like.ops.moe.moe_formats import INT4, MXFP4_GROUP, SCALE_BLOCK, per_byte
from aiter_like.ops.moe.moe_gemm_call import blocks

_ACTIVATIONS = {ActivationType.No: "none", ActivationType.Silu: "silu", ActivationType.Gelu: "gelu",
                ActivationType.Swiglu: "swiglu"}
_BLOCKS = (QuantType.per_1x128, QuantType.per_128x128)
_ROWS = (QuantType.per_Tensor, QuantType.per_Token)
_WORDS = (torch.uint32, torch.int32)  # A word holds eight int4.
_AITER_INT4_GROUP = 32


class Layer(NamedTuple):
    """A layer of experts.

    Attributes:
        w1: [experts, n, k], as moe_gemm takes it, with n = 2 · inner where it has gates.
        w2: [experts, columns, inner].
        w1_scale: as moe_gemm takes it, or None.
        w2_scale: likewise.
        inner: columns between the stages.
        activation: what moe_gemm does after the first product.
        limit: of that activation.
        b_format: of both.
        group_size: of both.
        quantiser: how activations become 8 bits: "tensor", "token" or "block"; None: they stay as they are.
        rows_dtype: what of 8 bits they become, or are.
        is_shuffled: both are.
        is_interleaved: of w1's gates.
    """

    w1: Tensor
    w2: Tensor
    w1_scale: Tensor | None
    w2_scale: Tensor | None
    inner: int
    activation: str
    limit: float
    b_format: str
    group_size: int
    quantiser: str | None
    rows_dtype: torch.dtype
    is_shuffled: bool
    is_interleaved: bool


def layer_of(op: str, hidden: Tensor, w1: Tensor, w2: Tensor, layouts: tuple[Layout | None, Layout | None],
             w1_scale: Tensor | None, w2_scale: Tensor | None, quant_type: int, activation: int, limit: float | None,
             is_interleaved: bool, stage: int = 0, keeps_rows: bool = False) -> Layer:
    """The layer that these arguments of `op` describe; with `stage` 1 or 2 that one's product alone, so that the scale
    of the other matrices is not looked at, and None. `layouts` are those of `shuffle_weight` that `w1` and `w2` are
    marked with, None where they are not; `keeps_rows`: activations of 16 bits keep them.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or values do not fit.
        UnsupportedError: the form is not served.
    """
    k = hidden.shape[1]
    for name, one in (("w1", w1), ("w2", w2)):
        check.tensor(op, name, one, rank=3, device=hidden.device, last_contiguous=False)
    if w1.dtype != w2.dtype:
        raise TypeError(f"{op}: w2 must have the dtype of w1, {w1.dtype}, got {w2.dtype}")
    kind = _quant_type(op, quant_type)
    b_format, quantiser = _format(op, kind, w1, hidden, keeps_rows)
    rows_dtype = w1.dtype
    if b_format in INT4:
        rows_dtype = hidden.dtype if hidden.dtype in elements.FP8 else dtypes.fp8_of(target_of(hidden.device).arch)
    if b_format not in ("same", "fp8"):
        w1, w2 = (_as_bytes(op, name, one, b_format) for name, one in (("w1", w1), ("w2", w2)))
    inner = w2.shape[2] * per_byte(b_format)
    check.tensor(op, "w2", w2, shape=(w1.shape[0], k, None), last_contiguous=False)
    if w1.shape[1] not in (inner, 2 * inner) or w1.shape[2] * per_byte(b_format) != k:
        raise ValueError(f"{op}: w1 must have shape [{w1.shape[0]}, {2 * inner} or {inner}, "
                         f"{k // per_byte(b_format)}] beside w2 of shape {tuple(w2.shape)}, got {tuple(w1.shape)}")
    is_shuffled = _is_shuffled(op, layouts, b_format, is_interleaved)
    given = (("w1_scale", w1_scale, w1, k), ("w2_scale", w2_scale, w2, inner))
    group_size = _group_size(op, kind, b_format, *given[stage == 2])
    if group_size and quantiser and b_format in INT4:
        raise UnsupportedError(f"{op}: {given[stage == 2][0]} must have a scale for each row of int4 beside fp8, got "
                               f"one for {group_size} columns")
    accepted = _scale_dtypes(b_format, quantiser)
    scales = [_scale(op, name, scale, weights, kind, b_format, group_size, accepted) if stage in (0, number) else None
              for number, (name, scale, weights, _) in enumerate(given, 1)]
    is_gated = w1.shape[1] == 2 * inner
    act, limit = _activation(op, activation, limit, is_gated)
    if is_interleaved and not is_gated:
        raise ValueError(f"{op}: gate_mode must be 'separated' where w1 has no gates, got 'interleave'")
    return Layer(w1, w2, *scales, inner, act, limit, b_format, group_size, quantiser, rows_dtype, is_shuffled,
                 is_interleaved)


def _quant_type(op: str, value: Any) -> QuantType:
    try:
        kind = QuantType(int(value))
    except (TypeError, ValueError):
        raise TypeError(f"{op}: quant_type must be a QuantType, got {value!r}") from None
    if kind not in (QuantType.No, *_ROWS, *_BLOCKS, QuantType.per_1x32):
        raise UnsupportedError(f"{op}: quant_type {kind} is not served")
    return kind


def _format(op: str, kind: QuantType, w1: Tensor, hidden: Tensor, keeps_rows: bool) -> tuple[str, str | None]:
    """b_format and how activations are quantised."""
    dtype, k = w1.dtype, hidden.shape[1]
    is_half, keeps_rows = w1.shape[2] * 2 == k, keeps_rows and hidden.dtype in SIXTEEN_BITS
    of_rows = "tensor" if kind is QuantType.per_Tensor else "token"
    if dtype in SIXTEEN_BITS:
        if kind is not QuantType.No:
            raise ValueError(f"{op}: quant_type must be QuantType.No for w1 of {dtype}, got {kind}")
        return "same", None
    if kind is QuantType.No:
        raise ValueError(f"{op}: w1 must have dtype bf16 or fp16 where quant_type is QuantType.No, got {dtype}")
    if kind is QuantType.per_1x32 and (dtype == dtypes.fp4x2 or dtype == torch.uint8):
        return "mxfp4", None
    if dtype in _WORDS and kind is QuantType.per_Token:
        return "int4_words", None if keeps_rows else "token"
    if dtype == dtypes.i4x2 or dtype == torch.int8 and is_half:
        return "int4", of_rows if kind in _ROWS and hidden.dtype in elements.FP8 else None
    if dtype in elements.FP8 and keeps_rows and kind in (*_ROWS, *_BLOCKS):
        return "fp8", None
    if dtype in quant_rule.DTYPES and kind in _ROWS:
        return "same", of_rows
    if dtype in elements.FP8 and kind in _BLOCKS:
        return "same", "block"
    raise UnsupportedError(f"{op}: w1 of {dtype}, shape {tuple(w1.shape)}, with {kind} is not served")


def _as_bytes(op: str, name: str, weights: Tensor, b_format: str) -> Tensor:
    """Two weights of 4 bits in a byte."""
    check.tensor(op, name, weights, last_contiguous=b_format == "int4_words")
    return weights.view(torch.uint8 if b_format == "mxfp4" else torch.int8)


def _is_shuffled(op: str, layouts: tuple[Layout | None, Layout | None], b_format: str, is_interleaved: bool) -> bool:
    """Whether both are shuffled: words are, marked or not. AITER's callers shuffle the scales of mxfp4, too, and 4-bit
    gates that alternate may be shuffled in whole bands: marks do not tell."""
    first, second = (b_format == "int4_words" or layout is not None for layout in layouts)
    if first != second:
        raise ValueError(f"{op}: w2 must be shuffled where w1 is, got {first} and {second}")
    for name, layout in zip(("w1", "w2"), layouts):
        if first and (layout not in (None, LAYOUT) or b_format == "mxfp4"):
            raise UnsupportedError(f"{op}: {name} of {b_format} in the order of shuffle_weight with layout {layout} is "
                                   f"not served")
    if first and b_format in INT4 and is_interleaved:
        raise UnsupportedError(f"{op}: w1 of int4 in the order of shuffle_weight is served with gate_mode 'separated', "
                               f"got 'interleave'")
    return first


def _group_size(op: str, kind: QuantType, b_format: str, name: str, scale: Any, weights: Tensor, k: int) -> int:
    """How many weights along k share a scale of 4-bit weights; of 8 bits, what quant_type says."""
    if b_format == "mxfp4":
        return MXFP4_GROUP
    if b_format in ("same", "fp8"):
        return SCALE_BLOCK if kind in _BLOCKS else 0
    if not isinstance(scale, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(scale).__name__}")
    if kind is QuantType.per_1x32:
        return _AITER_INT4_GROUP
    groups = scale.numel() // max(weights.shape[0] * weights.shape[1], 1)
    for size in (32, 64, 128):
        if groups > 1 and -(-k // size) == groups:
            return size
    if groups > 1:
        raise ValueError(f"{op}: {name} must have a scale for each row or for 32, 64 or 128 of {k} columns, got "
                         f"shape {tuple(scale.shape)}")
    return 0


def _scale_dtypes(b_format: str, quantiser: str | None) -> tuple[torch.dtype, ...]:
    if b_format == "mxfp4":
        return torch.uint8, dtypes.fp8_e8m0
    return (torch.float32, *SIXTEEN_BITS) if b_format in INT4 and quantiser is None else (torch.float32,)


def _scale(op: str, name: str, scale: Any, weights: Tensor, kind: QuantType, b_format: str, group_size: int,
           accepted: tuple[torch.dtype, ...]) -> Tensor | None:
    """The scale in the form of moe_gemm: a view of the caller's."""
    experts, n, k = weights.shape[0], weights.shape[1], weights.shape[2] * per_byte(b_format)
    if kind is QuantType.No:
        if scale is not None:
            raise ValueError(f"{op}: {name} must be None where quant_type is QuantType.No, got "
                             f"{type(scale).__name__}")
        return None
    check.tensor(op, name, scale, dtypes=accepted, device=weights.device, last_contiguous=False)
    if b_format == "mxfp4":
        scale = scale.view(torch.uint8)
    if group_size == 0:
        is_one = scale.numel() == experts and kind is QuantType.per_Tensor
        shape = (experts, 1) if is_one else (experts, n)
    elif b_format in ("same", "fp8"):
        shape = (experts, blocks(n), blocks(k))
    else:
        shape = (experts, n, -(-k // group_size))
    is_aiter_int4 = b_format == "int4" and kind is QuantType.per_1x32
    stored = (experts, shape[2], n) if is_aiter_int4 else shape
    if scale.numel() != experts * stored[1] * (stored[2] if len(stored) == 3 else 1):
        raise ValueError(f"{op}: {name} must have shape {stored} for weights of shape {tuple(weights.shape)} with "
                         f"{kind}, got {tuple(scale.shape)}")
    scale = scale.reshape(stored)
    if is_aiter_int4:
        scale = scale.mT
    return scale.expand(experts, n) if shape == (experts, 1) else scale


def _activation(op: str, value: Any, limit: float | None, is_gated: bool) -> tuple[str, float]:
    try:
        kind = ActivationType(int(value))
    except (TypeError, ValueError):
        raise TypeError(f"{op}: activation must be an ActivationType, got {value!r}") from None
    if kind not in _ACTIVATIONS or is_gated and kind is ActivationType.No or not is_gated and (
            kind is ActivationType.Swiglu):
        raise UnsupportedError(f"{op}: activation {kind} of w1 with{'' if is_gated else 'out'} gates is not served")
    if limit is not None:
        check.real(op, "swiglu_limit", limit, low=0)
    if not is_gated:
        return _ACTIVATIONS[kind], 0.0
    if kind is ActivationType.Swiglu and limit is None:
        limit = SWIGLU_LIMIT
    return _ACTIVATIONS[kind] + "_and_mul", float(limit or 0.0)
