# SPDX-License-Identifier: MIT
"""The table of AITER's names against a checkout of AITER, read and not imported: signatures that differ, names that are
gone, and names that the table does not know. `aiter-like names --against` prints it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aiter_like import enums
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter import objects
from aiter_like.integrations.aiter.names import Name

_DTYPES = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16, "float16": torch.float16,
           "fp32": torch.float32, "float32": torch.float32, "i8": torch.int8, "int8": torch.int8, "i32": torch.int32,
           "int32": torch.int32, "fp8": torch.float8_e4m3fnuz, "fp8_dtype": torch.float8_e4m3fnuz,
           "e4m3_dtype": torch.float8_e4m3fnuz, "float8_e4m3fn": torch.float8_e4m3fn,
           "fp4x2": getattr(torch, "float4_e2m1fn_x2", torch.uint8)}
_ENUMS = {name: getattr(holder, name) for holder in (enums, objects)
          for name in ("ActivationType", "QuantType", "MlaVersion", "GateMode", "MxDtypeInt", "MxScaleRoundModeInt")
          if hasattr(holder, name)}
_TORCH_OPS = "torch.ops.aiter"


class _Computed:
    """A default that AITER computes when it is imported: equal to any, because nothing is computed here."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


@dataclass(frozen=True)
class Comparison:
    """The differences between a checkout of AITER and the table.

    Attributes:
        different: "module.name: what differs", of signatures with which AITER's callers cannot call ours.
        gone: "module.name" of the table that AITER's module neither defines nor imports.
        unknown: module of the table → public functions and classes that AITER defines there and the table does not
            know.
        paths: "module.name" by an earlier name or by today's of a module that the table has by another one.
        compared: how many signatures were read.
    """

    different: list[str]
    gone: list[str]
    unknown: dict[str, list[str]]
    paths: list[str]
    compared: int


def compare(root: Path, rows: Iterable[Name] | None = None) -> Comparison:
    """The table against the checkout whose package is `root`/aiter.

    Raises:
        ValueError: there is no such package.
    """
    if not (root / "aiter" / "__init__.py").is_file():
        raise ValueError(f"{root} is no checkout of AITER: it has no __init__.py")
    sources, rows = _Sources(root), list(aiter_names.table() if rows is None else rows)
    different, gone, compared = [], [], 0
    for row in rows:
        for module in row.modules:
            if module == _TORCH_OPS or not sources.has(module):
                continue
            found = sources.find(module, row.name)
            if not found:
                gone.append(f"{module}.{row.name}")
            elif row.server is not None and callable(row.value) and (
                    theirs := list(sources.signatures(found, "." in row.name))):
                compared += 1
                reasons = [_reason(row.signature, one) for one in theirs]
                if all(reasons):
                    different.append(f"{module}.{row.name}: {reasons[0]}")
    paths = [f"{path}.{row.name}" for row in rows for path in sorted(
        {one for module in row.modules for one in sources.paths(module)} - {*row.modules})]
    return Comparison(different, gone, _unknown(sources, rows), paths, compared)


def _reason(ours: inspect.Signature, theirs: inspect.Signature) -> str:
    """Why AITER's callers cannot call ours; ours may go on where theirs ends."""
    missing = [name for name in theirs.parameters if name not in ours.parameters]
    return f"{', '.join(missing)} missing" if missing else aiter_names.difference(ours, theirs)


def _unknown(sources: _Sources, rows: Iterable[Name]) -> dict[str, list[str]]:
    known: dict[str, set[str]] = {}
    for row in rows:
        for module in row.modules:
            known.setdefault(sources.canonical(module), set()).add(row.name.partition(".")[0])
    found = {module: sorted(name for name in sources.own(module) if name not in names and not name.startswith("_"))
             for module, names in sorted(known.items()) if module != _TORCH_OPS}
    return {module: names for module, names in found.items() if names}


