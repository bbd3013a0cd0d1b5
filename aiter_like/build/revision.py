# SPDX-License-Identifier: MIT
"""The revision of a kernel: a hash of all that decides what runs, found without a compiler. What a tuned row or a
verdict says of another revision no longer holds.

It covers the operator's file and its kernel's source, what these import within ops/, the project's headers that they
include, and the tables of configs/triton that they read; comments, docstrings and blank lines do not count, nor does
C++ that the other platform alone compiles.
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
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b[ \t]*(.*)")
_IS_HIP = re.compile(r"(!?)[ \t]*defined[ \t]*\([ \t]*__HIP__[ \t]*\)")


def source_hash(*sources: Path, platform: str = "") -> str:
    """12 hex digits: what `sources` and all that they include, import or read say, wherever the project lies.

    Args:
        platform: "hip" or "cuda" leaves out what `#if defined(__HIP__)` takes from its compiler. Other conditions, and
            all of them for "", count in every branch: a kernel may be timed once more, but never goes by the time of
            another.
    """
    seen: dict[Path, bytes] = {}
    waiting = [source.resolve() for source in sources]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen[path], used = _read(path, path.read_text(encoding="utf-8"), platform)
            waiting += used
    return hashlib.sha256(b"".join(sorted(seen.values()))).hexdigest()[:12]


@functools.lru_cache(maxsize=1024)
def _read(path: Path, text: str, platform: str) -> tuple[bytes, list[Path]]:
    """A digest of what a file says, and the files of the project that it uses."""
    if path.suffix == ".py":
        tree = ast.parse(text)
        said, used = _python(text, tree), [*_modules(path, tree), *_tables(tree)]
    elif path.suffix == ".toml":
        said, used = text, []
    else:
        said = _CPP_TOKEN.sub(lambda match: match[0] if match[0][0] in "\"'" else " ", text)
        if platform:
            said = "\n".join(_compiled_for(platform, said.splitlines()))
        used = [*_headers(path, said)]
    lines = [line.rstrip() for line in said.splitlines()]
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).digest(), used


def _compiled_for(platform: str, lines: list[str]) -> Iterator[str]:
    """The lines of C++ without those that a condition on the platform excludes, and without such conditions."""
    chains: list[list[bool]] = []  # an open condition has: its branch may count, one surely does, all are decided
    for line in lines:
        match = _DIRECTIVE.match(line)
        outside = all(chain[0] for chain in chains[:-1]) if match and match[1][:2] != "if" else \
            all(chain[0] for chain in chains)
        if match is None:
            if outside:
                yield line
            continue
        if match[1] == "endif":
            if outside and not chains[-1][2]:
                yield line
            chains.pop()
            continue
        holds = True if match[1] == "else" else _holds(platform, match[2]) if match[1] in ("if", "elif") else None
        if match[1].startswith("if"):
            chains.append([False, False, True])
        chain = chains[-1]
        chain[0] = outside and not chain[1] and holds is not False
        chain[1] = chain[1] or holds is True
        chain[2] = chain[2] and holds is not None
        if chain[0] and not chain[2]:
            yield line


def _holds(platform: str, condition: str) -> bool | None:
    """Whether a condition holds for a platform; None where it asks for more than the platform."""
    if "&&" in condition and "||" in condition:
        return None
    separator, decisive = ("||", True) if "||" in condition else ("&&", False)
    terms = [_IS_HIP.fullmatch(term.strip()) for term in condition.split(separator)]
    known = [None if term is None else (term[1] == "") == (platform == "hip") for term in terms]
    return decisive if decisive in known else None if None in known else not decisive


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
