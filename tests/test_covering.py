# SPDX-License-Identifier: MIT
"""op_tests/covering.py: what the exhaustive tests rely on."""

import itertools

import pytest
from covering import covering

FACTORS = {"dtype": ("bf16", "fp16"), "terms": range(16), "window": ((0, 0), (3, 4), (-1, 0), (-1, -1), (9, 9)),
           "heads": (1, 2, 4), "is_packed": (False, True), "dim": (32, 64)}


@pytest.mark.parametrize("seed", range(5))
def test_every_pair_of_values_occurs(seed):
    rows = covering(FACTORS, seed)
    for one, other in itertools.combinations(FACTORS, 2):
        found = {(row[one], row[other]) for row in rows}
        assert found == set(itertools.product(FACTORS[one], FACTORS[other])), (one, other)
    assert len(rows) <= 1.1 * 16 * 5


def test_rows_that_are_not_allowed():
    def where(terms, heads, is_packed, **_):
        return (heads == 2 or terms < 9) and not is_packed

    rows, names = covering(FACTORS, 3, where), list(FACTORS)
    allowed = [dict(zip(names, values)) for values in itertools.product(*FACTORS.values())]
    allowed = [row for row in allowed if where(**row)]
    assert all(row in allowed for row in rows) and len(rows) <= 1.1 * 16 * 5
    for one, other in itertools.combinations(FACTORS, 2):
        assert {(row[one], row[other]) for row in rows} == {(row[one], row[other]) for row in allowed}, (one, other)


def test_the_seed_decides():
    assert covering(FACTORS, 7) == covering(FACTORS, 7) != covering(FACTORS, 8)
