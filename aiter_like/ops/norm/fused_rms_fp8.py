# SPDX-License-Identifier: MIT
"""RMSNorm with a quantised result as engines call it, returning new tensors: on the operators of
ops/norm/rms_norm_quant.py and ops/norm/fused_rms_quant.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.ops.common import quant_rule
from aiter_like.ops.norm.fused_rms_quant import fused_rms_quant
from aiter_like.ops.norm.rms_norm_quant import rms_norm_quant

__all__ = ["fused_rms_fp8_group_quant", "fused_rms_fp8_per_tensor_static_quant"]


def fused_rms_fp8_group_quant(
        inp1: Tensor, inp1_weight: Tensor, inp1_epsilon: float, inp2: Tensor | None = None,
        inp2_weight: Tensor | None = None, inp2_epsilon: float | None = None, group_size: int = 128,
        dtype_quant: torch.dtype | None = None, res1: Tensor | None = None, output_unquantized_inp1: bool = False,
        transpose_scale: bool = False, is_x_scale_strided: bool = False, *, backend: str | None = None,
) -> tuple[tuple[Tensor, Tensor], Tensor | None, Tensor | None, Tensor | None]:
    """Root-mean-square normalisation quantised by group of columns, and that of a second matrix in the same launch.

    `y = rms_norm(inp1 + res1, inp1_weight)`; `q · scale ≈ y`; `out2 = rms_norm(inp2, inp2_weight)`.

    Args:
        inp1: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        inp1_weight: [hidden], dtype of `inp1` or fp32, contiguous.
        inp1_epsilon: added to the mean; finite, ≥ 0.
        inp2: [..., second_hidden], dtype of `inp1`, or None.
        inp2_weight: [second_hidden], dtype of `inp1_weight`.
        inp2_epsilon: None: `inp1_epsilon`.
        group_size: 32, 64 or 128, which divides hidden; 0: one scale per row.
        dtype_quant: the hardware's fp8, or int8; None: the hardware's fp8.
        res1: [..., hidden], dtype of `inp1`, added to it in fp32; None: nothing is.
        output_unquantized_inp1: whether y is returned too.
        transpose_scale: the scales lie in memory with groups outermost: that of row m, group g at g · M + m.
        is_x_scale_strided: with transpose_scale: the scales are a matrix whose strides (1, M) say so; else they look
            dense.

    Returns:
        ((q, scale), out1, out2, res_out): q like `inp1`, the scales [..., hidden / group_size] fp32, and in the dtype
        of `inp1` y, the second result and the rounded sum inp1 + res1; None for what was not asked for.

    Notes: In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic.
    """
    name = "fused_rms_fp8_group_quant"
    check.flag(name, "transpose_scale", transpose_scale)
    check.flag(name, "is_x_scale_strided", is_x_scale_strided)
    q, out1, out2, res_out = _outputs(name, inp1, inp2, dtype_quant, res1, output_unquantized_inp1)
    quant_rule.check_group(name, inp1.shape[-1], group_size)
    groups = inp1.shape[-1] // group_size if group_size else 1
    scale = inp1.new_empty(*inp1.shape[:-1], groups, dtype=torch.float32)
    strided = scale.view(groups, -1).t() if transpose_scale else scale
    if inp2 is None:
        rms_norm_quant.run(q, strided, res_out, out1, input=inp1, weight=inp1_weight, epsilon=inp1_epsilon,
                           residual_in=res1, group_size=group_size, backend=backend)
    else:
        fused_rms_quant.run(q, strided, out1, res_out, second_out=out2, input=inp1, weight=inp1_weight,
                            epsilon=inp1_epsilon, residual_in=res1, second=inp2, second_weight=inp2_weight,
                            second_epsilon=inp1_epsilon if inp2_epsilon is None else inp2_epsilon,
                            group_size=group_size, backend=backend)
    return (q, strided if transpose_scale and is_x_scale_strided else scale), out1, out2, res_out


def fused_rms_fp8_per_tensor_static_quant(
        inp1: Tensor, inp1_weight: Tensor, inp1_epsilon: float, inp1_scale: Tensor, inp2: Tensor | None = None,
        inp2_weight: Tensor | None = None, inp2_epsilon: float | None = None, dtype_quant: torch.dtype | None = None,
        res1: Tensor | None = None, output_unquantized_inp1: bool = False,
        rmsnorm_convert_to_inp1_type: bool = False, *, backend: str | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Normalisation quantised by a scale that is known before. Like `fused_rms_fp8_group_quant` otherwise.

    `y = rms_norm(inp1 + res1, inp1_weight)`; `q = round(y · (1 / inp1_scale))`, saturated; `out2 = rms_norm(inp2,
    inp2_weight)`.

    Args:
        inp1_scale: one fp32 number on the device.
        rmsnorm_convert_to_inp1_type: y is rounded to the dtype of `inp1` before it is quantised.

    Returns:
        (q, out1, out2, res_out): q like `inp1` and in the dtype of `inp1` y, the second result and the rounded sum
        inp1 + res1; None for what was not asked for.

    Notes:
        In fp32, to nearest even; NaN stays NaN in fp8, becomes 0 in int8. Kernels take rows of at most 32768 elements.
    """
    name = "fused_rms_fp8_per_tensor_static_quant"
    q, out1, out2, res_out = _outputs(name, inp1, inp2, dtype_quant, res1, output_unquantized_inp1)
    if inp2 is None:
        inp2_weight = None
    fused_rms_quant.run(q, inp1_scale, out1, res_out, second_out=out2, input=inp1, weight=inp1_weight,
                        epsilon=inp1_epsilon, residual_in=res1, second=inp2, second_weight=inp2_weight,
                        second_epsilon=inp1_epsilon if inp2_epsilon is None else inp2_epsilon, is_static=True,
                        is_rounded=rmsnorm_convert_to_inp1_type, backend=backend)
    return q, out1, out2, res_out


def _outputs(name: str, inp1: Tensor, inp2: Tensor | None, dtype_quant: torch.dtype | None, res1: Tensor | None,
             has_plain: bool) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """q, out1, out2 and res_out."""
    if inp1.ndim == 0:
        raise ValueError(f"{name}: inp1 must have at least 1 dimension, got a scalar")
    check.flag(name, "output_unquantized_inp1", has_plain)
    dtype = dtypes.fp8_of(target_of(inp1.device).arch) if dtype_quant is None else dtype_quant
    check.choice(name, "dtype_quant", dtype, quant_rule.DTYPES)

    def empty(like: Tensor, dtype: torch.dtype = inp1.dtype) -> Tensor:
        return torch.empty_like(like, dtype=dtype, device=inp1.device, memory_format=torch.contiguous_format)

    return (empty(inp1, dtype), empty(inp1) if has_plain else None, None if inp2 is None else empty(inp2),
            None if res1 is None else empty(inp1))
