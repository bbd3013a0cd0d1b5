# SPDX-License-Identifier: MIT
"""Covering designs for exhaustive tests: rows in which every two values of different factors meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any


def covering(factors: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Rows (factor → value) in which every pair of values of two factors occurs: of at least two factors, every value.

    Greedy, and close to the least number of rows: the product of the two longest factors. What the pairs leave open is
    random, so that another seed gives other triples.
    """
    draw = random.Random(seed)
    items = [[(name, index) for index in range(len(values))] for name, values in factors.items()]
    order = [pair for one, other in itertools.combinations(items, 2) for pair in itertools.product(one, other)]
    draw.shuffle(order)
    missing = {frozenset(pair) for pair in order}
    rows = []
    for pair in order:
        if frozenset(pair) in missing:
            row = _row(items, pair, missing, draw)
            missing -= {frozenset(two) for two in itertools.combinations(row.items(), 2)}
            rows.append({name: values[row[name]] for name, values in factors.items()})
    return rows


def _row(items: list[list[tuple[str, int]]], pair: tuple, missing: set[frozenset],
         draw: random.Random) -> dict[str, int]:
    """A row around a pair: the other factors in random order, each with a value that adds most pairs."""
    row = dict(pair)
    for choices in draw.sample(items, len(items)):
        if choices[0][0] not in row:
            added = [sum(frozenset((item, choice)) in missing for item in row.items()) for choice in choices]
            name, index = draw.choice([choice for choice, count in zip(choices, added) if count == max(added)])
            row[name] = index
    return row
