# SPDX-License-Identifier: MIT
"""traced/: random programs on stand-ins; their texts have the values of the same programs on other numbers, and views,
for which all questions hold.
"""

import math
import random

import pytest
import torch

from aiter_like.dispatch.classes import _FUNCTIONS
from aiter_like.traced import Number, Trace, Untraceable, exactly, known, text_in

INTEGERS = (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64, 100, -1, -16)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 1e-6, -3.25, 16.0)
CONSTANTS = (0, 1, 2, 3, 7, 8, 16, 32, 64, 100, -1, -5, 1.5, 0.25)
_MOST = 1e15


def _branch(x, y):
    return x + 1 if (x % 16 == 0 if isinstance(x, int) else x >= 0) else y


def _power_of_2(x, y):
    return 1 << (x - 1).bit_length() if x >= 1 else y


def _compared(x, y):
    return x + 2 if x == y else y - x


BINARY = (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: y - x, lambda x, y: x * y, lambda x, y: x // y,
          lambda x, y: y // x, lambda x, y: x % y, lambda x, y: y % x, lambda x, y: x / y, lambda x, y: -(-x // y),
          min, max, lambda x, y: sum(divmod(x, y)), lambda x, y: sum(divmod(y, x)), _branch, _compared,
          lambda x, y: x if x < y else y, lambda x, y: y if 2 <= x <= 40 else x + y, lambda x, y: x * y // x)
OF_INTEGERS = (lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: y >> x, _power_of_2)
UNARY = (lambda x: -x, abs, math.ceil, math.floor, exactly)


def _program(draw):
    steps = []
    for _ in range(draw.randint(1, 8)):
        kinds = draw.choice((BINARY, BINARY, BINARY, OF_INTEGERS, UNARY))
        steps.append((kinds, draw.choice(kinds), draw.random(), draw.random(),
                      draw.choice(CONSTANTS) if draw.random() < 0.5 else None))
    return steps


def _run(program, leaves):
    """(which steps were taken, values); an error ends it."""
    pool, path = [*leaves], []
    for kinds, function, first, second, constant in program:
        x, y = pool[int(first * len(pool))], pool[int(second * len(pool))] if constant is None else constant
        if kinds is OF_INTEGERS and not (isinstance(x, int) and isinstance(y, int)):
            continue
        try:
            value = function(x) if kinds is UNARY else function(x, y)
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            return [*path, type(error)], pool
        if not abs(known(value)) < _MOST:
            return [*path, "too large"], pool
        path.append(function)
        pool.append(value)
    return path, pool


def _scope(trace, steps, leaves):
    """The names of a class's text, for a call with these leaves; None: the call is not of the class."""
    scope = {**_FUNCTIONS, **trace.constants, **leaves}
    if any(repr(scope[leaf]) != repr(value) for leaf, value in trace.exact.items()):
        return None
    for name, text, _ in steps:
        value = eval(text, scope)
        if name:
            scope[name] = value
        elif not value:
            return None
    return scope


@pytest.mark.parametrize("seeds", (range(250), pytest.param(range(250, 20_000), marks=pytest.mark.exhaustive)), ids=str)
def test_numbers(seeds):
    held = 0
    for seed in seeds:
        draw = random.Random(seed)
        kinds = [draw.choice((INTEGERS, INTEGERS, INTEGERS, FLOATS)) for _ in range(3)]
        first, program = [draw.choice(kind) for kind in kinds], _program(draw)
        trace = Trace(tuple(first))
        path, pool = _run(program, trace.fields)
        expected_path, expected = _run(program, first)
        assert path == expected_path and [*map(known, pool)] == expected
        texts = [text_in(trace, value) for value in pool]
        trace.settle()
        steps = [*trace.steps()]
        for other in (first, *([draw.choice(kind) for kind in kinds] for _ in range(20))):
            scope = _scope(trace, steps, {f"arg{index}": value for index, value in enumerate(other)})
            assert scope is not None or other is not first
            other_path, expected = _run(program, other)
            if scope is None or "too large" in path + other_path:
                continue
            held += other is not first
            assert path == other_path, (first, other)
            got = [eval(text, scope) for text in texts]
            if exactly not in path:  # which gives a value away, and zeros are equal whatever their sign
                got, expected = [*map(repr, got)], [*map(repr, expected)]
            assert got == expected, (first, other)
    assert held > len(seeds)


def _viewed(x, kind, place, count, share):
    """One view of a tensor, or an answer about it, or None where its rank has none such."""
    dim = int(place * x.ndim)
    if kind == "unsqueeze":
        return x.unsqueeze(dim if share < 0.6 else -1)
    if kind in ("flatten", "contiguous", "aligned"):
        return {"flatten": lambda: x.flatten(), "contiguous": lambda: bool(x.is_contiguous()),
                "aligned": lambda: bool(x.numel() != 0 and x.data_ptr() % 16 == 0)}[kind]()
    if kind == "permute":
        dims = [*range(x.ndim)]
        random.Random(share).shuffle(dims)
        return x.permute(dims)
    if not x.ndim:
        return None
    if kind == "unflatten":
        return x.unflatten(dim, (-1, count)) if x.shape[dim] % count == 0 else None
    if kind == "narrow":
        return x.narrow(dim, x.shape[dim] - count, count) if x.shape[dim] >= count else None
    if kind == "merge":
        return x.view(x.shape[0] * x.shape[1], *x.shape[2:]) if x.ndim > 1 else x.view(-1)
    views = {"rows": lambda: x.view(-1, x.shape[-1]), "squeeze": lambda: x.squeeze(dim), "from": lambda: x[..., count:],
             "to": lambda: x[:count] if share < 0.5 else x[..., :-count], "between": lambda: x[1:count],
             "half": lambda: x[..., x.shape[-1] // 2:], "select": lambda: x.select(dim, 0) if share < 0.7 else x[-1],
             "expand": lambda: x.expand(count, *x.shape), "transpose": lambda: x.transpose(0, dim),
             "leading": lambda: x.flatten(0, -2) if x.ndim > 1 else x[None]}
    return views[kind]()


VIEWS = ("unsqueeze", "flatten", "contiguous", "aligned", "permute", "unflatten", "narrow", "merge", "rows", "squeeze",
         "from", "to", "between", "half", "select", "expand", "transpose", "leading")


def _views(program, tensors):
    pool, answers = [*tensors], []
    for kind, which, place, count, share in program:
        made = _viewed(pool[int(which * len(pool))], kind, place, count, share)
        answers.append(made if isinstance(made, bool) else made is None)
        pool += [made] * isinstance(made, torch.Tensor)
    return pool, answers


def _tensor(draw, rank):
    """Dense, with gaps, in another order, one element off, or expanded."""
    shape = [draw.choice((0, 1, 1, 2, 2, 3, 4, 6, 8)) for _ in range(rank)]
    kind = draw.choice(("dense", "dense", "gaps", "order", "off", "expanded"))
    if kind == "gaps":
        return torch.zeros([size + 2 for size in shape])[tuple(slice(size) for size in shape)]
    if kind == "order":
        dims = draw.sample(range(rank), rank)
        return torch.zeros([shape[dim] for dim in dims]).permute([dims.index(dim) for dim in range(rank)])
    if kind == "off":
        return torch.zeros(math.prod(shape) + 3)[draw.choice((1, 2, 3)):][:math.prod(shape)].view(shape)
    return torch.zeros([1, *shape[1:]]).expand(shape) if kind == "expanded" and rank else torch.zeros(shape)


def _leaves(tensors):
    found = {}
    for index, one in enumerate(tensors):
        found |= {f"s{index}_{dim}": size for dim, size in enumerate(one.shape)}
        found |= {f"t{index}_{dim}": step for dim, step in enumerate(one.stride())}
        found[f"a{index}"] = one.data_ptr()
    return found


@pytest.mark.parametrize("seeds", (range(150), pytest.param(range(150, 10_000), marks=pytest.mark.exhaustive)), ids=str)
def test_views(seeds):
    held = 0
    for seed in seeds:
        draw = random.Random(seed)
        ranks = [draw.randint(0, 4) for _ in range(draw.choice((1, 1, 2)))]
        first = [_tensor(draw, rank) for rank in ranks]
        program = [(draw.choice(VIEWS), draw.random(), draw.random(), draw.randint(1, 4), draw.random())
                   for _ in range(draw.randint(1, 5))]
        trace = Trace(tuple(first))
        try:
            expected, expected_answers = _views(program, first)
            pool, answers = _views(program, trace.fields)
        except (RuntimeError, IndexError, Untraceable):  # not of these tensors
            continue
        assert answers == expected_answers and [known(each.shape) for each in pool] == [each.shape for each in expected]
        texts = [([text_in(trace, size) for size in each.shape], [text_in(trace, step) for step in each.strides],
                  text_in(trace, each.address())) for each in pool]
        trace.settle()
        steps = [*trace.steps()]
        for other in (first, *([_tensor(draw, rank) for rank in ranks] for _ in range(20))):
            scope = _scope(trace, steps, _leaves(other))
            assert scope is not None or other is not first
            if scope is None:
                continue
            held += other is not first
            expected, expected_answers = _views(program, other)
            assert answers == expected_answers
            for each, (sizes, strides, address) in zip(expected, texts):
                assert [eval(size, scope) for size in sizes] == [*each.shape]
                if each.numel():
                    assert eval(address, scope) == each.data_ptr()
                    assert all(size == 1 or eval(text, scope) == step
                               for size, step, text in zip(each.shape, each.stride(), strides))
    assert held > len(seeds)


def test_numbers_are_of_the_kind_of_their_values():
    whole, real = Trace((3, 0.5)).fields
    assert isinstance(whole, int) and isinstance(real, float) and type(whole) is Number
    assert [0, 1, 2, 3][whole] == 3 and {3: "three"}[whole] == "three" and f"{real:.2f}" == "0.50"
    assert whole.leaves == real.leaves == frozenset()


def test_an_exact_address_is_asked():
    """Nothing else among the questions knows it."""
    from aiter_like.dispatch.classes import CallClass

    x, y = torch.zeros(4), torch.zeros(4)
    trace = Trace((x,))
    hash(trace.fields[0].data_ptr())
    trace.settle()
    found = CallClass(None, (x,), trace, "", [], {})
    assert found.admits(None, x) and not found.admits(None, y)
