# SPDX-License-Identifier: MIT
"""The names that an engine's sources take from aiter, and what the shim does with them; run where both are there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path


def kinds(package: str) -> dict[str, list[str]]:
    """Each name: served by the shim, there but raising, or missing."""
    from aiter_like.integrations import aiter_names

    found: set[tuple[str, str]] = set()
    for path in Path(importlib.util.find_spec(package).origin).parent.rglob("*.py"):
        if "aiter" in (text := path.read_text()):
            found |= _names_of_aiter(ast.parse(text))
    stubs = {(module, row.name) for row in aiter_names.table() if row.server is None for module in row.modules}
    named: dict[str, list[str]] = {"served": [], "raises": [], "missing": []}
    for module, name in sorted(found):
        kind = "missing" if not _is_there(module, name) else "raises" if (module, name) in stubs else "served"
        named[kind].append(f"{module} {name}".strip())
    return named


def _is_there(module: str, name: str) -> bool:
    """Whether `from module import name` works, or with "" `import module`."""
    try:
        if not name or hasattr(importlib.import_module(module), name):
            return bool(importlib.import_module(module))
        return bool(importlib.import_module(f"{module}.{name}"))
    except ImportError:
        return False


def _names_of_aiter(tree: ast.Module) -> set[tuple[str, str]]:
    """(module, name) of `from aiter.x import name`, of `import aiter.x` (""), and of attributes of such modules."""
    names, aliases = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "aiter":
            names |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            modules = [alias for alias in node.names if alias.name.split(".")[0] == "aiter"]
            names |= {(alias.name, "") for alias in modules}
            aliases |= {alias.asname or "aiter": alias.name if alias.asname else "aiter" for alias in modules}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            names.add((aliases[node.value.id], node.attr))
    return names
