# SPDX-License-Identifier: MIT
"""HIP's functions in the simulator's library, from its sources: which there are, which only refuse, and which tests
call them. `python tests/sim/hip_table.py` writes csrc/sim/hip/README.md, which test_hip_table.py compares."""

from __future__ import annotations

import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "csrc/sim/hip/README.md"
_HEAD = """# HIP's functions on the simulated MI300X

Written by `tests/sim/hip_table.py`. The library exports {done} functions, and {refused} more that exist so that no
program dies of a missing symbol: they return hipErrorNotSupported and say so on stderr, once each. All are there that
HIP's header and ROCm's Python bindings (hip-python 7.2 and 10) name. The tests are those that call a function by its
name; `tests/sim/test_hip_python.py` makes a client of the bindings.

| function | state | where | tests |
|---|---|---|---|
"""


def exported() -> dict[str, str]:
    """Function → the file that has it; without those that only refuse."""
    found = {}
    for path in sorted(PAGE.parent.glob("*.cpp")):
        for name in re.findall(r"^HIP_API [\w *:]*?\b(hip[A-Z]\w+)\(", path.read_text(), re.MULTILINE):
            found[name] = path.name
    return found


def refused() -> dict[str, str]:
    """Function → why it refuses."""
    text = (PAGE.parent / "unsupported.cpp").read_text()
    reasons = dict(re.findall(r"^constexpr const char\* (k\w+) =\s+\"(.*)\";", text, re.MULTILINE))
    uses = re.findall(r"^AITER_LIKE_UNSUPPORTED\((\w+), (\w+)\)", text, re.MULTILINE)
    return {name: reasons[why] for name, why in uses}


@functools.cache
def callers() -> dict[str, list[str]]:
    """Function → the tests that name it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".py", ".hip", ".cpp") and path.name != Path(__file__).name:
            for name in set(re.findall(r"\bhip[A-Z]\w+", path.read_text())):
                found.setdefault(name, []).append(path.name)
    return found


def text() -> str:
    """The page."""
    there, gone = exported(), refused()
    rows = []
    for name in sorted(there | gone):
        state = f"refuses: {gone[name]}" if name in gone else "yes"
        place, tests = there.get(name, "unsupported.cpp"), ", ".join(callers().get(name, []))
        rows.append(f"| {name} | {state} | {place} | {tests} |")
    return _HEAD.format(done=len(there), refused=len(gone)) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
