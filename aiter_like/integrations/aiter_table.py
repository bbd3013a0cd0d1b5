# SPDX-License-Identifier: MIT
"""AITER.md, written from the table of names: which backends serve each name, and which names are missing."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from aiter_like.dispatch import Op
from aiter_like.integrations import aiter_names
from aiter_like.integrations.aiter_names import Name
from aiter_like.select import KINDS

FILE = Path(__file__).with_name("AITER.md")

_HEAD = """\
# AITER's names

Written by `aiter-like names --write` from `aiter_names.txt`; edit that. What a name is here holds for all three ways
to it: `import aiter_like as aiter`, the overlay of an installed `aiter`, and the shim where there is none.

Priority: P0 dense models, P1 experts, P2 fp8, RoPE and cache writes, P3 MLA, P4 several GPUs and further fusions.
Callers: V vLLM, S SGLang, s SGLang when it starts, U users. **missing**: the name is there, with AITER's signature, and
raises `UnsupportedError`, which says what to use instead. "python": no kernel behind it.
"""


def markdown() -> str:
    """The whole text of AITER.md."""
    rows = aiter_names.table()
    lines = [_HEAD, "| priority | names | served | missing |", "|---|---|---|---|"]
    for priority in sorted({row.priority for row in rows}):
        lines.append(_counted(priority, [row for row in rows if row.priority == priority]))
    lines += [_counted("all", rows), ""]
    for section in dict.fromkeys(row.section for row in rows):
        lines += [f"## {section}", "", "| name | in | priority | callers | backends |", "|---|---|---|---|---|"]
        lines += [_line(row) for row in rows if row.section == section] + [""]
    return "\n".join(lines)


def backends(function: Any) -> tuple[str, ...]:
    """The backends of the operators that a function's code names, itself or through functions of this package."""
    ops = [found for found in _reached(function) if isinstance(found, Op)]
    return tuple(kind for kind in KINDS if any(backend.name == kind for op in ops for backend in op.backends))


def _counted(title: str, rows: Iterable[Name]) -> str:
    rows = list(rows)
    missing = sum(row.server is None for row in rows)
    return f"| {title} | {len(rows)} | {len(rows) - missing} | {missing} |"


def _line(row: Name) -> str:
    served = "**missing**" if row.server is None else ", ".join(backends(row.value)) or "python"
    return f"| `{row.name}` | `{row.modules[0]}` | {row.priority} | {' '.join(row.callers)} | {served} |"


def _reached(function: Any) -> Iterator[Any]:
    """Operators and functions of this package that the code of a function names, and what their code names."""
    stack, seen = [function], set()
    while stack:
        found = stack.pop()
        if isinstance(found, functools.partial):
            found = found.func
        if isinstance(found, types.FunctionType):
            found = inspect.unwrap(found)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, types.FunctionType) and found.__module__.split(".")[0] == "aiter_like":
            stack += _named(found)
        if _is_layer(found):
            stack += [value for value in vars(found).values() if isinstance(value, types.FunctionType)]


def _named(function: types.FunctionType) -> list[Any]:
    names, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    found = [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
    found += [cell.cell_contents for cell in function.__closure__ or ()]
    for module in [value for value in found if isinstance(value, types.ModuleType)]:
        if module.__name__.split(".")[0] == "aiter_like":
            found += [vars(module)[name] for name in sorted(names) if name in vars(module)]
            if "getattr" in names:  # by a name that is put together: any of the module's operators
                found += [value for value in vars(module).values() if isinstance(value, Op)]
    kinds = (Op, types.FunctionType, functools.partial)
    return [value for value in found if isinstance(value, kinds) or _is_layer(value)]


def _is_layer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.nn.Module)
