# SPDX-License-Identifier: MIT
"""What the annotations of a call object say about its values, checked before anything of the operator's own reads them:
a check may then ask a tensor for its shape, and a number for its size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.call import signature


def check_kinds(op: str, call: type, args: tuple) -> None:
    """Every field is of the kind that its annotation names; an integer may stand for a float.

    Raises:
        TypeError: a field is not.
        ValueError: an integer has more than 64 bits.
    """
    for (name, is_right, wanted), arg in zip(_kinds(call), args, strict=True):
        if not is_right(arg):
            check.refuse_kind(op, name, arg, wanted)
        if wanted.startswith("an integer") and arg is not None:
            check.integer(op, name, arg, -2**63, 2**63 - 1)


def check_outputs(op: str, call: type, args: tuple, writes: Iterable[int]) -> None:
    """What is written may be written: no two elements of it share memory, and autograd allows it.

    Raises:
        ValueError: two elements do; a tensor, or what it is a view of, is a leaf that requires grad.
    """
    for index in writes:
        name = call._fields[index]
        for tensor in args[index] if isinstance(args[index], (tuple, list)) else (args[index],):
            if tensor is None:
                continue
            if _overlaps_itself(tensor):
                raise ValueError(f"{op}: {name} must not overlap itself, got shape {tuple(tensor.shape)} with strides "
                                 f"{tensor.stride()}")
            owner = tensor if tensor._base is None else tensor._base
            if owner.requires_grad and owner.is_leaf and torch.is_grad_enabled():
                raise ValueError(f"{op}: {name} must not be a leaf that requires grad, nor a view of one, unless under "
                                 "torch.no_grad()")


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether two indices lead to one element. Exact where each stride steps over all smaller dimensions, and for
    tensors of no more than 2²⁰ elements; larger ones that do not are taken for overlapping.
    """
    dims = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1)
    if tensor.numel() == 0 or not dims:
        return False
    end = 1
    for stride, size in dims:
        if stride < end:
            break
        end += stride * (size - 1)
    else:
        return False
    if dims[0][0] == 0 or tensor.numel() > 1 << 20:
        return True
    offsets = torch.zeros(1, dtype=torch.int64)
    for stride, size in dims:
        offsets = (offsets[:, None] + torch.arange(size) * stride).flatten()
    return offsets.unique().numel() < offsets.numel()


@functools.cache
def _kinds(call: type) -> list[tuple[str, Callable[[Any], bool], str]]:
    found = []
    for name, parameter in signature(call).parameters.items():
        text = str(parameter.annotation)
        is_right, wanted = next(rule for kind, *rule in _RULES if kind in text)
        if "None" in text:
            found.append((name, functools.partial(_is_none_or, is_right), f"{wanted} or None"))
        else:
            found.append((name, is_right, wanted))
    return found


def _is_none_or(is_right: Callable[[Any], bool], value: Any) -> bool:
    return value is None or is_right(value)


def _is_tensor(value: Any) -> bool:
    """A nested tensor is one without sizes, a quantised one has a scale that no operator reads."""
    return (isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
            and not value.is_quantized)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_is_tensor, value))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_RULES = (("tuple[torch.Tensor", _are_tensors, "a tuple of tensors"),
          ("Tensor", _is_tensor, "a tensor"),
          ("bool", lambda value: isinstance(value, bool), "True or False"),
          ("int", _is_integer, "an integer"),
          ("float", lambda value: isinstance(value, float) or _is_integer(value), "a number"),
          ("str", lambda value: isinstance(value, str), "a string"))
