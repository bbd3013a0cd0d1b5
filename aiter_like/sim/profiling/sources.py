# SPDX-License-Identifier: MIT
"""The text of source lines that instructions come from. Read by the profile, its page and the thread trace."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from aiter_like import paths


def place(source: str) -> tuple[str, int]:
    """ "file:line" → file and line; ("", 0) for an instruction without one."""
    name, _, line = source.rpartition(":")
    return (name, int(line)) if name and line.isdigit() else ("", 0)


def file(name: str) -> Path | None:
    """Finds a file that the line table names: one of this package's, or one of the user's."""
    return next((path for path in (paths.csrc().parent / name, Path(name)) if path.is_file()), None)


def shown(source: str) -> str:
    """A place as text shows it: below the working directory, or this package's folder, from there on."""
    for folder in (Path.cwd(), paths.csrc().parent):
        if source.startswith(f"{folder}/"):
            return source[len(str(folder)) + 1:]
    return source or "(no line)"


def tail(source: str) -> str:
    """A place without its folders."""
    return shown(source).rpartition("/")[2]


def where(one: Mapping) -> str:
    """An instruction's place, "gpu.h:35 in softmax.hip:62" where its function was inlined: the line of the kernel's
    author beside that of a library."""
    return tail(one["source"]) + (f" in {tail(one['caller'])}" if one.get("caller") else "")


def author(one: Mapping) -> str:
    """The "file:line" of the kernel itself that an instruction comes from."""
    return one.get("caller") or one["source"]  # a profile that was written earlier has no callers


def lines(name: str) -> Sequence[str]:
    """A file's lines; none where it is not to be had."""
    path = file(name) if name else None
    return _read(path, path.stat().st_mtime_ns) if path else ()


def texts(instructions: Iterable[dict]) -> dict[str, str]:
    """ "file:line" → its text, of those lines of the instructions, and of the calls of inlined ones, that are to be
    had."""
    found = {}
    for source in {place: None for one in instructions for place in (one["source"], author(one))}:
        name, line = place(source)
        text = lines(name)
        if 0 < line <= len(text):
            found[source] = text[line - 1]
    return found


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Sequence[str]:
    try:
        return tuple(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError):
        return ()
