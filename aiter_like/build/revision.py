# SPDX-License-Identifier: MIT
"""The revision of a kernel: a hash of its source and of the project's files that this one is made with, found without a
compiler. Read by select.py: what a tuned row or a verdict says of another revision no longer holds."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from aiter_like import paths

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_KERNELS = ("aiter_like.triton_kernels", "aiter_like.ops.common.triton")


def of(source: Path) -> str:
    """12 hex digits: the contents of `source` and of all that it includes or imports, wherever the project lies.

    Included are the headers named in quotes, in every branch of a condition; imported are the modules of
    triton_kernels/. A change of a header that is not compiled into the kernel counts too: a kernel may be timed once
    more, but never goes by the time of another.
    """
    contents: dict[Path, bytes] = {}
    waiting = [source.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in contents:
            contents[path] = path.read_bytes()
            waiting += _modules(path, contents[path]) if path.suffix == ".py" else _headers(path, contents[path])
    digests = sorted(hashlib.sha256(content).digest() for content in contents.values())
    return hashlib.sha256(b"".join(digests)).hexdigest()[:12]


def _headers(path: Path, content: bytes) -> Iterator[Path]:
    """Files that a C++ or assembly source includes, beside it or below csrc/include; others are not the project's."""
    for name in _INCLUDE.findall(content.decode()):
        places = (path.parent / name, paths.csrc() / "include" / name)
        yield from [place.resolve() for place in places if place.is_file()][:1]


def _modules(path: Path, content: bytes) -> Iterator[Path]:
    """Modules with kernels that a module imports, or from which it imports a name."""
    root = next(parent for parent in path.parents if parent.name == "aiter_like").parent
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_KERNELS):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if (module := root / f"{name.replace('.', '/')}.py").is_file():
                    yield module.resolve()
