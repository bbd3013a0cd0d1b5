# SPDX-License-Identifier: MIT
"""Functions of each element of a tensor, and of two tensors' elements; those of two are in arithmetic.py.

Kernels: csrc/activation/elementwise.hip, ops/activation/triton/elementwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
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
        out: written; it may be `input`.
        input: [*out.shape], any strides, 0 where it is broadcast.
        other: [*out.shape]; None with the functions of one tensor.
        operation: "add", "sub", "mul", "div", "sigmoid" or "tanh".
    """

    out: Tensor
    input: Tensor
    other: Tensor | None = None
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
    out = call.out
    check.choice(_OP, "operation", call.operation, tuple(_FUNCTIONS))
    check.tensor(_OP, "out", out, dtypes=elements.FLOATS, last_contiguous=False)
    check.tensor(_OP, "input", call.input, dtypes=elements.FLOATS, shape=out.shape, device=out.device,
                 last_contiguous=False)
    if (call.other is None) != (call.operation in _OF_ONE):
        raise ValueError(f"{_OP}: other must be {'None' if call.operation in _OF_ONE else 'a tensor'} with "
                         f"{call.operation}, got {'None' if call.other is None else 'a tensor'}")
    if call.other is not None:
        check.tensor(_OP, "other", call.other, dtypes=elements.FLOATS, shape=out.shape, device=out.device,
                     last_contiguous=False)
    return SKIP if out.numel() == 0 else None


def _kernel_refusal(target: Target, call: ElementwiseCall) -> str | None:
    if call.out.numel() >= 2**31:
        return f"at most {2**31 - 1} elements fit one launch, got {call.out.numel()}"
    dims = len(call.dims)
    return f"at most {MOST_DIMS} dimensions that are apart in memory, got {dims}" if dims > MOST_DIMS else None


def _tune_key(call: ElementwiseCall) -> dict[str, int | str]:
    return {"elements": call.out.numel(), "operands": 1 if call.other is None else 2,
            "dtype": dtypes.name(call.out.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> ElementwiseCall:
    random = tune_shapes.normal(device, seed, key["dtype"])
    x = random(key["elements"])
    if key["operands"] == 1:
        return ElementwiseCall(torch.empty_like(x), x, None, "sigmoid")
    return ElementwiseCall(torch.empty_like(x), x, random(key["elements"]))


def _cases(device: torch.device) -> dict[str, ElementwiseCall]:
    """Each operation, with a row that is broadcast and transposed operands among them; two dtypes."""
    calls = {}
    for operation in _FUNCTIONS:
        x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
        other = None if operation in _OF_ONE else x.flip(0)
        calls[operation] = ElementwiseCall(torch.empty_like(x), x, other, operation)
    calls["broadcast"] = calls["add"]._replace(other=calls["add"].other[0, 0].expand(3, 5, 64))
    calls["transposed"] = calls["mul"]._replace(other=torch.empty(64, 5, 3, device=device).permute(2, 1, 0).copy_(x))
    return calls


elementwise = Op(
    _OP, call=ElementwiseCall, reference=elementwise_ref, check=_check, tune_key=_tune_key,
    tune_fields=("elements", "operands", "dtype"), round_field="elements", cases=_cases, tuning=Tuning(_tune_case),
    in_place={"out": ("input", "other")},
    backends=(Backend("hip", _elementwise_hip, refusal=_kernel_refusal),
              Backend("triton", "ops.activation.triton.elementwise:elementwise", refusal=_kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8)]),
              Backend("torch", elementwise_ref)))


def _of_one(operation: str, input: Tensor, out: Tensor | None, backend: str | None) -> Tensor:
    if not isinstance(input, Tensor):
        raise TypeError(f"{operation}: input must be a tensor, got {type(input).__name__}")
    if out is None:
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
    elementwise.run(out, input, None, operation=operation, backend=backend)
    return out


def sigmoid(input: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The logistic function of each element.

    `out = 1 / (1 + e^−input)`.

    Args:
        input: bf16|fp16|fp32, any shape and strides.
        out: tensor to write, shape of `input`; default: a new contiguous one of its dtype. It may be `input`.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes or devices do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; deterministic; can be captured in a graph.

    Source: AITER's `sigmoid`.
    """
    return _of_one("sigmoid", input, out, backend)


def tanh(input: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The hyperbolic tangent of each element.

    `out = tanh(input)`.

    Args:
        input: bf16|fp16|fp32, any shape and strides.
        out: tensor to write, shape of `input`; default: a new contiguous one of its dtype. It may be `input`.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes or devices do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Computed in fp32, rounded to nearest even once; deterministic; can be captured in a graph.

    Source: AITER's `tanh`.
    """
    return _of_one("tanh", input, out, backend)
