# SPDX-License-Identifier: MIT
"""HIP's functions in the simulator's library, from its sources: which there are, which only refuse, and which tests
call them. `python tests/sim/hip_table.py` writes the pages of csrc/sim/hip/, which test_hip_table.py compares."""

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "csrc/sim/hip"
_README = """# HIP's functions on the simulated MI300X

The library exports {done} functions, and {refused} more that exist so that no program dies of a missing symbol: they
return hipErrorNotSupported (801) and say so on stderr, once each. All are there that HIP's header and ROCm's Python
bindings (hip-python 7.2 and 10) name.

```python
import ctypes

from aiter_like import sim

library, count = sim.load(), ctypes.c_int()
assert library.hipGetDeviceCount(ctypes.byref(count)) == 0 and count.value >= 1
assert library.hipCreateTextureObject() == 801  # listed below, with the reason
assert library.hipGetLastError() == 801
```

## Which functions are where
Written by `python tests/sim/hip_table.py` from the sources and the tests, as are all pages of the list. A line has
functions of one source file and the tests that call them by their name; `tests/sim/test_hip_python.py` makes a client
of the bindings.

| page | functions of |
|---|---|
{pages}

## What refuses
All of `unsupported.def`. The simulator's headers do not declare it: a program that calls it does not compile, and is
told why.
"""
_FILES = {
    "MEMORY.md": ("memory", "pool", "ipc", "copy"),
    "STREAMS.md": ("stream", "launch", "graph"),
    "DEVICES.md": ("device", "device_more", "module", "register", "occupancy", "error", "unsupported")}


def exported() -> dict[str, str]:
    """Function → the file that has it; without those that only refuse."""
    found = {}
    for path in sorted(FOLDER.glob("*.cpp")):
        for name in re.findall(r"^HIP_API [\w *:]*?\b(hip[A-Z]\w+)\(", path.read_text(), re.MULTILINE):
            found[name] = path.name
    return found


def refused() -> dict[str, str]:
    """Function → why it refuses."""
    text = (FOLDER / "unsupported.def").read_text()
    groups = re.findall(r'^#define SUBJECT "(.*)"\n((?:REFUSE.*\n)*)', text, re.MULTILINE)
    return {name: why for why, names in groups for name in re.findall(r"REFUSE\((\w+)\)", names)}


@functools.cache
def callers() -> dict[str, list[str]]:
    """Function → the tests that name it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".py", ".hip", ".cpp") and path.name != Path(__file__).name:
            for name in set(re.findall(r"\bhip[A-Z]\w+", path.read_text())):
                found.setdefault(name, []).append(path.name)
    return found


def _lines(names: Iterable[str]) -> Iterator[str]:
    """A table of functions: together those that the same tests call, six to a line."""
    by_tests: dict[str, list[str]] = {}
    for name in sorted(names):
        by_tests.setdefault(", ".join(callers().get(name, [])) or "none by its name", []).append(name)
    yield from ("| functions | tests |", "|---|---|")
    for tests, found in by_tests.items():
        yield from (f"| {', '.join(found[at:at + 6])} | {tests} |" for at in range(0, len(found), 6))


def texts() -> dict[str, str]:
    """Page → its text; what stands before the first list of a page stays.

    Raises:
        ValueError: a source file is on no page.
    """
    there, gone, found = exported(), refused(), {}
    if lost := {Path(file).stem for file in there.values()} - {stem for stems in _FILES.values() for stem in stems}:
        raise ValueError(f"hip_table.py: _FILES has no page for {', '.join(sorted(lost))}")
    for page, stems in _FILES.items():
        parts = [(FOLDER / page).read_text().partition("\n## ")[0]]
        for file in (f"{stem}.cpp" for stem in stems):
            comment = (FOLDER / file).read_text().partition("\n// ")[2].replace("\n// ", " ")
            what = "" if file == "unsupported.cpp" else re.match(r".*?\.(?=\s)", comment).group() + "\n\n"
            parts.append(f"## {file}\n{what}" + "\n".join(_lines(name for name in there if there[name] == file)) + "\n")
        found[page] = "\n".join(parts)
    pages = "\n".join(f"| [{page}]({page}) | {', '.join(f'`{stem}.cpp`' for stem in stems)} |"
                      for page, stems in _FILES.items())
    parts = [_README.format(done=len(there), refused=len(gone), pages=pages)]
    for why in sorted(set(gone.values())):
        parts.append(f"### {why[0].upper()}{why[1:]}\n" + "\n".join(_lines(name for name in gone if gone[name] == why))
                     + "\n")
    return {"README.md": "\n".join(parts), **found}


if __name__ == "__main__":
    for page, text in texts().items():
        (FOLDER / page).write_text(text)
