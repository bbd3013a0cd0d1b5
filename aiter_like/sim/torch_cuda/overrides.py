# SPDX-License-Identifier: MIT
"""Kernels that programs give torch's own operators within sim.as_gpu(): those for "CUDA" serve tensors on the GPU,
those for "CPU" tensors of the host, and torch's own kernel serves the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices, generators, marks


class _Call(threading.local):
    """The function of torch that runs on this thread.

    Attributes:
        place: the number of the GPU that it works on; None: of none.
        index: the GPU that it names itself, by device=….
        arguments: what it was given.
        generator: the one that the program names; None: it names none.
    """

    place: int | None = None
    index: int | None = None
    arguments: tuple = ()
    generator: Any = None

    def swap(self, place: int | None, index: int | None, arguments: tuple, generator: Any) -> tuple:
        """Sets them; what they were."""
        before = self.place, self.index, self.arguments, self.generator
        self.place, self.index, self.arguments, self.generator = place, index, arguments, generator
        return before


_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_call = _Call()
_given: set[str] = set()
KEYS = {"CPU": "CPU", "CUDA": "CPU", "AutogradCPU": "AutogradCPU", "AutogradCUDA": "AutogradCPU"}
"""Of the keys that such kernels have, the one that torch calls them by here."""


def add(library: Any, operator: Any, fn: Callable, key: str, *, original: Callable,
        switched_on: Callable[[], AbstractContextManager], is_on: Callable[[], bool], **options: Any) -> None:
    """Library.impl of an operator of torch's own for one of KEYS.

    Args:
        original: Library.impl.
        switched_on: makes a block in which the mode of sim.as_gpu() is on.
        is_on: whether the block of sim.as_gpu() is open.
        options: those of Library.impl.
    """
    name = _name(library, operator)
    below = kernel_of(name, KEYS[key])
    has_keys = options.pop("with_keyset", False)
    is_of_gpu = "CUDA" in key

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        place = _place(args, kwargs)
        if not is_on() or (place is not None) != is_of_gpu:
            if below is None:
                raise NotImplementedError(f"Could not run '{name}' with arguments from the "
                                          f"'{'CUDA' if place is not None else 'CPU'}' backend")
            return below.call_boxed(keys, *_with_tensors(name, args), **kwargs)
        if place is not None:
            args, kwargs = _on_gpu(args, place), _on_gpu(kwargs, place)
            if _call.index is not None and kwargs.get("device") is not None:
                kwargs = kwargs | {"device": devices.of_index(place)}
            if kwargs.pop("generator", None) is not None and _call.generator is not None:
                kwargs["generator"] = _call.generator
        before = _call.swap(None, None, (), None)
        try:
            with switched_on():
                return fn(keys, *args, **kwargs) if has_keys else fn(*args, **kwargs)
        finally:
            _call.swap(*before)

    original(library, operator, kernel, KEYS[key], with_keyset=True, **options)
    _given.add(name)


def is_there(library: Any, operator: Any) -> bool:
    """Whether torch has such an operator; it takes kernels of others in silence, and never calls them."""
    return _schema(_name(library, operator)) is not None


def called(func: Callable, args: tuple, kwargs: dict, index: int | None) -> Any:
    """The results of a function of torch, of which such kernels may be a part.

    Args:
        index: the number of the GPU that its device=… names; None: it names none.
    """
    if not _given:
        return func(*args, **kwargs)
    generator = kwargs.get("generator")
    if any(generator is one for one in generators.defaults()):  # sim.as_gpu() itself names these
        generator = None
    before = _call.swap(marks.first_place(args, kwargs) if index is None else index, index, (args, kwargs), generator)
    try:
        return func(*args, **kwargs)
    finally:
        _call.swap(*before)


def kernel_of(name: str, key: str) -> Any:
    """The kernel of an operator that torch calls by a key; None: there is none, as for what is a GPU's alone."""
    try:
        return torch.library.get_kernel(name, key)
    except RuntimeError as error:
        if "no kernel" not in str(error):
            raise
        return None


def _name(library: Any, operator: Any) -> str:
    name = library._resolve_op_name(operator, "impl")
    return name if "::" in name else f"{library.ns}::{name}"


def _schema(name: str) -> Any:
    base, _, overload = name.partition(".")
    try:
        return torch._C._get_schema(base, overload)
    except RuntimeError:  # "Found no matching schema"
        return None


def _place(args: tuple, kwargs: dict) -> int | None:
    """Where a kernel's arguments are: values that a function of C++ has made on its way are where that works, but for
    those without dimensions, which may be numbers, and are the host's.
    """
    found = marks.first_place(args, kwargs)
    if found is not None:
        return found
    given = [*marks.tensors(args), *marks.tensors(kwargs)]
    has_dimensions = any(one.dim() for one in given)
    return _call.place if has_dimensions or (_call.index is not None and not given and "device" in kwargs) else None


def _on_gpu(value: Any, place: int) -> Any:
    """Arguments of a kernel of the GPU: what C++ has made is there; tensors of the host that the function was given,
    such as indices, are copied.
    """
    if isinstance(value, dict):
        return {name: _on_gpu(one, place) for name, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_on_gpu(one, place) for one in value)
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or marks.index_of(value) is not None:
        return value
    holder = marks.holder_of(value)
    is_of_host = any(marks.holder_of(one) is holder for one in marks.tensors(_call.arguments))
    return marks.put(value.clone() if is_of_host else value, place)


def _with_tensors(name: str, args: tuple) -> list[Any]:
    """Arguments for torch's own kernel: torch gives kernels of Python numbers where an operator has tensors. A number
    promotes as it does beside the first tensor; beside numbers alone it is of the default type; one alone, which is
    copied, keeps its digits.
    """
    if not any(type(one) in _NUMBERS for one in args):
        return list(args)
    arguments = [(one, str(argument.type) == "Tensor" and type(one) in _NUMBERS)
                 for one, argument in zip(args, _schema(name).arguments, strict=False)]
    first, is_alone = next(marks.tensors(args), None), sum(is_meant for _, is_meant in arguments) == 1
    return [torch.tensor(one, dtype=_type_of(one, first, is_alone)) if is_meant else one for one, is_meant in arguments]


def _type_of(number: Any, beside: torch.Tensor | None, is_alone: bool) -> torch.dtype:
    """A type of a tensor without dimensions which leads where the number does, and loses none of its digits if it can.
    """
    wide = _NUMBERS[type(number)]
    if beside is None:
        return wide if is_alone else torch.tensor(number).dtype
    meant = torch.result_type(beside, number)
    return wide if beside.dim() and torch.result_type(beside, torch.empty((), dtype=wide)) == meant else meant
