# SPDX-License-Identifier: MIT
"""Classes of calls: calls of which a decision's questions have the same answers (traced/) share its plan.

A class is one function, made from source text: it compares what the decision asked, checks addresses and launches. What
a new size of a known class costs is that and nothing else; there are as many classes as answers, however many sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor

from aiter_like.call import handing_on
from aiter_like.errors import UnsupportedError
from aiter_like.traced import Trace, leaves_of

try:  # the check behind torch.compile's guards: the metadata of all tensors in one C++ call
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # private to torch, so it may go: then Python compares, some µs slower
    TensorGuards = None

_is_grad_enabled = torch.is_grad_enabled

RECENT = 8  # a decoder layer and the head take five products in turn; a miss here costs 0.4 µs per entry
_OF_A_KIND = 32  # classes that are looked through
_KINDS = 1024
_REFUSALS = (TypeError, ValueError, UnsupportedError)
_WORD, _ADDRESS = re.compile(r"[a-z]\w*"), re.compile(r"a\d+")
_FUNCTIONS = {"ceil": math.ceil, "floor": math.floor, "abs": abs}


def kind_of_call(args: tuple) -> tuple:
    """A key of what no class leaves open: types, dtypes, ranks, devices, flags; of lists of tensors all metadata.

    Raises:
        TypeError: an argument has no hash (a list of other than tensors, a symbolic size).
        RuntimeError: a sparse tensor among others, which has no strides.
    """
    key: list = []
    for arg in args:
        if isinstance(arg, Tensor):
            key += (*_facts(arg), arg.ndim)
        elif _is_tensors(arg):
            key.append(metadata(arg))
        elif type(arg) is int or type(arg) is float:
            key.append(type(arg))
        else:
            key += (type(arg), arg)
    return tuple(key)


def metadata(tensors: Iterable[Tensor]) -> tuple:
    """A key of all that a list's tensors are but contents and addresses; classes leave nothing of it open."""
    return tuple((*_facts(each), each.shape, each.stride()) if isinstance(each, Tensor) else (type(each), each)
                 for each in tensors)


def _facts(tensor: Tensor) -> tuple:
    return (type(tensor), tensor.dtype, tensor.device, _is_grad_enabled() and tensor.requires_grad, tensor.layout,
            tensor.is_neg(), tensor.is_conj())


def _is_tensors(arg: Any) -> bool:
    return type(arg) in (tuple, list) and len(arg) > 0 and isinstance(arg[0], Tensor)


def parameters(count: int) -> list[str]:
    """The names by which a class's text has its arguments."""
    return [f"arg{index}" for index in range(count)]


