# SPDX-License-Identifier: MIT
"""The output of kernels: shown on sys.stdout and sys.stderr while their launch runs, and kept by sessions."""

from __future__ import annotations

import ctypes
import sys

MOST_CHARACTERS = 16 << 20


class Output:
    """The text of a session, up to MOST_CHARACTERS."""

    def __init__(self):
        self._parts: list[str] = []
        self._characters = self._left_out = 0

    def add(self, text: str) -> None:
        """Keeps a piece of text, as much of it as there is room for."""
        part = text[:MOST_CHARACTERS - self._characters]
        self._characters += len(part)
        self._left_out += len(text) - len(part)
        if part:
            self._parts.append(part)

    def __str__(self) -> str:
        self._parts = ["".join(self._parts)]
        missing = f"\n[{self._left_out} more characters were printed, but not kept]\n" if self._left_out else ""
        return self._parts[0] + missing


kept: list[Output] = []
"""Who keeps what is printed: the open sessions."""


def give_to_python(library: ctypes.CDLL) -> None:
    """From now on the library's kernels print through Python."""
    library.aiter_like_sim_show_output(_callback)


def _show(is_error: int, address: int, count: int) -> int:
    try:
        text = ctypes.string_at(address, count).decode(errors="replace")
        for output in kept:
            output.add(text)
        stream = sys.stderr if is_error else sys.stdout
        stream.write(text)
        stream.flush()
    except KeyboardInterrupt:
        # A callback's exceptions end in it. Interrupts wait for Python code to run, which here is the callback: the
        # library raises this one again when the launch has ended.
        return 1
    return 0


_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)(_show)
