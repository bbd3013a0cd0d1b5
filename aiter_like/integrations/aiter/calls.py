# SPDX-License-Identifier: MIT
"""Calls of AITER's functions, read from the text of an engine, as a list that needs no engine afterwards.

A line of a list is a name, or a call written with `_` for each argument: `aiter.f(_, *_, b=_, c=..., **_)`, where `...`
is a keyword that the program passes in some cases only, and stars stand for arguments that its text does not show.
"""

from __future__ import annotations

import ast
import inspect
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from aiter_like.integrations.aiter import uses
from aiter_like.integrations.aiter.scopes import TORCH_OPS, Program, Scope, dotted


def written(texts: dict[str, str]) -> dict[str, str]:
    """Lines of the list of a program → the first place of each, as "layers/norm.py:12"; sorted.

    Args:
        texts: file, as "vllm/layers/norm.py" → what stands in it.
    """
    program = Program({file: text for file, text in texts.items() if "aiter" in text})
    found: dict[str, str] = {}
    for file, module in sorted(program.modules.items()):
        place = file.partition("/")[2] or file
        for name in sorted(set(uses.names(module.node))):
            found.setdefault(name, place)
        for line, number in sorted(_calls(program, module)):
            found.setdefault(line, f"{place}:{number}")
    called = {line.partition("(")[0] for line in found if "(" in line}
    return {line: found[line] for line in sorted(found) if line not in called}


def sources(path: Path) -> dict[str, str]:
    """The Python files of a wheel, or of a package's folder, by their paths from the package on."""
    if path.is_dir():
        return {str(file.relative_to(path.parent)): file.read_text() for file in path.rglob("*.py")}
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")}


def lines_of(list_text: str) -> dict[str, str]:
    """Line → place, of a list that was written: the reverse of `text_of`."""
    rows = [line.partition("  # ") for line in list_text.splitlines() if line and not line.startswith("#")]
    return {line: place for line, _, place in rows}


def text_of(head: str, found: dict[str, str]) -> str:
    """The list as a file."""
    return "".join([f"# {head}\n", *(f"{line}  # {place}\n" for line, place in found.items())])


def absent(lines: Iterable[str]) -> list[str]:
    """Names of a list that the shim has not, sorted."""
    states = {uses.resolved(line.partition("(")[0]) for line in lines}
    return sorted(name for name, state in states if state == "absent")


def unfit(lines: Iterable[str], asked: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Calls of a list that raise TypeError here before anything else, and what it says.

    Args:
        asked: keywords, as "aiter.f b", that programs pass only where the signature has them, or never to AITER's.
    """
    for line in lines:
        if "(" in line and (reason := _misfit(ast.parse(line, mode="eval").body, asked)):
            yield line, reason


def _misfit(call: ast.Call, asked: Collection[str]) -> str:
    name = ast.unparse(call.func)
    function = uses.value_of(name)
    if getattr(function, "is_missing", False):  # it takes anything, and says what to use
        return ""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it is absent, or nothing that Python can describe
        return ""
    positional = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
    is_open = len(positional) < len(call.args) or any(keyword.arg is None for keyword in call.keywords)
    keywords = [keyword.arg for keyword in call.keywords if keyword.arg and f"{name} {keyword.arg}" not in asked]
    try:
        (signature.bind_partial if is_open else signature.bind)(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return ""


def _calls(program: Program, module: Scope) -> set[tuple[str, int]]:
    """Each call of a name of AITER's in a module, as a line, and its number."""
    found = set()
    for node, scope in module.calls():
        for name in program.targets(node.func, scope):
            found.add((_line(name, node.args, node.keywords, program, scope), node.lineno))
        if dotted(node.func) in ("partial", "functools.partial") and node.args:
            for name in program.targets(node.args[0], scope):
                rest = [*node.args[1:], ast.Starred(ast.Constant(None))]
                found.add((_line(name, rest, [*node.keywords, ast.keyword(None, ast.Constant(None))], program, scope),
                           node.lineno))
    return {(line, number) for line, number in found if line.startswith(("aiter.", TORCH_OPS))}


def _line(name: str, args: list[ast.expr], keywords: list[ast.keyword], program: Program, scope: Scope) -> str:
    parts = ["*_" if isinstance(arg, ast.Starred) else "_" for arg in args]
    is_open = False
    options: dict[str, str] = {}
    for keyword in keywords:
        if keyword.arg:
            options[keyword.arg] = "_"
            continue
        keys, is_known = program.keys(keyword.value, scope)
        is_open |= not is_known
        options = dict.fromkeys(sorted(keys), "...") | options
    return f"{name}({', '.join([*parts, *(f'{key}={mark}' for key, mark in options.items()), *['**_'] * is_open])})"
