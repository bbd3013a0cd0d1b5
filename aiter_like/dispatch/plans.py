# SPDX-License-Identifier: MIT
"""Plan cache of an operator: the metadata of a call's arguments → the function that serves it. Used by dispatch.py.

What was decided once (checks, backend, tuned row, build) holds for every call whose arguments look the same: shape,
strides, layout, dtype, device, type, requires_grad under grad mode, lazy negation and conjugation; scalars by type and
value. Not in the key: addresses. A kernel that needs alignment checks it itself, addresses.py the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

try:  # the check behind torch.compile's guards: all metadata of all tensors in one C++ call
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # private to torch, so it may go: then every call takes the dictionary, 1.5 µs slower
    TensorGuards = None

_is_grad_enabled = torch.is_grad_enabled
_is_nested = Tensor.is_nested.__get__

RECENT = 4  # a decoder layer alternates between a few shapes of one op; a miss here costs 0.2 µs per entry


def metadata(args: tuple) -> tuple:
    """Hashable key of the arguments.

    Raises:
        TypeError: an argument has no hash (a list of other than tensors, a symbolic size).
        RuntimeError: a sparse tensor, which has no strides.
    """
    key: list = []
    grad = _is_grad_enabled()
    for arg in args:
        if isinstance(arg, Tensor):
            key += (type(arg), arg.shape, arg.stride(), arg.dtype, arg.device, grad and arg.requires_grad,
                    arg.layout, arg.is_neg(), arg.is_conj())
        elif _is_tensors(arg):
            key.append(metadata(arg))
        else:
            key += (type(arg), arg)
    return tuple(key)


def _is_tensors(arg: Any) -> bool:
    return type(arg) in (tuple, list) and len(arg) > 0 and isinstance(arg[0], Tensor)


class _Entry:
    """One recent call: TensorGuards for its tensors, the rest of its arguments compared by type and value.

    TensorGuards refuses a tensor that comes twice (`out` may be `input`), so each is checked at its first position;
    `same` are the positions that must hold the tensor of an earlier one.
    """

    __slots__ = ("check", "grad", "others", "plan", "same", "selector", "tensors", "typed", "types", "values")

    def __init__(self, selector: Any, args: tuple, plan: Callable):
        first: dict[int, int] = {}  # id of a tensor → its first position
        tensors = {index: first.setdefault(id(arg), index) for index, arg in enumerate(args) if isinstance(arg, Tensor)}
        self.tensors = _getter(list(first.values()))
        self.others = _getter([index for index in range(len(args)) if index not in tensors])
        self.same = [(index, earlier) for index, earlier in tensors.items() if index != earlier]
        seen = self.tensors(args)
        self.check = TensorGuards(*seen, dynamic_dims_sizes=[list(t.shape) for t in seen],
                                  dynamic_dims_strides=[list(t.stride()) for t in seen]).check
        self.values = self.others(args)
        # None is equal to nothing of another type; most options of a long signature are None.
        typed = [index for index, arg in enumerate(args) if index not in tensors and arg is not None]
        self.typed = _getter(typed) if len(self.values) - len(typed) > 4 else None
        self.types = [*map(type, self.values if self.typed is None else self.typed(args))]
        self.grad, self.selector, self.plan = _is_grad_enabled(), selector, plan


def _getter(indices: list[int]) -> Callable[[tuple], tuple]:
    """`args` → the tuple of its elements at these positions; a slice, which is faster, where they are neighbours."""
    if not indices:
        return itemgetter(slice(0))
    neighbours = range(indices[0], indices[-1] + 1)
    if indices == [*neighbours]:
        return itemgetter(slice(neighbours.start, neighbours.stop))
    return itemgetter(*indices)


class PlanCache:
    """Bounded map (selector, metadata of the arguments) → plan; the oldest plan leaves first."""

    def __init__(self, limit: int = 4096):
        self.limit = limit
        self._plans: dict[tuple, Callable] = {}
        self._recent: tuple[_Entry, ...] = ()

    def __len__(self) -> int:
        return len(self._plans)

    def recent(self, selector: Any, args: tuple) -> Callable | None:
        """The plan of one of the last few distinct calls; None where none of them looked like this one.

        Also misses, unlike `find`, under a torch dispatch mode or transform that was not active then.
        """
        try:
            for entry in self._recent:
                if entry.selector != selector:
                    continue
                tensors = entry.tensors(args)
                if True in map(_is_nested, tensors):  # they have no strides: TensorGuards would end the process
                    return None
                if entry.check(*tensors) and entry.grad is _is_grad_enabled():
                    values = entry.others(args)
                    typed = values if entry.typed is None else entry.typed(args)
                    if (values == entry.values and [*map(type, typed)] == entry.types
                            and (not entry.same or all(args[index] is args[earlier] for index, earlier in entry.same))):
                        return entry.plan
        except (TypeError, RuntimeError):  # no tensor where there was one, or a tensor where a number was
            pass
        return None

    def find(self, selector: Any, args: tuple) -> Callable | None:
        """The plan for these arguments, or None. A hit becomes the first of the recent ones."""
        try:
            plan = self._plans.get((selector, *metadata(args)))
        except (TypeError, RuntimeError):  # no key: such a call is never stored, its check says what is wrong
            return None
        if plan is not None and TensorGuards is not None and not any(map(_is_tensors, args)):
            self._recent = (_Entry(selector, args, plan), *self._recent[:RECENT - 1])
        return plan

    def store(self, selector: Any, args: tuple, plan: Callable) -> None:
        """Keep a plan, in place of an earlier one for such arguments."""
        try:
            key = (selector, *metadata(args))
        except (TypeError, RuntimeError):
            return
        if key in self._plans:
            self._recent = ()
        elif len(self._plans) >= self.limit:
            self._plans.pop(next(iter(self._plans)), None)
        self._plans[key] = plan

    def clear(self) -> None:
        """Forget everything."""
        self._recent = ()
        self._plans.clear()
