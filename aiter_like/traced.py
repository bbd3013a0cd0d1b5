# SPDX-License-Identifier: MIT
"""Stand-ins for a call's tensors and numbers that note what a decision asks of them.

A decision that has seen stand-ins holds for every call of which the same questions have the same answers: dispatch
makes a plan of it (dispatch/classes.py), and nobody has to say which sizes may vary. A number becomes exact only where
Python's own code needs it: as a key, a bound of `range`, a macro.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Step = tuple[str, str, frozenset]
"""A statement of a class: ("", a condition that must hold, …) or (a name, its value's text, …), and the leaves that it
reads."""

_LONGEST = 48  # letters of an expression before it gets a name
_NONE: frozenset = frozenset()


class Untraceable(BaseException):
    """A question that a stand-in cannot answer; no `except Exception` of a decision takes it for an answer."""


class Trace:
    """What was asked of the stand-ins of one call.

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
        # No reference to the call's tensors is kept.
        self.fields = ()
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

    def has_asked(self, text: str) -> bool:
        """Whether a condition holds in the class."""
        return text in self._asked

    def bound(self, base: str, leaves: frozenset, least: float | None, most: float | None) -> None:
        """Notes that an expression is not below `least`, or not above `most`; the narrowest bounds are asked."""
        if base not in self._bounds:
            self._bounds[base] = [0 if base in leaves and base[0] in "st" else None, None]
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
        """What was asked, in order: what bounds say anyway is left out, and what exact numbers say."""
        for kind, what, leaves in self._steps:
            if kind == "let":
                yield (*what, leaves)
            elif leaves <= self.exact.keys():
                continue
            elif kind == "ask":
                yield "", what, leaves
            elif kind == "bounds":
                text = self._within(what, what in leaves)
                if text:
                    yield "", text, leaves
            else:
                base, value = what
                least, most = self._bounds[base]
                if (least is None or value >= least) and (most is None or value <= most):
                    yield "", f"{base} != {self.constant(value)}", leaves

    def _within(self, base: str, is_leaf: bool) -> str:
        least, most = self._bounds[base]
        if least is not None and least == most:
            return f"{base} == {self.constant(least)}"
        if least is not None and most is not None and not (least == 0 and is_leaf and base[0] in "st"):
            return f"{self.constant(least)} <= {base} <= {self.constant(most)}"
        if most is not None:
            return f"{base} <= {self.constant(most)}"
        return "" if least is None or (least == 0 and is_leaf and base[0] in "st") else f"{base} >= " \
                                                                                        f"{self.constant(least)}"

    def named(self, text: str, leaves: frozenset) -> str:
        """A name for an expression."""
        name = f"e{len(self._steps)}"
        self._steps.append(("let", (name, text), leaves))
        return name

    def constant(self, value: Any) -> str:
        """The text of a constant."""
        if type(value) is int and 0 <= value <= 16:
            return str(value)
        key = (type(value), value)
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
        name = f"o{len(self.constants)}"
        self.constants[name] = value
        return name

    def leaf(self, name: str, value: float) -> Any:
        """A number of the call: a stand-in, or itself."""
        if self._opened is None or name in self._opened:
            return Number(self, value, name, frozenset((name,)))
        self.exact[name] = value
        return value

    def _stand_in(self, index: int, arg: Any) -> Any:
        if type(arg) in (int, float):
            return self.leaf(f"arg{index}", arg)
        if not isinstance(arg, Tensor) or arg.layout is not torch.strided or arg.is_nested:
            return arg
        if id(arg) not in self._seen:
            self._seen[id(arg)] = Traced.field(self, index, arg)
        return self._seen[id(arg)]


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


def known(value: Any) -> Any:
    """A number as it is in the call that is traced, of what does not decide; of a tuple, each."""
    if type(value) in (tuple, list, Shape):
        return tuple(map(known, value))
    return value.value if type(value) is Number else value


def text_in(trace: Trace, value: Any) -> str:
    """The text that has the value of a stand-in in another call of the class."""
    return value.text if type(value) is Number else trace.constant(value)


def exactly(value: Any) -> Any:
    """A value whose numbers, in tuples too, the class has from now on."""
    if type(value) is Number:
        return value.exactly()
    if isinstance(value, tuple) and type(value) is not Traced:
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
        leaves = frozenset().union(*(getattr(each, "leaves", _NONE) for each in numbers))
        value = function(*map(known, numbers))
        if not leaves:
            return value
        trace = next(each.trace for each in numbers if type(each) is Number)
        texts = ", ".join(text_in(trace, each) for each in numbers)
        return Number.made(trace, value, f"{trace.object(function)}({texts})", leaves)

    return call


_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PARTIAL = {"//": True, "%": True, "/": True, "<<": False, ">>": False, "**": False}
"""What has no value, or one of another type, where the second number is 0 (True) or below 0 (False)."""



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
        leaves = self.leaves | getattr(other, "leaves", _NONE)
        if sign == "//" and not is_reflected and type(other) is Number:
            for factor, rest in (self.factors, self.factors[::-1]) if self.factors else ():
                if factor.text == other.text:
                    return rest
        values = (known(other), self.value) if is_reflected else (self.value, known(other))
        value = compute(*values)
        if not leaves:
            return value
        if type(values[0]) is type(values[1]) is int and self.leaves and not getattr(other, "leaves", _NONE):
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

    def __init__(self, trace: Trace, value: float, base: str, leaves: frozenset, scale: int = 1, shift: int = 0):
        self.trace, self.value, self.base, self.leaves, self.scale, self.shift = (
            trace, value, base, leaves, scale, shift)
        self.factors: tuple[Number, Number] | None = None

    @staticmethod
    def made(trace: Trace, value: float, text: str, leaves: frozenset) -> Number:
        """One of an expression, which gets a name where it is long."""
        return Number(trace, value, text if len(text) <= _LONGEST else trace.named(text, leaves), leaves)

    __class__ = property(lambda self: type(self.value))  # type: ignore[assignment]  # isinstance asks this

    @property
    def text(self) -> str:
        """What has the value in any call of the class."""
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
            sign = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}[sign]
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
            self.base, self.leaves, self.scale, self.shift = trace.constant(self.value), _NONE, 1, 0
        return self.value

    def __eq__(self, other: object) -> Any:
        if type(other) is not Number and not isinstance(other, (int, float)):
            return NotImplemented
        if self is other:
            return True
        value = known(other)
        is_equal = self.value == value
        others = getattr(other, "leaves", _NONE)
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
            if is_equal and type(self.value) is type(value):
                first, second = sorted((self, other), key=_rank)
                second.base, second.leaves = first.base, first.leaves
                second.scale, second.shift = first.scale, first.shift
        return is_equal

    def __ne__(self, other: object) -> Any:
        is_equal = Number.__eq__(self, other)
        return is_equal if is_equal is NotImplemented else not is_equal

    __lt__, __le__, __gt__, __ge__ = map(_compared, _SIGNS)
    __add__, __radd__ = _computed("+", operator.add), _computed("+", operator.add, True)
    __sub__, __rsub__ = _computed("-", operator.sub), _computed("-", operator.sub, True)
    __mul__, __rmul__ = _computed("*", operator.mul), _computed("*", operator.mul, True)
    __floordiv__, __rfloordiv__ = _computed("//", operator.floordiv), _computed("//", operator.floordiv, True)
    __mod__, __rmod__ = _computed("%", operator.mod), _computed("%", operator.mod, True)
    __truediv__, __rtruediv__ = _computed("/", operator.truediv), _computed("/", operator.truediv, True)
    __pow__, __rpow__ = _computed("**", operator.pow), _computed("**", operator.pow, True)
    __and__, __rand__ = _computed("&", operator.and_), _computed("&", operator.and_, True)
    __or__, __ror__ = _computed("|", operator.or_), _computed("|", operator.or_, True)
    __xor__, __rxor__ = _computed("^", operator.xor), _computed("^", operator.xor, True)
    __lshift__, __rlshift__ = _computed("<<", operator.lshift), _computed("<<", operator.lshift, True)
    __rshift__, __rrshift__ = _computed(">>", operator.rshift), _computed(">>", operator.rshift, True)
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
        """As of an int."""
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


