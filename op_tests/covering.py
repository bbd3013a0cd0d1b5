# SPDX-License-Identifier: MIT
"""Covering designs for exhaustive tests: rows in which every two values of different factors meet."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_Item = tuple[str, int]  # a factor and the index of one of its values


def covering(factors: Mapping[str, Sequence[Any]], seed: int,
             where: Callable[..., bool] = lambda **_: True) -> list[dict[str, Any]]:
    """Rows (factor → value) in which every pair of values of two factors occurs that any allowed row has.

    A row is allowed where `where`, which gets the values by the factors' names, says so.

    Greedy, and close to the least number of rows: the product of the two longest factors. What the pairs leave open is
    random, so that another seed gives other triples. Rows are built, not looked for: a product of any size will do, but
    a pair that no allowed row has costs one look at all that have it.
    """
    draw = random.Random(seed)
    items = [[(name, index) for index in range(len(values))] for name, values in factors.items()]
    pairs = [pair for one, other in itertools.combinations(items, 2) for pair in itertools.product(one, other)]
    draw.shuffle(pairs)
    missing = {frozenset(pair) for pair in pairs}
    found = []
    for pair in pairs:
        if frozenset(pair) not in missing:
            continue
        rest = [choices for choices in items if choices[0][0] not in dict(pair)]
        for row in _rows(pair, draw.sample(rest, len(rest)), missing, draw):
            indices = dict(row)
            named = {name: values[indices[name]] for name, values in factors.items()}
            if where(**named):
                missing -= {frozenset(two) for two in itertools.combinations(row, 2)}
                found.append(named)
                break
    return found


def _rows(begun: tuple[_Item, ...], rest: list[list[_Item]], missing: set[frozenset[_Item]],
          draw: random.Random) -> Iterator[tuple[_Item, ...]]:
    """All rows with what is begun; first those that take of each factor in turn the value which adds most pairs."""
    if not rest:
        yield begun
        return
    choices = draw.sample(rest[0], len(rest[0]))
    for choice in sorted(choices, key=lambda choice: -sum(frozenset((item, choice)) in missing for item in begun)):
        yield from _rows((*begun, choice), rest[1:], missing, draw)
