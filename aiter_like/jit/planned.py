# SPDX-License-Identifier: MIT
"""A launch of a class of calls, as data: of a kernel in assembly or in Triton. dispatch/plan.py takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Planned:
    """A launch of a class of calls.

    Attributes:
        statement: starts it, in a text that sees the leaves of the trace.
        first: starts it for the call that was traced.
    """

    statement: str
    first: Callable[[], None]