class CallClass:
    """The calls of which a trace's questions have the same answers, and what serves them.

    Attributes:
        serves: of a selector and arguments: whether the call is one of the class and was served. It was not where the
            class's checks refuse it, before it wrote anything. It is made when it is first asked.
        admits: of the same: whether the call is one of the class and its addresses are right; nothing runs.
        trace: what was asked.
    """

    def __init__(self, selector: Any, args: tuple, trace: Trace, addresses: str, body: Sequence[str],
                 used: Mapping[str, Any]):
        """addresses: the statement that checks them; body: those that serve the call. Both see `used`, the leaves of
        the trace and `parameters(len(args))`.
        """
        self.trace, self._addresses, self._body = trace, addresses, body
        self._steps = [*trace.steps()]  # at once: it names constants, which two threads would name alike
        self._names = parameters(len(args))
        self._used = {"selector": selector, "is_grad_enabled": _is_grad_enabled, "refusals": _REFUSALS,
                      "metadata": metadata, **_FUNCTIONS, **used}
        self._tensors: list[str] = []
        self._floats = {f"arg{index}" for index, arg in enumerate(args) if type(arg) is float}
        self._questions = self._kind(args, trace)
        self.serves = self._make_serves
        self.admits = self._make_admits

    def _kind(self, args: tuple, trace: Trace) -> list[str]:
        """The questions of the kind, numbers that have become exact among them, as conditions."""
        first: dict[int, int] = {}  # id of a tensor → its first position; TensorGuards refuses one that comes twice
        asked, name = [], self._used
        for index, arg in enumerate(args):
            if isinstance(arg, Tensor):
                if first.setdefault(id(arg), index) != index:
                    asked.append(f"arg{index} is arg{first[id(arg)]}")
            elif arg is None or arg is True or arg is False:
                asked.append(f"arg{index} is {arg}")
            else:
                is_list = _is_tensors(arg)
                name[f"type{index}"] = (list, tuple) if is_list else type(arg)
                asked.append(f"type(arg{index}) {'in' if is_list else 'is'} type{index}")
                if is_list or type(arg) not in (int, float) or f"arg{index}" in trace.exact:
                    name[f"value{index}"] = metadata(arg) if is_list else arg
                    asked[-1] += f" and {'metadata' * is_list}(arg{index}) == value{index}"
                    if type(arg) is float and arg == 0:
                        asked[-1] += f" and str(arg{index}) == '{arg}'"
                    if not is_list:  # Most often it is the same object.
                        asked[-1] = f"(arg{index} is value{index} or {asked[-1]})"
        if first:
            tensors, places = [args[index] for index in first.values()], list(first.values())
            name["check"] = _guard(tensors, *([[trace.exact.get(f"{letter}{place}_{dim}") for dim in range(one.ndim)]
                                               for place, one in zip(places, tensors)] for letter in "st"))
            self._tensors = [f"arg{place}" for place in places]
            # Nested tensors have no strides: TensorGuards would end the process.
            asked.insert(0, f"not ({' or '.join(f'{each}.is_nested' for each in self._tensors)})")
            asked += [f"{self._tensors[place]}.data_ptr() == {trace.exact[f'a{index}']}"
                      for place, index in enumerate(places) if f"a{index}" in trace.exact]
        return ["chosen == selector", *asked, f"is_grad_enabled() is {_is_grad_enabled()}"]

    def _text(self, runs: bool) -> list[str]:
        """The statements of `serves`, or of `admits`; an expression that none of them names is left out."""
        last = [self._addresses or "pass", *self._body * runs]
        words = set(_WORD.findall("\n".join(last)))
        of_sizes: list[str] = []
        of_addresses: list[str] = []  # read last: of another class, they are not
        for name, text, leaves in reversed(self._steps):
            if not name or name in words:
                line = f"{name} = {text}" if name else f"if not ({text}): return False"
                (of_addresses if any(map(_ADDRESS.fullmatch, leaves)) else of_sizes).append(line)
                words.update(_WORD.findall(text))
        read = _Readings(self.trace, words)
        lines = [f"if not ({' and '.join(self._questions)}): return False"]
        if self._tensors:
            lines += self._sizes(of_sizes[::-1], [*of_addresses, *last], read, runs)
        for line in of_addresses[::-1]:
            lines += [*read.of(line), line]
        lines += read.of("\n".join(last))
        return ["try:", *(f"    {line}" for line in _joined(lines)),
                "except (TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError): return False", "try:",
                *(f"    {line}" for line in last), "except refusals: return False", "return True"]

    def _sizes(self, asked: Sequence[str], later: Sequence[str], read: _Readings, runs: bool) -> list[str]:
        """Makes the statements that ask metadata, and that name what later ones need of it. Tensors like those of the
        calls before, which one guard tells, are asked nothing else.
        """
        tensors = ", ".join(self._tensors)
        lines = [f"if not (check({tensors})): return False"]
        before = read.unread
        for line in asked:
            lines += [*read.of(line), line]
        words = set(_WORD.findall("\n".join(asked)))
        leaves = known = sorted(before - read.unread)
        numbers = [name for name in self._names if name in words and name not in self._used]
        if not runs or not known or not self._floats.isdisjoint(numbers):
            return lines
        held = [f"held_{name}" for name in numbers]
        known = [*known, *(line.partition(" = ")[0] for line in asked if not line.startswith("if "))]
        known = [name for name in known if name in set(_WORD.findall("\n".join(later)))]
        is_same = "".join(f" and {name} == {was}" for name, was in zip(numbers, held))
        said = "".join(f"{name}, " for name in (*numbers, *known))
        self._used["held"] = _Held(len(numbers) + len(known))
        return [f"{', '.join(['is_held', *held, *known])}, = held.last", f"if not (is_held({tensors}){is_same}):",
                *(f"    {line}" for line in _joined(lines)),
                f"    held.keep(({', '.join(leaves)},), ({said}), {tensors})"]

    def _made(self, name: str, runs: bool) -> Callable[..., bool]:
        every, text = dict.fromkeys(("chosen", *self._names), Parameter.empty), self._text(runs)
        exact = {leaf: value for leaf, value in self.trace.exact.items() if leaf not in self._names}
        return handing_on(name, every, {}, text, **{**self._used, **self.trace.constants, **exact})

    def _make_serves(self, *args: Any) -> bool:
        self.serves = self._made("serves", True)
        return self.serves(*args)

    def _make_admits(self, *args: Any) -> bool:
        self.admits = self._made("admits", False)
        return self.admits(*args)


class _Held:
    """Remembers what metadata said to the class's last calls, once two in turn had the same."""

    def __init__(self, count: int):
        self.last: tuple = (_serves_nothing, *[None] * count)
        self._leaves: tuple | None = None

    def keep(self, leaves: tuple, said: tuple, *tensors: Tensor) -> None:
        """Notes what the metadata of a call says: its leaves, and what follows from them. A guard costs as much as a
        call does, and is made for what comes twice.
        """
        if leaves == self._leaves:
            sizes, strides = [list(one.shape) for one in tensors], [list(one.stride()) for one in tensors]
            self.last = (_guard(tensors, sizes, strides), *said)
        self._leaves = leaves


def _joined(lines: Iterable[str]) -> list[str]:
    """Conditions that follow one another, as one statement."""
    found: list[str] = []
    before, behind = "if not (", "): return False"
    for line in lines:
        if line.startswith(before) and found and found[-1].startswith(before):
            found[-1] = f"{found[-1][:-len(behind)]} and {line[len(before):]}"
        else:
            found.append(line)
    return found


