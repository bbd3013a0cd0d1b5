# SPDX-License-Identifier: MIT
"""Files that a user names: JSON, read for sim/spec.py and sim/kernels.py, every mistake of which is named by its place;
and files of another kind than a command takes, answered with the command that takes them.
"""

import json
import os
import reprlib
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_AMDGPU = 0xE0  # e_machine of code objects, in the ELF header
GOT = reprlib.Repr()
"""Shows a value in a message: one line, however large the value is."""
GOT.maxstring = GOT.maxother = GOT.maxlong = 80
GOT.maxdict = GOT.maxlist = 8


def read_file(path: Path, most_bytes: int) -> bytes:
    """A file's contents."""
    try:
        mode = path.stat().st_mode  # not a device: one may have no end
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise ValueError(f"{path}: {'Is a directory' if stat.S_ISDIR(mode) else 'no regular file'}")
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    if len(data) > most_bytes:
        raise ValueError(f"{path}: larger than {most_bytes >> 20} MiB")
    return data


def require_kind(path: Path, wanted: str) -> None:
    """Refuses a file that is certainly no "Python script" or no "code object", whichever is wanted, and says what it is
    and what runs it; all others pass, as what reads them has its own words.
    """
    if not path.is_file() or not os.access(path, os.R_OK):  # a pipe can be read once
        return
    with path.open("rb") as file:
        head = file.read(64)
    name = shlex.quote(str(path))
    program = name if os.sep in name else f"./{name}"
    sources = {".hip": "a HIP source", ".cu": "a HIP source", ".cpp": "a C++ source", ".s": "assembly"}
    if head.startswith((b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")) or _is_elf_for(head, _AMDGPU):
        kind, advice = "a code object", f"`aiter-like sim run {name}` launches its kernels"
    elif head.startswith(b"\x7fELF") and len(head) == 64:  # a shorter one names no machine
        kind, advice = "a program or library of the host", (
            f"`AITER_LIKE_SIM=check {program}` runs a program that is linked to `aiter-like sim library`, with the "
            "checkers on")
    elif path.suffix in sources:
        kind = sources[path.suffix]
        advice = f"`aiter-like sim compile {name} -o {shlex.quote(path.stem + '.co')}` compiles it"
    elif path.suffix == ".py" or head.startswith(b"#!") and b"python" in head.partition(b"\n")[0]:
        kind, advice = "a Python script", f"`aiter-like sim check {name}` runs it, with the checkers on"
    elif head.startswith(b"#!"):
        kind, advice = "a script of another language", f"`AITER_LIKE_SIM=check {program}` hands the checkers on"
    else:
        kind = advice = ""
    if kind not in ("", f"a {wanted}"):
        raise ValueError(f"{path}: it is {kind}, and no {wanted}; {advice}")


def _is_elf_for(head: bytes, machine: int) -> bool:
    return head.startswith(b"\x7fELF") and int.from_bytes(head[18:20], "little") == machine


def read_json(path: Path, most_bytes: int) -> Any:
    """Reads a file of JSON; refuses an object that has a key twice."""
    text = read_file(path, most_bytes)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply for a description") from None
    except ValueError as error:
        raise ValueError(f"{path}: no JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, each of whose keys is there once: the parser alone would silently take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {GOT.repr(next(name for name in names if names.count(name) > 1))} is there twice")
    return found


def require_keys(value: Any, known: set[str], place: str, needed: Sequence[str] = ()) -> None:
    """Raises ValueError unless `value` is an object with keys of `known`, all of `needed` among them."""
    if not isinstance(value, dict):
        raise ValueError(f"{place} must be an object, got {GOT.repr(value)}")
    if unknown := sorted(value.keys() - known):
        names = ", ".join(map(shown, unknown[:8]))
        raise ValueError(f"{place} has no key {names}; there are: {', '.join(sorted(known))}")
    for name in needed:
        if name not in value:
            raise ValueError(f"{place}: {name} is missing")


def integer(value: Any, low: int, high: int, place: str) -> int:
    """`value`, if it is an integer of that range; else ValueError."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{place} must be an integer from {low} to {high}, got {GOT.repr(value)}")
    return value


def one_of(value: Any, known: Mapping[str, Any], place: str) -> Any:
    """Looks `value` up in `known`; ValueError if that has nothing."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{place} must be one of {', '.join(known)}, got {GOT.repr(value)}")
    return known[value]


def shown(name: str) -> str:
    """A name as it can stand in a message of one line."""
    return name if 0 < len(name) <= 80 and name.isprintable() else GOT.repr(name)
