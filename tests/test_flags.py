# SPDX-License-Identifier: MIT
"""Flags of public functions that are no bool: refused before anything is written, or what their truth value is."""

import inspect

import pytest
import torch
from public_calls import call_of, public_names, tensors

from aiter_like.errors import UnsupportedError


def flags_of(name):
    parameters = inspect.signature(call_of(name)[0]).parameters.values()
    return [each.name for each in parameters if str(each.annotation).startswith("bool")]


def served(name, flag=None, value=None, out=None):
    """What a call returns or raises, its tensors before it, and after it."""
    function, args = call_of(name)
    parameters = inspect.signature(function).parameters
    given = inspect.signature(function).bind(*args).arguments
    given |= {"backend": "torch"} if "backend" in parameters and "backend" not in given else {}
    given |= {} if flag is None else {flag: value}
    if out is not None and "out" in parameters and given.get("out") is None:
        given["out"] = torch.full_like(out, 7)
    every = [each for each in given.values() if not isinstance(each, torch.Generator)]
    before = [each.clone() for each in tensors(every)]
    call = inspect.BoundArguments(inspect.signature(function), given)
    try:
        result = function(*call.args, **call.kwargs)
    except (TypeError, ValueError, UnsupportedError) as error:
        result = error
    return result, before, tensors(every)


def are_same(some, others):
    return len(some) == len(others) and all(
        one.shape == other.shape and one.dtype == other.dtype and torch.equal(
            one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))
        for one, other in zip(some, others))


@pytest.mark.parametrize("name", [name for name in public_names() if flags_of(name)])
def test_flags_that_are_none(name):
    out = (*tensors(served(name)[0]), None)[0]
    for flag in flags_of(name):
        expected = None
        for value in (2, "x"):
            result, before, after = served(name, flag, value, out)
            if isinstance(result, Exception):
                assert are_same(before, after), f"{flag}={value!r}: written before {result!r}"
                continue
            expected = expected or served(name, flag, True, out)
            assert are_same(tensors(result), tensors(expected[0])) and are_same(after, expected[2]), f"{flag}={value!r}"
