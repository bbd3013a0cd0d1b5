# SPDX-License-Identifier: MIT
"""AITER.md and the pages of names/, from the table of names: which backends serve each name, and what is missing."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiter_like.dispatch.selection import KINDS
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter.checks import KINDS as CHECKS
from aiter_like.integrations.aiter.names import Name
from aiter_like.integrations.aiter.tests import runs
from aiter_like.integrations.aiter.tests.runs import Result
from aiter_like.integrations.reach import operators

FOLDER = Path(__file__).parent
_PAGES = {  # page → its title, a name that its example asks for, and the sections of the table that it has
    "ATTENTION": ("attention", "flash_attn_func", ("attention", "paged decode", "mla", "sparse attention",
                                                   "linear attention", "attention, raw calls")),
    "PRODUCTS": ("products, layouts and quantisation", "gemm_a8w8", ("gemm", "layout", "quantisation")),
    "MX_FORMATS": ("mx formats", "dynamic_mxfp4_quant", ("mx formats",)),
    "EXPERTS": ("experts", "fused_moe", ("moe",)),
    "NORMS": ("norms and activations", "rms_norm", ("norm", "activation", "fused norm and rope", "hyper-connections")),
    "ROPE": ("rotary embeddings and caches", "rope_fwd", ("rope", "cache")),
    "OTHERS": ("sampling, communication and the environment", "get_gfx", ("sampling", "communication", "environment"))}

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
Written by `aiter-like names --write` from `names.txt`; edit that. Without `--write` the pages are printed.

Priority: P0 dense models, P1 experts, P2 fp8, RoPE and cache writes, P3 MLA, P4 several GPUs and further fusions.
Callers: V vLLM, S SGLang, s SGLang when it starts, U users. **missing**: the name is there, with AITER's signature, and
raises `UnsupportedError`, which says what the page does: what to use instead, and why where that is the device.
"python": no kernel behind it. A name that stands on no page is absent: to import it is an error that says so.

## The names
"""

_NAMES = """\
# AITER's names: {title}

Which backends serve each name, and what to use for those that are missing. [AITER.md](../AITER.md) says what priorities
and callers are, and counts.

```python
import aiter_like as aiter
from aiter_like.integrations.aiter.table import backends

print(backends(aiter.{name}))  # of the operators behind it; none: Python alone
```
"""

_TESTS = """\
## AITER's own tests

What `aiter-like aiter-tests` found of the files in AITER's public folder `op_tests`, which are no part of this
package: they run through the shim, each in a process of its own. A check is a test of pytest in a file that imports
pytest, and in a script a call of `checkAllclose`, `torch.testing.assert_close`, `torch.allclose` or `torch.equal`. A
file counts only if at least one ran. "errors": parts that raised anything but a failed check, their own assertions on
their parameters too, before an operator was called; "unserved": parts that stopped at a missing name; "other arch":
parts that ask for an architecture that the device is not. A file that ended at its time limit has checked what stands
there, and no more. Names: those that the file uses, served / raising / absent.

| page | files that count | checks passed | failed |
|---|---|---|---|
"""

_RUN = """\
# AITER's own tests on {device}

What each file of AITER's tests came to here. [AITER.md](../AITER.md) says what the columns count.

```python
from pathlib import Path

from aiter_like.integrations.aiter.tests import runs

about, results = runs.read(Path(runs.__file__).with_name("{file}"))
print(f"{{sum(result.is_counted for result in results)}} of {{len(results)}} files count")
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
    head = [_HEAD, "| priority | names | served | missing |", "|---|---|---|---|"]
    for priority in sorted({row.priority for row in rows}):
        head.append(_counted(priority, [row for row in rows if row.priority == priority]))
    head += [_counted("all", rows), "", "| page | names | served | missing |", "|---|---|---|---|"]
    for page, (title, name, sections) in _PAGES.items():
        lines = [_NAMES.format(title=title, name=name)]
        for section in sections:
            lines += [f"## {section}", "", "| name | in | priority | callers | backends |", "|---|---|---|---|---|"]
            lines += [_line(row) for row in rows if row.section == section] + [""]
        head.append(_counted(f"[{title}](pages/{page}.md)", [row for row in rows if row.section in sections]))
        found[f"pages/{page}.md"] = "\n".join(lines)
    measured = sorted((FOLDER / "tests").glob("*.json"))
    head += ["", _TESTS.rstrip("\n")] if measured else []
    for path in measured:
        about, results = runs.read(path)
        page, device = f"pages/TESTS_{path.stem.upper()}.md", _device(about)
        head.append(f"| [{device}]({page}) | {sum(result.is_counted for result in results)} of {len(results)} | "
                    + " | ".join(str(sum(result.counts[kind] for result in results)) for kind in ("passed", "failed"))
                    + " |")
        found[page] = "\n".join([_RUN.format(device=device, file=path.name), *_run(about, results), ""])
    return {**found, "AITER.md": "\n".join([*head, ""])}


def _device(about: dict[str, Any]) -> str:
    return f"{about['device']} ({about['arch']})" + (f", {about['folder']}" if "folder" in about else "")


def backends(function: Any) -> tuple[str, ...]:
    """The backends of the operators behind a function."""
    ops = operators(function)
    return tuple(kind for kind in KINDS if any(backend.name == kind for op in ops for backend in op.backends))


def _counted(title: str, rows: Iterable[Name]) -> str:
    rows = list(rows)
    missing = sum(row.server is None for row in rows)
    return f"| {title} | {len(rows)} | {len(rows) - missing} | {missing} |"


def _run(about: dict[str, Any], results: list[Result]) -> Iterable[str]:
    """One run of the files, those that count first."""
    total = {kind: sum(result.counts[kind] for result in results) for kind in CHECKS}
    counted = sum(result.is_counted for result in results)
    yield "## All files\n"
    text = (f"{about['note']} Limit {about['limit_s']:g} s a file, torch {about['torch']}. "
            f"**{counted} of {len(results)} files count**: {total['passed']} checks passed, {total['failed']} failed; "
            f"{total['errors']} errors, {total['skipped']} skipped, {total['other_arch']} for another architecture, "
            f"{total['unserved']} unserved. Names that they use: "
            + ", ".join(f"{number} {state}" for state, number in about["names"].items()) + ".")
    yield textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield ("| file | passed | failed | errors | skipped | other arch | unserved | ended | names | first missing or "
           "problem |")
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for result in sorted(results, key=lambda result: (not result.is_counted, result.file)):
        first = (result.missing or result.problem)[:120].replace("|", "\\|").replace("`", "'")
        numbers = " | ".join(str(result.counts[kind]) for kind in CHECKS)
        command = shlex.join([result.file, *about["arguments"].get(result.file, ())])
        yield (f"| `{command}` | {numbers} | {result.ended or 'itself'} | "
               f"{' / '.join(map(str, result.names.values()))} | {first} |")
    wrong = [result for result in results if result.counts["failed"] or result.counts["errors"]]
    yield "\n## What failed, and how often\n" if wrong else ""
    for result in wrong:
        yield f"- `{result.file}`: " + "; ".join(f"{reason} ({number})" for reason, number in result.reasons.items()
                                                 if "is not served by aiter_like" not in reason)


def _line(row: Name) -> str:
    served = f"**missing**: use {row.advice}" if row.server is None else ", ".join(backends(row.value)) or "python"
    return f"| `{row.name}` | `{row.modules[0]}` | {row.priority} | {' '.join(row.callers)} | {served} |"
