# SPDX-License-Identifier: MIT
"""The functions of `aiter_like`: named parameters, and errors in the words of the function that was called."""

from __future__ import annotations

import inspect
import pickle

import pytest
import torch
import toys
from public_calls import SEQUENCES, call_of, public_names

import aiter_like
from aiter_like import check
from aiter_like.dispatch import Backend
from aiter_like.dispatch.kinds import kind_of
from aiter_like.dispatch.public import public
from aiter_like.ops import index


def test_each_has_its_own_name_and_the_parameters_of_what_it_runs():
    for name in index.PUBLIC:
        function = getattr(aiter_like, name)
        if not inspect.isfunction(function):
            continue
        assert function.__name__ == function.__qualname__ == name and function.__doc__
        assert inspect.signature(function) == inspect.signature(function.__wrapped__)
    assert pickle.loads(pickle.dumps(aiter_like.rms_norm)) is aiter_like.rms_norm


def test_what_functions_take_is_of_the_kind_that_they_declare():
    """Else an error of any other sort would be told as one of that argument."""
    for name in set(public_names()) - {*SEQUENCES, "get_rope"}:
        function, args = call_of(name)
        for value, parameter in zip(args, inspect.signature(function).parameters.values()):
            is_right, wanted = kind_of(str(parameter.annotation))
            assert is_right(value), f"{name}: {parameter.name} is {type(value).__name__}, and shall be {wanted}"


def test_aliases_speak_of_themselves():
    x, weight = torch.ones(3, 256, dtype=torch.bfloat16), torch.ones(256, dtype=torch.bfloat16)
    for name, args, message in (
            ("rms_norm", (x, weight[:5], 1e-6), "rms_norm: weight must have shape"),
            ("rmsnorm2d_fwd", (x, weight[:5], 1e-6), "rmsnorm2d_fwd: weight must have shape"),
            ("rms_norm_cu", (x.int(), x, weight, 1e-6), "rms_norm_cu: out must have"),
            ("layernorm2d_fwd", (x, weight, weight[:5]), "layernorm2d_fwd: bias must have shape")):
        with pytest.raises((TypeError, ValueError), match=message):
            getattr(aiter_like, name)(*args)
    with pytest.raises(TypeError, match=r"^rms_norm\(\) missing 2 required positional arguments: 'weight'"):
        aiter_like.rms_norm(x)


def test_refusals_are_told_in_the_words_of_the_called():
    """A field gets the name of the parameter that holds its value, however it is called; equal small values do not."""
    def operator(x, factor, flag):
        error = ValueError(f"inner: x must fit (factor={factor}, flag={flag})")
        error.fields = {"x": x, "factor": factor, "flag": flag}
        raise error

    def outer(source: torch.Tensor, other: torch.Tensor, is_shuffled: bool = True, times: int = 1) -> None:
        operator(source.view(-1), times, is_shuffled)

    call = public("outer", outer)
    with pytest.raises(ValueError) as caught:
        call(torch.ones(2), torch.ones(2))
    assert str(caught.value) == "outer: source must fit (factor=1, flag=True)"


def test_foreign_errors_become_a_refusal_of_the_wrong_argument():
    def outer(x: torch.Tensor, count: int, scale: float = 1.0) -> torch.Tensor:
        return x.view(count) * scale

    call = public("outer", outer)
    assert call(torch.ones(2), 2).tolist() == [1, 1]
    for args, kind, message in ((([1.0], 2), TypeError, "outer: x must be a tensor, got list"),
                                ((torch.ones(2), "2"), TypeError, "outer: count must be an integer"),
                                ((torch.ones(2), 10**30), ValueError, "outer: count must be"),
                                ((torch.ones(2), 2, "x"), TypeError, "outer: scale must be a number")):
        with pytest.raises(kind, match=message):
            call(*args)
    with pytest.raises(RuntimeError, match="invalid for input"):  # nothing of a wrong kind: the error is what it was
        call(torch.ones(2), 3)


def test_signatures_that_cannot_be_handed_on_are_refused():
    with pytest.raises(TypeError, match="no \\*args"):
        public("outer", lambda *args: None)


def test_prepare_decides_and_refuses_but_runs_nothing(machine):
    ran = []

    def kernel(out, x, factor, flag=0):
        ran.append(factor)
        toys.scale_ref(out, x, factor, flag)

    op = toys.make_op(Backend("vendor", kernel))
    op.backends = op.backends[:1]
    x, out = torch.ones(1, 3), torch.zeros(1, 3)
    op.prepare(out, x, 3.0)
    assert not ran and out.tolist() == [[0, 0, 0]]
    with pytest.raises((ValueError, TypeError)) as prepared:
        op.prepare(out, x.int(), 3.0)
    with pytest.raises((ValueError, TypeError)) as ran_into:
        op.run(out, x.int(), 3.0)
    assert str(prepared.value) == str(ran_into.value) and not ran
    op.run(out, x, 3.0)
    assert ran == [3.0] and out.tolist() == [[3, 3, 3]]


def test_positions_are_not_looked_at_while_tracing():
    assert not check.is_on_host(torch.ones(2, device="meta")) and check.is_on_host(torch.ones(2))
