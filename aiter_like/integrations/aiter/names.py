# SPDX-License-Identifier: MIT
"""The table of AITER's names (names.txt), and what each of them is here: ours, or a stub that says what to use.

From it come the names of `import aiter_like as aiter`, the overlay, the shim, and AITER.md.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError, did_you_mean
from aiter_like.ops.index import PUBLIC


class _DeviceFp8:
    """A default that no signature can state: None here, an fp8 where somebody has asked for the device already."""

    def __eq__(self, other: object) -> bool:
        return other in (None, torch.float8_e4m3fnuz, torch.float8_e4m3fn)

    def __repr__(self) -> str:
        return "the device's fp8"

    __hash__ = None


_FILE = Path(__file__).with_suffix(".txt")
_SYMBOLS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "i8": torch.int8,
            "i32": torch.int32,
            "fp4x2": getattr(torch, "float4_e2m1fn_x2", torch.uint8),
            "fp8": _DeviceFp8(), "fp8_e4m3fn": torch.float8_e4m3fn,
            "QuantType.No": QuantType.No, "QuantType.per_Token": QuantType.per_Token,
            "ActivationType.Silu": ActivationType.Silu}


@dataclass(frozen=True)
class Name:
    """A row of the table.

    Attributes:
        name: as callers spell it below its module, such as "rms_norm" or "tgemm.mm".
        section: of the table.
        priority, callers: see the table's head.
        parameters: its parameter list as text; None for what is no function.
        modules: the modules that hold it, the one that callers use first.
        server: what serves it: a name of aiter_like, or "file:name" beside this file; None: nothing.
        is_kept: an installed aiter keeps its own.
        advice: what to use instead where nothing serves it.
    """

    name: str
    section: str
    priority: str
    callers: str
    parameters: str | None
    modules: tuple[str, ...]
    server: str | None
    is_kept: bool
    advice: str

    @property
    def signature(self) -> inspect.Signature:
        """As AITER's callers see it."""
        return parse_signature(self.parameters)

    @functools.cached_property
    def value(self) -> Any:
        """What serves the name, or its stub."""
        if self.server is None:
            return _stub(self)
        file, colon, attribute = self.server.partition(":")
        holder = importlib.import_module(f"{__package__}.{file}" if colon else "aiter_like")
        return getattr(holder, attribute if colon else file)


@functools.cache
def table() -> tuple[Name, ...]:
    """Every row, in the order of the file.

    Raises:
        ValueError: a line of it is none; the message has file and line.
    """
    names, section, advice = [], "", ""
    for number, line in enumerate(_FILE.read_text().splitlines(), 1):
        if line.startswith("["):
            section, _, advice = line[1:].partition("]")
        elif line.strip() and not line.startswith("#"):
            fields = [field.strip() for field in line.split("|")]
            if len(fields) != 4:
                raise ValueError(f"{_FILE.name}:{number}: expected 4 fields, got {len(fields)}")
            names.append(_row(section, advice.strip(), *fields))
    return tuple(names)


@functools.cache
def top_level() -> dict[str, Name]:
    """The names of `import aiter_like as aiter` that come from the table: AITER's own top level, then, where that has
    none of the name, those of its modules; dotted ones under their first part.
    """
    chosen: dict[str, Name] = {}
    for is_top in (True, False):
        for row in table():
            if ("aiter" in row.modules) == is_top:
                chosen.setdefault(row.name, row)
    return chosen


def attribute(name: str) -> Any:
    """What `aiter_like.<name>` is, for a name that the package itself does not define.

    Raises:
        AttributeError: AITER has no such name either.
    """
    value = namespace(top_level().values()).get(name)
    if value is None:
        raise AttributeError(f"module 'aiter_like' has no attribute {name!r}, nor has AITER"
                             f"{did_you_mean(name, [*PUBLIC, *top_level()])}")
    return value.value if isinstance(value, Name) else value


def namespace(rows: Any, served: Callable[[Name], Any] = lambda row: row.value) -> dict[str, Name | SimpleNamespace]:
    """Attribute → row, of some rows; a dotted name's first part → an object with what `served` makes of the rest."""
    found: dict[str, Any] = {}
    for row in rows:
        first, _, rest = row.name.partition(".")
        if rest:
            setattr(found.setdefault(first, SimpleNamespace()), rest, served(row))
        else:
            found[first] = row
    return found


@functools.cache
def parse_signature(parameters: str) -> inspect.Signature:
    """A signature from its text. Defaults are literals or the symbols of the table, nothing is evaluated.

    Raises:
        ValueError: a default is neither.
    """
    arguments = ast.parse(f"def _({parameters}): ...").body[0].args
    kinds = inspect.Parameter
    defaults = [kinds.empty] * (len(arguments.args) - len(arguments.defaults)) + list(map(_default, arguments.defaults))
    found = [kinds(argument.arg, kinds.POSITIONAL_OR_KEYWORD, default=default)
             for argument, default in zip(arguments.args, defaults)]
    if arguments.vararg:
        found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    found += [kinds(argument.arg, kinds.KEYWORD_ONLY, default=kinds.empty if node is None else _default(node))
              for argument, node in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    if arguments.kwarg:
        found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)


def difference(ours: inspect.Signature, theirs: inspect.Signature) -> str:
    """Why callers of one signature cannot call the other; "" where they can: the same names, order and defaults; one
    of both may go on after the last, with what has a default.
    """
    pairs = [list(signature.parameters.values()) for signature in (ours, theirs)]
    pairs = [[parameter for parameter in side if parameter.kind is not parameter.KEYWORD_ONLY
              or any(other.kind is other.VAR_POSITIONAL for other in side)] for side in pairs]
    for mine, their in zip(*pairs):
        if (mine.name, mine.kind) != (their.name, their.kind):
            return f"{their.name} is {mine.name}"
        if not _same(mine.default, their.default):
            return f"the default of {their.name} is {mine.default}, not {their.default}"
    longest = max(pairs, key=len)
    for more in longest[min(map(len, pairs)):]:
        if more.default is more.empty and more.kind is more.POSITIONAL_OR_KEYWORD:
            return f"only one of both has {more.name}"
    return ""


def _same(mine: Any, their: Any) -> bool:
    """Equal defaults; an enum of another library counts as its number."""
    if type(mine) is not type(their) and hasattr(their, "value"):
        their = their.value
    return bool(mine == their)


def _row(section: str, advice: str, head: str, text: str, modules: str, server: str) -> Name:
    priority, callers = head.split()
    name, has_parameters, parameters = text.partition("(")
    if server.startswith("-"):
        return Name(name, section, priority, callers, parameters.removesuffix(")"), tuple(modules.split()), None, True,
                    server[1:].strip() or advice)
    return Name(name, section, priority, callers, parameters.removesuffix(")") if has_parameters else None,
                tuple(modules.split()), server.removeprefix("~"), server.startswith("~"), "")


def _default(node: ast.expr) -> Any:
    text = ast.unparse(node)
    try:
        return _SYMBOLS[text] if text in _SYMBOLS else ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"a default must be a literal or one of {', '.join(_SYMBOLS)}, got {text!r}") from None


def _stub(row: Name) -> Any:
    message = f"{row.modules[0]}.{row.name} is not served by aiter_like"

    def stub(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(f"{message}; use {row.advice}", row.name)

    stub.__name__ = stub.__qualname__ = row.name.rpartition(".")[2]
    stub.__doc__ = f"{message}: it raises UnsupportedError. Use {row.advice}."
    stub.__signature__ = row.signature  # callers ask for it before they call
    stub.is_missing = True
    return stub
