# SPDX-License-Identifier: MIT
"""The call object of an operator: a NamedTuple whose fields are the operator's arguments, in order, with defaults.

It is the only place in Python where the arguments are listed. Reference, stubs, check, tune key, refusals, traffic and
cases take it. Between them the machinery hands on its fields by position, as the built functions take them.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import types
import typing
from collections.abc import Callable, Iterable, Mapping
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


def entry(call: type, run: Callable[..., None], first: str, **used: Any) -> Callable[..., None]:
    """`run(*fields, backend=backend)` with the fields of a call object as parameters, and a statement before it, in
    which FIELDS stands for the fields and which sees `used`.
    """
    empty = inspect.Parameter.empty
    fields = {name: call._field_defaults.get(name, empty) for name in call._fields}
    given = ", ".join(fields)
    statements = [*first.replace("FIELDS", given).splitlines(), f"cold({given}, backend=backend)"]
    return handing_on("run", fields, {"backend": None}, statements, cold=run, **used)


def with_parameters(name: str, function: Callable[..., Any], positional: Mapping[str, Any],
                    named: Mapping[str, Any] = types.MappingProxyType({})) -> Callable[..., Any]:
    """`function(positional, *named)` as `name`, with these parameters: name → default, or Parameter.empty."""
    given = ", ".join([f"({', '.join(positional)},)", *named])
    return handing_on(name, positional, named, [f"return function({given})"], function=function)


def guarded(name: str, function: Callable[..., Any], flags: Iterable[str], refuse_flags: Callable[[tuple], None],
            raise_in_words: Callable[[Exception, tuple], None]) -> Callable[..., Any]:
    """`function` as `name`, with its parameters.

    Args:
        flags: parameters that are True or False; `refuse_flags` gets their values where one is neither.
        raise_in_words: of an error and the values of all parameters; what it does not raise is raised as it is.
    """
    parameters = inspect.signature(function).parameters.values()
    positional, named = ({each.name: each.default for each in parameters if each.kind is kind}
                         for kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY))
    if len(positional) + len(named) < len(parameters):
        raise TypeError(f"{name}: a public function takes no *args and no **kwargs")
    passed = ", ".join([*positional, *(f"{each}={each}" for each in named)])
    is_wrong = " or ".join(f"{each} is not True and {each} is not False" for each in flags)
    return handing_on(name, positional, named, (
        "try:",
        *[f"    if {is_wrong}: refuse_flags(({', '.join(flags)},))"] * bool(is_wrong),
        f"    return function({passed})",
        "except Exception as error:",  # a `try` costs nothing where nothing is raised
        f"    raise_in_words(error, ({''.join(f'{each}, ' for each in (*positional, *named))}))",
        "    raise"), function=function, raise_in_words=raise_in_words, refuse_flags=refuse_flags)


def handing_on(name: str, positional: Mapping[str, Any], named: Mapping[str, Any], statements: Iterable[str],
               **used: Any) -> Callable[..., Any]:
    """A function `name` of `statements`, which see `used` and the parameters: name → default, or Parameter.empty.

    It is made from source text, as collections.namedtuple makes its constructor: every call of the package passes such
    functions, and one with named parameters costs the host a third of what a call object, or `**kwargs`, would.
    """
    parameters = [*positional.items(), *named.items()]
    defaults = {f"default_{each}": value for each, value in parameters if value is not inspect.Parameter.empty}
    listed = [each + f"=default_{each}" * (f"default_{each}" in defaults) for each, _ in parameters]
    listed[len(positional):len(positional)] = ["*"] * bool(named)
    body = "".join(f"\n        {statement}" for statement in statements)
    namespace: dict[str, Any] = {"__name__": __name__}
    # A closure, as torch.compile looks up globals in the module that `__name__` names.
    exec(_compiled(name, f"def make({', '.join([*used, *defaults])}):\n    def {name}({', '.join(listed)}):{body}\n"
                         f"    return {name}"), namespace)
    return namespace["make"](**used, **defaults)


@functools.lru_cache(maxsize=1024)
def _compiled(name: str, text: str) -> types.CodeType:
    """Code of source text, whose lines a traceback shows: what differs between like classes of calls has a name there,
    so that they share theirs.
    """
    file = f"<aiter_like {name} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    return compile(text, file, "exec")


def call_type(function: Callable[..., Any]) -> type | None:
    """The call object that a stub declares as its only parameter; None where it lists its parameters itself."""
    kinds = [parameter.annotation for parameter in inspect.signature(function, eval_str=True).parameters.values()]
    return kinds[0] if len(kinds) == 1 and hasattr(kinds[0], "_fields") else None
