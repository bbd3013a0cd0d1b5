# SPDX-License-Identifier: MIT
"""Gated activations, out first as AITER has them. Kernels: csrc/activation/, ops/activation/triton/act_and_mul.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.activation.parts import ACTIVATIONS, SWIGLU_LIMIT, activated, gated, mlp_shapes
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes

__all__ = ["gelu_and_mul", "gelu_and_mul_bias", "gelu_fast", "gelu_tanh_and_mul", "scaled_silu_and_mul", "silu_and_mul",
           "silu_and_mul_bias", "swiglu_and_mul", "swiglu_and_mul_bias"]

class ActAndMulCall(NamedTuple):
    """One call of act_and_mul. The rows of `out` and `input` are evenly spaced.

    Attributes:
        out: [..., d], written; dtype of `input`, 16 bits beside fp32 too, or fp8 or int8 with a `scale`.
        input: [..., 2d], gate and up; [..., d] where the call is not gated.
        activation: one of ACTIVATIONS.
        is_gated: the second half of each row is multiplied in.
        limit: above 0: gate is at most that and up within ± that first.
        scale: one fp32 number that divides the result.
        expert_ids: [...] int32: the row of `bias` for each row; comes with `bias`.
        bias: [num_experts, 2d], added to the rows of `input`, dtype of `input` or fp32.
    """

    out: Tensor
    input: Tensor
    activation: str = "silu"
    is_gated: bool = True
    limit: float = 0.0
    scale: Tensor | None = None
    expert_ids: Tensor | None = None
    bias: Tensor | None = None


def act_and_mul_ref(call: ActAndMulCall) -> None:
    """The formula in torch, in fp32; differentiable."""
    out, bias = call.out, call.bias
    x = call.input.to(torch.promote_types(call.input.dtype, torch.float32))
    if bias is not None:
        ids = call.expert_ids.to(torch.int64).unsqueeze(-1)
        is_expert = (ids >= 0) & (ids < bias.shape[0])
        x = x + torch.where(is_expert, bias[ids.squeeze(-1).clamp(0, bias.shape[0] - 1)].to(x.dtype), 0)
    y = gated(x, call.activation, call.limit) if call.is_gated else activated(x, call.activation)
    if call.scale is not None:
        y = y * (1 / call.scale)
    out.copy_(quant_rule.rounded(y, out.dtype) if out.dtype in quant_rule.DTYPES else y)


def _instance(call: ActAndMulCall, *, vectors: int | None = None) -> Instance:
    """The kernel itself takes care of rows that are not aligned to the vectors."""
    input, out_dtype = call.input, call.out.dtype
    if vectors is None:  # gate and up are two loads: silu of 8192 × 2·4096 takes 47.7 us with 1 on an H200, 48.2 with 2
        vectors = 1 if call.is_gated and target_of(input.device).wave_size == 32 else 2
    bias_dtype = input.dtype if call.bias is None else call.bias.dtype
    parts = [call.activation, dtypes.name(input.dtype), *([] if call.is_gated else ["unary"]),
             *([] if out_dtype == input.dtype else [dtypes.name(out_dtype)]),
             *(["scale"] if call.scale is not None else []),
             *([f"bias_{dtypes.name(bias_dtype)}"] if call.bias is not None else []), f"v{vectors}"]
    return Instance("_".join(parts), {
        "ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out_dtype], "BIAS": elements.CPP[bias_dtype],
        "ACTIVATION": call.activation, "VECTORS": vectors, "VEC": 16 // input.element_size(),
        "IS_GATED": int(call.is_gated), "HAS_SCALE": int(call.scale is not None),
        "HAS_BIAS": int(call.bias is not None)})


@compile_ops("activation/act_and_mul.hip", gen_func=_instance)
def _act_and_mul_hip(call: ActAndMulCall) -> None: ...


def _check(call: ActAndMulCall) -> object:
    op, input = "act_and_mul", call.input
    check.tensor(op, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError(f"{op}: input must have at least 1 dimension, got a scalar")
    if call.is_gated and input.shape[-1] % 2:
        raise ValueError(f"{op}: input must have an even last dimension, gate and up, got {input.shape[-1]}")
    shape = (*input.shape[:-1], input.shape[-1] // 2) if call.is_gated else input.shape
    out_dtypes = elements.FLOATS if input.dtype == torch.float32 else (input.dtype,)
    if call.scale is not None:
        out_dtypes += quant_rule.DTYPES
    check.tensor(op, "out", call.out, dtypes=out_dtypes, shape=shape, device=input.device)
    check.choice(op, "activation", call.activation, ACTIVATIONS)
    check.real(op, "limit", call.limit, low=0.0)
    if call.scale is not None:
        check.tensor(op, "scale", call.scale, dtypes=(torch.float32,), device=input.device)
        if call.scale.numel() != 1:
            raise ValueError(f"{op}: scale must have one element, got shape {tuple(call.scale.shape)}")
    if (call.bias is None) != (call.expert_ids is None):
        raise ValueError(f"{op}: expert_ids and bias must come together, got one of them")
    if call.bias is not None:
        _check_bias(op, input, call.expert_ids, call.bias)
    return SKIP if call.out.numel() == 0 else None


def _check_bias(op: str, input: Tensor, expert_ids: Tensor, bias: Tensor) -> None:
    check.tensor(op, "expert_ids", expert_ids, dtypes=(torch.int32,), shape=input.shape[:-1], device=input.device)
    check.tensor(op, "bias", bias, dtypes=tuple(dict.fromkeys((input.dtype, torch.float32))),
                 shape=(None, input.shape[-1]), device=input.device)
    if not expert_ids.is_contiguous():
        raise ValueError(f"{op}: expert_ids must be contiguous, got strides {expert_ids.stride()}")
    if not bias.shape[0]:
        raise ValueError(f"{op}: bias must have at least one expert, got shape {tuple(bias.shape)}")


def _refusal(target: Target, call: ActAndMulCall) -> str | None:
    return rows.refusal(input=call.input, out=call.out) or quant_rule.refusal(target, call.out.dtype)


def _tune_key(call: ActAndMulCall) -> dict[str, int | str]:
    columns = call.out.shape[-1]
    return {"rows": call.out.numel() // columns, "columns": columns, "dtype": dtypes.name(call.input.dtype),
            "out_dtype": dtypes.name(call.out.dtype)}


def _cases(device: torch.device) -> dict[str, ActAndMulCall]:
    """Every activation; one of each element, with the bias of experts, and quantised."""
    generator = torch.Generator().manual_seed(0)
    x, bias = (torch.randn(count, 2048, generator=generator).to(device, torch.bfloat16) for count in (5, 3))
    silu = ActAndMulCall(torch.empty_like(x[:, :1024]), x)
    limits = {"swiglu": SWIGLU_LIMIT}
    calls = {name: silu._replace(activation=name, limit=limits.get(name, 0.0)) for name in ACTIVATIONS}
    calls["each element"] = ActAndMulCall(torch.empty_like(x), x, "gelu_tanh", is_gated=False)
    ids = torch.tensor([2, 0, -1, 1, 3], dtype=torch.int32, device=device)
    calls["bias"] = silu._replace(expert_ids=ids, bias=bias)
    calls["quantised"] = silu._replace(out=torch.empty_like(silu.out, dtype=torch.int8),
                                       scale=torch.full((1,), 0.05, device=device))
    return calls


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> ActAndMulCall:
    x = tune_shapes.normal(device, seed, key["dtype"])(key["rows"], 2 * key["columns"])
    out = torch.empty(key["rows"], key["columns"], dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return ActAndMulCall(out, x, scale=None if out.dtype == x.dtype else torch.ones(1, device=device))


act_and_mul = Op(
    "act_and_mul", call=ActAndMulCall, reference=act_and_mul_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "dtype", "out_dtype"), cases=_cases, tuning=Tuning(_tune_case, shapes=mlp_shapes),
    in_place={"out": ("input",)},
    backends=(Backend("hip", _act_and_mul_hip, refusal=_refusal,
                      space=lambda *_: [{"vectors": count} for count in (1, 2, 3)]),
              Backend("triton", "ops.activation.triton.act_and_mul:act_and_mul", refusal=_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", act_and_mul_ref)))


def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0, *, backend: str | None = None) -> None:
    """SiLU of the first half of each row times the second.

    `out = gate · sigmoid(gate) · up`.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
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
    act_and_mul.run(out, input, limit=limit, backend=backend)


