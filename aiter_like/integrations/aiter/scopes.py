# SPDX-License-Identifier: MIT
"""Finds the names of AITER that an expression of a program stands for, as far as its text tells; read by calls.py."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

TORCH_OPS = "torch.ops.aiter"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)


def dotted(node: ast.expr) -> str:
    """"a.b" of an expression a.b; "" where it does not begin with a name."""
    if isinstance(node, ast.Attribute):
        return f"{base}.{node.attr}" if (base := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


@dataclass
class Scope:
    """A module, class or function.

    Attributes:
        node: its tree.
        outer: the scope around it; None: a module.
        file: of the module.
        names: each name that it binds → what it is bound to: a name of AITER's, (file, name) of another module, the
            expression, the scope of a function; None for what tells nothing, as parameters.
        places: the same → the statements that do it.
        members: attributes of `self` and `cls` that its functions set, of a module's classes together.
        inner: scopes in it.
    """

    node: ast.AST
    outer: Scope | None
    file: str
    names: dict[str, list] = field(default_factory=dict)
    places: dict[str, list] = field(default_factory=dict)
    members: dict[str, list] = field(default_factory=dict)
    inner: list[Scope] = field(default_factory=list)

    @property
    def module(self) -> Scope:
        return self if self.outer is None else self.outer.module

    def bind(self, name: str, value: object, place: ast.AST) -> None:
        self.names.setdefault(name, []).append(value)
        self.places.setdefault(name, []).append(place)

    def reaching(self, node: ast.Name) -> list:
        """The values that a name of this scope may have where it stands, without those that a later statement has
        replaced by then: one that is indented no further than all between it and the name."""
        values = self.names[node.id]
        bound = sorted((place.lineno, number) for number, place in enumerate(self.places.get(node.id, []))
                       if getattr(place, "lineno", node.lineno) < node.lineno)
        for index in range(len(bound) - 1, -1, -1):
            place = self.places[node.id][bound[index][1]]
            if all(place.col_offset <= one.col_offset for one in self.own if isinstance(
                    one, (ast.stmt, ast.ExceptHandler)) and place.lineno < one.lineno <= node.lineno):
                return [values[number] for _, number in bound[index:]]
        return values

    @functools.cached_property
    def own(self) -> list[ast.AST]:
        """Its nodes without those of scopes in it."""
        found: list[ast.AST] = []
        rest = list(ast.iter_child_nodes(self.node))
        while rest:
            node = rest.pop()
            found.append(node)
            if not isinstance(node, _SCOPES):
                rest += ast.iter_child_nodes(node)
        return found

    def calls(self) -> Iterator[tuple[ast.Call, Scope]]:
        """Every call in it and in scopes in it, with the innermost scope."""
        yield from ((node, self) for node in self.own if isinstance(node, ast.Call))
        for scope in self.inner:
            yield from scope.calls()

    def find(self, name: str) -> tuple[list, Scope]:
        """The values of a name, and the scope that binds it; functions of a class do not see its names."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope.names[name], scope
            scope = scope.outer
        return [], self