class _Sources:
    """The modules of a checkout, each parsed once."""

    def __init__(self, root: Path):
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}
        self._names: dict[str, dict[str, list[tuple[str, ast.AST | None]]]] = {}
        self._moved = _literal(self._tree("aiter.ops.triton"), "_BACKWARD_COMPAT_MAP") or {}

    def has(self, module: str) -> bool:
        """Whether there is such a module, by its name of today or an earlier one."""
        return self._file(self.canonical(module)) is not None

    def canonical(self, module: str) -> str:
        """Today's name of a module: AITER's Triton functions lay one folder higher once."""
        prefix = "aiter.ops.triton."
        if module.startswith(prefix) and self._file(module) is None:
            first, dot, rest = module.removeprefix(prefix).partition(".")
            return f"{prefix}{self._moved.get(first, first)}{dot}{rest}"
        return module

    def paths(self, module: str) -> set[str]:
        """All names of a module that has several."""
        today, prefix = self.canonical(module), "aiter.ops.triton."
        earlier = {f"{prefix}{old}{today.removeprefix(prefix + new)}" for old, new in self._moved.items()
                   if f"{today}.".startswith(f"{prefix}{new}.")}
        return {today, *earlier} if earlier else set()

    def own(self, module: str) -> set[str]:
        """The functions and classes that it defines itself."""
        return {name for name, found in self._all(module).items() for holder, node in found
                if holder == self.canonical(module) and isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    def find(self, module: str, name: str) -> list[tuple[str, ast.AST | None]]:
        """Each definition of a name, with its module; None: it comes from outside."""
        first, _, rest = name.partition(".")
        found = self._all(module).get(first, [])
        if not found and any(isinstance(node, ast.ImportFrom) and not node.level
                             and first in [alias.asname or alias.name for alias in node.names]
                             for node in _statements(self._tree(self.canonical(module)))):
            return [(module, None)]
        if not rest:
            return found
        classes = [(holder, node) for holder, node in found if isinstance(node, ast.ClassDef)]
        inside = [(holder, one) for holder, node in classes for one in node.body
                  if isinstance(one, ast.FunctionDef) and one.name == rest]
        return inside if classes else found

    def signatures(self, found: Iterable[tuple[str, ast.AST | None]], is_method: bool) -> Iterator[inspect.Signature]:
        """The signatures of those definitions that are functions."""
        for module, node in found:
            if isinstance(node, ast.FunctionDef):
                is_bound = is_method and not any(getattr(one, "id", "") == "staticmethod"
                                                 for one in node.decorator_list)
                yield self._signature(module, node.args, is_bound)

    def _signature(self, module: str, arguments: ast.arguments, is_bound: bool) -> inspect.Signature:
        kinds, empty = inspect.Parameter, inspect.Parameter.empty
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = [empty] * (len(plain) - len(arguments.defaults)) + [
            self._value(module, node) for node in arguments.defaults]
        found = [kinds(one.arg, kinds.POSITIONAL_OR_KEYWORD, default=default)
                 for one, default in zip(plain, defaults)][is_bound:]
        if arguments.vararg:
            found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
        found += [kinds(one.arg, kinds.KEYWORD_ONLY, default=empty if node is None else self._value(module, node))
                  for one, node in zip(arguments.kwonlyargs, arguments.kw_defaults)]
        if arguments.kwarg:
            found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
        return inspect.Signature(found)

    def _value(self, module: str, node: ast.expr, depth: int = 0) -> Any:
        """The value of a default: a literal, a dtype, an element of an enum, a constant of a module, else its text."""
        try:
            return ast.literal_eval(node)
        except ValueError:
            text = ast.unparse(node)
        parts = text.removesuffix(".value").split(".")
        if parts[0] in _ENUMS and len(parts) == 2:
            return getattr(_ENUMS[parts[0]], parts[1], text)
        for _, defined in self._all(module).get(parts[0], []) if len(parts) == 2 else []:
            if isinstance(defined, ast.ClassDef) and (element := _literal(defined, parts[1])) is not None:
                return element
        if parts[-1] in _DTYPES:
            return _DTYPES[parts[-1]]
        for holder, defined in self._all(module).get(text, []) if depth < 4 else []:
            if isinstance(defined, (ast.Assign, ast.AnnAssign)) and defined.value is not None:
                return self._value(holder, defined.value, depth + 1)
        return _Computed() if isinstance(node, ast.Call) else text

    def _all(self, module: str) -> dict[str, list[tuple[str, ast.AST | None]]]:
        """All names that a module defines or imports from others of the package."""
        module = self.canonical(module)
        if module not in self._names:
            self._names[module] = {}  # a circle of imports ends here
            self._names[module] = self._read(module)
        return self._names[module]

    def _read(self, module: str) -> dict[str, list[tuple[str, ast.AST | None]]]:
        found: dict[str, list[tuple[str, ast.AST | None]]] = {}
        for node in _statements(self._tree(module)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.setdefault(node.name, []).append((module, node))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for one in ast.walk(target):
                        if isinstance(one, ast.Name):
                            found.setdefault(one.id, []).append((module, node))
            elif isinstance(node, ast.ImportFrom):
                for name, definitions in self._imported(module, node):
                    found.setdefault(name, []).extend(definitions)
        return found

    def _imported(self, module: str, node: ast.ImportFrom) -> Iterator[tuple[str, list[tuple[str, ast.AST | None]]]]:
        source = self.canonical(self._absolute(module, node))
        if source.split(".")[0] != "aiter" or source == module:
            return
        for alias in node.names:
            if alias.name != "*":
                yield alias.asname or alias.name, self._all(source).get(alias.name) or [(source, None)]
                continue
            listed = _literal(self._tree(source), "__all__")
            for name, definitions in self._all(source).items():
                if name in listed if listed is not None else not name.startswith("_"):
                    yield name, definitions

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = (self._file(module) or Path()).name == "__init__.py"
        parts = module.split(".")
        base = parts[:len(parts) - node.level + is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            file = self._file(module)
            self._trees[module] = ast.parse(file.read_text()) if file else None
        return self._trees[module]

    def _file(self, module: str) -> Path | None:
        stem = self._root.joinpath(*module.split("."))
        return next((file for file in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")) if file.is_file()),
                    None)


def _statements(tree: ast.Module | ast.ClassDef | None) -> Iterator[ast.stmt]:
    """Those of a module, in its conditions and attempts too, not in its functions."""
    waiting = list(tree.body) if tree else []
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            parts = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", []),
                     *(handler.body for handler in getattr(node, "handlers", []))]
            waiting[:0] = [one for part in parts for one in part]


def _literal(tree: ast.Module | ast.ClassDef | None, name: str) -> Any:
    """The literal that a module or a class assigns to a name; None where it assigns none."""
    for node in _statements(tree):
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets):
            try:
                return ast.literal_eval(node.value)
            except ValueError:
                return None
    return None
