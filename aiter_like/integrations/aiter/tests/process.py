# SPDX-License-Identifier: MIT
"""The process in which `aiter-like aiter-tests` runs one file: `python -m` this module, with a JSON object.

A file that imports pytest is run by pytest, where every test is a check; of another, a script, every comparison is.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import re
import resource
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from aiter_like import log, sim
from aiter_like.integrations.aiter import checks as aiter_checks
from aiter_like.integrations.aiter.checks import Journal

logger = logging.getLogger("aiter_like")

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main(text: str) -> int:
    """Runs the file that a JSON object describes: file, journal, arguments, is_sim, memory_bytes (0: no limit).

    Its exit status: 0 where the file ended by itself, whatever its checks found.
    """
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # a file that hangs must not outlive a killed command
    job = json.loads(text)
    file = Path(job["file"])
    log.configure("warning")
    if job["memory_bytes"]:  # an allocation that is refused is an error of the file, not of the machine
        resource.setrlimit(resource.RLIMIT_DATA, (job["memory_bytes"],) * 2)
    by_pytest = "import pytest" in file.read_text()
    journal = aiter_checks.journal = Journal(Path(job["journal"]), file.parent, by_call=not by_pytest)
    sys.argv = [str(file), *job["arguments"]]
    with sim.as_gpu() if job["is_sim"] else contextlib.nullcontext():
        with contextlib.suppress(ImportError):  # the file meets the error by itself
            importlib.import_module("aiter")  # the shim's, before pytest puts a checkout's folder in front of it
        ended = _pytest(file, journal) if by_pytest else ""
        if not by_pytest or ended == "no tests":
            journal.by_call = True
            ended = _script(file, journal)
    journal.add("ended", ended)
    return 0


def _script(file: Path, journal: Journal) -> str:
    """Runs a script; what ended it, "" for its end."""
    with _counted_comparisons(file.parent), _tables_with_gaps(file, journal):
        try:
            runpy.run_path(str(file), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                return f"exit status {end.code}"
        except Exception as error:
            logger.warning("%s ended by an exception", file.name, exc_info=True)
            return journal.add_error(error)
    if not journal.checks and journal.asked_in_vain:
        journal.add("other_arch", f"checks nothing on {journal.asked_in_vain}")
    return ""


@contextlib.contextmanager
def _counted_comparisons(programs: Path) -> Iterator[None]:
    """torch's own comparisons count where the program itself calls them."""
    holders = [(torch.testing, "assert_close"), (torch, "allclose"), (torch, "equal")]
    originals = [getattr(holder, name) for holder, name in holders]

    def counted(name: str, original: Any) -> Any:
        def compare(*args: Any, **kwargs: Any) -> Any:
            is_own = Path(sys._getframe(1).f_code.co_filename).is_relative_to(programs)
            try:
                found = original(*args, **kwargs)
            except AssertionError as error:
                error.is_counted = is_own and aiter_checks.compared(str(error))
                raise
            if is_own:
                aiter_checks.compared("" if found in (None, True) else f"{name} is false")
            return found

        return compare

    for (holder, name), original in zip(holders, originals):
        setattr(holder, name, counted(name, original))
    try:
        yield
    finally:
        for (holder, name), original in zip(holders, originals):
            setattr(holder, name, original)


@contextlib.contextmanager
def _tables_with_gaps(file: Path, journal: Journal) -> Iterator[None]:
    """Columns of a table of results, all of whose parts were lost, are empty: scripts print such tables between their
    parts, and would end there.
    """
    if not re.search(r"^\s*(import|from) pandas\b", file.read_text(), re.MULTILINE):
        yield
        return
    import pandas

    original = pandas.DataFrame.__getitem__

    def column(self: Any, key: Any) -> Any:
        try:
            return original(self, key)
        except KeyError:
            if not journal.lost_parts:
                raise
            return original(self.reindex(columns=key if isinstance(key, list) else [key]), key)

    pandas.DataFrame.__getitem__ = column
    try:
        yield
    finally:
        pandas.DataFrame.__getitem__ = original


def _pytest(file: Path, journal: Journal) -> str:
    """Runs a file that imports pytest itself; what ended it. "no tests": it has none that pytest can call, so
    that it is a script after all.
    """
    import pytest

    from aiter_like.integrations.aiter.tests.plugin import Counter

    counter = Counter(journal)
    status = pytest.main(["-q", "-c", "/dev/null", "--rootdir", str(file.parent), "-p", "no:cacheprovider",
                          str(file), *sys.argv[1:]], plugins=[counter])
    if status == pytest.ExitCode.NO_TESTS_COLLECTED and not counter.is_skipped:
        return "no tests"
    is_own_end = status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    return "" if is_own_end else counter.ended or "error"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
