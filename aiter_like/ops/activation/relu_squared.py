# SPDX-License-Identifier: MIT
"""Squared ReLU, the activation of Primer and of models after it.

Kernels: csrc/activation/relu_squared.hip, ops/activation/triton/relu_squared.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes

__all__ = ["relu_squared"]


class ReluSquaredCall(NamedTuple):
    """One call of relu_squared: its arguments in the order of the function that relu_squared.hip exports."""

    out: Annotated[Tensor, "*rows columns", "input"]
    input: Annotated[Tensor, "*rows columns", elements.FLOATS]


def relu_squared_ref(call: ReluSquaredCall) -> None:
    """The formula in torch, in fp32; writes `out`."""
    x = call.input.float()
    call.out.copy_(torch.where(x <= 0, 0.0, x * x))


def _instance(call: ReluSquaredCall) -> Instance:
    """One build per dtype: every macro of the .hip is named here."""
    return Instance(dtypes.name(call.input.dtype), {"ELEMENT": elements.CPP[call.input.dtype]})


@compile_ops("activation/relu_squared.hip", gen_func=_instance)
def _relu_squared_hip(call: ReluSquaredCall) -> None: ...


def _check(call: ReluSquaredCall) -> object:
    return SKIP if call.input.numel() == 0 else None


def _kernel_refusal(target: Target, call: ReluSquaredCall) -> str | None:
    """Says why no kernel takes a call that torch serves."""
    return rows.refusal(input=call.input, out=call.out)


class ReluSquaredKey(NamedTuple):
    """The fields that a tuned row of relu_squared is chosen by."""

    rows: int
    columns: int
    dtype: str

    @classmethod
    def of(cls, call: ReluSquaredCall) -> ReluSquaredKey:
        return cls(*tune_shapes.row_sizes(call.input))

    def make(self, device: torch.device, seed: int) -> ReluSquaredCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, self.columns)
        return ReluSquaredCall(torch.empty_like(x), x)


_relu_squared = Op(
    "relu_squared", call=ReluSquaredCall, reference=relu_squared_ref, check=_check, key=ReluSquaredKey,
    round_field="rows", cases={dtype: ReluSquaredKey(5, 264, dtype) for dtype in ("bf16", "fp16", "fp32")},
    in_place={"out": ("input",)},
    backends=(Backend("hip", _relu_squared_hip, refusal=_kernel_refusal),
              Backend("triton", "ops.activation.triton.relu_squared:relu_squared", refusal=_kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", relu_squared_ref)))


def relu_squared(input: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The square of ReLU, of each element: `out = max(input, 0)²`.

    Args:
        input: [..., columns] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.

    Notes: Computed in fp32, rounded to nearest even once; NaN stays NaN.

    Source: So et al., Primer: Searching for Efficient Transformers for Language Modeling (2021).
    """
    out = torch.empty_like(input, memory_format=torch.contiguous_format) if out is None else out
    _relu_squared.run(out, input, backend=backend)
    return out


torch_ops.register(_relu_squared, relu_squared)
