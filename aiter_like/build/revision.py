# SPDX-License-Identifier: MIT
"""The revision of a kernel: a hash of all that decides what runs, found without a compiler. What a tuned row or a
verdict says of another revision no longer holds.

It covers the operator's file and its kernel's source, what these import within ops/, the project's headers that they
include, and the tables of configs/triton that they read; comments, docstrings and blank lines do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from aiter_like import paths

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_OPS = "aiter_like.ops."
# A string or character literal stays as it is, a comment goes.
_CPP_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


def source_hash(*sources: Path) -> str:
    """12 hex digits: what `sources` and all that they include, import or read say, wherever the project lies.

    Headers count in every branch of a condition: a kernel may be timed once more, but never goes by the time of
    another.
    """
    seen: dict[Path, bytes] = {}
    waiting = [source.resolve() for source in sources]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen[path], used = _read(path, path.read_text(encoding="utf-8"))
            waiting += used
    return hashlib.sha256(b"".join(sorted(seen.values()))).hexdigest()[:12]


@functools.lru_cache(maxsize=1024)
def _read(path: Path, text: str) -> tuple[bytes, list[Path]]:
    """A digest of what a file says, and the files of the project that it uses."""
    if path.suffix == ".py":
        tree = ast.parse(text)
        said, used = _python(text, tree), [*_modules(path, tree), *_tables(tree)]
    elif path.suffix == ".toml":
        said, used = text, []
    else:
        said = _CPP_TOKEN.sub(lambda match: match[0] if match[0][0] in "\"'" else " ", text)
        used = [*_headers(path, text)]
    lines = [line.rstrip() for line in said.splitlines()]
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).digest(), used


def _python(text: str, tree: ast.Module) -> str:
    """The source without comments and docstrings, which positions tell: the same under every version of Python."""
    spans = [(token.start, token.end) for token in tokenize.generate_tokens(io.StringIO(text).readline)
             if token.type == tokenize.COMMENT]
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            # ast counts columns in UTF-8 bytes; before a docstring there is only indentation.
            end = len(lines[node.end_lineno - 1].encode()[:node.end_col_offset].decode())
            spans.append(((node.lineno, node.col_offset), (node.end_lineno, end)))
    for (first, start), (last, end) in sorted(spans, reverse=True):
        lines[first - 1:last] = [lines[first - 1][:start] + lines[last - 1][end:]]
    return "\n".join(lines)


def _headers(path: Path, text: str) -> Iterator[Path]:
    """Files that a C++ or assembly source includes, beside it or below csrc/include; others are not the project's."""
    for name in _INCLUDE.findall(text):
        places = (path.parent / name, paths.csrc() / "include" / name, paths.csrc() / name)
        yield from [place.resolve() for place in places if place.is_file()][:1]


def _modules(path: Path, tree: ast.Module) -> Iterator[Path]:
    """Modules within ops/ that a module of it imports, or from which it imports a name."""
    ops = next((parent for parent in path.parents if parent.name == "ops"), None)
    for node in ast.walk(tree) if ops is not None else ():
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(_OPS):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if (module := ops.parents[1] / f"{name.replace('.', '/')}.py").is_file():
                    yield module.resolve()


def _tables(tree: ast.Module) -> Iterator[Path]:
    """configs/triton/<name>.toml of each `config("<name>", …)` in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "config" and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield (paths.configs() / "triton" / f"{name.value}.toml").resolve()
