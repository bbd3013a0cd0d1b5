# SPDX-License-Identifier: MIT
"""The pages of this folder, from the runs of AITER's own tests beside them: `python op_tests/aiter_runs/pages.py`."""

import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiter_like.integrations.aiter.checks import KINDS
from aiter_like.integrations.aiter.tests import runs
from aiter_like.integrations.aiter.tests.runs import Result

FOLDER = Path(__file__).parent

_HEAD = """\
# AITER's own tests

Results of the files in AITER's public folder `op_tests`, which are no part of this project.
[`aiter-like aiter-tests FOLDER --output FILE.json`](../../aiter_like/integrations/README.md#aiters-own-tests) runs
them; runs that are kept lie here, and `python op_tests/aiter_runs/pages.py` writes these pages.

```python
from aiter_like.integrations.aiter.checks import KINDS

print(*KINDS)  # what is counted of each file
```

A check is a test of pytest in a file that imports pytest, and in a script a call of `checkAllclose`,
`torch.testing.assert_close`, `torch.allclose` or `torch.equal`. A file counts if at least one ran. The columns:

- errors: parts that raised anything but a failed check, also their own assertions on their parameters;
- other arch: parts that ask for an architecture that the device is not;
- unserved: parts that stopped at a missing name;
- ended: at its time limit a file has checked what stands there, and no more;
- names: those that the file uses, served / raising / absent, when it ran. Many that only `triton_tests` call are
  missing today: forward and backward by FlashAttention-3's parameters, feed-forward blocks, ragged products of experts,
  grouped products with gradients, and functions that are ours by other names.

| page | files that count | checks passed | failed |
|---|---|---|---|
"""

_RUN = """\
# AITER's own tests on {device}

What each file of AITER's tests came to here. [README.md](README.md) says what the columns count.

```python
from aiter_like import paths
from aiter_like.integrations.aiter.tests import runs

about, results = runs.read(paths.data_root() / "op_tests/aiter_runs/{file}")
print(f"{{sum(result.is_counted for result in results)}} of {{len(results)}} files count")
```
"""


def pages(folder: Path = FOLDER) -> dict[str, str]:
    """Page → its text, from the runs in a folder."""
    found = {"README.md": _HEAD}
    for path in sorted(folder.glob("*.json")):
        about, results = runs.read(path)
        page, device = f"{path.stem.upper()}.md", _device(about)
        sums = " | ".join(str(sum(result.counts[kind] for result in results)) for kind in ("passed", "failed"))
        counted = sum(result.is_counted for result in results)
        found["README.md"] += f"| [{device}]({page}) | {counted} of {len(results)} | {sums} |\n"
        found[page] = "\n".join([_RUN.format(device=device, file=path.name), *_run(about, results), ""])
    return found


def _device(about: dict[str, Any]) -> str:
    return f"{about['device']} ({about['arch']})" + (f", {about['folder']}" if "folder" in about else "")


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _run(about: dict[str, Any], results: list[Result]) -> Iterable[str]:
    """One run of the files, those that count first."""
    total = {kind: sum(result.counts[kind] for result in results) for kind in KINDS}
    counted = sum(result.is_counted for result in results)
    yield "## All files\n"
    what, *remarks = about["note"].split("\n- ")
    text = (f"{what} Limit {about['limit_s']:g} s a file, torch {about['torch']}. "
            f"**{counted} of {len(results)} files count**: {total['passed']} checks passed, {total['failed']} failed; "
            f"{total['errors']} errors, {total['skipped']} skipped, {total['other_arch']} for another architecture, "
            f"{total['unserved']} unserved. Names that they use: "
            + ", ".join(f"{number} {state}" for state, number in about["names"].items()) + ".")
    yield _filled(text)
    yield ""
    if remarks:
        yield "\n".join([*(_filled(f"- {remark}", "  ") for remark in remarks), ""])
    yield ("| file | passed | failed | errors | skipped | other arch | unserved | ended | names | first missing or "
           "problem |")
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for result in sorted(results, key=lambda result: (not result.is_counted, result.file)):
        first = (result.missing or result.problem)[:120].replace("|", "\\|").replace("`", "'")
        numbers = " | ".join(str(result.counts[kind]) for kind in KINDS)
        command = shlex.join([result.file, *about["arguments"].get(result.file, ())])
        yield (f"| `{command}` | {numbers} | {result.ended or 'itself'} | "
               f"{' / '.join(map(str, result.names.values()))} | {first} |")
    wrong = [result for result in results if result.counts["failed"] or result.counts["errors"]]
    yield "\n## What failed, and how often\n" if wrong else ""
    for result in wrong:
        yield f"- `{result.file}`: " + "; ".join(f"{reason} ({number})" for reason, number in result.reasons.items()
                                                 if "is not served by aiter_like" not in reason)


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
