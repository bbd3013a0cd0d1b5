# SPDX-License-Identifier: MIT
"""The exceptions of this package. Bad arguments are plain ValueError/TypeError (see check.py)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` (did you mean x or y?)`, to follow an unknown name in a message; "" where no known one is like it."""
    import difflib

    spelt = {one.casefold(): one for one in known}
    given = str(name).casefold()
    found = difflib.get_close_matches(given, spelt, n=2, cutoff=0.65)
    likeness = [difflib.SequenceMatcher(None, one, given).ratio() for one in found]
    if len(found) == 2 and likeness[1] < likeness[0] - 0.1:  # the first is what was meant
        found.pop()
    return f" (did you mean {' or '.join(spelt[one] for one in found)}?)" if found else ""


class AiterLikeError(Exception):
    """Base of every exception that this package defines."""


class UnsupportedError(AiterLikeError, NotImplementedError):
    """No backend serves the call.

    Attributes:
        op: name of the operator.
        reasons: backend name → why it refuses the call.
    """

    def __init__(self, message: str, op: str = "", reasons: dict[str, str] | None = None):
        self.op = op
        self.reasons = dict(reasons or {})
        lines = [f"  {backend}: {reason}" for backend, reason in self.reasons.items()]
        self.args = ("\n".join([message, *lines]),)  # torch.compile traces this, and not Exception's own __init__


class AddressError(AiterLikeError, ValueError):
    """A kernel's launcher was given an address that the kernel cannot take.

    Plans are made from metadata, which tells no addresses: by this the dispatcher hears of it, and goes on with the
    other backends.
    """


class BuildError(AiterLikeError, RuntimeError):
    """A module could not be built, found or loaded.

    Attributes:
        module: name of the module.
        command: the command that failed, as one line ("" when none ran).
        output: what the compiler printed.
        log_path: where the full log is kept, or None.
    """

    def __init__(self, message: str, *, module: str = "", command: str = "", output: str = "",
                 log_path: Path | None = None):
        self.module, self.command, self.output, self.log_path = module, command, output, log_path
        parts = [message]
        if command:
            parts.append(f"command: {command}")
        if output:
            parts.append(output.rstrip())
        if log_path is not None:
            parts.append(f"full log: {log_path}")
        super().__init__("\n".join(parts))


class TuningError(AiterLikeError, ValueError):
    """A tuned-table file or row is wrong; the message starts with `file:line`."""


class SimulatorError(AiterLikeError, RuntimeError):
    """The simulated device stopped a launch, or a checker reported a fault.

    Attributes:
        reports: the checkers' records (dicts), empty when the launch itself failed.
    """

    def __init__(self, message: str, reports: list[dict] | None = None):
        self.reports = list(reports or [])
        super().__init__(message)


class DebuggerError(AiterLikeError, ValueError):
    """The debugger cannot do what it was asked: no such place, register, variable or memory."""
