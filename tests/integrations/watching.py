# SPDX-License-Identifier: MIT
"""What our functions do in a call that a warm one must not: files, imports, code, patterns, signatures, log records.

Read by test_warm_calls.py and, in engines' processes, by op_tests/bench/bench_steps.py.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_EVENTS = frozenset({"open", "import", "compile", "exec", "os.listdir", "os.scandir", "subprocess.Popen"})
_FILES = frozenset({"stat", "lstat", "access", "readlink"})  # of posix: no event tells of these
_MODULES = frozenset({"re", "inspect", "importlib", "importlib._bootstrap", "pathlib", "typing"})
_RECORDS = frozenset({"makeRecord", "format"})  # of logging; a line that its level leaves out costs little
_BETWEEN = frozenset({*_MODULES, "functools", "logging", "contextlib", __name__})

_note: list[Callable[[str, FrameType], None]] = []  # of the block that is open: no audit hook can be taken out again


@contextlib.contextmanager
def watched() -> Iterator[Counter[str]]:
    """Counts what functions of this package do in the block, as "what, in module.function"; not what torch does for
    them."""
    found: Counter[str] = Counter()
    before = builtins.__import__, sys.getprofile()

    def note(what: str, frame: FrameType | None) -> None:
        while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
            frame = frame.f_back
        module = "" if frame is None else str(frame.f_globals.get("__name__"))
        if module.split(".")[0] == "aiter_like":
            found[f"{what}, in {module}.{frame.f_code.co_name}"] += 1

    def counted_import(name: str, *args: Any, **kwargs: Any) -> Any:
        note(f"import {name}", sys._getframe(1))  # the event tells of modules alone that are not loaded yet
        return before[0](name, *args, **kwargs)

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        module = frame.f_globals.get("__name__")
        if event == "call":
            function = frame.f_code.co_name
            if module in _MODULES or module == "logging" and function in _RECORDS:
                note(f"{module}.{function}", frame)
        elif event == "c_call" and (isinstance(getattr(arg, "__self__", None), re.Pattern)
                                    or getattr(arg, "__module__", "") == "posix" and arg.__name__ in _FILES):
            note(arg.__qualname__, frame)

    _listen()
    _note.append(note)
    builtins.__import__ = counted_import
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before[1])
        builtins.__import__ = before[0]
        _note.clear()


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, _args: tuple) -> None:
    if event in _EVENTS:
        for note in _note:
            note(event, sys._getframe(1))
