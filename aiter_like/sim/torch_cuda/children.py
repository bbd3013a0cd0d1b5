# SPDX-License-Identifier: MIT
"""Processes that a program starts within sim.as_gpu() are in such a block to their end. Those of multiprocessing that
start afresh (spawn, forkserver) enter it before they import the program's main module, forked ones are in it anyway,
and other interpreters (`subprocess`) by the setting `gpu` of the environment, which aiter_like_startup.py reads.
"""

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from typing import Any

from aiter_like import env

_SETTINGS = env.VARIABLES["AITER_LIKE_SIM"].name


@contextlib.contextmanager
def entering(block: Callable[[], contextlib.AbstractContextManager]) -> Iterator[None]:
    """A block whose child processes enter `block()`, a function that can be imported."""
    original, settings = spawn.get_preparation_data, os.environ.get(_SETTINGS)

    def get_preparation_data(name: str) -> dict[str, Any]:
        return original(name) | {"aiter_like": _Entrance(block)}  # it skips what it does not know

    spawn.get_preparation_data = get_preparation_data
    os.environ[_SETTINGS] = f"{settings},gpu" if settings else "gpu"
    try:
        yield
    finally:
        spawn.get_preparation_data = original
        if settings is None:
            del os.environ[_SETTINGS]
        else:
            os.environ[_SETTINGS] = settings


class _Entrance:
    """Enters the block when a child process unpickles it."""

    def __init__(self, block: Callable[[], contextlib.AbstractContextManager]):
        self._block = block

    def __reduce__(self) -> tuple:
        return _enter, (self._block,)


def _enter(block: Callable[[], contextlib.AbstractContextManager]) -> None:
    context = block()
    context.__enter__()
    atexit.register(context.__exit__, None, None, None)