class Program:
    """All modules of a program."""

    def __init__(self, texts: dict[str, str]):
        self.modules: dict[str, Scope] = {}
        for file, text in texts.items():
            try:
                self.modules[file] = _scope(ast.parse(text), None, file)
            except (SyntaxError, ValueError):  # a template, or no Python
                continue
        self._open: set[tuple[int, int]] = set()  # names that are being resolved: they can be bound in circles

    def targets(self, node: ast.expr, scope: Scope) -> set[str]:
        """Names of AITER's that an expression may stand for."""
        key = id(node), id(scope)
        if key in self._open:
            return set()
        self._open.add(key)
        try:
            return self._targets(node, scope)
        finally:
            self._open.discard(key)

    def keys(self, node: ast.expr, scope: Scope) -> tuple[set[str], bool]:
        """Keys that a dictionary may have, and whether these are all."""
        if isinstance(node, ast.IfExp):
            first, second = self.keys(node.body, scope), self.keys(node.orelse, scope)
            return first[0] | second[0], first[1] and second[1]
        if isinstance(node, ast.Dict):
            parts = [({key.value}, True) if isinstance(key, ast.Constant) else
                     ((set(), False) if key is not None else self.keys(value, scope))
                     for key, value in zip(node.keys, node.values)]
        elif isinstance(node, ast.Call) and dotted(node.func) == "dict" and not node.args:
            parts = [({word.arg}, True) if word.arg else self.keys(word.value, scope) for word in node.keywords]
        elif isinstance(node, ast.Name):
            return self._keys_of_variable(node.id, scope)
        else:
            return set(), False
        return set().union(*(keys for keys, _ in parts)), all(is_known for _, is_known in parts)

    def _keys_of_variable(self, name: str, scope: Scope) -> tuple[set[str], bool]:
        bound, where = scope.find(name)
        if where is not scope or not bound or any(not isinstance(value, ast.expr) for value in bound):
            return set(), False
        found = [(set(), False) if isinstance(value, ast.Name) else self.keys(value, scope) for value in bound]
        for node in scope.own:
            is_item = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
            if is_item and dotted(node.value) == name:
                found.append(({node.slice.value}, True) if isinstance(node.slice, ast.Constant) else (set(), False))
            elif isinstance(node, ast.Call) and dotted(node.func) == f"{name}.update":
                found += [self.keys(value, scope) for value in node.args]
                found.append(({word.arg for word in node.keywords if word.arg}, True))
        return set().union(*(keys for keys, _ in found)), all(is_known for _, is_known in found)

    def _targets(self, node: ast.expr, scope: Scope) -> set[str]:
        if isinstance(node, ast.Name):
            bound, where = scope.find(node.id)
            if where is scope and bound and hasattr(node, "lineno"):
                bound = scope.reaching(node)
            return set().union(*(self._bound(value, where) for value in bound))
        if isinstance(node, ast.Attribute):
            if dotted(node) == TORCH_OPS:
                return {TORCH_OPS}
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                members = scope.module.members.get(node.attr, [])
                return set().union(*(self._bound(value, where) for value, where in members))
            return {f"{name}.{node.attr}" for name in self.targets(node.value, scope)}
        if isinstance(node, ast.IfExp):
            return self.targets(node.body, scope) | self.targets(node.orelse, scope)
        if isinstance(node, ast.Call):
            return self._returned(node, scope)
        return set()

    def _returned(self, node: ast.Call, scope: Scope) -> set[str]:
        """The result of a call of getattr, or of a function here that returns a name of AITER's."""
        if dotted(node.func) == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return {f"{name}.{node.args[1].value}" for name in self.targets(node.args[0], scope)}
        if dotted(node.func) == "staticmethod" and node.args:
            return self.targets(node.args[0], scope)
        functions = scope.find(node.func.id)[0] if isinstance(node.func, ast.Name) else []
        return set().union(*(self.targets(part.value, value) for value in functions if isinstance(value, Scope)
                             for part in value.own if isinstance(part, ast.Return) and part.value))

    def _bound(self, value: object, scope: Scope) -> set[str]:
        if isinstance(value, str):
            return {value}
        if isinstance(value, ast.expr):
            return self.targets(value, scope)
        if isinstance(value, tuple):
            file, name = value
            module = self.modules.get(f"{file}.py") or self.modules.get(f"{file}/__init__.py")
            if module is not None:
                return self.targets(ast.Name(name), module)
        return set()


def _scope(node: ast.AST, outer: Scope | None, file: str) -> Scope:
    scope = Scope(node, outer, file)
    if isinstance(node, _FUNCTIONS):
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in filter(None, named):
            scope.bind(argument.arg, None, node)
    outside = {name for part in scope.own if isinstance(part, ast.Global) for name in part.names}
    for part in scope.own:
        for name, value in _bindings(part, file):
            if name.startswith(("self.", "cls.")):
                scope.module.members.setdefault(name.partition(".")[2], []).append((value, scope))
            else:
                (scope.module if name in outside else scope).bind(name, value, part)
        if isinstance(part, _SCOPES):
            inner = _scope(part, scope, file)
            scope.inner.append(inner)
            if not isinstance(part, ast.Lambda):
                scope.bind(part.name, inner if isinstance(part, _FUNCTIONS) else None, part)
    if isinstance(node, ast.ClassDef):
        for name, values in scope.names.items():
            scope.module.members.setdefault(name, []).extend((value, scope) for value in values)
    return scope


def _bindings(node: ast.AST, file: str) -> Iterator[tuple[str, object]]:
    """Names that a statement binds, and what to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "aiter":
                yield alias.asname or "aiter", alias.name if alias.asname else "aiter"
    elif isinstance(node, ast.ImportFrom):
        base = (node.module or "").replace(".", "/")
        if node.level:
            base = "/".join([*file.split("/")[:-node.level], *([base] if base else [])])
        for alias in node.names:
            is_aiter = not node.level and base.split("/")[0] == "aiter"
            yield alias.asname or alias.name, f"{node.module}.{alias.name}" if is_aiter else (base, alias.name)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, (ast.Name, ast.Attribute)):
                yield dotted(target), node.value
            else:
                yield from _opaque(target)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        if node.value is not None:
            yield dotted(node.target), node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign)):
        yield from _opaque(node.target)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _opaque(node.optional_vars)


def _opaque(target: ast.expr) -> Iterator[tuple[str, None]]:
    """Names that a statement binds to what no text shows."""
    yield from ((node.id, None) for node in ast.walk(target) if isinstance(getattr(node, "ctx", None), ast.Store)
                and isinstance(node, ast.Name))
