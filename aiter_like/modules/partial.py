# SPDX-License-Identifier: MIT
"""Keeps what an interrupted build has made for the next one of the same module. Used by build.py.

ninja runs a step whose output is missing or not in its log; whether a finished one may be taken over is decided here,
by the content of all that the steps read.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiter_like.modules import cache, recipe, trust
from aiter_like.modules.recipe import Step

_NOTE = "interrupted.json"
_LOG = ".ninja_log"


def keep(scratch: Path, steps: list[Step], state: dict[str, Any], root: Path) -> None:
    """Notes what the finished steps were made from, and removes what the others left.

    Args:
        state: what the build was of: compiler, commands and the project's files.
    """
    finished, read = _finished(scratch), set()
    for step in steps:
        if step.output not in finished:
            for name in filter(None, (step.output, step.depfile)):
                (scratch / name).unlink(missing_ok=True)
        elif step.depfile:
            names = recipe.parse_depfile(os.fsdecode((scratch / step.depfile).read_bytes()))
            read.update(str(scratch / name) for name in names)
    outside = {name for name in read if not name.startswith(f"{scratch}/")}
    cache.write_json(scratch / _NOTE, {"state": state, "files": cache.record_files(outside, root)})


def take(candidates: Iterable[Path], state: dict[str, Any], root: Path) -> Path | None:
    """The first directory that an interrupted build of the same state has left, if nothing that it read has changed."""
    for directory in candidates:
        if trust.own_fault(directory, is_folder=True):
            continue
        note = cache.read_json(directory / _NOTE)
        if note is not None and note["state"] == state and cache.files_unchanged(note["files"], root):
            (directory / _NOTE).unlink()
            return directory
    return None


def _finished(scratch: Path) -> set[str]:
    """The outputs in ninja's log: a line is start, end, time, output and a hash of the command."""
    try:
        lines = (scratch / _LOG).read_text().splitlines()
    except OSError:
        return set()
    return {fields[3] for line in lines if len(fields := line.split("\t")) == 5}
