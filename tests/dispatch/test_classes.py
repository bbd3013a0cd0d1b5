# SPDX-License-Identifier: MIT
"""dispatch/classes.py: which calls count as like an earlier one, and that what tells it is made once."""

import pytest
import torch

from aiter_like.dispatch import classes
from aiter_like.traced import Trace

X, Y = torch.zeros(4, 8), torch.zeros(4, 8)


class Served(Exception):
    """Raised by what serves a class, which nobody catches."""


def _serve(*args):
    raise Served


@pytest.fixture(params=["guards", "python"], autouse=True)
def guards(request, monkeypatch):
    """Both ways to compare metadata."""
    if request.param == "python":
        monkeypatch.setattr(classes, "TensorGuards", None)


def _known(*args, asks=Trace.fix):
    """Classes with one, of calls like this one in all that `asks` asks; it has served a call."""
    trace, found = Trace(args), classes.Classes()
    asks(trace)
    trace.settle()
    found.keep(found.key(None, args), classes.CallClass(None, args, trace, "", ["served.append(1)"], {"served": []}))
    assert found.find(None, args) is not None
    return found


def _is_like(found, *args, chosen=None):
    serves, = found.recent
    is_like = serves(chosen, *args)
    assert (found.find(chosen, args, runs=False) is not None) == is_like
    return is_like


def test_other_tensors_of_the_same_metadata_are_alike():
    found = _known(X, Y, None, 1, 1e-6, True, "none", torch.float32)
    assert _is_like(found, torch.ones(4, 8), torch.ones(4, 8), None, 1, 1e-6, True, "none", torch.float32)


@pytest.mark.parametrize("position, other", (
    (0, torch.zeros(4, 9)), (0, torch.zeros(8, 4).t()), (0, torch.zeros(4, 8).half()), (0, None), (0, 3),
    (0, torch.zeros(4, 8).to_sparse()), (0, torch.nested.nested_tensor([X])), (1, X), (2, X), (2, False), (3, True),
    (3, 1.0), (3, 2), (3, X), (3, torch.ones(())), (4, 1), (4, None), (5, 1), (5, torch.ones(())), (6, "silu"),
    (7, torch.float16)), ids=lambda value: str(value).replace("\n", "")[:30])
def test_other_calls_are_not(position, other):
    args = [X, Y, None, 1, 1e-6, True, "none", torch.float32]
    found = _known(*args)
    args[position] = other
    assert not _is_like(found, *args)


def test_what_nobody_asked_is_open():
    found = _known(X, Y, None, 1, 1e-6, asks=lambda trace: trace.fields[0].shape == trace.fields[1].shape)
    assert _is_like(found, torch.zeros(5, 3), torch.zeros(5, 6)[:, ::2], None, 2, 0.5)
    assert not _is_like(found, torch.zeros(5, 3), torch.zeros(5, 4), None, 1, 1e-6), "sizes that were equal"
    assert not _is_like(found, torch.zeros(5, 3), torch.zeros(5, 3, 1), None, 1, 1e-6)
    assert not _is_like(found, torch.zeros(5, 3), torch.zeros(5, 3), None, 1.0, 1e-6)


def test_what_sizes_say_is_kept_for_those_that_come_again():
    """Their questions are not asked again; others' are, and a number that they were compared with counts."""
    trace, served = Trace((X, Y, 4, 2.5)), []
    x, y, rows, _ = trace.fields
    assert x.shape[0] <= 9 and x.shape[0] == y.shape[0] == rows and x.shape[1] == 8
    text = str((x.shape[0] * x.stride(0)).text)
    trace.settle()
    body = [f"served.append(({text}, arg2, arg3))"]
    each = classes.CallClass(None, (X, Y, 4, 2.5), trace, "", body, {"served": served})
    expected = []
    sizes = ((4, 4), (4, 4), (4, 4), (5, 5), (5, 5), (5, 5), (5, 4), (5, 5), (10, 10), (4, 4), (5, 5), (6, 6), (6, 6),
             (6, 4))
    for tensors in (lambda size: (torch.zeros(size, 8), torch.zeros(size, 8)),
                    lambda size: (torch.zeros(size, 16)[:, ::2], torch.zeros(size, 8)),
                    lambda size: (torch.zeros(size, 8), torch.zeros(size + 1, 8))):
        for size, number in sizes:
            one, other = tensors(size)
            is_one = size == number <= 9 and other.shape[0] == size
            assert each.serves(None, one, other, number, size / 2) == is_one, (size, number, one.stride())
            expected += [(size * one.stride(0), number, size / 2)] * is_one
    assert served == expected and expected


def test_neither_are_other_selectors_and_modes():
    found = _known(X, 1)
    assert not _is_like(found, X, 1, chosen="hip")
    assert _is_like(found, X, 1)
    with torch.no_grad():
        assert not _is_like(found, X, 1)


def test_a_tensor_that_came_twice_has_to_come_twice_again():
    found = _known(X, X)
    assert _is_like(found, Y, Y)
    assert not _is_like(found, X, Y)


def test_a_refusal_is_left_to_the_long_way():
    def refuse(x):
        raise ValueError("no")

    trace, found = Trace((X,)), classes.Classes()
    found.keep(found.key(None, (X,)), classes.CallClass(None, (X,), trace, "", ["refuse(arg0)"], {"refuse": refuse}))
    assert found.find(None, (X,)) is None and not found.recent


def test_many_classes_in_turn_make_nothing_anew(monkeypatch):
    made = []
    original = classes.CallClass._made
    monkeypatch.setattr(classes.CallClass, "_made", lambda self, *args: made.append(1) or original(self, *args))
    found, shapes = classes.Classes(), [torch.zeros(rows, 8) for rows in range(1, 10)]
    for x in shapes:
        trace = Trace((x,))
        trace.fix()
        found.keep(found.key(None, (x,)), classes.CallClass(None, (x,), trace, "", [], {}))
    for x in 3 * shapes:
        assert not any(serves(None, x) for serves in found.recent), "more than are kept as recent ones"
        assert found.find(None, (x,)) is not None
    assert len(made) == len(shapes)


def test_what_serves_shows_its_lines_in_a_traceback():
    trace = Trace((X,))
    each = classes.CallClass(None, (X,), trace, "", ["serve(arg0)"], {"serve": _serve})
    with pytest.raises(Served) as caught:
        each.serves(None, X)
    assert any("serve(arg0)" in str(entry.statement) for entry in caught.traceback[1:-1])
