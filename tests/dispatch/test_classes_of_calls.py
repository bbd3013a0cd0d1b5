# SPDX-License-Identifier: MIT
"""A call that a class serves, which another call made, comes to the same as it would alone: launches, or refusal."""

import contextlib
import functools
import itertools
import random

import pytest
import torch
from damages import damaged
from decisions import Decisions, like, resized, variations
from torch import Tensor

import aiter_like
from aiter_like.dispatch import OPS

SERVED, TRIED = 2, 24  # calls of a case and a choice of backends that classes serve, of so many tried at most
CPU = torch.device("cpu")


@pytest.fixture
def decisions(simulated, monkeypatch):
    return Decisions(monkeypatch)


def _choices(op):
    return [None, *(backend.name for backend in op.backends if backend.name not in ("vendor", "torch"))]


def _bytes(args):
    return sum(arg.nbytes for arg in args if isinstance(arg, Tensor))


@functools.cache
def _cases(name):
    """Those of an operator, the smallest first."""
    return sorted(map(tuple, OPS[name].cases(CPU).values()), key=_bytes)


def _compare(decisions, op, chosen, args, what):
    """Whether a class served it; what no class knows makes one of its own."""
    known = decisions.known(op, chosen, args)
    if known is not None:
        _agree(known, decisions.cold(op, chosen, args), args, (chosen, what))
    return known is not None


def _agree(one, other, args, what):
    """Launches alike; strides of a dimension of size 1, which torch's views make up, lead nowhere."""
    is_open = isinstance(one, list) and isinstance(other, list) and any(
        size == 1 and step != dense for arg in args if isinstance(arg, Tensor)
        for size, step, dense in zip(arg.shape, arg.stride(), torch.empty(arg.shape, device="meta").stride()))
    assert is_open or one == other, what


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(OPS))
def test_a_call_comes_to_the_same_in_a_class(decisions, name):
    op, draw, total = OPS[name], random.Random(name), 0
    case = draw.choice(_cases(name)[:3])
    for chosen in {*_choices(op)[:1], *_choices(op)[-1:]}:  # its own choice and Triton, whose launches say the most
        op.forget_plans()
        first = decisions.decided(op, chosen, case)
        assert first == decisions.cold(op, chosen, case) and (chosen or isinstance(first, list))
        served = 0
        for what, args in variations(case, draw, TRIED):
            served += _compare(decisions, op, chosen, args, what)
            if served == SERVED:
                break
        total += served
    assert total, "no class serves a second call"


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(OPS))
def test_all_cases_come_to_the_same_in_a_class(decisions, name):
    """Also what a class is made for, among calls that others made classes for."""
    op, draw = OPS[name], random.Random()
    for case in _cases(name):
        for chosen in [*_choices(op), "torch"]:
            op.forget_plans()
            for what, args in [("the case", case), *variations(case, draw, 60)]:
                decisions.opened = {f"{letter}{index}_{dim}" for letter in "st" for index in range(len(case))
                                    for dim in range(6) if draw.random() < 0.7} | {"arg1", "arg3"}
                if not _compare(decisions, op, chosen, args, what):
                    _agree(decisions.decided(op, chosen, args), decisions.cold(op, chosen, args), args, (chosen, what))
    assert not op.failures and not op.bad_rows


def _sizes(args):
    return sorted({size for arg in args if isinstance(arg, Tensor) for size in arg.shape if size})


def _with_one_size_changed(args, size):
    """Calls in which one tensor has another size where it was `size`: nearly all are wrong."""
    for index, arg in enumerate(args):
        for dim in range(arg.ndim) if isinstance(arg, Tensor) else ():
            for new in (2 * size, size - 1) if arg.shape[dim] == size else ():
                shape = [*arg.shape]
                shape[dim] = new
                with contextlib.suppress(RuntimeError):  # too large
                    yield f"argument {index} is {shape}", (*args[:index], like(arg, shape), *args[index + 1:])


@pytest.mark.rotating
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", (1, pytest.param(50, marks=pytest.mark.exhaustive)))
@pytest.mark.parametrize("name", sorted(OPS))
def test_sizes_that_were_equal_by_chance(decisions, name, count):
    """In the call that made the class two sizes were one number, as rows and columns of [64, 64]."""
    op, draw = OPS[name], random.Random(name)
    pairs = [(case, *pair) for case in _cases(name)[:2 + count] for pair in itertools.permutations(_sizes(case), 2)]
    draw.shuffle(pairs)
    made = 0
    for case, old, new in pairs[:12 * count]:
        try:
            args = resized(case, old, new)
        except RuntimeError:  # too large
            continue
        op.forget_plans()
        if not isinstance(decisions.decided(op, None, args), list):
            continue
        made += 1
        for what, other in _with_one_size_changed(args, new):
            _compare(decisions, op, None, other, what)
        _compare(decisions, op, None, case, "the case itself")
        if made == count:
            break


@pytest.mark.rotating
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(OPS))
def test_damaged_calls_where_classes_are_known(decisions, name):
    """Two calls of other sizes have made them."""
    op = OPS[name]
    case = _cases(name)[0]
    op.forget_plans()
    others = (resized(case, size, new) for size in _sizes(case) for new in (size + 1, 2 * size))
    for args in itertools.islice((args for args in others if isinstance(decisions.cold(op, None, args), list)), 2):
        decisions.decided(op, None, args)
    for index, arg in enumerate(case):
        for damage, value in damaged(arg):
            args = (*case[:index], value, *case[index + 1:])
            _compare(decisions, op, None, args, f"{op.call._fields[index]}: {damage}")


def test_the_error_of_a_wrong_call_is_that_of_a_cold_one():
    """[64, 64] makes a class whatever was equal in it; each wrong call is refused in the words of its own numbers."""
    norm = OPS["rms_norm"]

    def refused(rows, columns, weight, out):
        x = torch.ones(rows, columns, dtype=torch.bfloat16)
        with pytest.raises(ValueError, match="rms_norm: .* must ") as caught:
            aiter_like.rms_norm(x, x.new_ones(weight), 1e-6, out=x.new_empty(out), backend="torch")
        return str(caught.value)

    wrong = [(64, 32, 64, (64, 32)), (32, 64, 32, (32, 64)), (32, 64, 64, (64, 64)), (64, 64, 64, (64, 32)),
             (64, 64, 63, (64, 64)), (5, 7, 64, (5, 7)), (5, 7, 5, (5, 7)), (5, 7, 7, (7, 5)), (5, 7, 7, (5, 8))]
    cold = []
    for sizes in wrong:
        norm.forget_plans()
        cold.append(refused(*sizes))
    norm.forget_plans()
    for rows, columns in ((64, 64), (5, 7), (64, 32), (64, 64), (1, 1), (3, 64)):
        x = torch.randn(rows, columns, dtype=torch.bfloat16)
        got = aiter_like.rms_norm(x, x.new_ones(columns), 1e-6, backend="torch")
        expected = torch.nn.functional.rms_norm(x.float(), (columns,), eps=1e-6)
        torch.testing.assert_close(got.float(), expected, atol=0.02, rtol=0.02)
        assert [refused(*sizes) for sizes in wrong] == cold
    assert len(norm._classes) <= 3
