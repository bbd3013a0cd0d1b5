# SPDX-License-Identifier: MIT
"""RMSNorm times a gate. Kernels: csrc/norm/gated_rms_norm.hip, ops/norm/triton/gated_rms_norm.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.common.quant_rule import check_scale, store_quantised
from aiter_like.ops.norm.parts import dtype_names, weight_dtypes

__all__ = ["gated_rms_norm", "gated_rms_norm_quant"]

_OP = "gated_rms_norm"


class GatedRmsNormCall(NamedTuple):
    """One call of gated_rms_norm. `out`, `input` and `gate` are [..., hidden] with evenly spaced rows.

    Attributes:
        out: written; dtype of `input`, with `scale` fp8 or int8.
        scale: written: fp32, an element per row; None: the result is not quantised.
        gate: dtype of `input`.
        weight: [hidden], dtype of `input` or fp32.
    """

    out: Tensor
    scale: Tensor | None
    input: Tensor
    gate: Tensor
    weight: Tensor
    epsilon: float


def gated_rms_norm_ref(call: GatedRmsNormCall) -> None:
    """The formula in torch, in fp32, differentiable without scale; writes `out` and `scale`."""
    x = call.input.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + call.epsilon) * call.weight.float()
    y = y * torch.nn.functional.silu(call.gate.float())
    if call.scale is None:
        call.out.copy_(y)
    else:
        store_quantised(call.out, call.scale, y, 0)


def _instance(call: GatedRmsNormCall, *, lanes: int | None = None) -> Instance:
    input, weight, out = call.input, call.weight.dtype, call.out.dtype
    name = [*dtype_names(input.dtype, weight), *([] if call.scale is None else [elements.short(out)])]
    row_layout = rows.row_layout(target_of(input.device), input, lanes=lanes, takes_unaligned=True, tiles=2)
    return row_layout.instance("_".join(name), {
        "ELEMENT": elements.CPP[input.dtype], "WEIGHT": elements.CPP[weight], "OUT": elements.CPP[out],
        "IS_QUANT": int(call.scale is not None)})


@compile_ops("norm/gated_rms_norm.hip", gen_func=_instance)
def _gated_rms_norm_hip(call: GatedRmsNormCall) -> None: ...


def _check(call: GatedRmsNormCall) -> object:
    input = call.input
    check.tensor(_OP, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError(f"{_OP}: input must have at least 1 dimension, got a scalar")
    check.tensor(_OP, "gate", call.gate, dtypes=(input.dtype,), shape=input.shape, device=input.device)
    check.tensor(_OP, "weight", call.weight, dtypes=weight_dtypes(input), shape=input.shape[-1:], device=input.device)
    out_dtypes = (input.dtype,) if call.scale is None else quant_rule.DTYPES
    check.tensor(_OP, "out", call.out, dtypes=out_dtypes, shape=input.shape, device=input.device)
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    if call.scale is not None:
        check_scale(_OP, "scale", call.scale, input, 0)
    return SKIP if input.numel() == 0 else None


def _kernel_refusal(target: Target, call: GatedRmsNormCall) -> str | None:
    """What every kernel refuses."""
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(input=call.input, gate=call.gate, out=call.out)


def _tune_key(call: GatedRmsNormCall) -> dict[str, int | str]:
    hidden = call.input.shape[-1]
    return {"rows": call.input.numel() // hidden, "hidden": hidden, "dtype": dtypes.name(call.input.dtype),
            "out_dtype": dtypes.name(call.out.dtype)}


def _cases(device: torch.device) -> dict[str, GatedRmsNormCall]:
    """With and without quantisation."""
    key = {"rows": 3, "hidden": 256, "dtype": "bf16"}
    return {"plain": _tune_case({**key, "out_dtype": "bf16"}, device, 0),
            "quantised": _tune_case({**key, "out_dtype": "i8"}, device, 0)}


def _hip_space(target: Target, call: GatedRmsNormCall) -> list[dict[str, int]]:
    return rows.lane_space(target, call.input)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> GatedRmsNormCall:
    random = tune_shapes.normal(device, seed, key["dtype"])
    x, gate, weight = random(key["rows"], key["hidden"]), random(key["rows"], key["hidden"]), random(key["hidden"])
    out = torch.empty_like(x, dtype=dtypes.DTYPES[key["out_dtype"]])
    scale = None if key["out_dtype"] == key["dtype"] else torch.empty(key["rows"], 1, device=device)
    return GatedRmsNormCall(out, scale, x, gate, weight=weight, epsilon=1e-6)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """As linear attention has it, over each of a GPU's heads: the models of configs/models/ give the sizes."""
    yield {"rows": tokens * model.num_heads // tp, "hidden": model.head_dim, "dtype": model.dtype,
           "out_dtype": model.dtype}


_gated_rms_norm = Op(
    _OP, call=GatedRmsNormCall, reference=gated_rms_norm_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "hidden", "dtype", "out_dtype"), writes=("out", "scale"), round_field="rows", cases=_cases,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    in_place={"out": ("input", "gate")},
    backends=(Backend("hip", _gated_rms_norm_hip, refusal=_kernel_refusal, space=_hip_space),
              Backend("triton", "ops.norm.triton.gated_rms_norm:gated_rms_norm",
                      refusal=_kernel_refusal, space=tune_shapes.row_space),
              Backend("torch", gated_rms_norm_ref, differentiable=True)))


def gated_rms_norm(input: Tensor, gate: Tensor, weight: Tensor, epsilon: float, *, out: Tensor | None = None,
                   backend: str | None = None) -> Tensor:
    """Root-mean-square normalisation of the last dimension, times a gate.

    `out = rms_norm(input, weight) · silu(gate)`.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        gate: [..., hidden], dtype of `input`.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        out: tensor to write, shape and dtype of `input`; default: a new contiguous one. It may be `input` or `gate`.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. An empty input gives an empty result.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or epsilon do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        In fp32, rounded to nearest even once; deterministic; can be captured in a graph. Only "torch" has a derivative.

    Source: the output norm of gated linear attention: Yang et al., Gated Delta Networks (2024).
    """
    if out is None:
        if not isinstance(input, Tensor):
            raise TypeError(f"{_OP}: input must be a tensor, got {type(input).__name__}")
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
    _gated_rms_norm.run(out, None, input, gate, weight=weight, epsilon=epsilon, backend=backend)
    return out


def gated_rms_norm_quant(out: Tensor, input: Tensor, gate: Tensor, scale: Tensor, weight: Tensor, epsilon: float, *,
                         backend: str | None = None) -> None:
    """Root-mean-square normalisation of the last dimension, times a gate, with a quantised result.

    `out · scale ≈ rms_norm(input, weight) · silu(gate)`. Rows of 128 elements have what a group-quantised GEMM takes.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        gate: [..., hidden], dtype of `input`.
        scale: [..., 1] fp32, written: a scale per row.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `scale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or epsilon do not fit.
        UnsupportedError: the backend asked for cannot serve the call (fp8 of other hardware, …).

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic; can be captured in a graph.

    Source: the output norm of gated linear attention: Yang et al., Gated Delta Networks (2024).
    """
    _gated_rms_norm.run(out, scale, input, gate, weight=weight, epsilon=epsilon, backend=backend)


torch_ops.register(_gated_rms_norm, gated_rms_norm)
