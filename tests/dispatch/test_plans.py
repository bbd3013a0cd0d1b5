# SPDX-License-Identifier: MIT
"""dispatch/plans.py: which calls count as like an earlier one, and that what tells it is made once."""

from __future__ import annotations

import pytest
import torch

from aiter_like.dispatch import plans

pytestmark = pytest.mark.skipif(plans.TensorGuards is None, reason="this torch has no TensorGuards")


class Served(Exception):
    """Raised by a plan, which nobody catches."""


def _plan(*args):
    raise Served


def _cache(*args):
    """With a plan for `args`, found once: it is a recent one."""
    cache = plans.PlanCache(detour=lambda chosen, args: None)
    cache.store(None, args, _plan)
    assert cache.find(None, args) is _plan
    return cache


def _is_like(cache, *args, chosen=None):
    serves, = cache.serving
    try:
        assert not serves(chosen, *args)
    except Served:
        assert cache.recent(chosen, args) is _plan
        return True
    assert cache.recent(chosen, args) is None
    return False


X, Y = torch.zeros(4, 8), torch.zeros(4, 8)


def test_other_tensors_of_the_same_metadata_are_alike():
    cache = _cache(X, Y, None, 1, 1e-6, True, "none", torch.float32)
    assert _is_like(cache, torch.ones(4, 8), torch.ones(4, 8), None, 1, 1e-6, True, "none", torch.float32)


@pytest.mark.parametrize("position, other", (
    (0, torch.zeros(4, 9)), (0, torch.zeros(8, 4).t()), (0, torch.zeros(4, 8).half()), (0, None), (0, 3),
    (0, torch.zeros(4, 8).to_sparse()), (0, torch.nested.nested_tensor([X])), (1, X), (2, X), (2, False), (3, True),
    (3, 1.0), (3, 2), (3, X), (3, torch.ones(())), (4, 1), (4, None), (5, 1), (5, torch.ones(())), (6, "silu"),
    (7, torch.float16)), ids=lambda value: str(value).replace("\n", "")[:30])
def test_other_calls_are_not(position, other):
    args = [X, Y, None, 1, 1e-6, True, "none", torch.float32]
    cache = _cache(*args)
    args[position] = other
    assert not _is_like(cache, *args)


def test_neither_are_other_selectors_and_modes():
    cache = _cache(X, 1)
    assert not _is_like(cache, X, 1, chosen="hip")
    assert _is_like(cache, X, 1)
    with torch.no_grad():
        assert not _is_like(cache, X, 1)


def test_a_tensor_that_came_twice_has_to_come_twice_again():
    cache = _cache(X, X)
    assert _is_like(cache, Y, Y)
    assert not _is_like(cache, X, Y)


def test_a_refusal_of_the_plan_is_left_to_the_long_way():
    refusal = plans.PlanCache(detour=lambda chosen, args: None)

    def refuse(x):
        raise ValueError("no")

    refusal.store(None, (X,), refuse)
    refusal.find(None, (X,))
    serves, = refusal.serving
    assert not serves(None, X)


def test_many_shapes_in_turn_make_nothing_anew(monkeypatch):
    made = []
    original = plans._Entry.__init__
    monkeypatch.setattr(plans._Entry, "__init__", lambda self, *args: made.append(1) or original(self, *args))
    cache, shapes = plans.PlanCache(detour=lambda chosen, args: None), [torch.zeros(rows, 8) for rows in range(1, 10)]
    for x in shapes:
        cache.store(None, (x,), _plan)
    for x in 3 * shapes:
        assert cache.recent(None, (x,)) is None, "more shapes than are kept as recent ones"
        assert cache.find(None, (x,)) is _plan
    assert len(made) == len(shapes)
    cache.store(None, (shapes[0],), len)
    assert cache.find(None, (shapes[0],)) is len and cache.recent(None, (shapes[0],)) is len, "not that of the old plan"
