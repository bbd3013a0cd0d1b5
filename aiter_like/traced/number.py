# SPDX-License-Identifier: MIT
"""Numbers of a call, and what is computed of them; they tell a trace what is asked. Read by the files beside it."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

NONE: frozenset = frozenset()


class Untraceable(BaseException):
    """A question that a stand-in cannot answer; no `except Exception` of a decision takes it for an answer."""


class Shape(tuple):
    """Sizes, with what torch.Size adds to a tuple."""

    __slots__ = ()

    def numel(self) -> Any:
        """Their product."""
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Shape(found) if isinstance(index, slice) else found


def known(value: Any) -> Any:
    """A number as it is in the call that is traced, of what does not decide; of a tuple, each."""
    if type(value) in (tuple, list, Shape):
        return tuple(map(known, value))
    return value.value if type(value) is Number else value


def text_in(trace: Any, value: Any) -> str:
    """The text that has the value of a stand-in in another call of the class."""
    return value.text if type(value) is Number else trace.constant(value)


def exactly(value: Any) -> Any:
    """A value whose numbers, in tuples too, the class has from now on."""
    if type(value) is Number:
        return value.exactly()
    if isinstance(value, tuple) and not hasattr(value, "strides"):
        made = map(exactly, value)
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{name: exactly(each) for name, each in vars(value).items()
                                             if type(each) is Number})
    return value


def computed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A pure function of numbers that a class calls too, so that its result varies with them, whatever it asks inside.
    """

    @functools.wraps(function)
    def call(*numbers: Any) -> Any:
        leaves = frozenset().union(*(getattr(each, "leaves", NONE) for each in numbers))
        value = function(*map(known, numbers))
        if not leaves:
            return value
        trace = next(each.trace for each in numbers if type(each) is Number)
        texts = ", ".join(text_in(trace, each) for each in numbers)
        return Number.made(trace, value, f"{trace.object(function)}({texts})", leaves)

    return call


def answered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A pure function of numbers and what has a hash: a class holds where it gives the same, whatever it asks inside.
    Each call of the class asks it again, so that it should be quick where it has been asked before.
    """

    @functools.wraps(function)
    def ask(*args: Any, **named: Any) -> Any:
        result = function(*map(known, args), **{name: known(value) for name, value in named.items()})
        numbers = [each for each in (*args, *named.values()) if type(each) is Number and each.leaves]
        if numbers:
            trace = numbers[0].trace
            texts = [text_in(trace, each) if type(each) is Number else trace.object(each) for each in args]
            texts += [f"{name}={text_in(trace, each) if type(each) is Number else trace.object(each)}"
                      for name, each in named.items()]
            trace.ask(f"{trace.object(function)}({', '.join(texts)}) == {trace.object(result)}", True,
                      frozenset().union(*(number.leaves for number in numbers)))
        return result

    return ask


_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/", "pow": "**",
               "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
_PARTIAL = {"//": True, "%": True, "/": True, "<<": False, ">>": False, "**": False}
"""Operations without a value, or with one of another type, where the second number is 0 (True) or below 0 (False)."""


def _compared(sign: str) -> Callable:
    def compare(self: Number, other: Any) -> Any:
        if type(other) is not Number and not isinstance(other, (int, float)):
            return NotImplemented
        answer = _SIGNS[sign](self.value, known(other))
        if type(other) is Number and other.leaves:
            if self.leaves:
                if self.base != other.base or self.scale != other.scale or type(self.value) is not int:
                    self.trace.ask(f"{self.text} {sign} {other.text}", answer, self.leaves | other.leaves)
            else:
                other.limit(_TURNED[sign], self.value, answer)
        else:
            self.limit(sign, known(other), answer)
        return answer

    return compare


def _computed(sign: str, compute: Callable, is_reflected: bool = False) -> Callable:
    def operate(self: Number, other: Any) -> Any:
        if type(other) is not Number and type(other) not in (int, float, bool):
            return NotImplemented
        second = self if is_reflected else other
        if sign in _PARTIAL and type(second) is Number:
            bool(second != 0 if _PARTIAL[sign] else second >= 0)
        leaves = self.leaves | getattr(other, "leaves", NONE)
        if sign == "//" and not is_reflected and type(other) is Number and other.value != 0:
            for factor, rest in (self.factors, self.factors[::-1]) if self.factors else ():
                if factor.text == other.text:
                    return rest
        values = (known(other), self.value) if is_reflected else (self.value, known(other))
        value = compute(*values)
        if not leaves:
            return value
        if type(values[0]) is type(values[1]) is int and self.leaves and not getattr(other, "leaves", NONE):
            affine = self.affine(sign, known(other), value, is_reflected)
            if affine is not None:
                return affine
        texts = text_in(self.trace, other), self.text
        left, right = texts if is_reflected else texts[::-1]
        made = Number.made(self.trace, value, f"({left} {sign} {right})", leaves)
        if sign == "*" and type(other) is Number and type(value) is int:
            made.factors = (self, other)
        return made

    return operate


def _called(function: str) -> Callable:
    """A function of the number by one of the names that a class's text sees."""

    def call(self: Number) -> Number:
        value = getattr(math, function, None) or getattr(builtins, function)
        return Number.made(self.trace, value(self.value), f"{function}({self.text})", self.leaves)

    return call


