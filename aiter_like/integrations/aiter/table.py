# SPDX-License-Identifier: MIT
"""AITER.md and the pages below pages/, from the table of names: which backends serve each name, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiter_like.dispatch.selection import KINDS
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter.names import Name
from aiter_like.integrations.reach import operators

FOLDER = Path(__file__).parent
_PAGES = {  # page → its title, a name that its example asks for, and the sections of the table that it has
    "ATTENTION": ("attention", "flash_attn_func", ("attention", "mla", "linear attention")),
    "PRODUCTS": ("products, layouts and quantisation", "gemm_a8w8", ("gemm", "layout", "quant")),
    "MX_FORMATS": ("mx formats", "dynamic_mxfp4_quant", ("mx formats",)),
    "EXPERTS": ("experts", "fused_moe", ("moe",)),
    "NORMS": ("norms and activations", "rms_norm", ("norm", "activation")),
    "ROPE": ("rotary embeddings and caches", "rope_fwd", ("rope", "kv_cache")),
    "OTHERS": ("sampling, communication and the environment", "get_gfx", ("sampling", "others", "communication",
                                                                          "environment"))}

_HEAD = """\
# AITER's names

Which of AITER's names are served, by which backends, and which are missing. What a name is here holds for all three
ways to it: `import aiter_like as aiter`, the overlay of an installed `aiter`, and the shim where there is none.

```python
import torch

import aiter_like as aiter

rows, weight = torch.randn(4, 256, dtype=torch.bfloat16), torch.ones(256, dtype=torch.bfloat16)
assert aiter.rms_norm(rows, weight, 1e-6).shape == (4, 256)
```

## How to read the pages
Written by `aiter-like names --write` from what adapters declare by `@aiter` and from `names.toml`; edit those. Without
`--write` the pages are printed.

Callers: V vLLM, S SGLang, s SGLang when it starts, U users. **missing**: the name is there and raises
`UnsupportedError`, which says what the page does: what to use instead, and why where that is the device. "python": no
kernel behind it. A name that stands on no page is absent: to import it is an error that says so.

## The names
"""

_NAMES = """\
# AITER's names: {title}

Which backends serve each name, and what to use for those that are missing. [AITER.md](../AITER.md) says who callers
are, and counts.

```python
import aiter_like as aiter
from aiter_like.integrations.aiter.table import backends

print(backends(aiter.{name}))  # backends of the operators behind it; none: Python alone
```
"""

def pages() -> dict[str, str]:
    """Page, below this folder → its text, AITER.md first.

    Raises:
        ValueError: a section of the table of names is on no page.
    """
    rows, found = aiter_names.table(), {"AITER.md": ""}
    if lost := {row.section for row in rows} - {section for *_, sections in _PAGES.values() for section in sections}:
        raise ValueError(f"table.py: no page has the section {', '.join(sorted(lost))}")
    head = [_HEAD, "| page | names | served | missing |", "|---|---|---|---|"]
    for page, (title, name, sections) in _PAGES.items():
        lines = [_NAMES.format(title=title, name=name)]
        for section in sections:
            lines += [f"## {section}", "", "| name | in | callers | backends |", "|---|---|---|---|"]
            lines += [_line(row) for row in rows if row.section == section] + [""]
        head.append(_counted(f"[{title}](pages/{page}.md)", [row for row in rows if row.section in sections]))
        found[f"pages/{page}.md"] = "\n".join(lines)
    head.append(_counted("all", rows))
    return {**found, "AITER.md": "\n".join([*head, ""])}


def backends(function: Any) -> tuple[str, ...]:
    """The backends of the operators behind a function."""
    ops = operators(function)
    return tuple(kind for kind in KINDS if any(backend.name == kind for op in ops for backend in op.backends))


def _counted(title: str, rows: Iterable[Name]) -> str:
    rows = list(rows)
    missing = sum(row.server is None for row in rows)
    return f"| {title} | {len(rows)} | {len(rows) - missing} | {missing} |"


def _line(row: Name) -> str:
    served = f"**missing**: use {row.advice}" if row.server is None else ", ".join(backends(row.value)) or "python"
    return f"| `{row.name}` | `{row.modules[0]}` | {row.callers} | {served} |"
