# SPDX-License-Identifier: MIT
"""The blocks of the simulator that this process has open: `current` is the one object that knows them.

Everything else of the simulator in Python is a function, or a cache of what has been built and loaded.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aiter_like.sim.settings import Settings, default_settings

MOST_CHARACTERS = 16 << 20


class Output:
    """The text that kernels print during a block, up to MOST_CHARACTERS."""

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


@dataclass(frozen=True, eq=False)
class Block:
    """An open block's wishes; None leaves one to the blocks around it.

    Attributes:
        settings: of the launches.
        on_report: "raise" or "collect".
        reports, counts, cycles: lists that get what is said of the launches until the block's end.
        output: gets what they print.
    """

    settings: Settings | None = None
    on_report: str | None = None
    reports: list[dict] | None = None
    counts: list[dict] | None = None
    cycles: list[dict] | None = None
    output: Output | None = None


class State:
    """The open blocks, and who wants to hear of what else.

    Attributes:
        blocks: those that have not ended, the innermost last.
        recorder: makes each checked call in place of the caller, while a graph is captured.
        watches: each checked call runs within what these return.
        unclaimed: reports of launches that went past every operator, outside of any block.
        debugger, trace: held while a debugger is attached, or a trace recorded: there is one of each.
    """

    def __init__(self):
        self.blocks: list[Block] = []
        self.recorder: Callable[[Callable[[], Any], tuple], Any] | None = None
        self.watches: list[Callable[[str, tuple], contextlib.AbstractContextManager]] = []
        self.unclaimed: list[dict] = []
        self.debugger, self.trace = threading.Lock(), threading.Lock()
        self._owner: int | None = None  # the thread whose blocks have settings
        self._lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        """Those of the innermost block that has some, else of AITER_LIKE_SIM."""
        return [default_settings(), *self.kept("settings")][-1]

    def kept(self, name: str) -> list[Any]:
        """The values that open blocks give their attribute `name`, the innermost last."""
        return [value for block in self.blocks if (value := getattr(block, name)) is not None]

    def give(self, name: str, found: Sequence[dict]) -> None:
        """Adds records to the lists that the open blocks have as `name`."""
        for one in self.kept(name):
            one.extend(found)

    @contextlib.contextmanager
    def opened(self, block: Block, take: Callable[[], Any]) -> Iterator[None]:
        """The block is open; `take` gives out what there is to say: before, for those around it, and at its end."""
        take()
        self.blocks.append(block)
        try:
            yield
        finally:
            take()
            self.blocks.remove(block)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """This thread may open blocks with settings.

        Raises:
            RuntimeError: another thread has one open.
        """
        with self._lock:
            if self._owner not in (None, threading.get_ident()):
                raise RuntimeError("sim.enabled: another thread is in such a block, and there is one simulated device "
                                   "with one set of settings: end that block first, or use a process for each")
            previous, self._owner = self._owner, threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._owner = previous


current = State()