class _Readings:
    """Statements that read numbers of tensors, each before the first line that names one: what is not asked of a call
    that is another is not read either.
    """

    def __init__(self, trace: Trace, words: set[str]):
        """words: all that any line names."""
        self._groups = {}
        for index, rank in trace.ranks.items():
            for letter, whole in (("s", "shape"), ("t", "stride()")):
                leaves = [f"{letter}{index}_{dim}" for dim in range(rank)]
                named = [dim for dim, leaf in enumerate(leaves) if leaf in words and leaf not in trace.exact]
                places = "".join(f"{leaf if dim in named else '_'}, " for dim, leaf in enumerate(leaves))
                line = f"{places}= arg{index}.{whole}" if len(named) > 1 else \
                    "".join(f"{leaves[dim]} = arg{index}.{whole}[{dim}]" for dim in named)  # faster than stride(dim)
                self._groups |= {leaves[dim]: line for dim in named}
            self._groups[f"a{index}"] = f"a{index} = arg{index}.data_ptr()"

    @property
    def unread(self) -> set[str]:
        """The sizes and strides that no statement has read."""
        return {word for word in self._groups if not _ADDRESS.fullmatch(word)}

    def of(self, line: str) -> list[str]:
        """Those that a line needs and none before it has needed."""
        needed = dict.fromkeys(self._groups[word] for word in _WORD.findall(line) if word in self._groups)
        self._groups = {word: each for word, each in self._groups.items() if each not in needed}
        return [*needed]


def _guard(tensors: Sequence[Tensor], sizes: list, strides: list) -> Callable[..., bool]:
    """Whether tensors are like these; None among `sizes` and `strides` accepts any."""
    if TensorGuards is not None:
        return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    wanted = kind_of_call(tuple(tensors))

    def check(*others: Tensor) -> bool:
        return len({*map(id, others)}) == len(others) and kind_of_call(others) == wanted and all(
            asked is None or asked == got for other, size, stride in zip(others, sizes, strides)
            for asked, got in zip((*size, *stride), (*other.shape, *other.stride())))

    return check


def _make_room(kinds: dict) -> None:
    while len(kinds) >= _KINDS:
        kinds.pop(next(iter(kinds)), None)


def _serves_nothing(*_args: Any) -> bool:
    return False


class Classes:
    """The classes of an operator's calls; of a kind and of all kinds those leave first that served longest ago.

    Attributes:
        recent: what the last few classes serve with: functions of a selector and arguments.
        last: the one of them that has served last; as a rule it serves the next call too.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple, tuple[CallClass, ...]] = {}
        self._leaves: dict[tuple, tuple[dict[str, Any], frozenset[str]]] = {}
        self._last: tuple[CallClass, ...] = ()
        self.recent: tuple[Callable[..., bool], ...] = ()
        self.last: Callable[..., bool] = _serves_nothing

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    @staticmethod
    def key(selector: Any, args: tuple) -> tuple | None:
        """The kind of a call; None: it has none, and no class either: its check says what is wrong."""
        try:
            key = (selector, *kind_of_call(args))
            hash(key)
        except (TypeError, RuntimeError):
            return None
        return key

    def find(self, selector: Any, args: tuple, runs: bool = True) -> CallClass | None:
        """The class that has served the call, or, unless it `runs`, that would; None: there is none, or it refuses."""
        try:
            key = (selector, *kind_of_call(args))
            known = self._kinds.get(key, ())
        except (TypeError, RuntimeError):  # it has no kind
            return None
        for each in known:
            if (each.serves if runs else each.admits)(selector, *args):
                if runs:
                    self._keep(key, each)
                return each
        return None

    def opened(self, key: tuple | None, args: tuple) -> frozenset[str]:
        """The leaves in which the calls of a kind have differed so far, these arguments among them: a class that leaves
        more open would ask of each call what never changes.
        """
        if key is None:
            return frozenset()
        leaves = leaves_of(args)
        if key not in self._leaves:
            _make_room(self._leaves)
        first, opened = self._leaves.get(key, (leaves, frozenset()))
        opened |= {leaf for leaf, value in leaves.items() if first.get(leaf) != value}
        self._leaves[key] = first, opened
        return opened

    def keep(self, key: tuple | None, made: CallClass) -> None:
        """Keeps a class."""
        if key is None:
            return
        if key not in self._kinds:
            _make_room(self._kinds)
        self._kinds[key] = (made, *self._kinds.get(key, ())[:_OF_A_KIND - 1])

    def _keep(self, key: tuple, used: CallClass) -> None:
        others = self._kinds.get(key, ())
        if others and others[0] is not used:
            self._kinds[key] = (used, *(each for each in others if each is not used))
        self._last = (used, *[each for each in self._last if each is not used][:RECENT - 1])
        self.recent, self.last = tuple(each.serves for each in self._last), used.serves

    def clear(self) -> None:
        """Forgets everything."""
        self._kinds.clear()
        self._leaves.clear()
        self._last, self.recent, self.last = (), (), _serves_nothing
