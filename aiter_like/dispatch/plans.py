# SPDX-License-Identifier: MIT
"""Plan cache of an operator: the metadata of a call's arguments → the function that serves it. Used by dispatch.py.

What was decided once (checks, backend, tuned row, build) holds for every call whose arguments look the same: shape,
strides, layout, dtype, device, type, requires_grad under grad mode, lazy negation and conjugation; scalars by type and
value. Not in the key: addresses. A kernel that needs alignment checks it itself, addresses.py the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor

from aiter_like.call import handing_on
from aiter_like.dispatch.addresses import parameters
from aiter_like.errors import AddressError, UnsupportedError

try:  # the check behind torch.compile's guards: all metadata of all tensors in one C++ call
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # private to torch, so it may go: then every call takes the dictionary, 1.5 µs slower
    TensorGuards = None

_is_grad_enabled = torch.is_grad_enabled

RECENT = 8  # a decoder layer and the head take five products in turn; a miss here costs 0.2 µs per entry


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
    """One recent call.

    Attributes:
        plan: that of the call.
        is_like: of the selector and the arguments of another call: whether they look like those of this one.
            TensorGuards looks at the tensors, the others are compared by type and value. It refuses a tensor that comes
            twice (`out` may be `input`), so each is checked at its first position and must come again at the others.
        serves: of the same: whether the plan has served the call. It has not where the call is another, or where the
            plan refused it, before it wrote anything. Most calls run this and little else, so that it is one function,
            made from source text.
    """

    __slots__ = ("is_like", "plan", "serves")

    def __init__(self, selector: Any, args: tuple, plan: Callable, detour: Callable[[Any, tuple], Callable]):
        self.plan = plan
        used: dict[str, Any] = {"is_grad_enabled": _is_grad_enabled}
        first: dict[int, int] = {}  # id of a tensor → its first position
        asked = []
        for index, arg in enumerate(args):
            if isinstance(arg, Tensor):
                if first.setdefault(id(arg), index) != index:
                    asked.append(f"arg{index} is arg{first[id(arg)]}")
            elif arg is None or arg is True or arg is False:
                asked.append(f"arg{index} is {arg}")
            else:
                used |= {f"type{index}": type(arg), f"value{index}": arg}
                asked.append(f"type(arg{index}) is type{index} and arg{index} == value{index}")
        tensors, names = [args[index] for index in first.values()], [f"arg{index}" for index in first.values()]
        used["check"] = TensorGuards(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                                     dynamic_dims_strides=[list(t.stride()) for t in tensors]).check
        # Nested tensors have no strides: TensorGuards would end the process.
        is_nested = " or ".join(f"{name}.is_nested" for name in names)
        asked[:0] = ["chosen == selector", f"not ({is_nested})", f"check({', '.join(names)})",
                     f"is_grad_enabled() is {_is_grad_enabled()}"]
        used |= {"selector": selector, "refusals": (TypeError, ValueError, UnsupportedError),
                 "AddressError": AddressError, "detour": detour}
        every = dict.fromkeys(("chosen", *parameters(len(args))), Parameter.empty)
        # A question may fail of arguments of another kind than at that position before.
        comparison = ["try:", f"    is_like = {' and '.join(asked)}",
                      "except (TypeError, RuntimeError, AttributeError): is_like = False"]
        self.is_like = handing_on("is_like", every, {}, [*comparison, "return is_like"], **used)
        given = ", ".join(parameters(len(args)))
        statements, named = getattr(plan, "text", ([f"plan({given})"], {"plan": plan}))
        serving = [*comparison, "if not is_like: return False", "try:", "    try:",
                   *(f"        {one}" for one in statements),
                   f"    except AddressError: detour(chosen, ({given},))({given})",
                   "except refusals: return False", "return True"]
        self.serves = handing_on("serves", every, {}, serving, **used, **named)


class PlanCache:
    """Bounded map (selector, metadata of the arguments) → plan; the oldest plan leaves first.

    Attributes:
        serving: of the last few distinct calls, functions of a selector and arguments: whether the call was like that
            one and its plan has served it.
    """

    def __init__(self, detour: Callable[[Any, tuple], Callable], limit: int = 4096):
        """detour: of a selector and arguments whose addresses the plan's kernel cannot take: what serves them."""
        self.limit, self._detour = limit, detour
        self._plans: dict[tuple, Callable] = {}
        # A key has several entries where calls differ in aliases or in torch's modes.
        self._entries: dict[tuple, list[_Entry]] = {}
        self._recent: tuple[_Entry, ...] = ()
        self.serving: tuple[Callable[..., bool], ...] = ()

    def __len__(self) -> int:
        return len(self._plans)

    def recent(self, selector: Any, args: tuple) -> Callable | None:
        """The plan of one of the last few distinct calls; None where none of them looked like this one.

        Also misses, unlike `find`, under a torch dispatch mode or transform that was not active then.
        """
        return next((entry.plan for entry in self._recent if entry.is_like(selector, *args)), None)

    def find(self, selector: Any, args: tuple) -> Callable | None:
        """The plan for these arguments, or None. A hit becomes the first of the recent ones."""
        try:
            key = (selector, *metadata(args))
            plan = self._plans.get(key)
        except (TypeError, RuntimeError):  # no key: such a call is never stored, its check says what is wrong
            return None
        if plan is not None and TensorGuards is not None and not any(map(_is_tensors, args)):
            self._keep((self._entry(key, args, plan), *self._recent[:RECENT - 1]))
        return plan

    def _keep(self, entries: tuple[_Entry, ...]) -> None:
        self._recent, self.serving = entries, tuple(entry.serves for entry in entries)

    def _entry(self, key: tuple, args: tuple, plan: Callable) -> _Entry:
        """One for a call of this key, made where none of the earlier ones fits, at some 50 µs."""
        known = self._entries.setdefault(key, [])
        for entry in known:
            if entry.is_like(key[0], *args):
                return entry
        known[:] = [_Entry(key[0], args, plan, self._detour), *known[:RECENT - 1]]
        return known[0]

    def store(self, selector: Any, args: tuple, plan: Callable) -> None:
        """Keep a plan, in place of an earlier one for such arguments."""
        try:
            key = (selector, *metadata(args))
        except (TypeError, RuntimeError):
            return
        if key in self._plans:
            self._keep(())
            self._entries.pop(key, None)
        elif len(self._plans) >= self.limit:
            oldest = next(iter(self._plans))
            self._plans.pop(oldest, None)
            self._entries.pop(oldest, None)
        self._plans[key] = plan

    def clear(self) -> None:
        """Forget everything."""
        self._keep(())
        self._plans.clear()
        self._entries.clear()
