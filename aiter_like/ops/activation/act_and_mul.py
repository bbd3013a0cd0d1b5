# SPDX-License-Identifier: MIT
"""Gated activations, out first as AITER has them. Kernels: csrc/activation/, ops/activation/triton/act_and_mul.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows

__all__ = ["gelu_and_mul", "gelu_and_mul_bias", "gelu_fast", "gelu_tanh_and_mul", "scaled_silu_and_mul", "silu_and_mul",
           "silu_and_mul_bias", "swiglu_and_mul", "swiglu_and_mul_bias"]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swiglu")
SWIGLU_LIMIT, _SWIGLU_ALPHA = 7.0, 1.702  # GPT-OSS


def activated(x: Tensor, activation: str) -> Tensor:
    """act(x) in torch; swiglu: x · sigmoid(1.702 x). torch's own gelu loses the lower tail in 1 + erf and 1 + tanh."""
    if activation == "swiglu":
        return x * torch.sigmoid(_SWIGLU_ALPHA * x)
    if activation == "silu":
        return torch.nn.functional.silu(x)
    if activation == "gelu_tanh":
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    return x * 0.5 * torch.special.erfc(x * -math.sqrt(0.5))


def gated(x: Tensor, activation: str, limit: float) -> Tensor:
    """act(gate) · up of rows that hold gate and up, in the dtype of `x`."""
    gate, up = x.chunk(2, -1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return activated(gate, activation) * (up + 1 if activation == "swiglu" else up)


def act_and_mul_ref(out: Tensor, input: Tensor, activation: str, is_gated: bool, limit: float, scale: Tensor | None,
                    expert_ids: Tensor | None, bias: Tensor | None) -> None:
    """The formula in torch, in fp32; differentiable."""
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    if bias is not None:
        ids = expert_ids.to(torch.int64).unsqueeze(-1)
        is_expert = (ids >= 0) & (ids < bias.shape[0])
        x = x + torch.where(is_expert, bias[ids.squeeze(-1).clamp(0, bias.shape[0] - 1)].to(x.dtype), 0)
    y = gated(x, activation, limit) if is_gated else activated(x, activation)
    if scale is not None:
        y = y * (1 / scale)
    out.copy_(quant_rule.rounded(y, out.dtype) if out.dtype in quant_rule.DTYPES else y)


def _instance(out: Tensor, input: Tensor, activation: str, is_gated: bool, limit: float, scale: Tensor | None,
              expert_ids: Tensor | None, bias: Tensor | None, *, vectors: int | None = None) -> Instance:
    """The kernel finds out itself where the vectors do not fit."""
    if vectors is None:  # gate and up count: silu of 8192 × 2·4096 takes 47.7 us with one on an H200, 48.2 with two
        vectors = 1 if is_gated and target_of(input.device).wave_size == 32 else 2
    vec = 16 // input.element_size()
    bias_dtype = input.dtype if bias is None else bias.dtype
    parts = [activation, dtypes.name(input.dtype), *([] if is_gated else ["unary"]),
             *([] if out.dtype == input.dtype else [dtypes.name(out.dtype)]), *(["scale"] if scale is not None else []),
             *([f"bias_{dtypes.name(bias_dtype)}"] if bias is not None else []), f"v{vectors}"]
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out.dtype], "BIAS": elements.CPP[bias_dtype],
        "ACTIVATION": activation, "VECTORS": vectors, "VEC": vec, "IS_GATED": int(is_gated),
        "HAS_SCALE": int(scale is not None), "HAS_BIAS": int(bias is not None)})


def _prebuilt() -> list[Instance]:
    """silu in bf16, as most decoder layers have it."""
    x = torch.empty(1, 16, dtype=torch.bfloat16, device="meta")
    return [_instance(x, x, "silu", True, 0.0, None, None, None)]


@compile_ops("activation/act_and_mul.hip", gen_func=_instance, prebuild=_prebuilt)
def _act_and_mul_hip(out: Tensor, input: Tensor, activation: str, is_gated: bool, limit: float, scale: Tensor | None,
                     expert_ids: Tensor | None, bias: Tensor | None) -> None: ...


