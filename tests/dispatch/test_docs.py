# SPDX-License-Identifier: MIT
"""`help` of a public function says all; the file of its operator says what differs."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import aiter_like
from aiter_like.dispatch import docs
from aiter_like.integrations.aiter import names
from aiter_like.ops import index

FUNCTIONS = [name for name in index.PUBLIC if inspect.isfunction(getattr(aiter_like, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_has_every_section_and_parameter(name):
    function = getattr(aiter_like, name)
    lines = function.__doc__.splitlines()
    headings = [line.partition(":")[0] for line in lines if line.partition(":")[0] in docs.SECTIONS]
    assert headings == list(docs.SECTIONS), name
    assert "not described" not in function.__doc__
    for parameter in inspect.signature(function).parameters:
        assert any(re.match(rf"    (\w+, )*{parameter}(, \w+)*: ", line) for line in lines), f"{name}: {parameter}"


def test_functions_that_name_no_source_are_those_of_aiter():
    known = {row.name for row in names.table()}
    assert {name for name in FUNCTIONS if "Source:" not in inspect.unwrap(getattr(aiter_like, name)).__doc__} <= known


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_file_does_not_repeat_what_all_promise(name):
    function = inspect.unwrap(getattr(aiter_like, name))
    said = function.__doc__
    for line in (f"backend: {docs.backends(function)}", "UnsupportedError: the backend asked for cannot serve",
                 "TypeError: an argument is of another kind or dtype.\n"):
        assert line not in said or function.__module__ == "aiter_like", f"{name}: {line!r} is appended to all"


def test_a_sibling_takes_over_what_it_does_not_say(monkeypatch):
    def first(x, scale, bias, out=None, backend=None) -> torch.Tensor:
        """Multiplies.

        Args:
            x: [rows, columns], where
                rows may be none.
            scale, bias: numbers
                of fp32.

        Returns:
            The product.

        Notes:
            Exact.

        Source: the first.
        """

    def third(x) -> None:
        """Like `first`, into `x`."""

    def second(scale, bias, x, more, backend=None) -> torch.Tensor:
        """Like `first`, of more.

        Args:
            more: another
                number.

        Raises:
            ValueError: more is 3.

        Source: the second.
        """

    monkeypatch.setattr(docs, "_of_name", {"first": first}.__getitem__)
    assert docs.completed("second", second).startswith("""Like `first`, of more.

Args:
    scale, bias: numbers
        of fp32.
    x: [rows, columns], where
        rows may be none.
    more: another
        number.
    backend: one that every operator inside has, instead of the automatic choice.

Returns:
    The product.

Raises:
    TypeError: an argument is of another kind or dtype.
    ValueError: shapes, devices, layout or numbers do not fit.
        Also: more is 3.
    UnsupportedError: """)
    assert docs.completed("second", second).endswith("Can be captured in a graph.\n\nSource: the second.")
    text = docs.completed("third", third)
    assert "Returns:\n    Nothing.\n" in text, "it has no result"
    assert text.endswith("\n\nSource: AITER's `third`."), "another function's source is not its own"


def test_a_function_promises_nothing_of_backends_and_tensors_that_it_does_not_have():
    def size(x) -> int:
        """The bytes of x.

        Returns: Bytes.
        """

    text = docs.completed("size", size)
    assert "ValueError" in text and "UnsupportedError" not in text
    assert "checked" in text and "empty" not in text and "graph" not in text
