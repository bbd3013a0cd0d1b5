# SPDX-License-Identifier: MIT
"""Functions of each element of a tensor, and of two tensors' elements; those of two are in arithmetic.py.

Kernels: csrc/activation/elementwise.hip, ops/activation/triton/elementwise.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes

__all__ = ["sigmoid", "tanh"]

_OP = "elementwise"
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh}
_OF_ONE = ("sigmoid", "tanh")
MOST_DIMS = 4  # The kernels take no more after merging.


class ElementwiseCall(NamedTuple):
    """One call of elementwise.

    Attributes:
        out: it may be `input`.
        input: any strides, 0 where it is broadcast.
        other: None with the functions of one tensor.
        operation: "add", "sub", "mul", "div", "sigmoid" or "tanh".
    """

    out: Annotated[Tensor, "*shape", elements.FLOATS, STRIDED]
    input: Annotated[Tensor, "*shape", elements.FLOATS, STRIDED]
    other: Annotated[Tensor | None, "*shape", elements.FLOATS, STRIDED] = None
    operation: str = "add"

    @property
    def dims(self) -> list[list[int]]:
        """[size, steps of out, input and other] of each dimension, last first, merged where no address changes."""
        tensors = (self.out, self.input, self.input if self.other is None else self.other)
        found: list[list[int]] = []
        for dim in range(self.out.ndim - 1, -1, -1):
            size, steps = self.out.shape[dim], [tensor.stride(dim) for tensor in tensors]
            if size == 1:
                continue
            if found and steps == [step * found[-1][0] for step in found[-1][1:]]:
                found[-1][0] *= size
            else:
                found.append([size, *steps])
        return found


def elementwise_ref(call: ElementwiseCall) -> None:
    """In torch, in fp32; writes `out`."""
    operands = [x.float() for x in (call.input, call.other) if x is not None]
    call.out.copy_(_FUNCTIONS[call.operation](*operands))


def _instance(call: ElementwiseCall) -> Instance:
    names = [x.dtype for x in (call.out, call.input, call.other) if x is not None]
    short = [dtypes.name(dtype) for dtype in (names if len(set(names)) > 1 else names[:1])]
    cpp = [elements.CPP[dtype] for dtype in (*names, call.input.dtype)]
    return Instance("_".join([call.operation, *short]),
                    {"OPERATION": call.operation, "OUT": cpp[0], "INPUT": cpp[1], "OTHER": cpp[2]})


@compile_ops("activation/elementwise.hip", gen_func=_instance)
def _elementwise_hip(call: ElementwiseCall) -> None: ...


def _check(call: ElementwiseCall) -> object:
    check.choice(_OP, "operation", call.operation, tuple(_FUNCTIONS))
    if (call.other is None) != (call.operation in _OF_ONE):
        raise ValueError(f"{_OP}: other must be {'None' if call.operation in _OF_ONE else 'a tensor'} with "
                         f"{call.operation}, got {'None' if call.other is None else 'a tensor'}")
    return SKIP if call.out.numel() == 0 else None


def _kernel_refusal(target: Target, call: ElementwiseCall) -> str | None:
    if call.out.numel() >= 2**31:
        return f"at most {2**31 - 1} elements fit one launch, got {call.out.numel()}"
    dims = len(call.dims)
    return f"at most {MOST_DIMS} dimensions that are apart in memory, got {dims}" if dims > MOST_DIMS else None


class ElementwiseKey(NamedTuple):
    """The fields that a tuned row of elementwise is chosen by."""

    elements: int
    operands: int
    dtype: str

    @classmethod
    def of(cls, call: ElementwiseCall) -> ElementwiseKey:
        return cls(call.out.numel(), 1 if call.other is None else 2, dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int) -> ElementwiseCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        x = random(self.elements)
        if self.operands == 1:
            return ElementwiseCall(torch.empty_like(x), x, None, "sigmoid")
        return ElementwiseCall(torch.empty_like(x), x, random(self.elements))


def _cases(device: torch.device) -> dict[str, ElementwiseCall]:
    """Each operation, with a row that is broadcast and transposed operands among them; two dtypes."""
    x, other = tune_shapes.normal(device, 0, "bf16")(2, 3, 5, 64)
    calls = {operation: ElementwiseCall(torch.empty_like(x), x, None if operation in _OF_ONE else other, operation)
             for operation in _FUNCTIONS}
    calls["broadcast"] = calls["add"]._replace(other=other[0, 0].expand(3, 5, 64))
    calls["transposed"] = calls["mul"]._replace(other=torch.empty(64, 5, 3, device=device).permute(2, 1, 0).copy_(x))
    return calls


elementwise = Op(
    _OP, call=ElementwiseCall, reference=elementwise_ref, check=_check, key=ElementwiseKey,
    round_field="elements", cases=_cases, in_place={"out": ("input", "other")},
    backends=(Backend("hip", _elementwise_hip, refusal=_kernel_refusal),
              Backend("triton", "ops.activation.triton.elementwise:elementwise", refusal=_kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", elementwise_ref)))


def _of_one(operation: str, input: Tensor, out: Tensor | None, backend: str | None) -> Tensor:
    out = torch.empty_like(input, memory_format=torch.contiguous_format) if out is None else out
    elementwise.run(out, input, None, operation=operation, backend=backend)
    return out


def sigmoid(input: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The logistic function of each element: `out = 1 / (1 + e^−input)`.

    Args:
        input: bf16|fp16|fp32, any shape and strides.
        out: tensor to write, shape of `input`; default: a new contiguous one of its dtype. It may be `input`.

    Notes: Computed in fp32, rounded to nearest even once; deterministic.
    """
    return _of_one("sigmoid", input, out, backend)


def tanh(input: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The hyperbolic tangent of each element: `out = tanh(input)`. Like `sigmoid` otherwise."""
    return _of_one("tanh", input, out, backend)
