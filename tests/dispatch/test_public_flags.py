# SPDX-License-Identifier: MIT
"""Flags of every public function: what is neither True nor False is an error before anything is written; 0 and 1, which
engines pass too, mean these or are refused. Numbers: those that fp32, in which kernels get them, does not hold are one.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from damages import bits
from public_calls import SEQUENCES, call_of, public_names, tensors

import aiter_like
from aiter_like import use_backend
from aiter_like.errors import UnsupportedError

ALIKE = {name for name in public_names() if name.startswith("rope_") and name not in ("rope_fwd", "rope_thd_bwd")}
"""These have one function that reads their arguments."""

PARAMETERS = [(name, *parameter) for name in public_names() if name not in {*SEQUENCES, "get_rope", *ALIKE}
              for parameter in inspect.signature(getattr(aiter_like, name)).parameters.items()]
FLAGS = [(name, flag) for name, flag, parameter in PARAMETERS if parameter.annotation == "bool"]
NUMBERS = [(name, number) for name, number, parameter in PARAMETERS if "float" in parameter.annotation.split(" | ")
           and number not in ("k_epsilon", "inp2_epsilon")]  # of a second input, which small calls have not


class Truthy:
    """As a bool of numpy is: neither True nor False, and no number."""

    def __bool__(self) -> bool:
        return True


def results_with(name, flag, value):
    """What a small call leaves in its arguments and returns."""
    function, args = call_of(name)
    call = inspect.signature(function).bind(*args)
    call.arguments[flag] = value
    torch.manual_seed(0)
    with use_backend("torch"):
        returned = function(*call.args, **call.kwargs)
    return [*map(bits, tensors([*call.arguments.values(), returned]))]


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_what_is_no_flag_is_refused(name, flag):
    for value in (2, "no", None, Truthy()):
        function, args = call_of(name)
        call = inspect.signature(function).bind(*args)
        call.arguments[flag] = value
        before = [*map(bits, tensors([*call.arguments.values()]))]
        with pytest.raises((TypeError, ValueError, UnsupportedError), match=f"^{name}: .*{flag}"):
            function(*call.args, **call.kwargs)
        assert [*map(bits, tensors([*call.arguments.values()]))] == before


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_0_and_1_mean_what_flags_mean(name, flag):
    for number in (0, 1):
        try:
            found = results_with(name, flag, number)
        except (TypeError, ValueError, UnsupportedError) as refusal:
            assert flag in str(refusal)
        else:
            assert found == results_with(name, flag, bool(number))


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_numbers_that_fp32_does_not_hold_are_refused(name, number):
    """A limit of 1e-50 was none, as 0 is; a larger one than fp32's largest was infinite."""
    for value in (1e-50, 3.5e38):
        with pytest.raises((ValueError, UnsupportedError), match=f"^{name}: .*{number}"):
            results_with(name, number, value)