def _rank(number: Number) -> tuple:
    """By which of two equal numbers both are known: one of the call, a size before a stride; a short expression."""
    return number.text not in number.leaves, number.text[0], len(number.text)


class Shape(tuple):
    """Sizes, with what torch.Size adds to a tuple."""

    __slots__ = ()

    def numel(self) -> Any:
        """Their product."""
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Shape(found) if isinstance(index, slice) else found


class Traced:
    """Stands in for a tensor of a call, a view of one, or memory that the call allocates.

    Attributes:
        real: the tensor in the call that is traced; whoever looks there without asking takes it for granted.
        root: the text of the address of the memory that it is in: "a0" of the first field, "m0" of an allocation.
        offset: bytes from there.
        shape, strides: of numbers.
    """

    __slots__ = ("_index", "_is_contiguous", "offset", "real", "root", "shape", "strides", "trace")

    __class__ = property(lambda self: Tensor)  # type: ignore[assignment]  # isinstance asks this

    def __init__(self, trace: Trace, real: Tensor, root: str, offset: Any, shape: Sequence, strides: Sequence):
        self.trace, self.real, self.root, self.offset = trace, real, root, offset
        self.shape, self.strides = Shape(shape), tuple(strides)
        self._is_contiguous: bool | None = None
        self._index: int | None = None
        if known(self.shape) != tuple(real.shape):
            raise Untraceable(f"a view of shape {tuple(real.shape)} was traced as {known(self.shape)}")

    @staticmethod
    def field(trace: Trace, index: int, real: Tensor) -> Traced:
        """The stand-in for the field `index`."""
        numbers = [[trace.leaf(f"{letter}{index}_{dim}", value) for dim, value in enumerate(values)]
                   for letter, values in (("s", real.shape), ("t", real.stride()))]
        made = Traced(trace, real, f"a{index}", 0, *numbers)
        made._index = index
        return made

    @staticmethod
    def memory(trace: Trace, real: Tensor, shape: Sequence) -> Traced:
        """The stand-in for memory that a call allocates, contiguous as `real` is."""
        trace.allocated.append(made := Traced(trace, real, f"m{len(trace.allocated)}", 0, shape, _dense(shape)))
        made._is_contiguous = True
        return made

    # ---- what no class leaves open

    dtype = property(lambda self: self.real.dtype)
    device = property(lambda self: self.real.device)
    layout = property(lambda self: self.real.layout)
    ndim = property(lambda self: self.real.ndim)
    itemsize = property(lambda self: self.real.element_size())
    requires_grad = property(lambda self: self.real.requires_grad)
    is_leaf = property(lambda self: self.real.is_leaf)
    is_meta = property(lambda self: self.real.is_meta)
    is_cuda = property(lambda self: self.real.is_cuda)
    is_cpu = property(lambda self: self.real.is_cpu)
    is_nested = property(lambda self: self.real.is_nested)
    is_quantized = property(lambda self: self.real.is_quantized)
    is_sparse = property(lambda self: self.real.is_sparse)
    _base = property(lambda self: self.real._base)

    def dim(self) -> int:
        """As of a tensor."""
        return self.real.ndim

    def element_size(self) -> int:
        """As of a tensor."""
        return self.real.element_size()

    def get_device(self) -> int:
        """As of a tensor."""
        return self.real.get_device()

    def is_neg(self) -> bool:
        """As of a tensor."""
        return self.real.is_neg()

    def is_conj(self) -> bool:
        """As of a tensor."""
        return self.real.is_conj()

    def is_floating_point(self) -> bool:
        """As of a tensor."""
        return self.real.is_floating_point()

    def is_complex(self) -> bool:
        """As of a tensor."""
        return self.real.is_complex()

    # ---- numbers

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.strides if dim is None else self.strides[dim]

    def __len__(self) -> int:
        return operator.index(self.shape[0])

    def numel(self) -> Any:
        """As of a tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> Any:
        """As of a tensor."""
        return self.numel() * self.itemsize

    def extent(self) -> Any:
        """Bytes from the first element to the end of the last, of a tensor that has some."""
        if self.is_contiguous():
            return self.nbytes
        return self.itemsize * (1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides)))

    def data_ptr(self) -> Any:
        """As of a tensor; of memory that each call has of its own only alignment can be asked."""
        return _Aligned(self.offset) if self.root[0] == "m" else self.address()

    def storage_offset(self) -> Any:
        """As of a tensor."""
        if self._index is None:
            raise Untraceable("where a view begins in its memory")
        return Number(self.trace, self.real.storage_offset(), f"arg{self._index}.storage_offset()",
                      frozenset((f"c{self._index}",)))

    def address(self) -> Number:
        """Where it begins; of memory that a call allocates with the text of its place."""
        offset = self.offset
        text = self.root if type(offset) is int and offset == 0 else f"({self.root} + {text_in(self.trace, offset)})"
        return Number(self.trace, self.real.data_ptr(), text, getattr(offset, "leaves", _NONE) | {self.root})

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """As of a tensor."""
        if memory_format is not torch.contiguous_format:
            is_last = self.ndim > 2 and self.permute(0, *range(2, self.ndim), 1).is_contiguous()
            if is_last != self.real.is_contiguous(memory_format=memory_format):
                raise Untraceable(f"whether a tensor is in {memory_format}")
            return is_last
        if self._is_contiguous is None:
            self._is_contiguous = self._asks_contiguity(self.real.is_contiguous())
        return self._is_contiguous

    def _asks_contiguity(self, is_so: bool) -> bool:
        """Asks for strides, which are exact as a rule and then cost nothing: also in dimensions of size 1, of which
        only the call that is traced may have others. A tensor without elements is contiguous, whatever they are.
        """
        for size in self.shape:
            if is_so and known(size) == 0:
                return size == 0
        expected: Any = 1
        for size, step in zip(self.shape[::-1], self.strides[::-1]):
            if is_so and known(step) != known(expected):
                bool(size == 1)
            elif step != expected and size != 1:
                return not all(size != 0 for size in self.shape)
            expected = expected * size
        return True

    # ---- views

    def _viewed(self, real: Tensor, shape: Sequence, strides: Sequence, offset: Any = 0) -> Traced:
        return Traced(self.trace, real, self.root, self.offset + offset, shape, strides)

    def _dense(self, real: Tensor, shape: Sequence) -> Traced:
        """A view of a contiguous tensor that is contiguous too."""
        made = self._viewed(real, shape, _dense(shape))
        made._is_contiguous = True
        return made

    def view(self, *shape: Any) -> Traced:
        """As of a tensor; nothing is copied."""
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            return self._in_dtype(shape[0])
        shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        real = self.real.view(known(shape))
        rest = math.prod(each for each in shape if known(each) != -1)
        if -1 in known(shape):
            bool(rest != 0)
        if len(shape) == self.ndim and all(one is other or known(one) == -1 for one, other in zip(shape, self.shape)):
            return self
        if self.ndim and len(shape) == 2 and known(shape[0]) == -1 and shape[1] == self.shape[-1]:
            return self.flatten(0, -2) if self.ndim > 1 else self._viewed(real, (1, *self.shape), (0, *self.strides))
        if len(shape) == 1:
            return self.flatten()
        shape = [self.numel() // rest if known(each) == -1 else each for each in shape]
        return self._dense(real, shape) if self.is_contiguous() else self._viewed(real, shape, self._strides_of(shape))

    reshape = view

    def _in_dtype(self, dtype: torch.dtype) -> Traced:
        real, own, other = self.real.view(dtype), self.itemsize, dtype.itemsize
        sizes, strides = self.shape, self.strides
        if own == other:
            return self._viewed(real, sizes, strides)
        if strides[-1] != 1 or any(step * own % other != 0 for step in strides[:-1]) or sizes[-1] * own % other != 0:
            raise Untraceable("elements of another size do not fill a view")
        return self._viewed(real, [*sizes[:-1], sizes[-1] * own // other],
                            [*(step * own // other for step in strides[:-1]), 1])

    def _strides_of(self, shape: Sequence) -> list:
        """Strides of a view, as torch finds them: dimensions of the view are within groups of ours that lie together.
        """
        strides: list = [0] * len(shape)
        place, base = len(shape) - 1, self.strides[-1] if self.ndim else 1
        ours: Any = 1
        theirs: Any = 1
        for dim in reversed(range(self.ndim)):
            ours = ours * self.shape[dim]
            if dim and (self.shape[dim - 1] == 1 or self.strides[dim - 1] == ours * base):
                continue
            while place >= 0 and (theirs < ours or shape[place] == 1):
                strides[place] = theirs * base
                theirs = theirs * shape[place]
                place -= 1
            if theirs != ours:
                raise Untraceable("a view that no strides describe")
            if dim:
                base, ours, theirs = self.strides[dim - 1], 1, 1
        return strides

    def flatten(self, start: int = 0, end: int = -1) -> Traced:
        """As of a tensor; nothing is copied."""
        start, end = start % max(self.ndim, 1), end % max(self.ndim, 1)
        if start >= end:
            return self if self.ndim else self._viewed(self.real.view(1), (1,), (1,))
        if self.is_contiguous():
            merged = math.prod(self.shape[start:end + 1])
            return self._dense(self.real.flatten(start, end), (*self.shape[:start], merged, *self.shape[end + 1:]))
        size, step = self.shape[end], self.strides[end]
        for dim in reversed(range(start, end)):
            if size == 1:
                step = self.strides[dim]
            elif self.shape[dim] != 1 and self.strides[dim] != step * size:
                raise Untraceable("dimensions that do not lie together are flattened")
            size = self.shape[dim] * size
        return self._viewed(self.real.flatten(start, end), (*self.shape[:start], size, *self.shape[end + 1:]),
                            (*self.strides[:start], step, *self.strides[end + 1:]))

    def unflatten(self, dim: int, sizes: Sequence) -> Traced:
        """As of a tensor."""
        dim %= self.ndim
        rest = math.prod(each for each in sizes if known(each) != -1)
        sizes = [self.shape[dim] // rest if known(each) == -1 else each for each in sizes]
        steps = [self.strides[dim] * math.prod(sizes[index + 1:]) for index in range(len(sizes))]
        return self._viewed(self.real.unflatten(dim, known(sizes)), (*self.shape[:dim], *sizes, *self.shape[dim + 1:]),
                            (*self.strides[:dim], *steps, *self.strides[dim + 1:]))

    def unsqueeze(self, dim: int) -> Traced:
        """As of a tensor."""
        place = dim % (self.ndim + 1)
        step = self.shape[place] * self.strides[place] if place < self.ndim else 1
        return self._viewed(self.real.unsqueeze(dim), (*self.shape[:place], 1, *self.shape[place:]),
                            (*self.strides[:place], step, *self.strides[place:]))

    def squeeze(self, dim: int) -> Traced:
        """As of a tensor."""
        place = dim % self.ndim
        if self.shape[place] != 1:
            return self
        return self._viewed(self.real.squeeze(dim), (*self.shape[:place], *self.shape[place + 1:]),
                            (*self.strides[:place], *self.strides[place + 1:]))

    def permute(self, *dims: Any) -> Traced:
        """As of a tensor."""
        dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
        return self._viewed(self.real.permute(dims), [self.shape[dim] for dim in dims],
                            [self.strides[dim] for dim in dims])

    def transpose(self, one: int, other: int) -> Traced:
        """As of a tensor."""
        dims = list(range(self.ndim))
        dims[one], dims[other] = dims[other], dims[one]
        return self.permute(dims)

    def t(self) -> Traced:
        """As of a tensor."""
        return self.transpose(0, 1) if self.ndim == 2 else self

    mT = property(lambda self: self.transpose(-2, -1))
    T = property(t)

    def expand(self, *shape: Any) -> Traced:
        """As of a tensor."""
        shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        more = len(shape) - self.ndim
        sizes, strides = list(shape), [0] * len(shape)
        for dim, (size, step) in enumerate(zip(self.shape, self.strides), more):
            if shape[dim] == -1 or size != 1 or shape[dim] == 1:
                sizes[dim], strides[dim] = size, step
        return self._viewed(self.real.expand(known(shape)), sizes, strides)

    def __getitem__(self, index: Any) -> Traced:
        """As of a tensor, by ints, slices with step 1, None and one Ellipsis."""
        index = index if isinstance(index, tuple) else (index,)
        if Ellipsis in (each for each in index if each is Ellipsis):
            place = next(place for place, each in enumerate(index) if each is Ellipsis)
            taken = sum(each is not None for each in index) - 1
            index = (*index[:place], *[slice(None)] * (self.ndim - taken), *index[place + 1:])
        shape: list = []
        strides: list = []
        offset: Any = 0
        real_index: list = []
        dim = 0
        for each in index:
            if each is None:
                shape.append(1)
                strides.append(0)
                real_index.append(None)
                continue
            size, step = self.shape[dim], self.strides[dim]
            dim += 1
            if isinstance(each, slice):
                begin, end = (self._bound(each.start, size, 0), self._bound(each.stop, size, size))
                if each.step not in (None, 1):
                    raise Untraceable("a slice with a step")
                end = end if each.start is None or begin <= end else begin
                offset = offset + begin * step
                shape.append(end - begin)
                strides.append(step)
                real_index.append(slice(known(begin), known(end)))
            elif isinstance(each, int):
                place = each + size if each < 0 else each
                bool(0 <= place < size)
                offset = offset + place * step
                real_index.append(known(each))
            else:
                raise Untraceable(f"an index of {type(each).__name__}")
        return self._viewed(self.real[tuple(real_index)], [*shape, *self.shape[dim:]], [*strides, *self.strides[dim:]],
                            offset * self.itemsize)

    @staticmethod
    def _bound(bound: Any, size: Any, default: Any) -> Any:
        if bound is None:
            return default
        if bound < 0:
            bound = bound + size
            return bound if bound >= 0 else 0
        return bound if bound <= size else size

    def select(self, dim: int, index: Any) -> Traced:
        """As of a tensor."""
        return self[(*[slice(None)] * (dim % self.ndim), index)]

    def narrow(self, dim: int, start: Any, length: Any) -> Traced:
        """As of a tensor."""
        return self[(*[slice(None)] * (dim % self.ndim), slice(start, start + length))]

    def unbind(self, dim: int = 0) -> tuple[Traced, ...]:
        """As of a tensor."""
        return tuple(self.select(dim, index) for index in range(operator.index(self.shape[dim])))

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"Tensor.{name}")


class _Aligned:
    """The address of memory that a call allocates, which begins at a multiple of 16."""

    __slots__ = ("_offset",)

    def __init__(self, offset: Any):
        self._offset = offset

    def __mod__(self, alignment: int) -> Any:
        if alignment not in (1, 2, 4, 8, 16):
            raise Untraceable(f"the address of memory that a call allocates, beyond 16 bytes: {alignment}")
        return self._offset % alignment


def _dense(shape: Sequence) -> list:
    """The strides of a contiguous tensor."""
    return [math.prod(shape[dim + 1:]) for dim in range(len(shape))]
