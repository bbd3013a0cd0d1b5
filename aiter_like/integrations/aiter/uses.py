# SPDX-License-Identifier: MIT
"""Reads from a program's text which names of AITER it uses, and tells what each of them is in the shim."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter import shim

STATES = ("served", "raising", "absent")


@dataclass(frozen=True)
class Uses:
    """Names with their modules, as "aiter.ops.shuffle.shuffle_weight", by what they are.

    Attributes:
        served: the shim has them.
        raising: it has them, and they raise when they are called.
        absent: it has not.
    """

    served: list[str]
    raising: list[str]
    absent: list[str]

    @property
    def counts(self) -> dict[str, int]:
        """State → how many."""
        return {state: len(getattr(self, state)) for state in STATES}

    @classmethod
    def of(cls, file: Path) -> Uses:
        """The names that one program uses; none where it is no Python."""
        return cls.of_all([file])

    @classmethod
    def of_all(cls, files: Iterable[Path]) -> Uses:
        """The names that several programs use, each once."""
        found: dict[str, list[str]] = {state: [] for state in STATES}
        for name, state in sorted({resolved(name) for file in files for name in _names_of(file)}):
            if state:
                found[state].append(name)
        return cls(**found)


@functools.cache
def resolved(name: str) -> tuple[str, str]:
    """The name that the shim knows, and one of STATES; "" for a module, which is not a name of its own.

    Args:
        name: with its module; of "aiter.logger.info" the shim's name is "aiter.logger".
    """
    if name in shim.modules():
        return name, ""
    path = name.split(".")
    for cut in range(len(path) - 1, 0, -1):
        module = ".".join(path[:cut])
        if module in shim.modules() or module == shim.TORCH_OPS:
            return _attribute(module, path[cut:])
    return name, "absent"


def value_of(name: str) -> object:
    """The object that the shim has under a name, or None."""
    for row in aiter_names.table():
        for module in row.modules:
            full = f"{module}.{row.name}"
            if name == full or name.startswith(f"{full}."):
                rest = name[len(full) + 1:]
                return operator.attrgetter(rest)(row.value) if rest else row.value
    return None


def _attribute(module: str, path: list[str]) -> tuple[str, str]:
    """`resolved` of what stands behind the module in a name."""
    rows = {row.name: row for row in aiter_names.table() if module in row.modules}
    for length in range(len(path), 0, -1):
        name = ".".join(path[:length])
        row = rows.get(name)
        if row is not None and row.server is None:
            return f"{module}.{name}", "raising"
        if row is not None:
            parts, value = path[length:length + 1], row.value
            is_there = not parts or hasattr(value, parts[0])
            return (f"{module}.{name}", "served") if is_there else (f"{module}.{name}.{parts[0]}", "absent")
        if any(known.startswith(f"{name}.") for known in rows):  # it only holds others
            return f"{module}.{name}", "" if length == len(path) else "absent"
    return f"{module}.{path[0]}", "served" if shim.has(module, path[0]) else "absent"


def _names_of(file: Path) -> set[str]:
    try:
        return set(names(ast.parse(file.read_text())))
    except (SyntaxError, ValueError):  # a NUL is a ValueError in some Pythons
        return set()


def names(tree: ast.AST) -> Iterator[str]:
    """The names that a program imports from aiter, and the attributes that it takes of aiter's modules."""
    called: dict[str, str] = {}  # a name of the program → of AITER
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "aiter":
            for alias in node.names:
                full = f"{node.module}.{alias.name}" if alias.name != "*" else str(node.module)
                called[alias.asname or alias.name] = full
                yield full
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "aiter":
                    called[alias.asname or "aiter"] = alias.name if alias.asname else "aiter"
                    yield alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = _chain(node)
            if parts[0] in called:
                yield ".".join([called[parts[0]], *parts[1:]])


def _chain(node: ast.expr) -> list[str]:
    """["a", "b"] of a.b; [""] where it does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *parts]
