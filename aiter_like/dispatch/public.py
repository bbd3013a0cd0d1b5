# SPDX-License-Identifier: MIT
"""Makes `aiter_like.NAME`: a public function whose errors speak of NAME and its parameters. Operators check their own
fields, several public functions share an operator, and some have two names.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, env
from aiter_like.call import guarded
from aiter_like.dispatch import docs
from aiter_like.dispatch.kinds import kind_of
from aiter_like.errors import AiterLikeError, UnsupportedError


def public(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as `name`, with its signature and docstring; what it raises is told in words of `name`."""
    kinds = {each.name: each.annotation for each in inspect.signature(function).parameters.values()}
    flags = [each for each, kind in kinds.items() if kind in ("bool", bool)]
    made = guarded(name, function, flags, functools.partial(_refuse_flags, name, flags),
                   functools.partial(_raise_in_words, name, kinds))
    made.__module__, made.__qualname__ = "aiter_like", name  # for pickle; and Python's own errors have the name
    functools.update_wrapper(made, function, ("__annotations__",))
    made.__doc__ = docs.completed(name, function)
    return made


def _refuse_flags(name: str, flags: list[str], values: tuple) -> None:
    """Refuses what is no flag; whether 0 and 1, which engines pass too, are one is left to the function."""
    for flag, value in zip(flags, values):
        if type(value) is not int or value not in (0, 1):
            check.flag(name, flag, value)


def _raise_in_words(name: str, kinds: Mapping[str, Any], error: Exception, values: tuple) -> None:
    """Rewords a refusal. Where it names no parameter, and of other errors: refuses the argument of a wrong kind.

    Engines let a layer's calls be refused in every step, so what texts alone decide is remembered.
    """
    # torch_ops.is_transformed asks the same; importing it here would cost every program that only imports the package.
    if (isinstance(error, RuntimeError) and not isinstance(error, AiterLikeError)
            and torch._C._are_functorch_transforms_active()):
        raise UnsupportedError(f"{name}: does not run under these transforms of torch.func: {error}", name) from error
    parameters = dict(zip(kinds, values))
    if isinstance(error, (ValueError, TypeError, UnsupportedError)) and _is_refusal(error):
        names = tuple(_names(getattr(error, "fields", {}), parameters).items())
        error.args = (_reworded(error.args[0], name, names), *error.args[1:])
        if isinstance(error, UnsupportedError) or not _words(error.args[0]).isdisjoint(parameters):
            return
    for parameter, value in parameters.items():
        is_right, wanted = kind_of(str(kinds[parameter]))
        try:
            if not is_right(value):
                check.refuse_kind(name, parameter, value, wanted)
            if isinstance(value, int) and "an integer" in wanted:
                check.integer(name, parameter, value, -2**63, 2**63 - 1)
            elif isinstance(value, int) and "a number" in wanted:
                check.real(name, parameter, value)
        except (ValueError, TypeError) as refusal:
            raise refusal from error


def _is_refusal(error: Exception) -> bool:
    """Whether a message begins as those of check.py do: with a name, which is that of no environment variable."""
    if not error.args or not isinstance(error.args[0], str):
        return False
    name = error.args[0].partition(":")[0]
    return name.isidentifier() and name not in env.VARIABLES


@functools.lru_cache(maxsize=256)
def _words(message: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", message))


@functools.lru_cache(maxsize=256)
def _reworded(message: str, name: str, names: tuple[tuple[str, str], ...]) -> str:
    """`names`: pairs of a field and its parameter."""
    line, end, more = message.partition(": ")[2].partition("\n")
    if names:
        parameters = dict(names)
        pattern = "|".join(map(re.escape, sorted(parameters, key=len, reverse=True)))
        article = r"(?<=\ba) (?!(?:must|and|or|is|has|does|of|in|with)\b)[a-z]"  # the word before it is no argument
        line = re.sub(rf"(?<![\w.'])({pattern})(?![\w'])(?!{article})", lambda match: parameters[match[1]], line)
    return f"{name}: {line}{end}{more}"


def _names(fields: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, str]:
    """Field → parameter, where they are called differently: the one that holds its value, by the most similar name."""
    names = {}
    for field, arg in fields.items():
        same = [name for name, value in parameters.items() if _is_same(arg, value)]
        if same and field not in same and (field not in parameters or isinstance(arg, Tensor)):
            # Values other than tensors are often one object by chance, as True and small numbers always are.
            if closest := _closest(field, tuple(same), 0.0 if isinstance(arg, Tensor) else 0.5):
                names[field] = closest
    return names


@functools.lru_cache(maxsize=256)
def _closest(field: str, names: tuple[str, ...], cutoff: float) -> str:
    """The most similar name, "" where none is similar enough."""
    return next(iter(difflib.get_close_matches(field, names, 1, cutoff)), "")


def _is_same(arg: Any, value: Any) -> bool:
    """One object, or views of one memory."""
    if arg is value:
        return True
    if not isinstance(arg, Tensor) or not isinstance(value, Tensor):
        return False
    try:
        if not arg.numel():
            return arg.untyped_storage()._cdata == value.untyped_storage()._cdata
        return arg.data_ptr() == value.data_ptr() != 0
    except RuntimeError:  # neither nested nor sparse nor fake tensors have one memory
        return False
