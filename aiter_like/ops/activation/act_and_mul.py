# SPDX-License-Identifier: MIT
"""Gated activations, out first as AITER has them. Kernels: csrc/activation/, ops/activation/triton/act_and_mul.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.activation.parts import ACTIVATIONS, SWIGLU_LIMIT, activated, check_halves, gated, mlp_sizes
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes

__all__ = ["gelu_and_mul", "gelu_and_mul_bias", "gelu_fast", "gelu_tanh_and_mul", "scaled_silu_and_mul", "silu_and_mul",
           "silu_and_mul_bias", "swiglu_and_mul", "swiglu_and_mul_bias"]

_OP = "act_and_mul"


class ActAndMulCall(NamedTuple):
    """One call of act_and_mul. The rows of `out` and `input` are evenly spaced.

    Attributes:
        out: [..., d], dtype of `input`, 16 bits beside fp32 too, or fp8 or int8 with a `scale`.
        input: [..., 2d], gate and up; [..., d] where the call is not gated.
        activation: one of ACTIVATIONS.
        is_gated: the second half of each row is multiplied in.
        limit: above 0: gate is at most that and up within ± that first.
        scale: one number that divides the result.
        expert_ids: the row of `bias` for each row; comes with `bias`.
        bias: a row for each expert, added to the rows of `input`.
    """

    out: Tensor
    input: Annotated[Tensor, "*rows columns", elements.FLOATS]
    activation: str = "silu"
    is_gated: bool = True
    limit: float = 0.0
    scale: Annotated[Tensor | None, "*scale", torch.float32] = None
    expert_ids: Annotated[Tensor | None, "*rows", torch.int32] = None
    bias: Annotated[Tensor | None, "_ columns", ("input", torch.float32)] = None


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
    input = call.input
    shape = check_halves(_OP, "input", input) if call.is_gated else input.shape
    out_dtypes = elements.FLOATS if input.dtype == torch.float32 else (input.dtype,)
    if call.scale is not None:
        out_dtypes += quant_rule.DTYPES
        if call.scale.numel() != 1:
            raise ValueError(f"{_OP}: scale must have one element, got shape {tuple(call.scale.shape)}")
    check.tensor(_OP, "out", call.out, dtypes=out_dtypes, shape=shape, device=input.device)
    check.choice(_OP, "activation", call.activation, ACTIVATIONS)
    check.real(_OP, "limit", call.limit, low=0.0)
    check.together(_OP, expert_ids=call.expert_ids, bias=call.bias)
    if call.bias is not None and not call.expert_ids.is_contiguous():
        raise ValueError(f"{_OP}: expert_ids must be contiguous, got strides {call.expert_ids.stride()}")
    if call.bias is not None and not call.bias.shape[0]:
        raise ValueError(f"{_OP}: bias must have at least one expert, got shape {tuple(call.bias.shape)}")
    return SKIP if call.out.numel() == 0 else None


def _refusal(target: Target, call: ActAndMulCall) -> str | None:
    return rows.refusal(input=call.input, out=call.out) or quant_rule.refusal(target, call.out.dtype)


class ActAndMulKey(NamedTuple):
    """The fields that a tuned row of act_and_mul is chosen by."""

    rows: int
    columns: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: ActAndMulCall) -> ActAndMulKey:
        return cls(*tune_shapes.row_sizes(call.out)[:2], dtypes.name(call.input.dtype), dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int) -> ActAndMulCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, 2 * self.columns)
        out = torch.empty(self.rows, self.columns, dtype=dtypes.DTYPES[self.out_dtype], device=device)
        return ActAndMulCall(out, x, scale=None if out.dtype == x.dtype else torch.full((1,), 0.05, device=device))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[ActAndMulKey]:
        return (cls(count, columns, model.dtype, model.dtype) for count, columns in mlp_sizes(model, tp, tokens))


def _cases(device: torch.device) -> dict[str, ActAndMulCall]:
    """Every activation; one of each element, with the bias of experts, and quantised."""
    silu = ActAndMulKey(5, 1024, "bf16", "bf16").make(device, 0)
    calls = {name: silu._replace(activation=name) for name in ACTIVATIONS}
    calls["swiglu"] = calls["swiglu"]._replace(limit=SWIGLU_LIMIT)
    calls["each element"] = ActAndMulCall(torch.empty_like(silu.input), silu.input, "gelu_tanh", is_gated=False)
    ids = torch.tensor([2, 0, -1, 1, 3], dtype=torch.int32, device=device)
    calls["bias"] = silu._replace(expert_ids=ids, bias=silu.input[:3].flip(0))
    calls["quantised"] = ActAndMulKey(5, 1024, "bf16", "i8").make(device, 0)
    return calls


act_and_mul = Op(
    _OP, call=ActAndMulCall, reference=act_and_mul_ref, check=_check, key=ActAndMulKey, cases=_cases,
    in_place={"out": ("input",)},
    backends=(Backend("hip", _act_and_mul_hip, refusal=_refusal,
                      space=lambda *_: [{"vectors": count} for count in (1, 2, 3)]),
              Backend("triton", "ops.activation.triton.act_and_mul:act_and_mul", refusal=_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", act_and_mul_ref)))


def silu_and_mul(out: Tensor, input: Tensor, limit: float = 0.0, *, backend: str | None = None) -> None:
    """SiLU of the first half of each row times the second: `out = gate · sigmoid(gate) · up`.

    Args:
        out: [..., d], written; dtype of `input`, or 16 bits of fp32; last dimension contiguous, rows evenly spaced.
        input: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        limit: above 0: gate is at most `limit` and up within ±`limit` first; finite, ≥ 0.

    Notes: Computed in fp32, rounded to nearest even once.

    Source: Shazeer, GLU Variants Improve Transformer (2020); AITER's `silu_and_mul`.
    """
    act_and_mul.run(out, input, limit=limit, backend=backend)


def gelu_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU by Φ of the normal distribution (erf): `out = gate · Φ(gate) · up`. Like `silu_and_mul` otherwise."""
    act_and_mul.run(out, input, "gelu", backend=backend)


