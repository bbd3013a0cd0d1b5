# SPDX-License-Identifier: MIT
"""Large parametrised tests run a part of their cases, another one at each commit: every case within PERIOD commits.

A part has cases of every backend that the test has. The other cases count as marked `exhaustive`.
"""

from __future__ import annotations

import hashlib
import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiter_like.dispatch.backend import KINDS

LARGE = 2  # a test with no more cases runs all of them
PERIOD = 8


def turn_of(folder: Path) -> int:
    """The number of the commit on its branch, so that PERIOD commits in a row have all the turns.

    A shallow clone does not know the number: there the commit's hash draws. Without git there is one turn, 0.
    """
    def git(*words: str) -> str:
        run = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
        return run.stdout.strip()

    try:
        if git("rev-parse", "--is-shallow-repository") == "false":
            return int(git("rev-list", "--count", "--first-parent", "HEAD") or 0)
        return int(git("rev-parse", "--short=8", "HEAD") or "0", 16)
    except OSError:
        return 0


def left_out(kinds: Mapping[str, Hashable], turn: int, large: int = LARGE) -> set[str]:
    """The cases that this turn does not run; `kinds` tells of each case which others are of its backends."""
    if len(kinds) <= large:
        return set()
    alike: dict[Hashable, list[str]] = defaultdict(list)
    for case in sorted(kinds, key=lambda case: hashlib.sha256(case.encode()).digest()):
        alike[kinds[case]].append(case)
    found = set(kinds)
    for cases in alike.values():
        count = math.ceil(len(cases) / PERIOD)
        found -= {cases[(turn * count + index) % len(cases)] for index in range(count)}
    return found


def kind(case: str) -> frozenset[str]:
    """The backends that a case names in its id."""
    return frozenset(KINDS).intersection(re.split(r"[^a-z0-9]+", case.lower()))


def items_left_out(items: Iterable[Any], turn: int, large: int = LARGE) -> list[Any]:
    """Of pytest's items those that this turn does not run."""
    tests: dict[str, dict[str, Any]] = defaultdict(dict)
    for item in items:
        if hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]][item.nodeid] = item
    return [cases[case] for cases in tests.values() for case in left_out(
        {case: kind(item.callspec.id) for case, item in cases.items()}, turn, large)]