def gelu_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU of the first half of each row times the second.

    `out = gate · Φ(gate) · up`, with Φ of the normal distribution (erf).

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_and_mul`.
    """
    act_and_mul.run(out, input, "gelu", backend=backend)


def gelu_tanh_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU, by its tanh form, of the first half of each row times the second.

    `out = ½ gate · (1 + tanh(√(2/π) · (gate + 0.044715 gate³))) · up`.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_tanh_and_mul`.
    """
    act_and_mul.run(out, input, "gelu_tanh", backend=backend)


def gelu_fast(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU by its tanh form, of each element.

    `out = ½ x · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., d] bf16|fp16|fp32; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_fast`.
    """
    act_and_mul.run(out, input, "gelu_tanh", is_gated=False, backend=backend)


def swiglu_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """SwiGLU as GPT-OSS has it: of the first half of each row times the second.

    `out = g · sigmoid(1.702 g) · (u + 1)`, with g = min(gate, 7) and u = up within ±7.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `swiglu_and_mul`.
    """
    act_and_mul.run(out, input, "swiglu", limit=SWIGLU_LIMIT, backend=backend)


def silu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                      backend: str | None = None) -> None:
    """`out = silu_and_mul(input + bias[expert_ids])`: with the bias of each row's expert.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        expert_ids: [...] int32, contiguous: the row of `bias` for each row; one that is no expert adds nothing.
        bias: [num_experts, 2d], dtype of `input` or fp32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `silu_and_mul_bias`.
    """
    act_and_mul.run(out, input, expert_ids=expert_ids, bias=bias, backend=backend)


def swiglu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                        backend: str | None = None) -> None:
    """`out = swiglu_and_mul(input + bias[expert_ids])`: with the bias of each row's expert.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        expert_ids: [...] int32, contiguous: the row of `bias` for each row; one that is no expert adds nothing.
        bias: [num_experts, 2d], dtype of `input` or fp32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `swiglu_and_mul_bias`.
    """
    act_and_mul.run(out, input, "swiglu", limit=SWIGLU_LIMIT, expert_ids=expert_ids, bias=bias, backend=backend)


def gelu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                      backend: str | None = None) -> None:
    """`out = gelu_and_mul(input + bias[expert_ids])`: with the bias of each row's expert.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        expert_ids: [...] int32, contiguous: the row of `bias` for each row; one that is no expert adds nothing.
        bias: [num_experts, 2d], dtype of `input` or fp32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `gelu_and_mul_bias`.
    """
    act_and_mul.run(out, input, "gelu", expert_ids=expert_ids, bias=bias, backend=backend)


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
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; can be captured in a graph.

    Source: AITER's `scaled_silu_and_mul`.
    """
    act_and_mul.run(out, input, scale=scale, backend=backend)
