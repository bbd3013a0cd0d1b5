# SPDX-License-Identifier: MIT
"""AITER.md, written from the table of names: which backends serve each name, and which names are missing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiter_like.dispatch.selection import KINDS
from aiter_like.integrations import aiter_names
from aiter_like.integrations.aiter_names import Name
from aiter_like.integrations.reach import operators

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
    """The backends of the operators behind a function."""
    ops = operators(function)
    return tuple(kind for kind in KINDS if any(backend.name == kind for op in ops for backend in op.backends))


def _counted(title: str, rows: Iterable[Name]) -> str:
    rows = list(rows)
    missing = sum(row.server is None for row in rows)
    return f"| {title} | {len(rows)} | {len(rows) - missing} | {missing} |"


def _line(row: Name) -> str:
    served = "**missing**" if row.server is None else ", ".join(backends(row.value)) or "python"
    return f"| `{row.name}` | `{row.modules[0]}` | {row.priority} | {' '.join(row.callers)} | {served} |"
