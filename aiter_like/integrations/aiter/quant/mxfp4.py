# SPDX-License-Identifier: MIT
"""AITER's quantisers to MXFP4: elements of fp4, of which each 32 share a power of two.

There is no matrix product of such elements on gfx942: they are weights, which gemm_weight_only and fused_moe take.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.objects import MxScaleRoundModeInt
from aiter_like.integrations.aiter.others.adapters import e8m0_shuffle as shuffled_scale

_GROUP = 32


@aiter("aiter.ops.quant")
def per_1x32_f4_quant(x: Tensor, scale: Any = None, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False,
                      pack_dim: int = -1, round_mode: int = MxScaleRoundModeInt.RoundUp) -> tuple[Tensor, Tensor]:
    """`quant_mxfp4`, in `dtypes.fp4x2` and `dtypes.fp8_e8m0`; the scales of all rows are one matrix.

    Args:
        x: [..., K], K a multiple of 32; [K, N] with `pack_dim` 0.
        scale: without effect, as there.
        quant_dtype: `dtypes.fp4x2`.
        shuffle: scales as `e8m0_shuffle` puts them.
        pack_dim: the dimension of the groups, -1 or 0.
        round_mode: of MxScaleRoundMode.

    Raises:
        TypeError, ValueError: an argument does not fit.
    """
    name = "per_1x32_f4_quant"
    check.tensor(name, "x", x, last_contiguous=False)
    _check_fp4(name, quant_dtype)
    check.choice(name, "pack_dim", pack_dim, (-1, 0))
    mode = _checked_mode(name, round_mode)
    check.flag(name, "shuffle", shuffle)
    if pack_dim == 0:
        check.tensor(name, "x", x, rank=2, last_contiguous=False)
        x = x.t().contiguous()
    packed, scales = aiter_like.quant_mxfp4(x, mode)
    scales = scales.reshape(-1, scales.shape[-1])
    scales = shuffled_scale(scales) if shuffle else scales
    if pack_dim == 0:
        packed, scales = packed.t().contiguous(), scales.t().contiguous()
    return packed.view(dtypes.fp4x2), scales.view(dtypes.fp8_e8m0)


@aiter("aiter.ops.quant")
def per_1x32_mx_quant_hip(x: Tensor, scale: Any = None, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False,
                          num_rows: Tensor | None = None, num_rows_factor: int = 1,
                          scale_type: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """`per_1x32_f4_quant` of all rows: what lies behind num_rows · num_rows_factor rows is AITER's to leave as it was
    made.

    Raises:
        UnsupportedError: `quant_dtype` is an fp8.
    """
    name = "per_1x32_mx_quant_hip"
    if quant_dtype != dtypes.fp4x2:
        raise UnsupportedError(f"{name}: quant_dtype must be dtypes.fp4x2, got {quant_dtype}: no product here takes "
                               "fp8 with a scale for each 32", "mxfp4_quant")
    check.choice(name, "scale_type", scale_type, (None, dtypes.fp8_e8m0))
    return per_1x32_f4_quant(x, scale, quant_dtype, shuffle)


@aiter("aiter aiter.ops.quant", callers="V S")
def per_1x32_f4_quant_hip(x: Tensor, scale: Any = None, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False,
                          num_rows: Tensor | None = None, num_rows_factor: int = 1) -> tuple[Tensor, Tensor]:
    """`per_1x32_mx_quant_hip` of fp4."""
    _check_fp4("per_1x32_f4_quant_hip", quant_dtype)
    return per_1x32_mx_quant_hip(x, scale, quant_dtype, shuffle, num_rows, num_rows_factor)


@aiter("aiter.ops.triton.[quant.]quant", callers="V s")
def dynamic_mxfp4_quant(x: Tensor, scaling_mode: str = "even") -> tuple[Tensor, Tensor]:
    """`quant_mxfp4` whose scales are rounded to the nearest.

    Args:
        x: [..., K], K even; the last group may have fewer than 32 elements.
        scaling_mode: "even".

    Returns:
        [..., K / 2] and [..., ⌈K / 32⌉] uint8.

    Raises:
        TypeError, ValueError: an argument does not fit.
    """
    name = "dynamic_mxfp4_quant"
    check.tensor(name, "x", x, last_contiguous=False)
    check.choice(name, "scaling_mode", scaling_mode, ("even",))
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"{name}: x must have an even last dimension, got shape {tuple(x.shape)}")
    columns, rest = x.shape[-1], -x.shape[-1] % _GROUP
    packed, scale = aiter_like.quant_mxfp4(torch.nn.functional.pad(x, (0, rest)) if rest else x,
                                           int(MxScaleRoundModeInt.Even))
    return packed[..., :columns // 2].contiguous() if rest else packed, scale


@aiter("aiter.ops.triton.[moe.]moe_op_gemm_a4w4", callers="V")
def mxfp4_quant(x: Tensor, block_size_m: int = 16, block_size_n: int = 256) -> tuple[Tensor, Tensor]:
    """`dynamic_mxfp4_quant` of whole groups; the sizes are those of AITER's kernel, and without effect."""
    check.tensor("mxfp4_quant", "x", x, rank=2, last_contiguous=False)
    if x.shape[-1] % _GROUP:
        raise ValueError(f"mxfp4_quant: x must have whole groups of {_GROUP} in its last dimension, got shape "
                         f"{tuple(x.shape)}")
    return dynamic_mxfp4_quant(x)


@aiter("aiter.utility.fp4_utils:dynamic_mxfp4_quant", callers="S")
def dynamic_mxfp4_quant_shuffled(x: Tensor, scaling_mode: str = "even", shuffle: bool = False) -> tuple[Tensor, Tensor]:
    """`dynamic_mxfp4_quant` in `dtypes.fp4x2` and `dtypes.fp8_e8m0`, the scales if asked for as `e8m0_shuffle` puts
    them.
    """
    packed, scale = dynamic_mxfp4_quant(x, scaling_mode)
    scale = scale.reshape(-1, scale.shape[-1])
    return packed.view(dtypes.fp4x2), (shuffled_scale(scale) if shuffle else scale).view(dtypes.fp8_e8m0)


def _checked_mode(name: str, mode: Any) -> int:
    """`round_mode` as `quant_mxfp4` takes it."""
    number = int(mode) if isinstance(mode, MxScaleRoundModeInt) else mode
    check.choice(name, "round_mode", number, tuple(map(int, MxScaleRoundModeInt)))
    return number


def _check_fp4(name: str, dtype: torch.dtype) -> None:
    check.choice(name, "quant_dtype", dtype, (dtypes.fp4x2,))