class Number:
    """Stands in for an int or float of a call, or for what was computed of some: `scale * base + shift`.

    Attributes:
        value: in the call that is traced.
        base: the text of what has the base's value in any call of the class.
        leaves: the numbers of the call in that text; none in one that has become exact.
        factors: of a product: numbers.
    """

    __slots__ = ("base", "factors", "leaves", "scale", "shift", "trace", "value")

    def __init__(self, trace: Any, value: float, base: str, leaves: frozenset, scale: int = 1, shift: int = 0):
        self.trace, self.value, self.base, self.leaves, self.scale, self.shift = (
            trace, value, base, leaves, scale, shift)
        self.factors: tuple[Number, Number] | None = None

    @staticmethod
    def made(trace: Any, value: float, text: str, leaves: frozenset) -> Number:
        """One of an expression, which gets a name: it is worked out once."""
        return Number(trace, value, trace.named(text, leaves), leaves)

    __class__ = property(lambda self: type(self.value))  # type: ignore[assignment]  # isinstance asks this

    @property
    def text(self) -> str:
        """The expression that has the value in any call of the class."""
        text = self.base
        if self.scale != 1:
            text = f"({text} * {self.trace.constant(self.scale)})"
        return f"({text} + {self.trace.constant(self.shift)})" if self.shift else text

    def affine(self, sign: str, other: int, value: int, is_reflected: bool) -> Any:
        """`self` and a constant combined, where that is a multiple of the base and a constant again; else None."""
        scale, shift = self.scale, self.shift
        if sign == "+":
            shift += other
        elif sign == "*":
            scale, shift = scale * other, shift * other
        elif sign == "-":
            scale, shift = (-scale, other - shift) if is_reflected else (scale, shift - other)
        elif is_reflected or other <= 0 or scale % other:
            return None
        elif sign == "//":
            scale, shift = scale // other, shift // other
        elif sign != "%":
            return None
        else:
            return shift % other
        return Number(self.trace, value, self.base, self.leaves, scale, shift) if scale else value

    def limit(self, sign: str, other: float, answer: bool) -> None:
        """Notes how the number compares with a constant."""
        if not self.leaves:
            return
        if not answer:
            sign = _NEGATED[sign]
        if type(self.value) is not int or type(other) is not int:
            if sign in (">=", "<=") and type(self.value) is float:
                self.trace.bound(self.base, self.leaves, *((other, None) if sign == ">=" else (None, other)))
            else:
                self.trace.ask(f"{self.text} {sign} {self.trace.constant(other)}", True, self.leaves)
            return
        # In integers: scale * base >= least, or <= most.
        least = other + (sign == ">") - self.shift if sign[0] == ">" else None
        most = other - (sign == "<") - self.shift if sign[0] == "<" else None
        if self.scale < 0:
            least, most = (None if most is None else -most), (None if least is None else -least)
        scale = abs(self.scale)
        self.trace.bound(self.base, self.leaves, None if least is None else -(-least // scale),
                         None if most is None else most // scale)

    def exactly(self) -> Any:
        """The value, which the class has from now on."""
        if self.leaves:
            trace = self.trace
            if type(self.value) is int and self.scale:
                base = (self.value - self.shift) // self.scale
                if self.base in self.leaves:
                    trace.exact[self.base] = base
                else:
                    trace.bound(self.base, self.leaves, base, base)
            elif self.base in self.leaves:
                trace.exact[self.base] = self.value
            else:
                trace.ask(f"{self.text} == {trace.constant(self.value)}", True, self.leaves)
                if self.value == 0:  # whose sign is the call's own
                    return self.value
            self.base, self.leaves, self.scale, self.shift = trace.constant(self.value), NONE, 1, 0
        return self.value

    def __eq__(self, other: object) -> Any:
        if type(other) is not Number and not isinstance(other, (int, float)):
            return NotImplemented
        if self is other:
            return True
        value = known(other)
        is_equal = self.value == value
        others = getattr(other, "leaves", NONE)
        if is_equal and not others:
            self.exactly()
        elif is_equal and not self.leaves:
            other.exactly()
        elif not self.leaves or not others:
            if self.leaves:
                self.trace.unlike(self, value)
            elif others:
                self.trace.unlike(other, self.value)
        elif self.text != other.text:
            self.trace.ask(f"{self.text} == {other.text}", is_equal, self.leaves | others)
            if is_equal and self.text in self.leaves and other.text in others:
                self.trace.equal.append((self.text, other.text))
            if is_equal and type(self.value) is type(value) is int:
                first, second = sorted((self, other), key=_rank)
                second.base, second.leaves = first.base, first.leaves
                second.scale, second.shift = first.scale, first.shift
        return is_equal

    def __ne__(self, other: object) -> Any:
        is_equal = Number.__eq__(self, other)
        return is_equal if is_equal is NotImplemented else not is_equal

    __lt__, __le__, __gt__, __ge__ = map(_compared, _SIGNS)
    __ceil__, __floor__, __abs__ = _called("ceil"), _called("floor"), _called("abs")

    def __divmod__(self, other: Any) -> tuple:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple:
        return other // self, other % self

    def __neg__(self) -> Number:
        return Number.made(self.trace, -self.value, f"(-{self.text})", self.leaves) if type(
            self.value) is not int else self * -1

    def __pos__(self) -> Number:
        return self

    def bit_length(self) -> Number:
        """Like int.bit_length."""
        return Number.made(self.trace, self.value.bit_length(), f"({self.text}).bit_length()", self.leaves)

    def __bool__(self) -> bool:
        return not Number.__eq__(self, 0)

    def __hash__(self) -> int:
        return hash(self.exactly())

    def __index__(self) -> int:
        return operator.index(self.exactly())

    def __int__(self) -> int:
        return int(self.exactly())

    def __float__(self) -> float:
        return float(self.exactly())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.exactly(), digits)

    def __trunc__(self) -> int:
        return math.trunc(self.exactly())

    def _shown(self) -> Any:
        return self.exactly() if self.trace.is_strict else self.value

    def __repr__(self) -> str:
        return repr(self._shown())

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return format(self._shown(), form)


for _name, _sign in _ARITHMETIC.items():
    _compute = getattr(operator, f"__{_name}__")
    setattr(Number, f"__{_name}__", _computed(_sign, _compute))
    setattr(Number, f"__r{_name}__", _computed(_sign, _compute, is_reflected=True))


def _rank(number: Number) -> tuple:
    """Ranks equal numbers by how they should be named: one of the call first, a size before a stride; then a short
    expression."""
    return number.text not in number.leaves, number.text[0], len(number.text)
