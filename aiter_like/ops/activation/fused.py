# SPDX-License-Identifier: MIT
"""Gated activations by the names of AITER's Triton library, made of the operators of ops/activation/act_and_mul.py and
act_and_mul_quant.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.activation.act_and_mul import act_and_mul, silu_and_mul
from aiter_like.ops.activation.act_and_mul_quant import act_and_mul_quant
from aiter_like.ops.activation.parts import ACTIVATIONS, check_halves
from aiter_like.ops.common import quant_rule

__all__ = ["fused_clamp_act_mul", "fused_silu_mul"]


def fused_silu_mul(x: Tensor, out: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """SiLU of the first half of each row times the second. Like `silu_and_mul` otherwise.

    Args:
        x: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        out: [..., d], written; dtype of `x`; None: a new one.
    """
    out = x.new_empty(check_halves("fused_silu_mul", "x", x)) if out is None else out
    silu_and_mul(out, x, backend=backend)
    return out


def fused_clamp_act_mul(inp: Tensor, out: Tensor | None = None, scale: Tensor | None = None, swiglu_limit: float = 0,
                        activation: str = "silu", weights: Tensor | None = None,
                        dtype_quant: torch.dtype | None = None, transpose_scale: bool = False,
                        quant_block_size: int = 128, scale_dtype_fmt: str = "fp32", shuffle_scale: bool = False, *,
                        backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """An activation of the first half of each row, bounded, times the second, weighted, and quantised where asked for.

    `y = act(min(gate, limit)) · clamp(up, ±limit) · weights`; `out · scale` is y up to the rounding of `out`.

    Args:
        inp: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        out: [..., d], written; None: a new one. Quantised where its dtype is fp8 or int8.
        scale: [..., d / quant_block_size] fp32, written; with `transpose_scale` [d / quant_block_size, rows]; None: a
            new one. Not used where nothing is quantised.
        swiglu_limit: above 0: gate is at most that and up within ± that first; 0: no bounds.
        activation: "silu", "gelu", "gelu_tanh" or "swiglu" (GPT-OSS's x · sigmoid(1.702 x) · (up + 1)).
        weights: [..., 1] or [..., d], dtype of `inp` or fp32: what y is multiplied with; None: nothing.
        dtype_quant: the hardware's fp8, or int8; None: that of `out`, or no quantisation.
        transpose_scale: the scales lie in memory with groups outermost: that of row m, group g at g · M + m.
        quant_block_size: 32, 64 or 128, which divides d.
        scale_dtype_fmt: "fp32"; AITER's "ue8m0" belongs to kernels of gfx950.
        shuffle_scale: False; AITER's order of such scales, likewise.

    Returns: `out` [..., d]; quantised, `out` and the scales [..., d / quant_block_size].

    Notes:
        In fp32, y not rounded in between; a NaN makes its scale and fp8 elements NaN, int8 0. Deterministic.
    """
    name = "fused_clamp_act_mul"
    check.choice(name, "activation", activation, ACTIVATIONS)
    check.real(name, "swiglu_limit", swiglu_limit, low=0.0)
    check.choice(name, "scale_dtype_fmt", scale_dtype_fmt, ("fp32",))
    check.choice(name, "shuffle_scale", shuffle_scale, (False,))
    if dtype_quant is None and out is not None and out.dtype in quant_rule.DTYPES:
        dtype_quant = out.dtype
    if dtype_quant is not None:
        check.choice(name, "dtype_quant", dtype_quant, quant_rule.DTYPES)
    if out is None:
        out = inp.new_empty(check_halves(name, "inp", inp), dtype=dtype_quant)
    if dtype_quant is None:
        if weights is None:
            act_and_mul.run(out, inp, activation, limit=float(swiglu_limit), backend=backend)
        else:
            act_and_mul_quant.run(out, None, inp, activation, limit=float(swiglu_limit), weights=weights,
                                  backend=backend)
        return out
    if out.dtype != dtype_quant:
        raise ValueError(f"{name}: out must have dtype_quant {dtype_quant}, got {out.dtype}")
    check.choice(name, "quant_block_size", quant_block_size, quant_rule.GROUPS)
    if out.ndim == 0 or out.shape[-1] % quant_block_size:
        raise ValueError(f"{name}: quant_block_size must divide the rows of out, got {quant_block_size} for shape "
                         f"{tuple(out.shape)}")
    shape = (*out.shape[:-1], out.shape[-1] // quant_block_size)
    if scale is None:
        scale = torch.empty(shape, dtype=torch.float32, device=inp.device)
    elif transpose_scale:
        check.tensor(name, "scale", scale, shape=(shape[-1], out.numel() // max(out.shape[-1], 1)))
        scale = scale.view(shape)
    act_and_mul_quant.run(out, quant_rule.group_major(scale, transpose_scale), inp, activation,
                          limit=float(swiglu_limit), group_size=quant_block_size, weights=weights, backend=backend)
    return out, scale
