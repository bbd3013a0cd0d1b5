# SPDX-License-Identifier: MIT
"""The progress line of `tune` and `bench` on stderr, from their first second on: what is done, and the time left.

Until the first step of a phase is done, its time is guessed; then the steps that are done tell. Loads nothing.
"""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from aiter_like.modules.progress import Left

_TERMINAL_SECONDS, _LOG_SECONDS = 1.0, 30.0  # between two lines, where nothing happens


@dataclass
class _Phase:
    """Work of one kind: `seconds` is the guess for one step, `start` when it began."""

    steps: int
    seconds: float
    done: int = 0
    start: float | None = None

    def left(self, now: float) -> tuple[float, bool]:
        """(seconds, whether they are guessed)."""
        remaining = max(self.steps - self.done, 0)
        elapsed = 0.0 if self.start is None else now - self.start
        if self.done and self.start is not None:
            return elapsed / self.done * remaining, False
        return max(self.seconds * remaining - elapsed, 0.0), remaining > 0


class Progress:
    """One line that is written over on a terminal; elsewhere a line per phase and shape, and one now and then."""

    def __init__(self, title: str, enabled: bool, stream: TextIO | None = None,
                 clock: Callable[[], float] = time.monotonic):
        self.title, self.enabled = title, enabled
        self.stream = sys.stderr if stream is None else stream
        self.shapes = self.all_shapes = 0
        self._clock = clock
        self._phases: dict[str, _Phase] = {}
        self._current = ""
        self._left = Left()
        self._lock = threading.RLock()
        self._width = 0
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None

    def expect(self, phase: str, steps: int, seconds: float | None = None) -> None:
        """There are so many steps of a kind to do; said again where it is known better.

        Args:
            phase: what steps are called, as "trials".
            seconds: a guess for one step; None: as before.
        """
        with self._lock:
            known = self._phases.setdefault(phase, _Phase(steps, seconds or 0.0))
            seconds = known.seconds if seconds is None else seconds
            if steps != known.steps or seconds != known.seconds:
                self._left = Left()  # there is other work than was said
            known.steps, known.seconds = steps, seconds

    def enter(self, phase: str) -> None:
        """A phase begins, and those before it are over."""
        with self._lock:
            for name, known in self._phases.items():
                if name == phase:
                    break
                known.steps = known.done
            self._current = phase
            self._phases[phase].start = self._clock()
        self._show(keep=not self._is_terminal())
        if self.enabled and self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def step(self) -> None:
        """One more step of the phase."""
        with self._lock:
            self._phases[self._current].done += 1
        if self._is_terminal():
            self._show()

    def shape_done(self) -> None:
        """One more shape."""
        with self._lock:
            self.shapes += 1
        self._show(keep=not self._is_terminal())

    def note(self, text: str) -> None:
        """A remark of its own."""
        self.clear()
        self._write(f"{self.title}: {text}", keep=True)

    def line(self) -> str:
        """The text: `rms_norm: 12/48 trials, 3/8 shapes, 00:35 left`; "about" where a part of that is a guess,
        "over" where it is more by now than was said."""
        with self._lock:
            phase, now = self._phases[self._current], self._clock()
            parts = [known.left(now) for known in self._phases.values()]
            word, seconds = self._left(sum(left for left, _ in parts))
            seconds = round(seconds)
            about = "over " if word == "over" else "about " if any(is_guess for _, is_guess in parts) else ""
            shapes = f" {self.shapes}/{self.all_shapes} shapes," if self.all_shapes else ""
            return (f"{self.title}: {phase.done}/{phase.steps} {self._current},{shapes} "
                    f"{about}{seconds // 60:02}:{seconds % 60:02} left")

    def clear(self) -> None:
        """Takes the line from a terminal, for what is printed next."""
        with self._lock:
            if self._width and self.enabled:
                self.stream.write("\r" + " " * self._width + "\r")
                self.stream.flush()
            self._width = 0

    def end(self) -> None:
        """Leaves the line as it is; nothing more is written."""
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
        if self._width and self.enabled:
            self.stream.write("\n")
        self._width = 0

    def _tick(self) -> None:
        while not self._stop.wait(_TERMINAL_SECONDS if self._is_terminal() else _LOG_SECONDS):
            self._show(keep=not self._is_terminal())

    def _show(self, keep: bool = False) -> None:
        if self._current:
            self._write(self.line(), keep)

    def _is_terminal(self) -> bool:
        return self.stream.isatty()

    def _write(self, text: str, keep: bool = False) -> None:
        if not self.enabled:
            return
        with self._lock:
            if keep:
                self.stream.write(f"{text}\n")
                self._width = 0
            else:
                self.stream.write("\r" + text.ljust(self._width))
                self._width = len(text)
            self.stream.flush()
