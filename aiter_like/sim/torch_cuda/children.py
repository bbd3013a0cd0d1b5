# SPDX-License-Identifier: MIT
"""Processes that multiprocessing starts afresh (spawn, forkserver) within sim.as_gpu() are in such a block to their
end, from before they import the program's main module. Forked ones are in it anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from typing import Any


@contextlib.contextmanager
def entering(block: Callable[[], contextlib.AbstractContextManager]) -> Iterator[None]:
    """A block whose child processes enter `block()`, a function that can be imported."""
    original = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return original(name) | {"aiter_like": _Entrance(block)}  # it skips what it does not know

    spawn.get_preparation_data = get_preparation_data
    try:
        yield
    finally:
        spawn.get_preparation_data = original


class _Entrance:
    """What enters the block when a child process unpickles it."""

    def __init__(self, block: Callable[[], contextlib.AbstractContextManager]):
        self._block = block

    def __reduce__(self) -> tuple:
        return _enter, (self._block,)


def _enter(block: Callable[[], contextlib.AbstractContextManager]) -> None:
    context = block()
    context.__enter__()
    _kept.append(context)


_kept: list[Any] = []  # blocks that end with this process
