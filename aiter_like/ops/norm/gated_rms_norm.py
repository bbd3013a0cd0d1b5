# SPDX-License-Identifier: MIT
"""RMSNorm times a gate. Kernels: csrc/norm/gated_rms_norm.hip, ops/norm/triton/gated_rms_norm.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.norm.parts import dtype_names

__all__ = ["gated_rms_norm", "gated_rms_norm_quant"]

_OP = "gated_rms_norm"


class GatedRmsNormCall(NamedTuple):
    """One call of gated_rms_norm. Rows are evenly spaced.

    Attributes:
        out: dtype of `input`, with `scale` fp8 or int8.
        scale: fp32, an element per row; None: the result is not quantised.
    """

    out: Annotated[Tensor, "*rows hidden"]
    scale: Tensor | None
    input: Annotated[Tensor, "*rows hidden", elements.FLOATS]
    gate: Annotated[Tensor, "*rows hidden", "input"]
    weight: Annotated[Tensor, "hidden", ("input", torch.float32)]
    epsilon: float


def gated_rms_norm_ref(call: GatedRmsNormCall) -> None:
    """The formula in torch, in fp32, differentiable without scale; writes `out` and `scale`."""
    x = call.input.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + call.epsilon) * call.weight.float()
    y = y * torch.nn.functional.silu(call.gate.float())
    if call.scale is None:
        call.out.copy_(y)
    else:
        quant_rule.store_quantised(call.out, call.scale, y, 0)


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
    check.tensor(_OP, "out", call.out, dtypes=(call.input.dtype,) if call.scale is None else quant_rule.DTYPES)
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    if call.scale is not None:
        quant_rule.check_scale(_OP, "scale", call.scale, call.input, 0)
    return SKIP if call.input.numel() == 0 else None


def _kernel_refusal(target: Target, call: GatedRmsNormCall) -> str | None:
    """Says why no kernel takes a call."""
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(input=call.input, gate=call.gate, out=call.out)


class GatedRmsNormKey(NamedTuple):
    """The fields that a tuned row of gated_rms_norm is chosen by."""

    rows: int
    hidden: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: GatedRmsNormCall) -> GatedRmsNormKey:
        return cls(*tune_shapes.row_sizes(call.input), dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int) -> GatedRmsNormCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        x, gate, weight = random(self.rows, self.hidden), random(self.rows, self.hidden), random(self.hidden)
        out = torch.empty_like(x, dtype=dtypes.DTYPES[self.out_dtype])
        scale = None if self.out_dtype == self.dtype else torch.empty(self.rows, 1, device=device)
        return GatedRmsNormCall(out, scale, x, gate, weight=weight, epsilon=1e-6)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[GatedRmsNormKey]:
        """The keys of linear attention, over each of a GPU's heads: the models of configs/models/ give the sizes."""
        yield cls(tokens * model.num_heads // tp, model.head_dim, model.dtype, model.dtype)


_gated_rms_norm = Op(
    _OP, call=GatedRmsNormCall, reference=gated_rms_norm_ref, check=_check, key=GatedRmsNormKey, round_field="rows",
    writes=("out", "scale"), in_place={"out": ("input", "gate")},
    cases={"plain": GatedRmsNormKey(3, 256, "bf16", "bf16"), "quantised": GatedRmsNormKey(3, 256, "bf16", "i8")},
    backends=(Backend("hip", _gated_rms_norm_hip, refusal=_kernel_refusal, space=rows.lanes_of("input")),
              Backend("triton", "ops.norm.triton.gated_rms_norm:gated_rms_norm",
                      refusal=_kernel_refusal, space=tune_shapes.row_space),
              Backend("torch", gated_rms_norm_ref, differentiable=True)))


def gated_rms_norm(input: Tensor, gate: Tensor, weight: Tensor, epsilon: float, *, out: Tensor | None = None,
                   backend: str | None = None) -> Tensor:
    """Root-mean-square normalisation of the last dimension, times a gate: `out = rms_norm(input, weight) · silu(gate)`.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        gate: [..., hidden], dtype of `input`.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        out: tensor to write, shape and dtype of `input`; default: a new contiguous one. It may be `input` or `gate`.

    Notes: In fp32, rounded to nearest even once; deterministic. Only "torch" has a derivative.

    Source: the output norm of gated linear attention: Yang et al., Gated Delta Networks (2024).
    """
    out = torch.empty_like(input, memory_format=torch.contiguous_format) if out is None else out
    _gated_rms_norm.run(out, None, input, gate, weight=weight, epsilon=epsilon, backend=backend)
    return out


def gated_rms_norm_quant(out: Tensor, input: Tensor, gate: Tensor, scale: Tensor, weight: Tensor, epsilon: float, *,
                         backend: str | None = None) -> None:
    """Root-mean-square normalisation times a gate, with a quantised result. Like `gated_rms_norm` otherwise.

    `out · scale ≈ rms_norm(input, weight) · silu(gate)`. Rows of 128 elements have what a group-quantised GEMM takes.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        scale: [..., 1] fp32, written: a scale per row.

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic.

    Source: that of `gated_rms_norm`.
    """
    _gated_rms_norm.run(out, scale, input, gate, weight=weight, epsilon=epsilon, backend=backend)


torch_ops.register(_gated_rms_norm, gated_rms_norm)
