# SPDX-License-Identifier: MIT
"""The decorator by which an adapter says which of AITER's names it serves; `aiter-like generate` writes index.json of
all of them, so that whoever asks for one name loads one adapter.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

_FOLDER = Path(__file__).parent
_PACKAGE = __name__.rpartition(".")[0]
_Adapter = TypeVar("_Adapter", bound=Callable)

_declared: list[dict[str, Any]] = []


def aiter(*places: str, callers: str = "U", stays: bool = False) -> Callable[[_Adapter], _Adapter]:
    """Declares names of AITER's that the decorated function or class serves.

    Args:
        places: "modules:name", as `parse_entry` takes it; without ":name" the adapter's own.
        callers: V vLLM, S SGLang, s SGLang when it starts, U users.
        stays: an installed aiter keeps its own, because it only describes or prepares.
    """
    def declare(adapter: _Adapter) -> _Adapter:
        server = f"{adapter.__module__.removeprefix(f'{_PACKAGE}.')}:{adapter.__name__}"
        names: dict[str, list[str]] = {}
        for place in places:
            paths, _, name = place.partition(":")
            names.setdefault(name or adapter.__name__, []).extend(expanded(paths))
        _declared.append({"server": server, "callers": callers, "stays": stays, "names": names})
        return adapter

    return declare


def parse_entry(text: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, what serves it, and modules, of each name of "modules:names".

    Modules and names are apart by spaces; `name=other` is served by `other`.

    Raises:
        ValueError: there are no modules or no names.
    """
    paths, _, names = text.partition(":")
    if not paths.split() or not names.split():
        raise ValueError(f"expected \"modules:names\", got {text!r}")
    for one in names.split():
        name, _, server = one.partition("=")
        yield name, server or name, tuple(expanded(paths))


def expanded(paths: str) -> Iterator[str]:
    """Every module of a text; "a.[b.]c" stands for a.c and a.b.c."""
    for path in paths.split():
        found = re.fullmatch(r"(.*)\[(.*)\](.*)", path)
        yield from (found[1] + found[3], found[1] + found[2] + found[3]) if found else (path,)


def index() -> str:
    """The text of index.json as it follows from all adapters, which it imports."""
    for path in sorted(_FOLDER.rglob("*.py")):
        if "shim_path" not in path.parts and re.search(r"^@aiter\(", path.read_text(), re.MULTILINE):
            importlib.import_module(".".join([_PACKAGE, *path.relative_to(_FOLDER).with_suffix("").parts]))
    rows = sorted(_declared, key=lambda row: (row["server"], row["callers"], list(row["names"])))
    return f"{json.dumps(rows, indent=1)}\n"