def gelu_tanh_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU by its tanh form: `out = ½ gate · (1 + tanh(√(2/π) · (gate + 0.044715 gate³))) · up`. Like `silu_and_mul`.
    """
    act_and_mul.run(out, input, "gelu_tanh", backend=backend)


def gelu_fast(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GELU by its tanh form, of each element. Like `silu_and_mul` otherwise.

    `out = ½ x · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.

    Args:
        input: [..., d] bf16|fp16|fp32; last dimension contiguous, rows evenly spaced.
    """
    act_and_mul.run(out, input, "gelu_tanh", is_gated=False, backend=backend)


def swiglu_and_mul(out: Tensor, input: Tensor, *, backend: str | None = None) -> None:
    """GPT-OSS's SwiGLU: `out = g · sigmoid(1.702 g) · (u + 1)`, g = min(gate, 7), u in ±7. Like `silu_and_mul`."""
    act_and_mul.run(out, input, "swiglu", limit=SWIGLU_LIMIT, backend=backend)


def silu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                      backend: str | None = None) -> None:
    """`out = silu_and_mul(input + bias[expert_ids])`, the bias of each row's expert. Like `silu_and_mul` otherwise.

    Args:
        expert_ids: [...] int32, contiguous: the row of `bias` for each row; one that is no expert adds nothing.
        bias: [num_experts, 2d], dtype of `input` or fp32.
    """
    act_and_mul.run(out, input, expert_ids=expert_ids, bias=bias, backend=backend)


def swiglu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                        backend: str | None = None) -> None:
    """`out = swiglu_and_mul(input + bias[expert_ids])`. Like `silu_and_mul_bias` otherwise."""
    act_and_mul.run(out, input, "swiglu", limit=SWIGLU_LIMIT, expert_ids=expert_ids, bias=bias, backend=backend)


def gelu_and_mul_bias(out: Tensor, input: Tensor, expert_ids: Tensor, bias: Tensor, *,
                      backend: str | None = None) -> None:
    """`out = gelu_and_mul(input + bias[expert_ids])`. Like `silu_and_mul_bias` otherwise."""
    act_and_mul.run(out, input, "gelu", expert_ids=expert_ids, bias=bias, backend=backend)


def scaled_silu_and_mul(out: Tensor, input: Tensor, scale: Tensor, *, backend: str | None = None) -> None:
    """`silu_and_mul` divided by a scale that is known before: static quantisation. Like `silu_and_mul` otherwise.

    `out = gate · sigmoid(gate) · up / scale`, saturated where `out` is fp8 or int8.

    Args:
        out: [..., d], written; the hardware's fp8, int8 or the dtype of `input`; rows evenly spaced.
        scale: one fp32 number, on the device.
    """
    act_and_mul.run(out, input, scale=scale, backend=backend)
