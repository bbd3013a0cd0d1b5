# SPDX-License-Identifier: MIT
"""Dropout, residual add and LayerNorm. Kernels: csrc/norm/dropout_layer_norm.hip,
ops/norm/triton/dropout_layer_norm.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, philox, rows, tune_shapes
from aiter_like.ops.norm.parts import dtype_names

__all__ = ["dropout_layer_norm"]

_OP = "dropout_layer_norm"
_MASK = 0xFFFFFFFF


class DropoutLayerNormCall(NamedTuple):
    """One call of dropout_layer_norm. Rows are evenly spaced.

    Attributes:
        residual_out: the sum that is normalised.
        p: share of `input` that is dropped, in units of 2^-24.
        offset: the first Philox counter.
    """

    out: Annotated[Tensor, "*rows hidden", "input"]
    residual_out: Annotated[Tensor, "*rows hidden", "input"]
    input: Annotated[Tensor, "*rows hidden", elements.FLOATS]
    residual_in: Annotated[Tensor, "*rows hidden", "input"]
    weight: Annotated[Tensor, "hidden", ("input", torch.float32)]
    bias: Annotated[Tensor, "hidden", "weight"]
    p: float
    seed: int
    offset: int = 0
    epsilon: float = 1e-5


def dropout_layer_norm_ref(call: DropoutLayerNormCall) -> None:
    """The formula in torch, in fp32, differentiable; writes `out` and `residual_out`."""
    kept = random_words(call.input, call.seed, call.offset) >> 8 >= philox.threshold(call.p)
    x = torch.where(kept, call.input.float() * (1.0 / (1.0 - call.p)), 0.0) + call.residual_in.float()
    call.residual_out.copy_(x)
    deviation = x - x.mean(-1, keepdim=True)
    scaled = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + call.epsilon)
    call.out.copy_(scaled * call.weight.float() + call.bias.float())


def random_words(like: Tensor, seed: int, offset: int) -> Tensor:
    """Philox4x32-10 by the rule of csrc/include/aiter_like/philox.h: a word per element, a counter per four columns."""
    hidden = like.shape[-1]
    per_row = (hidden + 3) // 4
    counter = offset + torch.arange(like.numel() // hidden * per_row, device=like.device)
    zero = torch.zeros_like(counter)
    words = philox.words(seed, counter & _MASK, counter >> 32, zero, zero)
    return words.view(-1, per_row * 4)[:, :hidden].reshape(like.shape)


def _instance(call: DropoutLayerNormCall, *, lanes: int | None = None) -> Instance:
    dtype, weight = call.input.dtype, call.weight.dtype
    row_layout = rows.whole_row_layout(_OP, target_of(call.input.device), call.input, lanes)
    return row_layout.instance("_".join(dtype_names(dtype, weight)), {"ELEMENT": elements.CPP[dtype],
                                                                  "WEIGHT": elements.CPP[weight]})


@compile_ops("norm/dropout_layer_norm.hip", gen_func=_instance)
def _dropout_layer_norm_hip(call: DropoutLayerNormCall) -> None: ...


def _check(call: DropoutLayerNormCall) -> object:
    check.real(_OP, "p", call.p, low=0.0)
    if call.p >= 1:
        raise ValueError(f"{_OP}: p must be less than 1, got {call.p}")
    check.integer(_OP, "seed", call.seed, low=0, high=2**63 - 1)
    check.integer(_OP, "offset", call.offset, low=0, high=2**62)
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    return SKIP if call.input.numel() == 0 else None


def _kernel_refusal(target: Target, call: DropoutLayerNormCall) -> str | None:
    """Says why no kernel takes a call."""
    if call.input.shape[-1] > rows.LONGEST:
        return f"rows of at most {rows.LONGEST} elements, got {call.input.shape[-1]}"
    return rows.refusal(input=call.input, residual=call.residual_in, out=call.out, residual_out=call.residual_out)


class DropoutLayerNormKey(NamedTuple):
    """The fields that a tuned row of dropout_layer_norm is chosen by."""

    rows: int
    hidden: int
    dtype: str

    @classmethod
    def of(cls, call: DropoutLayerNormCall) -> DropoutLayerNormKey:
        return cls(*tune_shapes.row_sizes(call.input))

    def make(self, device: torch.device, seed: int, p: float = 0.1, offset: int = 0) -> DropoutLayerNormCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        x, residual = (random(self.rows, self.hidden) for _ in range(2))
        return DropoutLayerNormCall(torch.empty_like(x), torch.empty_like(x), x, residual, weight=random(self.hidden),
                                    bias=random(self.hidden), p=p, seed=seed, offset=offset)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[DropoutLayerNormKey]:
        """The keys of a model as if its norms were these: the models of configs/models/ give the sizes."""
        yield cls(tokens, model.hidden_size, model.dtype)


_dropout_layer_norm = Op(
    _OP, call=DropoutLayerNormCall, reference=dropout_layer_norm_ref, check=_check, key=DropoutLayerNormKey,
    round_field="rows", writes=("out", "residual_out"),
    cases={"aligned": (DropoutLayerNormKey(3, 256, "bf16"), {"p": 0.25}),
           "odd": (DropoutLayerNormKey(3, 101, "bf16"), {"p": 0.25, "offset": 2**32 - 5})},  # its upper word changes
    in_place={"out": ("input", "residual_in"), "residual_out": ("residual_in", "input")},
    backends=(Backend("hip", _dropout_layer_norm_hip, refusal=_kernel_refusal,
                      space=rows.lanes_of("input", takes_pieces=False)),
              Backend("triton", "ops.norm.triton.dropout_layer_norm:dropout_layer_norm",
                      refusal=_kernel_refusal, space=tune_shapes.waves_of("out", rows.LONGEST)),
              Backend("torch", dropout_layer_norm_ref, differentiable=True)))


def dropout_layer_norm(input: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, p: float, seed: int,
                       offset: int = 0, epsilon: float = 1e-5, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Dropout, residual add and layer normalisation of the sum.

    `x = dropout(input, p) / (1 - p) + residual`, `residual_out = x`, `out = layer_norm(x, weight, bias)` of x before
    its rounding.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        residual: [..., hidden], dtype of `input`.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        bias: [hidden], dtype of `weight`.
        p: share of `input` that is dropped, in units of 2^-24; 0 ≤ p < 1.
        seed: of the mask; 0 ≤ seed < 2^63.
        offset: the first counter: a call uses rows · ceil(hidden / 4) of them; 0 ≤ offset ≤ 2^62.
        epsilon: added to the variance; finite, ≥ 0.

    Returns: `out` and `residual_out`, new tensors.

    Notes:
        The mask is a function of seed, offset and position alone (Philox4x32-10): the same on every backend and device.
        In fp32, each output rounded once; a captured graph repeats its mask. Only "torch" has a derivative.

    Source: HipKittens' fused dropout, residual and layer norm; Salmon et al., Parallel Random Numbers (2011).
    """
    out, residual_out = (torch.empty_like(input, memory_format=torch.contiguous_format) for _ in range(2))
    _dropout_layer_norm.run(out, residual_out, input, residual, weight=weight, bias=bias, p=p, seed=seed, offset=offset,
                            epsilon=epsilon, backend=backend)
    return out, residual_out
