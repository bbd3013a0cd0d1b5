# SPDX-License-Identifier: MIT
"""Covering designs for exhaustive tests: rows in which every two values of different factors meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TRIED = 60  # rows that are looked at for the next one; ten times as many shorten a design by a hundredth


def covering(factors: Mapping[str, Sequence[Any]], seed: int,
             where: Callable[..., bool] = lambda **_: True) -> list[dict[str, Any]]:
    """Rows (factor → value) in which every pair of values of two factors occurs that any allowed row has.

    A row is allowed where `where`, which gets the values by the factors' names, says so.

    Greedy, and close to the least number of rows: the product of the two longest factors. What the pairs leave open is
    random, so that another seed gives other triples.
    """
    def named(row: tuple[int, ...]) -> dict[str, Any]:
        return {name: values[index] for (name, values), index in zip(factors.items(), row, strict=True)}

    draw = random.Random(seed)
    product = itertools.product(*(range(len(values)) for values in factors.values()))
    rows = [row for row in product if where(**named(row))]
    draw.shuffle(rows)
    missing = set().union(*map(_pairs, rows))
    found = []
    for row in rows:
        while not missing.isdisjoint(_pairs(row)):
            best = max([row, *draw.sample(rows, min(len(rows), _TRIED))], key=lambda one: len(missing & _pairs(one)))
            missing -= _pairs(best)
            found.append(named(best))
    return found


def _pairs(row: tuple[int, ...]) -> set[tuple]:
    return set(itertools.combinations(enumerate(row), 2))
