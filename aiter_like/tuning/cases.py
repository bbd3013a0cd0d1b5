# SPDX-License-Identifier: MIT
"""The calls with one tune key: those that are timed, and those that are judged, which may be smaller.

Used by worker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aiter_like.tuning import candidates, judge
from aiter_like.tuning.harness import Harness

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

Key = Mapping[str, Any]


class Cases:
    """The calls of one operator and key.

    Attributes:
        sets: the arguments of the calls that are timed.
        is_whole: the call that is judged has the very key.
    """

    def __init__(self, op: Op, key: Key, harness: Harness):
        self.op, self.key, self.harness = op, dict(key), harness
        self._keys = judged_keys(op, key, harness)
        self._made: list[judge.Case] = []
        self.is_whole = dict(self._keys[0]) == self.key
        count = harness.clock.sets(op.tuning.needs(next(iter(self)).args)[0])
        self.sets = [op.tuning.case(key, harness.device, seed) for seed in range(count)]
        harness.wait()

    def __iter__(self) -> Iterator[judge.Case]:
        """The cases to judge, each made when it is first asked for."""
        for index, key in enumerate(self._keys):
            if index == len(self._made):
                self._made.append(judge.case(self.op, key, self.harness.device))
            yield self._made[index]

    def covering(self, kernels: Callable[[tuple], list[Any]]) -> judge.Case | None:
        """The first case that runs all kernels of the call that is timed.

        Args:
            kernels: of (arguments): what a call launches.
        """
        if self.is_whole:
            return next(iter(self))
        wanted = kernels(self.sets[0])
        return next((made for made in self if all(kernel in kernels(made.args) for kernel in wanted)), None)


def judged_keys(op: Op, key: Key, harness: Harness) -> list[Key]:
    """Keys of what is judged in place of a call with `key`: that one, or the mildest of the smaller ones that is small
    enough for the harness, and then those that are smaller still, for kernels that the first does not run.
    """
    if harness.most_judged is None:
        return [key]
    keys = [key, *candidates.smaller(op, key)]
    needs = [op.tuning.needs(op.tuning.case(one, harness.device, 0)) for one in keys]
    fits = (index for index, need in enumerate(needs)
            if all(one <= limit for one, limit in zip(need, harness.most_judged, strict=True)))
    return keys[next(fits, min(range(len(keys)), key=lambda index: needs[index][::-1])):]