def _check(out: Tensor, input: Tensor, activation: str, is_gated: bool, limit: float, scale: Tensor | None,
           expert_ids: Tensor | None, bias: Tensor | None) -> object:
    op = "act_and_mul"
    check.tensor(op, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError(f"{op}: input must have at least 1 dimension, got a scalar")
    if is_gated and input.shape[-1] % 2:
        raise ValueError(f"{op}: input must have an even last dimension, gate and up, got {input.shape[-1]}")
    shape = (*input.shape[:-1], input.shape[-1] // 2) if is_gated else input.shape
    out_dtypes = (input.dtype,) if scale is None else (input.dtype, *quant_rule.DTYPES)
    check.tensor(op, "out", out, dtypes=out_dtypes, shape=shape, device=input.device)
    check.choice(op, "activation", activation, ACTIVATIONS)
    check.real(op, "limit", limit, low=0.0)
    if scale is not None:
        check.tensor(op, "scale", scale, dtypes=(torch.float32,), device=input.device)
        if scale.numel() != 1:
            raise ValueError(f"{op}: scale must have one element, got shape {tuple(scale.shape)}")
    if (bias is None) != (expert_ids is None):
        raise ValueError(f"{op}: expert_ids and bias must come together, got one of them")
    if bias is not None:
        check.tensor(op, "expert_ids", expert_ids, dtypes=(torch.int32,), shape=input.shape[:-1], device=input.device)
        check.tensor(op, "bias", bias, dtypes=tuple(dict.fromkeys((input.dtype, torch.float32))),
                     shape=(None, input.shape[-1]), device=input.device)
        if not expert_ids.is_contiguous():
            raise ValueError(f"{op}: expert_ids must be contiguous, got strides {expert_ids.stride()}")
        if not bias.shape[0]:
            raise ValueError(f"{op}: bias must have at least one expert, got shape {tuple(bias.shape)}")
    return SKIP if out.numel() == 0 else None


def _kernel_refusal(target: Target, out: Tensor, input: Tensor, *_: object) -> str | None:
    return rows.refusal(input=input, out=out) or quant_rule.refusal(target, out.dtype)


def _tune_key(out: Tensor, input: Tensor, *_: object) -> dict[str, int | str]:
    columns = out.shape[-1]
    return {"rows": out.numel() // columns, "columns": columns, "dtype": dtypes.name(input.dtype),
            "out_dtype": dtypes.name(out.dtype)}


def _self_check(device: torch.device) -> tuple:
    x = torch.randn(5, 2048, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    return torch.empty_like(x[:, :1024]), x, "silu", True, 0.0, None, None, None


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    dtype, out_dtype = dtypes.DTYPES[key["dtype"]], dtypes.DTYPES[key["out_dtype"]]
    x = torch.randn(key["rows"], 2 * key["columns"], generator=torch.Generator(device).manual_seed(seed), device=device,
                    dtype=dtype)
    out = torch.empty(key["rows"], key["columns"], dtype=out_dtype, device=device)
    return out, x, "silu", True, 0.0, None if out_dtype == dtype else torch.ones(1, device=device), None, None


def mlp_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Between the two products of an MLP, of an expert where there are such."""
    sizes = {model.intermediate_size: tokens}
    if model.num_experts:
        sizes[model.moe_intermediate_size] = tokens * model.experts_per_token
    for size, count in sizes.items():
        if size // tp:
            yield {"rows": count, "columns": size // tp, "dtype": model.dtype, "out_dtype": model.dtype}


_act_and_mul = Op(
    "act_and_mul", reference=act_and_mul_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "dtype", "out_dtype"), self_check=_self_check,
    tuning=Tuning(_tune_case, shapes=mlp_shapes),
    backends=(Backend("hip", _act_and_mul_hip, refusal=_kernel_refusal,
                      space=lambda *_: [{"vectors": count} for count in (1, 2, 3)]),
              Backend("triton", "ops.activation.triton.act_and_mul:act_and_mul", refusal=_kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", act_and_mul_ref)))


def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0, *, backend: str | None = None) -> None:
    """SiLU of the first half of each row times the second.

    `out = gate · sigmoid(gate) · up`.

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        limit: above 0: gate is at most `limit` and up within ±`limit` first; finite, ≥ 0.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or limit do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: Shazeer, GLU Variants Improve Transformer (2020); AITER's `silu_and_mul`.
    """
    _act_and_mul(out, input, "silu", True, limit, None, None, None, backend=backend)


def gelu_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU of the first half of each row times the second.

    `out = gate · Φ(gate) · up`, with Φ of the normal distribution (erf).

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_and_mul`.
    """
    _act_and_mul(out, input, "gelu", True, 0.0, None, None, None, backend=backend)


def gelu_tanh_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU, by its tanh form, of the first half of each row times the second.

    `out = ½ gate · (1 + tanh(√(2/π) · (gate + 0.044715 gate³))) · up`.

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_tanh_and_mul`.
    """
    _act_and_mul(out, input, "gelu_tanh", True, 0.0, None, None, None, backend=backend)


def gelu_fast(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU by its tanh form, of each element.

    `out = ½ x · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., d] bf16|fp16|fp32; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_fast`.
    """
    _act_and_mul(out, input, "gelu_tanh", False, 0.0, None, None, None, backend=backend)


def swiglu_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """SwiGLU as GPT-OSS has it: of the first half of each row times the second.

    `out = g · sigmoid(1.702 g) · (u + 1)`, with g = min(gate, 7) and u = up within ±7.

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `swiglu_and_mul`.
    """
    _act_and_mul(out, input, "swiglu", True, SWIGLU_LIMIT, None, None, None, backend=backend)


def silu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                      backend: str | None = None) -> None:
    """`out = silu_and_mul(input + bias[expert_ids])`: with the bias of each row's expert.

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        expert_ids: [...] int32, contiguous: the row of `bias` for each row; one that is no expert adds nothing.
        bias: [num_experts, 2d], dtype of `input` or fp32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `silu_and_mul_bias`.
    """
    _act_and_mul(out, input, "silu", True, 0.0, None, expert_ids, bias, backend=backend)


def swiglu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                        backend: str | None = None) -> None:
    """`out = swiglu_and_mul(input + bias[expert_ids])`: with the bias of each row's expert.

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        expert_ids: [...] int32, contiguous: the row of `bias` for each row; one that is no expert adds nothing.
        bias: [num_experts, 2d], dtype of `input` or fp32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `swiglu_and_mul_bias`.
    """
    _act_and_mul(out, input, "swiglu", True, SWIGLU_LIMIT, None, expert_ids, bias, backend=backend)


def gelu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                      backend: str | None = None) -> None:
    """`out = gelu_and_mul(input + bias[expert_ids])`: with the bias of each row's expert.

    Args:
        out: [..., d], written; dtype of `input`, last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        expert_ids: [...] int32, contiguous: the row of `bias` for each row; one that is no expert adds nothing.
        bias: [num_experts, 2d], dtype of `input` or fp32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_and_mul_bias`.
    """
    _act_and_mul(out, input, "gelu", True, 0.0, None, expert_ids, bias, backend=backend)


def scaled_silu_and_mul(out: Tensor, input: Tensor, scale: Tensor, *, backend: str | None = None) -> None:
    """`silu_and_mul` divided by a scale that is known before: static quantisation.

    `out = gate · sigmoid(gate) · up / scale`, saturated where `out` is fp8 or int8.

    Args:
        out: [..., d], written; the hardware's fp8, int8 or the dtype of `input`; rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        scale: one fp32 number, on the device.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `scaled_silu_and_mul`.
    """
    _act_and_mul(out, input, "silu", True, 0.0, scale, None, None, backend=backend)
