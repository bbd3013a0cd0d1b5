# SPDX-License-Identifier: MIT
"""AITER's names, and what each of them is here: ours, or a stub that says what to use.

From index.json, which `aiter-like generate` writes of what adapters declare by @aiter, and names.toml come the names of
`import aiter_like as aiter`, the overlay, the shim, and AITER.md. Asking for the table imports no adapter.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from aiter_like.errors import UnsupportedError, did_you_mean
from aiter_like.integrations.aiter.declare import parse_entry
from aiter_like.ops.index import PUBLIC


class _DeviceFp8:
    """AITER's default of `dtype_quant`: None here, an fp8 where somebody has asked for the device already."""

    def __eq__(self, other: object) -> bool:
        return other in (None, torch.float8_e4m3fnuz, torch.float8_e4m3fn)

    def __repr__(self) -> str:
        return "the device's fp8"

    __hash__ = None


_INDEX = Path(__file__).with_name("index.json")
_TABLE = Path(__file__).with_name("names.toml")
_CALLERS = ("VS", "V", "Vs", "S", "s", "U")


@dataclass(frozen=True)
class Name:
    """A row of the table.

    Attributes:
        name: as callers spell it below its module, such as "rms_norm" or "tgemm.mm".
        modules: the modules that hold it, the one that callers use first.
        server: what serves it: a name of aiter_like, or "file:name" beside this file; None: nothing.
        callers: V vLLM, S SGLang, s SGLang when it starts, U users.
        is_kept: an installed aiter keeps its own.
        section: see `_section`; for what is missing, as names.toml says.
        advice: what to use instead where nothing serves it.
    """

    name: str
    modules: tuple[str, ...]
    server: str | None
    callers: str
    is_kept: bool
    section: str
    advice: str = ""

    @property
    def signature(self) -> inspect.Signature:
        """As AITER's callers see it."""
        ours = inspect.signature(self.value)
        return ours.replace(parameters=[
            one.replace(default=_DeviceFp8()) if one.name == "dtype_quant" and one.default is None else one
            for one in ours.parameters.values()])

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
    """Every row, by section.

    Raises:
        ValueError: an entry of names.toml is none.
    """
    groups = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(sorted((*_declared(), *_served(groups["served"]), *_missing(groups["missing"])),
                        key=lambda row: (row.section, row.server is None)))


def _declared() -> Iterator[Name]:
    for row in json.loads(_INDEX.read_text(encoding="utf-8")):
        for name, modules in row["names"].items():
            yield Name(name, tuple(modules), row["server"], row["callers"], row["stays"], _section(row["server"]))


def _served(groups: list[dict[str, Any]]) -> Iterator[Name]:
    for group in groups:
        file = f"{group['from']}:" if "from" in group else ""
        for callers, name, server, modules in _entries(group, {"from", "stays"}):
            yield Name(name, modules, file + server, callers, group.get("stays", False), _section(file + server))


def _missing(groups: list[dict[str, Any]]) -> Iterator[Name]:
    for group in groups:
        for callers, name, _, modules in _entries(group, {"section", "use"}):
            yield Name(name, modules, None, callers, True, group["section"], group["use"])


def _section(server: str) -> str:
    """The family of a function, the folder of an adapter; "environment" for what is neither."""
    folder = server.partition(":")[0].partition(".")[0] if ":" in server else PUBLIC.get(server, "").partition(".")[0]
    return "environment" if folder in ("", "objects", "tests") else folder


def _entries(group: dict[str, Any], others: set[str]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Callers, name, server and modules of each name of a group's lists."""
    for callers, entries in group.items():
        if callers in others:
            continue
        try:
            if callers not in _CALLERS:
                raise ValueError(f"a list must be of {', '.join(_CALLERS)}, got {callers}")
            for name, server, modules in (row for entry in entries for row in parse_entry(entry)):
                yield " ".join(callers), name, server, modules
        except ValueError as error:
            raise ValueError(f"{_TABLE.name}: {error}") from None


@functools.cache
def top_level() -> dict[str, Name]:
    """The names of `import aiter_like as aiter` that come from the table: AITER's own top level, then, where that has
    none of the name, the one of the module with the fewest parts, helpers last; dotted ones under their first part.
    """
    chosen: dict[str, Name] = {}
    for row in sorted(table(), key=lambda row: min((path.startswith("aiter.utility"), path.count("."))
                                                   for path in row.modules)):
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


def _stub(row: Name) -> Any:
    message = f"{row.modules[0]}.{row.name} is not served by aiter_like"

    def stub(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(f"{message}; use {row.advice}", row.name)

    stub.__name__ = stub.__qualname__ = row.name.rpartition(".")[2]
    stub.__doc__ = f"{message}: it raises UnsupportedError. Use {row.advice}."
    stub.is_missing = True
    return stub
