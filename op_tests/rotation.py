# SPDX-License-Identifier: MIT
"""Large parametrised tests run a sample of their cases, which the operators that they test draw: by the revision of
what the device runs. One tree always runs the same cases, and a change of one operator draws no others' anew.

A sample has cases of every backend that the test has. The other cases count as marked `exhaustive`; cases that are so
marked are never drawn.
"""

import functools
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from aiter_like.dispatch import OPS
from aiter_like.dispatch.backend import KINDS
from aiter_like.ops.index import OPERATORS, PUBLIC

LARGE = 2  # a test with no more cases runs all of them
PERIOD = 8  # so many turns together run every case


@functools.cache
def operators_named(text: str) -> frozenset[str]:
    """The operators that a text names by themselves or by public functions, whose module may stand for its family."""
    homes = {home for words in (OPERATORS, PUBLIC) for home in map(words.get, re.findall(r"\w+", text)) if home}
    families = {home.partition(".")[0] for home in homes.difference(OPERATORS.values())}
    return frozenset(name for name, home in OPERATORS.items() if home in homes or home.partition(".")[0] in families)


@functools.cache
def seed(operators: frozenset[str]) -> str:
    """A text that changes with what the device runs of operators, and with nothing else."""
    return " ".join(revisions(name) for name in sorted(operators))


@functools.cache
def revisions(operator: str) -> str:
    """Those of an operator's backends, after its name."""
    return " ".join([operator, *(backend.revision("hip") for backend in OPS[operator].backends)])


def left_out(kinds: Mapping[str, Hashable], seeds: Mapping[str, str], turn: int = 0, large: int = LARGE) -> set[str]:
    """The cases that this turn does not run; `kinds` tells of each case which others are of its backends."""
    if len(kinds) <= large:
        return set()
    alike: dict[Hashable, list[str]] = defaultdict(list)
    for case in sorted(kinds, key=lambda case: hashlib.sha256(f"{case} {seeds[case]}".encode()).digest()):
        alike[kinds[case]].append(case)
    found = set(kinds)
    for cases in alike.values():
        count = math.ceil(len(cases) / PERIOD)
        found -= {cases[(turn * count + index) % len(cases)] for index in range(count)}
    return found


def kind(case: str) -> frozenset[str]:
    """The backends that a case names in its id."""
    return frozenset(KINDS).intersection(re.split(r"[^a-z0-9]+", case.lower()))


def items_left_out(items: Iterable[Any], turn: int = 0, large: int = LARGE) -> list[Any]:
    """Those of pytest's items that this turn does not run."""
    tests: dict[str, dict[str, Any]] = defaultdict(dict)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("exhaustive"):
            tests[item.nodeid.partition("[")[0]][item.nodeid] = item
    return [cases[case] for cases in tests.values() if len(cases) > large for case in left_out(
        {case: kind(item.callspec.id) for case, item in cases.items()},
        {case: seed(_operators(item)) for case, item in cases.items()}, turn, large)]


def _operators(item: Any) -> frozenset[str]:
    """The operators that an item's parameters name, or else all those of its file."""
    names = {value for value in item.callspec.params.values() if isinstance(value, str)}
    return frozenset(names.intersection(OPERATORS)) or operators_named(_text(item.path))


@functools.cache
def _text(path: Any) -> str:
    return path.read_text(encoding="utf-8")
