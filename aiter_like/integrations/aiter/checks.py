# SPDX-License-Identifier: MIT
"""Counts the checks of a program in AITER's manner while `aiter-like aiter-tests` runs it; nothing is counted
elsewhere.

Each event is a line of a file, so that a process that is killed leaves what it had found.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover

KINDS = ("passed", "failed", "errors", "skipped", "other_arch", "unserved")
"""passed, failed: checks that ran. errors: a part that raised anything but a failed check. skipped: by the file itself.
other_arch: left out, because the file asks for an architecture that this is not. unserved: stopped at what is missing.
"""

_COMMON = Path(__file__).with_name("tests") / "common.py"
ENDS = {"failed": "failed check", "errors": "error", "unserved": "missing", "other_arch": "other arch"}
"""Kind of an exception → how a program ended that it ended."""

logger = logging.getLogger("aiter_like")


class Journal:
    """The events of one program.

    Args:
        path: the file that takes them, one JSON list [kind, what, part] a line.
        programs: the folder of the program, whose assertions are checks.
        by_call: every comparison counts; else only what the caller enters, such as whole tests of pytest.
    """

    def __init__(self, path: Path, programs: Path, by_call: bool):
        self.programs, self.by_call = programs, by_call
        self.asked_in_vain, self.checks, self.lost_parts, self._calls = "", 0, 0, 0
        self._file = path.open("a", buffering=1)

    def add(self, kind: str, what: str = "", part: str = "") -> None:
        """Enters one event: one of KINDS, or "ended" with what ended the program; and its part or test."""
        self.checks += kind in ("passed", "failed")
        self._file.write(json.dumps([kind, what, part]) + "\n")

    def begin(self) -> None:
        """A part or a test begins."""
        self.asked_in_vain, self._calls = "", _calls()

    def has_called(self) -> bool:
        """Whether an operator of the shim has been called since."""
        return _calls() > self._calls

    def add_error(self, error: BaseException, part: str = "") -> str:
        """Enters what an exception says of the part that it ended; one of ENDS, which it is for a whole program."""
        kind, what = self.classified(error)
        if not getattr(error, "is_counted", False):
            self.add(kind, what, part)
        return ENDS[kind]

    def classified(self, error: BaseException) -> tuple[str, str]:
        """The kind of an exception of the program, and its first line.

        What is missing here is told from what the machine lacks (another package) and from an architecture's absence: a
        file that looks its name up in a table of its own, gives up with its name, or asks for what only AMD's devices
        have.
        """
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        if isinstance(error, UnsupportedError):
            return "unserved", text
        if isinstance(error, AssertionError) and self._is_check(error):
            return "failed", text
        if isinstance(error, ImportError) and (error.name or "").split(".")[0] == "aiter":
            wanted = re.match(r"cannot import name '(\w+)'", text)
            return "unserved", f"{error.name}.{wanted[1]} is absent" if wanted else f"{error.name} is absent"
        if isinstance(error, AttributeError) and "the aiter shim of aiter_like has no such name" in text:
            return "unserved", f"{text.partition(':')[0]} is absent"
        if isinstance(error, KeyError) and error.args and isinstance(error.args[0], Arch):
            return "other_arch", f"no entry for {error.args[0]}"
        if self.asked_in_vain and self.asked_in_vain in text:
            return "other_arch", text
        if isinstance(error, AttributeError) and error.name == "gcnArchName":
            return "other_arch", "asks for the name that only AMD's devices have"
        return "errors", f"{type(error).__name__}: {text}"

    def _is_check(self, error: AssertionError) -> bool:
        """Whether a function for comparing says it, or the program itself, after it has called an operator: before, it
        refuses its own parameters. Another library's assertion is that library's error.
        """
        frame, file = error.__traceback__, Path()
        while frame is not None:
            frame, file = frame.tb_next, Path(frame.tb_frame.f_code.co_filename)
        if file.is_relative_to(self.programs):
            return self.has_called()
        return "testing" in file.parts or file == _COMMON

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the program, after whose failure the program goes on."""
        before = self.checks
        self.begin()
        try:
            yield
        except Exception as error:
            logger.warning("%s ended by an exception", name, exc_info=True)
            self.lost_parts += 1
            self.add_error(error, name)
        else:
            if self.asked_in_vain and before == self.checks:
                self.add("other_arch", f"checks nothing on {self.asked_in_vain}", name)
                self.asked_in_vain = ""


journal: Journal | None = None
"""The running program's journal; None: nobody counts."""


class Arch(str):
    """An architecture's name that notes, while checks are counted, when it was compared with another's in vain."""

    def __eq__(self, other: object) -> bool:
        is_equal = str.__eq__(self, other)
        if is_equal is False and str(other).startswith("gfx") and journal is not None:
            journal.asked_in_vain = str(self)
        return is_equal

    def __ne__(self, other: object) -> bool:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    __hash__ = str.__hash__


def compared(problem: str) -> bool:
    """A comparison ended, with a problem or with ""; whether that was counted, so that the program may go on."""
    if journal is None or not journal.by_call:
        return False
    journal.add("failed" if problem else "passed", problem)
    return True


def part(name: str) -> contextlib.AbstractContextManager:
    """Around a part of a program: while comparisons are counted, its exceptions are counted and go no further."""
    return journal.part(name) if journal is not None and journal.by_call else contextlib.nullcontext()


def _calls() -> int:
    return sum(counts.served + counts.fell_back for counts in takeover.counters().values())
