# SPDX-License-Identifier: MIT
"""Gated activations with a quantised result. Kernels: csrc/activation/, ops/activation/triton/act_and_mul_quant.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.activation.parts import ACTIVATIONS, SWIGLU_LIMIT, check_halves, gated, mlp_sizes
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes

__all__ = ["act_mul_and_fp8_group_quant", "silu_and_mul_quant"]

_OP = "act_and_mul_quant"


class ActAndMulQuantCall(NamedTuple):
    """One call of act_and_mul_quant. The rows of `out` and `input` are evenly spaced.

    Attributes:
        out: [..., d], fp8 or int8, or the dtype of `input` where `scale` is None.
        scale: an fp32 number per row, or per row and group; None: the result is not quantised.
        input: [..., 2d], gate and up.
        activation: one of ACTIVATIONS.
        limit: above 0: gate is at most that and up within ± that first.
        group_size: columns with a scale of their own; 0: one scale per row.
        weights: [..., 1] or [..., d] that multiply the result.
    """

    out: Tensor
    scale: Tensor | None
    input: Annotated[Tensor, "*rows columns", elements.FLOATS]
    activation: str = "silu"
    limit: float = 0.0
    group_size: int = 0
    weights: Annotated[Tensor | None, "*weights", ("input", torch.float32)] = None

    @property
    def has_weight_each(self) -> bool:
        """Each element has a weight; otherwise a row has one, if any."""
        return self.weights is not None and self.weights.shape == self.out.shape


def act_and_mul_quant_ref(call: ActAndMulQuantCall) -> None:
    """The formula in torch, in fp32."""
    y = gated(call.input.float(), call.activation, call.limit)
    if call.weights is not None:
        y = y * call.weights.float().view(*y.shape[:-1], -1)
    if call.scale is None:
        call.out.copy_(y)
    else:
        quant_rule.store_quantised(call.out, call.scale, y, call.group_size)


def _instance(call: ActAndMulQuantCall, *, lanes: int | None = None, vec: int | None = None) -> Instance:
    input, out_dtype, weights, group_size = call.input, call.out.dtype, call.weights, call.group_size
    gate, weight_dtype = input[..., :input.shape[-1] // 2], input.dtype if weights is None else weights.dtype
    kind = 0 if weights is None else 2 if call.has_weight_each else 1
    is_quantised = out_dtype in quant_rule.DTYPES
    name = "_".join([call.activation, dtypes.name(input.dtype),
                     elements.short(out_dtype) if is_quantised else "plain",
                     *([f"g{group_size}"] if group_size else []),
                     *([f"{('row', 'each')[kind - 1]}_{dtypes.name(weight_dtype)}"] if kind else [])])
    row_layout = rows.row_layout(target_of(input.device), gate, lanes=lanes, vec=vec, takes_unaligned=True, tiles=2)
    return row_layout.instance(name, {
        "ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out_dtype], "ACTIVATION": call.activation,
        "GROUP": group_size, "WEIGHT": elements.CPP[weight_dtype], "WEIGHTS": kind, "IS_QUANTISED": int(is_quantised)})


def _prebuild() -> list[ActAndMulQuantCall]:
    """silu to fp8 by 128 columns, in bf16, for the intermediate sizes of experts."""
    calls = []
    for columns, count in itertools.product((2048, 4096, 7168), (1, 4096)):
        x = torch.empty(count, 2 * columns, dtype=torch.bfloat16)
        out = torch.empty(count, columns, dtype=torch.float8_e4m3fnuz)
        calls.append(ActAndMulQuantCall(out, torch.empty(count, columns // 128), x, group_size=128))
    return calls


@compile_ops("activation/act_and_mul_quant.hip", gen_func=_instance, prebuild=_prebuild)
def _act_and_mul_quant_hip(call: ActAndMulQuantCall) -> None: ...


def _check(call: ActAndMulQuantCall) -> object:
    weights, shape = call.weights, check_halves(_OP, "input", call.input)
    out_dtypes = (call.input.dtype,) if call.scale is None else quant_rule.DTYPES
    check.tensor(_OP, "out", call.out, dtypes=out_dtypes, shape=shape, device=call.input.device)
    check.choice(_OP, "activation", call.activation, ACTIVATIONS)
    check.real(_OP, "limit", call.limit, low=0.0)
    quant_rule.check_group(_OP, shape[-1], call.group_size)
    if call.scale is not None:
        quant_rule.check_scale(_OP, "scale", call.scale, call.out, call.group_size)
    if weights is not None and tuple(weights.shape) not in ((*shape[:-1], 1), shape[:-1], shape):
        raise ValueError(f"{_OP}: weights must have shape {(*shape[:-1], 1)} or {shape}, got {tuple(weights.shape)}")
    if weights is not None and tuple(weights.shape) != shape and not weights.is_contiguous():
        raise ValueError(f"{_OP}: weights must be dense in memory, got strides {weights.stride()}")
    return SKIP if call.out.numel() == 0 else None


def _refusal(target: Target, call: ActAndMulQuantCall) -> str | None:
    each = call.weights if call.has_weight_each else None
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(input=call.input, out=call.out, weights=each)


class ActAndMulQuantKey(NamedTuple):
    """The fields that a tuned row of act_and_mul_quant is chosen by."""

    rows: int
    columns: int
    group_size: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: ActAndMulQuantCall) -> ActAndMulQuantKey:
        count, columns, out_dtype = tune_shapes.row_sizes(call.out)
        return cls(count, columns, call.group_size, dtypes.name(call.input.dtype), out_dtype)

    def make(self, device: torch.device, seed: int) -> ActAndMulQuantCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, 2 * self.columns)
        out = torch.empty(self.rows, self.columns, dtype=tune_shapes.dtype_on(device, self.out_dtype), device=device)
        scale = torch.empty(self.rows, self.columns // self.group_size if self.group_size else 1, device=device)
        return ActAndMulQuantCall(out, scale, x, group_size=self.group_size)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[ActAndMulQuantKey]:
        """The shapes of act_and_mul, to fp8 with a scale per row and per 128 columns."""
        return (cls(count, columns, group_size, model.dtype, tune_shapes.fp8_name())
                for count, columns in mlp_sizes(model, tp, tokens) for group_size in (0, 128)
                if group_size == 0 or columns % group_size == 0)


def _cases(device: torch.device) -> dict[str, ActAndMulQuantCall]:
    """Cases by group and by row, with weights of rows and of elements, and one that is not quantised."""
    group = ActAndMulQuantKey(5, 1024, 128, "bf16", "i8").make(device, 0)
    row = ActAndMulQuantKey(5, 1024, 0, "bf16", "fp8").make(device, 0)
    weights = tune_shapes.normal(device, 1, "fp32")(5, 1024).sigmoid() + 0.5
    return {"group": group, "row": row._replace(activation="gelu"),
            "weighted rows": group._replace(limit=2.0, weights=weights[:, :1].contiguous()),
            "weighted elements": row._replace(out=torch.empty_like(row.input[:, :1024]), scale=None,
                                              activation="swiglu", limit=SWIGLU_LIMIT, weights=weights)}


def _hip_space(target: Target, call: ActAndMulQuantCall) -> list[dict[str, int]]:
    return rows.lane_space(target, call.input[..., :call.out.shape[-1]], group_size=call.group_size,
                           is_8bit=call.out.element_size() == 1)


act_and_mul_quant = Op(
    _OP, call=ActAndMulQuantCall, reference=act_and_mul_quant_ref, check=_check, key=ActAndMulQuantKey,
    writes=("out", "scale"), cases=_cases,
    backends=(Backend("hip", _act_and_mul_quant_hip, refusal=_refusal, space=_hip_space),
              Backend("triton", "ops.activation.triton.act_and_mul_quant:act_and_mul_quant", refusal=_refusal,
                      space=tune_shapes.row_space),
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

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127); y is not rounded in between. A NaN makes its
        scale and fp8 elements NaN, int8 0. Deterministic.
    """
    scale = quant_rule.group_major(scale, shuffle_scale)
    act_and_mul_quant.run(out, scale, input, limit=limit, group_size=group_size, backend=backend)


