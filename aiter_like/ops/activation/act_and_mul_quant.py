# SPDX-License-Identifier: MIT
"""Gated activations with a quantised result. Kernels: csrc/activation/, ops/activation/triton/act_and_mul.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, simulated_target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.activation.act_and_mul import ACTIVATIONS, SWIGLU_LIMIT, gated, mlp_shapes
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.common.quant_rule import check_scale, group_major

__all__ = ["act_mul_and_fp8_group_quant", "silu_and_mul_quant"]

_OP = "act_and_mul_quant"


def act_and_mul_quant_ref(out: Tensor, scale: Tensor | None, input: Tensor, activation: str, limit: float,
                          group_size: int, weights: Tensor | None) -> None:
    """The formula in torch, in fp32."""
    y = gated(input.float(), activation, limit)
    if weights is not None:
        y = y * weights.float().view(*y.shape[:-1], -1)
    if scale is None:
        out.copy_(y)
        return
    own = quant_rule.row_scales(y, out.dtype, group_size)
    out.copy_(quant_rule.quantised(y, own, out.dtype))
    scale.copy_(own.view(scale.shape))


def _instance(out: Tensor, scale: Tensor | None, input: Tensor, activation: str, limit: float, group_size: int,
              weights: Tensor | None, *, lanes: int | None = None, vec: int | None = None) -> Instance:
    return _variant(target_of(input.device), out, input, activation, group_size, weights, lanes, vec)


def _variant(target: Target, out: Tensor, input: Tensor, activation: str, group_size: int, weights: Tensor | None,
             lanes: int | None, vec: int | None = None) -> Instance:
    gate = input[..., :input.shape[-1] // 2]
    is_quantised, weight_dtype, kind = out.dtype in quant_rule.DTYPES, input.dtype, 0
    if weights is not None:
        weight_dtype, kind = weights.dtype, 2 if weights.shape == out.shape else 1
    name = "_".join([activation, dtypes.name(input.dtype),
                     elements.short(out.dtype) if is_quantised else "plain",
                     *([f"g{group_size}"] if group_size else []),
                     *([f"{('row', 'each')[kind - 1]}_{dtypes.name(weight_dtype)}"] if kind else [])])
    return rows.layout(target, gate, lanes=lanes, vec=vec, takes_unaligned=True, tiles=2).instance(name, {
        "ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out.dtype], "ACTIVATION": activation,
        "GROUP": group_size, "WEIGHT": elements.CPP[weight_dtype], "WEIGHTS": kind, "IS_QUANTISED": int(is_quantised)})


def _prebuilt() -> list[Instance]:
    """silu to fp8 by 128 columns, in bf16, for the intermediate sizes of experts."""
    found = {}
    for columns in (2048, 4096, 7168):
        for count in (1, 4096):
            x = torch.empty(count, 2 * columns, dtype=torch.bfloat16, device="meta")
            out = torch.empty(count, columns, dtype=torch.float8_e4m3fnuz, device="meta")
            instance = _variant(simulated_target(), out, x, "silu", 128, None, None)
            found[instance.name] = instance
    return list(found.values())


@compile_ops("activation/act_and_mul_quant.hip", gen_func=_instance, prebuild=_prebuilt)
def _act_and_mul_quant_hip(out: Tensor, scale: Tensor | None, input: Tensor, activation: str, limit: float,
                           group_size: int, weights: Tensor | None) -> None: ...


def _check(out: Tensor, scale: Tensor | None, input: Tensor, activation: str, limit: float, group_size: int,
           weights: Tensor | None) -> object:
    check.tensor(_OP, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0 or input.shape[-1] % 2:
        raise ValueError(f"{_OP}: input must have an even last dimension, gate and up, got shape {tuple(input.shape)}")
    shape = (*input.shape[:-1], input.shape[-1] // 2)
    out_dtypes = (input.dtype,) if scale is None else quant_rule.DTYPES
    check.tensor(_OP, "out", out, dtypes=out_dtypes, shape=shape, device=input.device)
    check.choice(_OP, "activation", activation, ACTIVATIONS)
    check.real(_OP, "limit", limit, low=0.0)
    quant_rule.check_group(_OP, shape[-1], group_size)
    if scale is not None:
        check_scale(_OP, "scale", scale, out, group_size)
    if weights is not None:
        check.tensor(_OP, "weights", weights, dtypes=tuple(dict.fromkeys((input.dtype, torch.float32))),
                     device=input.device)
        if tuple(weights.shape) not in ((*shape[:-1], 1), shape[:-1], shape):
            raise ValueError(f"{_OP}: weights must have shape {(*shape[:-1], 1)} or {shape}, got "
                             f"{tuple(weights.shape)}")
        if tuple(weights.shape) != shape and not weights.is_contiguous():
            raise ValueError(f"{_OP}: weights must be dense in memory, got strides {weights.stride()}")
    return SKIP if out.numel() == 0 else None


def _kernel_refusal(target: Target, out: Tensor, scale: Tensor | None, input: Tensor, activation: str, limit: float,
                        group_size: int, weights: Tensor | None) -> str | None:
    each = weights if weights is not None and weights.shape == out.shape else None
    return quant_rule.refusal(target, out.dtype) or rows.refusal(input=input, out=out, weights=each)


def _tune_key(out: Tensor, scale: Tensor | None, input: Tensor, activation: str, limit: float, group_size: int,
              weights: Tensor | None) -> dict[str, int | str]:
    columns = out.shape[-1]
    return {"rows": out.numel() // columns, "columns": columns, "group_size": group_size,
            "dtype": dtypes.name(input.dtype), "out_dtype": dtypes.name(out.dtype)}


def _self_check(device: torch.device) -> tuple:
    x = torch.randn(5, 2048, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    out = torch.empty(5, 1024, dtype=torch.int8, device=device)
    return out, torch.empty(5, 8, device=device), x, "silu", 0.0, 128, None


def _hip_space(target: Target, out: Tensor, scale: Tensor | None, input: Tensor, activation: str, limit: float,
               group_size: int, weights: Tensor | None) -> list[dict[str, int]]:
    return rows.lane_space(target, input[..., :out.shape[-1]], group_size=group_size, is_8bit=out.element_size() == 1)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    x = torch.randn(key["rows"], 2 * key["columns"], generator=torch.Generator(device).manual_seed(seed), device=device,
                    dtype=dtypes.DTYPES[key["dtype"]])
    groups = key["columns"] // key["group_size"] if key["group_size"] else 1
    scale = torch.empty(key["rows"], groups, device=device)
    out = torch.empty(key["rows"], key["columns"], dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return out, scale, x, "silu", 0.0, key["group_size"], None


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """As act_and_mul's, to fp8 with a scale per row and per 128 columns."""
    for key in mlp_shapes(model, tp, tokens):
        for group_size in (0, 128):
            if group_size == 0 or key["columns"] % group_size == 0:
                yield {**key, "group_size": group_size, "out_dtype": tune_shapes.fp8_name()}


