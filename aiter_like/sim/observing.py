# SPDX-License-Identifier: MIT
"""Who gets what csrc/sim/timing tells of the launches that have ended. Read by counting.py and modelling.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from aiter_like.sim import library

_given: list[Launches] = []


def is_on() -> bool:
    """Whether somebody counts or models launches: tensors are then placed as a GPU would."""
    return any(one.kept for one in _given)


class Launches:
    """The lists that get each launch that ends, from one function of the library.

    Attributes:
        kept: the lists, of the open blocks.
    """

    def __init__(self, take: str, complete: Callable[[dict], None]):
        """`take` names the library's function; `complete` adds to a launch what Python derives."""
        self._take, self._complete = take, complete
        self.kept: list[list[dict]] = []
        _given.append(self)

    def take(self) -> None:
        """Gives the launches that have ended to every list."""
        found = library.json_of(getattr(library.load_timing(), self._take)())
        for launch in found:
            self._complete(launch)
        for launches in self.kept:
            launches.extend(found)

    @contextlib.contextmanager
    def given_to(self, launches: list[dict], switch: Callable[[bool], None]) -> Iterator[None]:
        """Adds the block's launches to a list; `switch` turns the library's observer on and off."""
        self.take()
        switch(True)
        self.kept.append(launches)
        try:
            yield
        finally:
            self.take()
            self.kept.pop()
            switch(False)
