# SPDX-License-Identifier: MIT
"""Stops of a launch, and how exceptions get from its thread to who waits."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from aiter_like.sim.debugging.breakpoints import WatchedAccess
from aiter_like.sim.debugging.wave_view import WaveView


@dataclass(frozen=True)
class Stop:
    """Why and where a launch has stopped.

    Attributes:
        reason: "breakpoint", "watch", "step", "report", "failure", "interrupt" or "ended" (of the wave that stepped).
        number: of the breakpoint or watch.
        view: the wave that stopped.
        index: the instruction: the next one, or after an access or report perhaps the one that has run.
        executed: that it has run.
        lanes: of the access, or those in which the condition holds.
        access: of a watch.
        text: of a report or failure, or what is wrong with a condition.
        clock: instructions of all waves that the launch has executed.
        kernel: whose launch it is.
    """

    reason: str
    number: int
    view: WaveView
    index: int
    executed: bool
    lanes: int
    access: WatchedAccess | None
    text: str
    clock: int
    kernel: str

    @property
    def pc(self) -> int:
        """The instruction's address, from the kernel's entry on."""
        return self.view.program.instructions[self.index].pc - self.view.launch["entry"]

    @property
    def source(self) -> tuple[str, int]:
        """(file, line) of the instruction; ("", 0): not known."""
        return self.view.program.instructions[self.index].source

    @property
    def line(self) -> int:
        """The instruction's line; 0: not known."""
        return self.source[1]

    @property
    def instruction(self) -> str:
        """Its text."""
        return self.view.program.instructions[self.index].text


class Caught:
    """A block whose exception is kept, for somebody else to raise: where nobody above is Python, or on this thread.

    Attributes:
        error: the exception, if there was one.
    """

    error: BaseException | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        self.error = error
        return True
