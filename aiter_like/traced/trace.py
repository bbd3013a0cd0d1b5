# SPDX-License-Identifier: MIT
"""Keeps the questions that were asked of the stand-ins of one call. Read through the package."""

import contextlib
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like.traced.number import Number, exactly
from aiter_like.traced.tensor import Traced

Step = tuple[str, str, frozenset]
"""A statement of a class: ("", a condition that must hold, …) or (a name, its value's text, …), and the leaves that it
reads."""


class Trace:
    """The questions that were asked of the stand-ins of one call.

    Attributes:
        fields: of the call: a stand-in for each tensor, int and float, else the value itself.
        constants: name → value, of what conditions compare with.
        exact: leaf → value, of numbers that the decision holds for alone.
        ranks: position of a field that is a tensor, the first of one that comes twice → its rank.
        allocated: memory that a launch asks for.
        equal: leaves that are equal.
        untraced: why launches are asked for anew by each call.
        is_strict: whether showing a number makes it exact; messages show numbers too, decisions do not read them.
    """

    def __init__(self, args: tuple, opened: Container[str] | None = None):
        """opened: leaves that calls differ in; all others are exact from the start, and ints. None: all leaves may."""
        self._opened = opened
        self._steps: list[tuple[str, Any, frozenset]] = []
        self._bounds: dict[str, list] = {}
        self._unlike: dict[tuple[str, int], None] = {}
        self.constants: dict[str, Any] = {}
        self.exact: dict[str, Any] = {}
        self.is_strict = True
        self.allocated: list[Traced] = []
        self.untraced = ""
        self.equal: list[tuple[str, str]] = []
        self._asked: set[str] = set()
        self._names: dict[Any, str] = {}
        self._seen: dict[int, Any] = {}
        self.fields = tuple(self._stand_in(index, arg) for index, arg in enumerate(args))
        self.ranks = {each._index: each.ndim for each in self._seen.values()}

    def settle(self) -> None:
        """Ends the questions: what equals an exact number is exact."""
        waiting = True
        while waiting:
            waiting = [(one, other) for pair in self.equal for one, other in (pair, pair[::-1])
                       if one in self.exact and other not in self.exact]
            self.exact.update((other, self.exact[one]) for one, other in waiting)
        self.fields = ()  # The trace outlives the call and keeps none of its tensors.
        self.allocated.clear()
        self._seen.clear()

    def fix(self) -> None:
        """Makes all numbers of the call exact, and how addresses are aligned."""
        for each in self.fields:
            for number in (*each.shape, *each.strides, each.address() % 16) if type(each) is Traced else (each,):
                exactly(number)

    def ask(self, text: str, answer: bool, leaves: frozenset) -> bool:
        """Notes that the condition `text` had this answer."""
        text = text if answer else f"not ({text})"
        if leaves and text not in self._asked:
            self._asked.add(text)
            self._steps.append(("ask", text, leaves))
        return answer

    def is_equal(self, expression: str, value: int) -> bool:
        """Whether an expression is known to have a value in the class."""
        name = self._names.get(("expression", expression), expression)
        return self._bounds.get(name) == [value, value]

    def bound(self, base: str, leaves: frozenset, least: float | None, most: float | None) -> None:
        """Notes that an expression is not below `least`, or not above `most`; the narrowest bounds are asked."""
        if base not in self._bounds:
            self._bounds[base] = [_least(base, leaves), None]
            self._steps.append(("bounds", base, leaves))
        bounds = self._bounds[base]
        if least is not None and (bounds[0] is None or least > bounds[0]):
            bounds[0] = least
        if most is not None and (bounds[1] is None or most < bounds[1]):
            bounds[1] = most

    def unlike(self, number: Number, constant: float) -> None:
        """Notes that a number is not equal to a constant."""
        if constant == 0 and number.factors and not number.shift:
            for factor in number.factors:
                bool(factor)
            return
        if type(constant) is not int or type(number.value) is not int:
            self.ask(f"{number.text} == {self.constant(constant)}", False, number.leaves)
            return
        value, rest = divmod(constant - number.shift, number.scale)
        if not rest and (number.base, value) not in self._unlike:
            self._unlike[number.base, value] = None
            self.bound(number.base, number.leaves, None, None)
            if self._bounds[number.base][0] == value:
                self.bound(number.base, number.leaves, value + 1, None)
                return
            self._steps.append(("unlike", (number.base, value), number.leaves))

    def steps(self) -> Iterator[Step]:
        """The questions in order, without those that bounds or exact numbers answer anyway."""
        for kind, what, leaves in self._steps:
            if kind == "let":
                yield (*what, leaves)
            elif leaves <= self.exact.keys():
                continue
            elif kind == "ask":
                yield "", what, leaves
            elif kind == "bounds":
                text = self._within(what, leaves)
                if text:
                    yield "", text, leaves
            else:
                base, value = what
                least, most = self._bounds[base]
                if (least is None or value >= least) and (most is None or value <= most):
                    yield "", f"{base} != {self.constant(value)}", leaves

    def _within(self, base: str, leaves: frozenset) -> str:
        least, most = self._bounds[base]
        if least == _least(base, leaves):
            least = None
        if least is not None and least == most:
            return f"{base} == {self.constant(least)}"
        low = "" if least is None else f"{self.constant(least)} <= "
        high = "" if most is None else f" <= {self.constant(most)}"
        return low + base + high if low or high else ""

    def named(self, text: str, leaves: frozenset) -> str:
        """A name for an expression."""
        key = ("expression", text)
        if key not in self._names:
            self._names[key] = f"e{len(self._names)}"
            self._steps.append(("let", (self._names[key], text), leaves))
        return self._names[key]

    def constant(self, value: Any) -> str:
        """The text of a constant."""
        if type(value) is int and 0 <= value <= 16:
            return str(value)
        key = (type(value), repr(value))  # 0.0 is not -0.0
        if key not in self._names:
            self._names[key] = f"k{len(self._names)}"
            self.constants[self._names[key]] = value
        return self._names[key]

    def object(self, value: Any) -> str:
        """The text of any object."""
        if value is None or value is True or value is False:
            return str(value)
        if type(value) in (int, float):
            return self.constant(value)
        key = ("object", id(value))
        if key not in self._names:
            self._names[key] = f"o{len(self._names)}"
            self.constants[self._names[key]] = value  # this keeps it, and its id
        return self._names[key]

    def leaf(self, name: str, value: float) -> Any:
        """A number of the call: a stand-in, or itself."""
        if self._opened is None or name in self._opened:
            return Number(self, value, name, frozenset((name,)))
        self.exact[name] = value
        return value

    def _stand_in(self, index: int, arg: Any) -> Any:
        if type(arg) in (int, float):
            return self.leaf(f"arg{index}", arg)
        if not _has_sizes(arg):
            return arg
        if id(arg) not in self._seen:
            self._seen[id(arg)] = Traced.field(self, index, arg)
        return self._seen[id(arg)]


def _least(base: str, leaves: frozenset) -> int | None:
    """The lower bound of an expression in any call: sizes and strides are not negative."""
    return 0 if base in leaves and base[0] in "st" else None


def leaves_of(args: tuple) -> dict[str, Any]:
    """Sizes, strides and scalars of a call, by the names that a trace gives them."""
    found: dict[str, Any] = {}
    for index, arg in enumerate(args):
        if type(arg) in (int, float):
            found[f"arg{index}"] = arg
        elif _has_sizes(arg):
            found.update((f"s{index}_{dim}", size) for dim, size in enumerate(arg.shape))
            found.update((f"t{index}_{dim}", step) for dim, step in enumerate(arg.stride()))
    return found


def _has_sizes(arg: Any) -> bool:
    return isinstance(arg, Tensor) and arg.layout is torch.strided and not arg.is_nested


@contextlib.contextmanager
def showing(fields: Sequence[Any]) -> Iterator[None]:
    """Within the block numbers of the call are shown in messages, which decide nothing."""
    trace = next((each.trace for each in fields if type(each) is Traced), None)
    outer = trace is None or trace.is_strict
    if trace is not None:
        trace.is_strict = False
    try:
        yield
    finally:
        if trace is not None:
            trace.is_strict = outer
