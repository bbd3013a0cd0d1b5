# SPDX-License-Identifier: MIT
"""Checks the values of a call object against its annotations, before the operator's own code reads them: a check may
then ask a tensor for its shape, and a number for its size.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.call import signature
from aiter_like.dispatch.addresses import overlaps_itself

STRIDED = object()
"""In the annotation of a tensor: its last dimension may be strided."""


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


def check_shapes(op: str, call: type, args: tuple, writes: Collection[int]) -> None:
    """Every tensor is as `Annotated[Tensor, "*rows hidden", ...]` of its field says: sizes by name are equal wherever
    the name stands, `*name` is any number of dimensions, `_` any size, a number that size. After it comes what its
    dtype may be: dtypes, or names of fields whose dtype it may have; STRIDED, if its last dimension may be strided.
    All are on one device. What is written is checked against what is read.

    Raises:
        TypeError: another dtype.
        ValueError: another shape, device, or a strided last dimension.
    """
    sizes: dict[str, Any] = {}
    device = None
    for field in sorted(_shapes(call), key=lambda field: field.index in writes):
        value, name = args[field.index], call._fields[field.index]
        if value is None:
            continue
        rank, dtypes = len(field.sizes), field.dtypes and dict.fromkeys(
            args[call._fields.index(one)].dtype if isinstance(one, str) else one for one in field.dtypes)
        if field.leading and value.ndim < rank:
            raise ValueError(f"{op}: {name} must have at least {rank} dimension{'s' * (rank != 1)}, got "
                             f"{f'shape {tuple(value.shape)}' if value.ndim else 'a scalar'}")
        leading = value.shape[:value.ndim - rank] if field.leading else ()
        shape = [*sizes.get(field.leading, leading),
                 *(int(each) if each.isdecimal() else sizes.get(each) for each in field.sizes)]
        check.tensor(op, name, value, dtypes=dtypes, rank=len(shape) if None in shape else None, shape=shape,
                     device=device, last_contiguous=not field.is_strided)
        device = value.device
        sizes[field.leading] = leading
        sizes.update(zip(field.sizes, value.shape[len(leading):]))
        sizes.pop("_", None)


class _Field(NamedTuple):
    index: int
    leading: str  # the common name of its first dimensions, "" where there are none
    sizes: list[str]
    dtypes: Any
    is_strided: bool


@functools.cache
def _shapes(call: type) -> list[_Field]:
    """The shapes in the annotations of a call object."""
    found = []
    for index, hint in enumerate(typing.get_type_hints(call, include_extras=True).values()):
        hint = next((each for each in typing.get_args(hint) if typing.get_origin(each) is Annotated), hint)
        if typing.get_origin(hint) is Annotated:
            shape, *others = hint.__metadata__
            leading = next((each for each in shape.split() if each.startswith("*")), "")
            dtypes = next((each for each in others if each is not STRIDED), None)
            dtypes = (dtypes,) if isinstance(dtypes, (str, torch.dtype)) else dtypes
            found.append(_Field(index, leading, [each for each in shape.split() if each != leading], dtypes,
                                any(each is STRIDED for each in others)))
    return found


def check_outputs(op: str, call: type, args: tuple, writes: Iterable[int]) -> None:
    """Checks that outputs may be written: no two elements of one share memory, and autograd allows it.

    Raises:
        ValueError: two elements do; a tensor, or what it is a view of, is a leaf that requires grad.
    """
    for index in writes:
        name = call._fields[index]
        for tensor in args[index] if isinstance(args[index], (tuple, list)) else (args[index],):
            if tensor is None:
                continue
            if overlaps_itself(tensor):
                raise ValueError(f"{op}: {name} must not overlap itself, got shape {tuple(tensor.shape)} with strides "
                                 f"{tensor.stride()}")
            owner = tensor if tensor._base is None else tensor._base
            if owner.requires_grad and owner.is_leaf and torch.is_grad_enabled():
                raise ValueError(f"{op}: {name} must not be a leaf that requires grad, nor a view of one, unless under "
                                 "torch.no_grad()")


@functools.cache
def _kinds(call: type) -> list[tuple[str, Callable[[Any], bool], str]]:
    found = []
    for name, parameter in signature(call).parameters.items():
        annotation = parameter.annotation
        found.append((name, *kind_of(annotation.__name__ if isinstance(annotation, type) else str(annotation))))
    return found


@functools.cache
def kind_of(annotation: str) -> tuple[Callable[[Any], bool], str]:
    """(whether a value is of the kind that an annotation names, that kind in words); true of what has no rule."""
    rules = [next((rule for kind, *rule in _RULES if re.fullmatch(kind, part)), None)
             for part in annotation.replace("torch.", "").split(" | ")]
    if None in rules:
        return lambda value: True, ""
    if len(rules) == 1:
        return tuple(rules[0])
    return (lambda value: any(is_right(value) for is_right, _ in rules)), " or ".join(wanted for _, wanted in rules)


def _is_tensor(value: Any) -> bool:
    """A nested tensor is one without sizes, a quantised one has a scale that no operator reads."""
    return (isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
            and not value.is_quantized)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_is_tensor, value))


def _are_integers(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_is_integer, value))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_RULES = (("None|NoneType", lambda value: value is None, "None"),
          (r"(tuple|Sequence)\[Tensor.*", _are_tensors, "a tuple of tensors"),
          (r"(tuple|Sequence)\[int.*", _are_integers, "a tuple of integers"),
          ("Tensor", _is_tensor, "a tensor"),
          ("dtype", lambda value: isinstance(value, torch.dtype), "a torch.dtype"),
          ("bool", lambda value: isinstance(value, bool), "True or False"),
          ("int", _is_integer, "an integer"),
          ("float", lambda value: isinstance(value, float) or _is_integer(value), "a number"),
          ("str", lambda value: isinstance(value, str), "a string"))