def act_mul_and_fp8_group_quant(x: Tensor, activation: str, group_size: int, dtype_quant: torch.dtype | None = None, *,
                                backend: str | None = None) -> tuple[Tensor, Tensor]:
    """An activation of the first half of each row times the second, quantised. Like `silu_and_mul_quant` otherwise.

    `y = act(gate) · up` in fp32; `q · scale` is y up to the rounding of q.

    Args:
        x: [..., 2d] bf16|fp16|fp32, gate and up; last dimension contiguous, rows evenly spaced.
        activation: "silu", "gelu", "gelu_tanh" or "swiglu" (GPT-OSS's, with its limit of 7).
        dtype_quant: the hardware's fp8, or int8; None: the hardware's fp8.

    Returns: q [..., d] and the scales [..., d / group_size] fp32.
    """
    *outer, columns = check_halves(_OP, "x", x)
    quant_rule.check_group(_OP, columns, group_size)
    out = x.new_empty(*outer, columns,
                      dtype=dtypes.fp8_of(target_of(x.device).arch) if dtype_quant is None else dtype_quant)
    scale = x.new_empty(*outer, columns // group_size if group_size else 1, dtype=torch.float32)
    limit = SWIGLU_LIMIT if activation == "swiglu" else 0.0
    act_and_mul_quant.run(out, scale, x, activation, limit=limit, group_size=group_size, backend=backend)
    return out, scale


torch_ops.register(act_and_mul_quant, act_mul_and_fp8_group_quant)
