# SPDX-License-Identifier: MIT
"""Every public function with one argument damaged: a result or a refusal in the words of the function that was called,
and nothing written where it is refused.
"""

import inspect
import re

import pytest
from damages import bits, damaged
from public_calls import call_of, called_by_tensors, sampled, tensors

from aiter_like import use_backend
from aiter_like.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("simulated")


def named_in(words, parameters):
    return any(re.search(rf"\b{each.name}\b", words) for each in parameters)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sampled(called_by_tensors()))
def test_one_damaged_argument(name):
    function, args = call_of(name)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "backend"]
    found = []
    for place, parameter in enumerate(parameters):
        value = args[place] if place < len(args) else parameter.default
        for damage, wrong in damaged(value, parameter):
            _, given = call_of(name)
            named = {}
            if place < len(given):
                given[place] = wrong
            else:
                named[parameter.name] = wrong
            before = [*map(bits, tensors([given, [*named.values()]]))]
            try:
                with use_backend("torch"):
                    function(*given, **named)
            except (ValueError, TypeError, UnsupportedError) as refusal:
                words = str(refusal)
                if not words.startswith(f"{name}: "):
                    found.append(f"{parameter.name}, {damage}: another function's words: {words}")
                elif "requires grad" not in words and not named_in(words, parameters):
                    found.append(f"{parameter.name}, {damage}: no parameter is named: {words}")
                if [*map(bits, tensors([given, [*named.values()]]))] != before:
                    found.append(f"{parameter.name}, {damage}: written before it was refused: {words}")
            except Exception as error:  # noqa: BLE001
                found.append(f"{parameter.name}, {damage}: {type(error).__name__}: {error}")
    assert not found, "\n".join(found)
