# SPDX-License-Identifier: MIT
"""Squared ReLU, the activation of Primer and of models after it.

Kernels: csrc/activation/relu_squared.hip, ops/activation/triton/relu_squared.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes

__all__ = ["relu_squared"]

_OP = "relu_squared"


class ReluSquaredCall(NamedTuple):
    """One call of relu_squared: its arguments in the order of the function that relu_squared.hip exports.

    Attributes:
        out: [..., columns], written; dtype of `input`.
    """

    out: Tensor
    input: Tensor


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
    """All that can be wrong, before anything is written; messages say argument, expected, got."""
    check.tensor(_OP, "input", call.input, dtypes=elements.FLOATS)
    if call.input.ndim == 0:
        raise ValueError(f"{_OP}: input must have at least 1 dimension, got a scalar")
    check.tensor(_OP, "out", call.out, dtypes=(call.input.dtype,), shape=call.input.shape, device=call.input.device)
    return SKIP if call.input.numel() == 0 else None


def _kernel_refusal(target: Target, call: ReluSquaredCall) -> str | None:
    """What no kernel takes, and torch does."""
    return rows.refusal(input=call.input, out=call.out)


def _tune_key(call: ReluSquaredCall) -> dict[str, int | str]:
    columns = call.input.shape[-1]
    return {"rows": call.input.numel() // columns, "columns": columns, "dtype": dtypes.name(call.input.dtype)}


def _cases(device: torch.device) -> dict[str, ReluSquaredCall]:
    """A small call of each instance."""
    calls = {}
    for dtype in elements.FLOATS:
        x = torch.randn(5, 264, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        calls[dtypes.name(dtype)] = ReluSquaredCall(torch.empty_like(x), x)
    return calls


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> ReluSquaredCall:
    x = tune_shapes.normal(device, seed, key["dtype"])(key["rows"], key["columns"])
    return ReluSquaredCall(torch.empty_like(x), x)


_relu_squared = Op(
    _OP, call=ReluSquaredCall, reference=relu_squared_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "dtype"), round_field="rows", cases=_cases, tuning=Tuning(_tune_case),
    in_place={"out": ("input",)},
    backends=(Backend("hip", _relu_squared_hip, refusal=_kernel_refusal),
              Backend("triton", "ops.activation.triton.relu_squared:relu_squared", refusal=_kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", relu_squared_ref)))


def relu_squared(input: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The square of ReLU, of each element.

    `out = max(input, 0)²`.

    Args:
        input: [..., columns] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        out: tensor to write, shape and dtype of `input`; default: a new contiguous one.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. An empty input gives an empty result.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; NaN stays NaN; can be captured in a graph.

    Source: So et al., Primer: Searching for Efficient Transformers for Language Modeling (2021).
    """
    if out is None:
        if not isinstance(input, Tensor):
            raise TypeError(f"{_OP}: input must be a tensor, got {type(input).__name__}")
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
    _relu_squared.run(out, input, backend=backend)
    return out


torch_ops.register(_relu_squared, relu_squared)
