# SPDX-License-Identifier: MIT
"""The tuner's progress line on stderr: trials and shapes done, time left. Used by tuner.py."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO


class Progress:
    """One line that is written over on a terminal; elsewhere a line per shape."""

    def __init__(self, title: str, enabled: bool, stream: TextIO | None = None):
        self.title, self.enabled = title, enabled
        self.stream = sys.stderr if stream is None else stream
        self.trials = self.shapes = self.all_trials = self.all_shapes = 0
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._width = 0

    def note(self, text: str) -> None:
        """A remark of its own."""
        self._write(f"{self.title}: {text}", keep=True)

    def begin(self, trials: int, shapes: int) -> None:
        """The amount of work is known: the clock starts."""
        self.all_trials, self.all_shapes, self._start = trials, shapes, time.monotonic()

    def trial_done(self) -> None:
        """One more candidate."""
        with self._lock:
            self.trials += 1
        if self._is_terminal():
            self._write(self.line())

    def shape_done(self) -> None:
        """One more shape."""
        with self._lock:
            self.shapes += 1
        self._write(self.line(), keep=not self._is_terminal())

    def line(self) -> str:
        """The text: `rms_norm: 12/48 trials, 3/8 shapes, 00:35 left`."""
        left = "?"
        if self.trials:
            seconds = (time.monotonic() - self._start) / self.trials * max(self.all_trials - self.trials, 0)
            left = f"{int(seconds // 60):02}:{int(seconds % 60):02}"
        return (f"{self.title}: {self.trials}/{self.all_trials} trials, {self.shapes}/{self.all_shapes} shapes, "
                f"{left} left")

    def end(self) -> None:
        """Leaves the line as it is."""
        if self._width and self.enabled:
            self.stream.write("\n")
        self._width = 0

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
