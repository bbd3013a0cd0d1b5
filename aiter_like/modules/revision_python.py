# SPDX-License-Identifier: MIT
"""The revision of Triton kernels: of the functions that Triton compiles for a launcher, and of the functions and
constants that these name. Found in the syntax trees of ops/: Triton is not imported. Launchers do not count.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from aiter_like.modules import revision

_OPS = "aiter_like.ops"
_JIT = ("triton.jit", "triton.experimental.gluon.jit")
_SILENT = ("ctx", "kind", "name", "type_comment")
Key = tuple[Path, str, int]
"""A definition: its module, its name, and which of those of this name it is."""


def text_revision(module: Path, launcher: str) -> str:
    """8 hex digits: what the device runs of the kernels that a launcher of a module can reach."""
    return revision.of_pieces(_kernels(module, launcher), lambda key: _definition(*key)[:2])


@functools.lru_cache(maxsize=1024)
def kernel_revision(module: Path, name: str) -> str:
    """8 hex digits: what the device runs of one kernel."""
    return revision.of_pieces(_Module.of(module).keys(name), lambda key: _definition(*key)[:2])


def _kernels(module: Path, launcher: str) -> list[Key]:
    """The kernels, all of which stand in folders `triton`, and the functions of kernels that a launcher names."""
    found, seen, waiting = [], set(), [*_Module.of(module).keys(launcher)]
    while waiting:
        if (key := waiting.pop()) not in seen:
            seen.add(key)
            _, named, is_kernel = _definition(*key)
            if is_kernel:
                found.append(key)
            else:
                waiting += [one for meant in named for one in meant if one[0].parent.name == "triton"]
    return found


def _definition(module: Path, name: str, index: int) -> tuple[str, Sequence[Sequence[Key]], bool]:
    """The piece of a definition, and whether it is a kernel or a function of one."""
    return _Module.of(module).definition(name, index)


class _Module:
    """A module within ops/."""

    def __init__(self, path: Path, text: str):
        self.path = path
        self.root = next(parent for parent in path.parents if parent.name == "ops").parents[1]
        tree = ast.parse(text)
        self.bound: dict[str, list[ast.stmt | str]] = {}  # definitions, and dotted names of imports
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for name, dotted in _imported(node):
                    self.bound.setdefault(name, []).append(dotted)
        for node in _statements(tree.body):
            for name in _names(node):
                self.bound.setdefault(name, []).append(node)
        self.definition = functools.cache(self._definition)

    @staticmethod
    def of(path: Path) -> _Module:
        return _read(path, path.read_text(encoding="utf-8"))

    def keys(self, name: str) -> tuple[Key, ...]:
        """The definitions that a name of this module means."""
        return self.meant([name])[0]

    def meant(self, chain: Sequence[str]) -> tuple[tuple[Key, ...], list[str]]:
        """Resolves `a.b.c` in this module: definitions within ops/, and dotted names of what lies elsewhere."""
        found, elsewhere = [], []
        for index, bound in enumerate(self.bound.get(chain[0], ())):
            if isinstance(bound, ast.stmt):
                found.append((self.path, chain[0], index))
                elsewhere += [".".join(chain[1:])] if chain[1:] else []
                continue
            keys, others = self._of_dotted(".".join((bound, *chain[1:])))
            found += keys
            elsewhere += others
        return tuple(found), elsewhere if chain[0] in self.bound else [".".join(chain)]

    def _of_dotted(self, dotted: str) -> tuple[tuple[Key, ...], list[str]]:
        parts = dotted.split(".")
        for length in range(len(parts) - 1, 2, -1) if dotted.startswith(f"{_OPS}.") else ():
            path = self.root.joinpath(*parts[:length]).with_suffix(".py")
            if path.is_file():
                return _Module.of(path).meant(parts[length:])
        return (), [dotted]

    def _definition(self, name: str, index: int) -> tuple[str, Sequence[Sequence[Key]], bool]:
        node = self.bound[name][index]
        writer = _Writer(self, name, node)
        writer.write(node)
        return "\n".join(writer.said), [*writer.numbers], writer.is_kernel(node)


@functools.lru_cache(maxsize=512)
def _read(path: Path, text: str) -> _Module:
    return _Module(path, text)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Names and what they stand for."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            yield alias.name.partition(".")[0], alias.name.partition(".")[0]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, within its conditions too."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, field, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(
        node, (ast.AnnAssign, ast.AugAssign, ast.For)) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


class _Writer:
    """Writes a definition down, with numbers for what it names and without docstrings.

    Attributes:
        said: words, as far as written.
        numbers: definitions that a name may mean → the number that stands for it.
    """

    def __init__(self, module: _Module, name: str, node: ast.stmt):
        self.module, self.name = module, name
        self.said: list[str] = []
        self.numbers: dict[tuple[Key, ...], int] = {}
        self.local = _local_names(node) if isinstance(node, ast.FunctionDef) else frozenset()

    def is_kernel(self, node: ast.stmt) -> bool:
        made = [each.func if isinstance(each, ast.Call) else each for each in getattr(node, "decorator_list", ())]
        return any(dotted in _JIT for chain in map(_chain, made) if chain for dotted in self.module.meant(chain)[1])

    def write(self, node: ast.AST) -> None:
        """All of a node: of each field that says something its name and its value."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return
        chain = _chain(node)
        if chain and chain[0] not in self.local:
            self._write_name(chain)
            return
        self.said.append(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if value is None or value == [] or (field in _SILENT and not isinstance(node, ast.alias)):
                continue
            self.said.append(field)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    self.write(each)
                else:
                    self.said.append(repr(each))
        self.said.append(";")

    def _write_name(self, chain: Sequence[str]) -> None:
        if chain == [self.name]:
            self.said.append("itself")
            return
        keys, elsewhere = self.module.meant(chain)
        if keys:
            self.said.append(f"\1{self.numbers.setdefault(keys, len(self.numbers))}")
        self.said += elsewhere


def _local_names(node: ast.FunctionDef) -> frozenset[str]:
    names = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    return frozenset(names | {one.id for one in ast.walk(node) if isinstance(one, ast.Name)
                              and not isinstance(one.ctx, ast.Load)})


def _chain(node: ast.AST) -> list[str]:
    """`a.b.c` as its names; none for another expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
