# SPDX-License-Identifier: MIT
"""Shows progress when a build, or the wait for another process's, takes longer than two seconds: a line that is
rewritten on a terminal, elsewhere a log line at once and one a minute. Read by build.py.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

_log = logging.getLogger("aiter_like")

DELAY = 2.0  # seconds; a shorter build shows nothing
_TICK = 0.2  # seconds between two states of the line on a terminal
_REPEAT = 60.0  # seconds between two log lines
_ERASE = "\r\033[K"

_terminal = threading.Lock()  # held by the one that shows its line
_quiet = 0  # callers that show progress of their own


@contextlib.contextmanager
def shown(text: Callable[[], str]) -> Iterator[None]:
    """Shows `text()`, as it changes, from the third second of the block to its end.

    Log lines are warnings, the lowest level that a program shows without any set-up; where warnings are switched off
    (AITER_LIKE_LOG=error) nothing is shown on a terminal either.
    """
    if _quiet or not _log.isEnabledFor(logging.WARNING):
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(text, done), daemon=True, name="aiter_like build progress")
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


@contextlib.contextmanager
def left_to_caller() -> Iterator[None]:
    """Shows nothing for the duration of the block: its caller has a progress line of its own."""
    global _quiet
    _quiet += 1
    try:
        yield
    finally:
        _quiet -= 1


class Left:
    """The seconds left as people are told: they never climb. An estimate that does says only that the last one was too
    low, which the word tells: "about 20 s", then "over 20 s"."""

    def __init__(self) -> None:
        self.least: float | None = None

    def __call__(self, seconds: float) -> tuple[str, float]:
        """("about" or "over", the seconds to show) for an estimate."""
        if self.least is None or seconds <= self.least:
            self.least = seconds
        return "over" if seconds >= self.least + 1 else "about", self.least


def of_build(title: str, folder: Path, outputs: Sequence[str]) -> Callable[[], str]:
    """ "building the simulator, once: 12/30, about 40 s left", by the outputs of its steps that are in `folder`."""
    def finished() -> int:
        return sum(os.path.exists(folder / name) for name in outputs)

    start, before, shown_left = time.monotonic(), finished(), Left()  # an interrupted build is gone on with

    def text() -> str:
        seconds, done = time.monotonic() - start, finished()
        told = f"for {seconds:.0f} s"
        if done - before >= max(1, (len(outputs) - before) // 8):  # the first that are done are the shortest
            word, left = shown_left(seconds / (done - before) * (len(outputs) - done))
            told = f"{word} {left:.0f} s left"
        return f"building {title}, once: {done}/{len(outputs)}, {told}"

    return text


def of_wait(title: str, holder: Callable[[], dict | None]) -> Callable[[], str]:
    """ "waiting for pid 7 on host, which builds the simulator, for 3 s" by what `holder()` tells of the other one."""
    start = time.monotonic()

    def text() -> str:
        by = holder()
        who = "another process" if by is None else f"pid {by.get('pid')} on {by.get('host')}"
        return f"waiting for {who}, which builds {title}, for {time.monotonic() - start:.0f} s"

    return text


def _tell(text: Callable[[], str], done: threading.Event) -> None:
    if done.wait(DELAY):
        return
    stream = sys.stderr
    try:
        if stream is not None and stream.isatty():
            _rewrite(stream, text, done)
            return
    except (OSError, ValueError):  # the terminal is gone, or the stream closed
        return
    _log.warning("%s", text())
    while not done.wait(_REPEAT):
        _log.warning("%s", text())


def _rewrite(stream: TextIO, text: Callable[[], str], done: threading.Event) -> None:
    """One line at a time: of several builds the first shows its own, then the next."""
    while not _terminal.acquire(timeout=_TICK):
        if done.is_set():
            return
    try:
        while not done.is_set():
            stream.write(_ERASE + text()[:_columns(stream) - 1])
            stream.flush()
            done.wait(_TICK)
        stream.write(_ERASE)
        stream.flush()
    finally:
        _terminal.release()


def _columns(stream: TextIO) -> int:
    """Width of the terminal: a line that wraps could not be erased. 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
