# SPDX-License-Identifier: MIT
"""The call object of an operator: a NamedTuple whose fields are the operator's arguments, in order, with defaults.

It is the only place in Python where the arguments are listed. Reference, stubs, check, tune key, refusals, traffic and
cases take it. Between them the machinery hands on its fields by position, as the built functions take them.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any


@functools.cache
def signature(call: type) -> inspect.Signature:
    """The signature of a function whose parameters are the fields of a call object, and which returns nothing."""
    hints = typing.get_type_hints(call)
    return inspect.Signature([
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hints[name],
                          default=call._field_defaults.get(name, inspect.Parameter.empty))
        for name in call._fields], return_annotation=None)


def with_fields(call: type, function: Callable[..., Any] | None, before: int = 0) -> Callable[..., Any] | None:
    """`function(…, call(...), **params)` as a function of the fields by position, after `before` other arguments."""
    if function is None:
        return None
    if before:
        return functools.wraps(function)(
            lambda *args, **params: function(*args[:before], call(*args[before:]), **params))

    @functools.wraps(function)
    def taking_fields(*args: Any, **params: Any) -> Any:
        return function(call(*args), **params)

    taking_fields.__signature__ = signature(call)
    return taking_fields


def entry(call: type, serve: Callable[[tuple, str | None], None]) -> Callable[..., None]:
    """`serve(fields, backend)` as a function of the fields of a call object, by position or name, and of `backend=`.

    It is made from source text, as collections.namedtuple makes its constructor: all public functions pass here, and a
    function with named parameters costs the host a third of what a call object, or `**kwargs`, would.
    """
    defaults = {f"default_{name}": value for name, value in call._field_defaults.items()}
    fields = ", ".join(call._fields)
    parameters = ", ".join(name + (f"=default_{name}" if name in call._field_defaults else "") for name in call._fields)
    namespace: dict[str, Any] = {"__name__": __name__}
    # A closure, as torch.compile looks up globals in the module that `__name__` names.
    exec(f"def make({', '.join(['serve', *defaults])}):\n"
         f"    def run({parameters}, *, backend=None):\n"
         f"        serve(({fields},), backend)\n"
         f"    return run", namespace)
    return namespace["make"](serve, **defaults)


def call_type(function: Callable[..., Any]) -> type | None:
    """The call object that a stub declares as its only parameter; None where it lists its parameters itself."""
    kinds = [parameter.annotation for parameter in inspect.signature(function, eval_str=True).parameters.values()]
    return kinds[0] if len(kinds) == 1 and hasattr(kinds[0], "_fields") else None
