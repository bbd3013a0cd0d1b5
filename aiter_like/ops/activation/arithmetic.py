# SPDX-License-Identifier: MIT
"""Sums, differences, products and quotients of two tensors: the operator elementwise (elementwise.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like.ops.activation.elementwise import elementwise

__all__ = ["add", "add_", "div", "div_", "mul", "mul_", "sub", "sub_"]


def add(input: Tensor, other: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The sum of two tensors, element by element: `out = input + other`.

    Args:
        input: bf16|fp16|fp32, any shape and strides.
        other: bf16|fp16|fp32, a shape that can be broadcast with that of `input`.
        out: tensor to write, of the common shape; default: a new contiguous one of the common dtype. It may be `input`.

    Notes: Computed in fp32, rounded to nearest even once; deterministic.
    """
    return _of_two("add", input, other, out, backend)


def add_(input: Tensor, other: Tensor, *, backend: str | None = None) -> Tensor:
    """The sum of two tensors, in place of the first. Like `add` otherwise.

    Args:
        input: bf16|fp16|fp32, any shape and strides; read and written.
        other: bf16|fp16|fp32, a shape that can be broadcast to that of `input`.

    Returns: `input`.
    """
    return _of_two("add", input, other, None, backend, is_in_place=True)


def sub(input: Tensor, other: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The difference of two tensors: `out = input − other`. Like `add` otherwise."""
    return _of_two("sub", input, other, out, backend)


def sub_(input: Tensor, other: Tensor, *, backend: str | None = None) -> Tensor:
    """The difference of two tensors, in place of the first. Like `add_` otherwise."""
    return _of_two("sub", input, other, None, backend, is_in_place=True)


def mul(input: Tensor, other: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The product of two tensors: `out = input · other`. Like `add` otherwise."""
    return _of_two("mul", input, other, out, backend)


def mul_(input: Tensor, other: Tensor, *, backend: str | None = None) -> Tensor:
    """The product of two tensors, in place of the first. Like `add_` otherwise."""
    return _of_two("mul", input, other, None, backend, is_in_place=True)


def div(input: Tensor, other: Tensor, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """The quotient of two tensors: `out = input / other`. Like `add` otherwise."""
    return _of_two("div", input, other, out, backend)


def div_(input: Tensor, other: Tensor, *, backend: str | None = None) -> Tensor:
    """The quotient of two tensors, in place of the first. Like `add_` otherwise."""
    return _of_two("div", input, other, None, backend, is_in_place=True)


def _of_two(operation: str, input: Tensor, other: Tensor, out: Tensor | None, backend: str | None,
            is_in_place: bool = False) -> Tensor:
    """The operation of tensors that are broadcast to one shape."""
    if is_in_place:
        out = input
    if input.shape != other.shape:
        input, other = _broadcast(operation, input, other, is_in_place)
    if out is None:
        dtype = input.dtype if input.dtype == other.dtype else torch.promote_types(input.dtype, other.dtype)
        out = torch.empty_like(input, dtype=dtype, memory_format=torch.contiguous_format)
    elementwise.run(out, input, other, operation=operation, backend=backend)
    return out


def _broadcast(operation: str, input: Tensor, other: Tensor, is_in_place: bool) -> tuple[Tensor, Tensor]:
    """Views of one shape, that of `input` where it is written.

    Raises:
        ValueError: there are none.
    """
    try:
        shape = torch.broadcast_shapes(input.shape, other.shape)
    except RuntimeError:
        shape = None
    if shape is None or (is_in_place and shape != input.shape):
        raise ValueError(f"{operation}: other must have a shape that can be broadcast "
                         f"{'to' if is_in_place else 'with'} {tuple(input.shape)}, got {tuple(other.shape)}")
    return input.expand(shape), other.expand(shape)
