# SPDX-License-Identifier: MIT
"""AITER.md, written from the table of names: which backends serve each name, and which names are missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiter_like.dispatch.selection import KINDS
from aiter_like.integrations import aiter_names, aiter_test_runs
from aiter_like.integrations.aiter_checks import KINDS as CHECKS
from aiter_like.integrations.aiter_names import Name
from aiter_like.integrations.aiter_test_runs import Result
from aiter_like.integrations.reach import operators

FILE = Path(__file__).with_name("AITER.md")

_HEAD = """\
# AITER's names

Written by `aiter-like names --write` from `aiter_names.txt`; edit that. What a name is here holds for all three ways
to it: `import aiter_like as aiter`, the overlay of an installed `aiter`, and the shim where there is none.

Priority: P0 dense models, P1 experts, P2 fp8, RoPE and cache writes, P3 MLA, P4 several GPUs and further fusions.
Callers: V vLLM, S SGLang, s SGLang when it starts, U users. **missing**: the name is there, with AITER's signature, and
raises `UnsupportedError`, which says what the page does: what to use instead, and why where that is the device.
"python": no kernel behind it. A name that stands nowhere on this page is absent: to import it is an error that says so.
"""

_TESTS = """\
# AITER's own tests

What `aiter-like aiter-tests` found of the files in AITER's public folder `op_tests`, which are no part of this
package: they run through the shim, each in a process of its own. A check is a test of pytest in a file that imports
pytest, and in a script a call of `checkAllclose`, `torch.testing.assert_close`, `torch.allclose` or `torch.equal`. A
file counts only if at least one ran. "errors": parts that raised anything but a failed check, their own assertions on
their parameters too, before an operator was called; "unserved": parts that stopped at a missing name; "other arch":
parts that ask for an architecture that the device is not. A file that ended at its time limit has checked what stands
there, and no more. Names: those that the file uses, served / raising / absent.
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
    measured = [aiter_test_runs.read(path) for path in sorted(FILE.parent.glob("aiter_tests_*.json"))]
    for about, results in measured:
        lines += ([_TESTS] if about is measured[0][0] else []) + [*_run(about, results), ""]
    return "\n".join(lines)


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
    yield f"## On {about['device']} ({about['arch']})" + (f", {about['folder']}" if "folder" in about else "")
    yield ""
    yield (f"{about['note']} Limit {about['limit_s']:g} s a file, torch {about['torch']}. "
           f"**{counted} of {len(results)} files count**: {total['passed']} checks passed, {total['failed']} failed; "
           f"{total['errors']} errors, {total['skipped']} skipped, {total['other_arch']} for another architecture, "
           f"{total['unserved']} unserved. Names that they use: "
           + ", ".join(f"{number} {state}" for state, number in about["names"].items()) + ".")
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
    yield ""
    for result in results:
        if result.counts["failed"] or result.counts["errors"]:
            yield f"- `{result.file}`: " + "; ".join(f"{reason} ({number})" for reason, number in result.reasons.items()
                                                     if "is not served by aiter_like" not in reason)


def _line(row: Name) -> str:
    served = f"**missing**: use {row.advice}" if row.server is None else ", ".join(backends(row.value)) or "python"
    return f"| `{row.name}` | `{row.modules[0]}` | {row.priority} | {' '.join(row.callers)} | {served} |"