_act_and_mul_quant = Op(
    _OP, reference=act_and_mul_quant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "group_size", "dtype", "out_dtype"), writes=("out", "scale"),
    self_check=_self_check, tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _act_and_mul_quant_hip, refusal=_kernel_refusal, space=_hip_space),
              Backend("triton", "ops.activation.triton.act_and_mul:act_and_mul_quant",
                      refusal=_kernel_refusal, space=tune_shapes.row_space),
              Backend("torch", act_and_mul_quant_ref)))


def silu_and_mul_quant(out: Tensor, input: Tensor, scale: Tensor, group_size: int, limit: float = 0.0,
                       shuffle_scale: bool = False, *, backend: str | None = None) -> None:
    """SiLU of the first half of each row times the second, quantised by group of columns, or by row.

    `y = gate · sigmoid(gate) · up` in fp32; `out · scale` is y up to the rounding of `out`.

    Args:
        out: [..., d], written; the hardware's fp8, or int8.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        scale: [..., d / group_size] fp32, written; [..., 1] for a scale per row.
        group_size: 32, 64 or 128, which divides d; 0: one scale per row.
        limit: above 0: gate is at most `limit` and up within ±`limit` first; finite, ≥ 0.
        shuffle_scale: the scales lie in memory with groups outermost: that of row m, group g at g · M + m.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `scale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or limit do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `out` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127); y is not rounded in between. A NaN makes its
        scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `silu_and_mul_quant`.
    """
    _act_and_mul_quant(out, group_major(scale, shuffle_scale), input, "silu", limit, group_size, None,
                       backend=backend)


def act_mul_and_fp8_group_quant(x: Tensor, activation: str, group_size: int, dtype_quant: torch.dtype | None = None, *,
                                backend: str | None = None) -> tuple[Tensor, Tensor]:
    """An activation of the first half of each row times the second, quantised by group of columns, or by row.

    `y = act(gate) · up` in fp32; `q · scale` is y up to the rounding of q.

    Args:
        x: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        activation: "silu", "gelu", "gelu_tanh" or "swiglu" (GPT-OSS's, with its limit of 7).
        group_size: 32, 64 or 128, which divides d; 0: one scale per row.
        dtype_quant: the hardware's fp8, or int8; None: the hardware's fp8.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        q [..., d] and the scales [..., d / group_size] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shape, layout, activation or group do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `dtype_quant` is the fp8 of other hardware.

    Notes:
        As `silu_and_mul_quant`.

    Source: AITER's `act_mul_and_fp8_group_quant`.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{_OP}: x must be a tensor, got {type(x).__name__}")
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"{_OP}: x must have an even last dimension, gate and up, got shape {tuple(x.shape)}")
    quant_rule.check_group(_OP, x.shape[-1] // 2, group_size)
    columns, dtype = x.shape[-1] // 2, dtypes.fp8_of(target_of(x.device).arch) if dtype_quant is None else dtype_quant
    out = torch.empty((*x.shape[:-1], columns), dtype=dtype, device=x.device)
    groups = columns // group_size if group_size else 1
    scale = torch.empty((*x.shape[:-1], groups), dtype=torch.float32, device=x.device)
    limit = SWIGLU_LIMIT if activation == "swiglu" else 0.0
    _act_and_mul_quant(out, scale, x, activation, limit, group_size, None, backend=backend)
    return out, scale


torch_ops.register(_act_and_mul_quant, act_mul_and_fp8_group_quant)
