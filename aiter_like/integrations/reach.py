# SPDX-License-Identifier: MIT
"""Finds the operators behind a function: for the page of names, and for AITER_LIKE_DISABLE, which names operators."""

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch

from aiter_like.dispatch import Op


def operators(function: Any) -> list[Op]:
    """The operators that a function's code names, itself or through functions and layers of this package."""
    return [found for found in _reached(function) if isinstance(found, Op)]


def _reached(function: Any) -> Iterator[Any]:
    """Operators and functions of this package that the code of a function names, and what their code names."""
    stack, seen = [function], set()
    while stack:
        found = stack.pop()
        if isinstance(found, functools.partial):
            found = found.func
        if isinstance(found, types.FunctionType):
            found = inspect.unwrap(found)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, types.FunctionType) and found.__module__.split(".")[0] == "aiter_like":
            stack += _named(found)
        if _is_layer(found):
            methods = [getattr(value, "__func__", value) for value in vars(found).values()]  # static ones too
            stack += [value for value in methods if isinstance(value, types.FunctionType)]


def _named(function: types.FunctionType) -> list[Any]:
    names, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    found = [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
    found += [cell.cell_contents for cell in function.__closure__ or ()]
    for module in [value for value in found if isinstance(value, types.ModuleType)]:
        if module.__name__.split(".")[0] == "aiter_like":
            served = {*vars(module), *getattr(module, "__all__", ())}  # the root loads its functions when asked
            found += [getattr(module, name) for name in sorted(names & served)]
            if "getattr" in names:  # the name is put together: any of the module's operators
                found += [value for value in vars(module).values() if isinstance(value, Op)]
    kinds = (Op, types.FunctionType, functools.partial)
    return [value for value in found if isinstance(value, kinds) or _is_layer(value)]


def _is_layer(value: Any) -> bool:
    """Whether a class computes by its methods: layers, and what functions of operators are made of."""
    return isinstance(value, type) and (
        issubclass(value, torch.nn.Module) or value.__module__.startswith("aiter_like.ops."))
