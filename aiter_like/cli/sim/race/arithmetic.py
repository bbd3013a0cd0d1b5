# SPDX-License-Identifier: MIT
"""Arithmetic in the data files of a race: numbers that follow from a row's sizes, as "ceil(m / 128) * splits"."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from aiter_like.cli.sim import described
from aiter_like.errors import did_you_mean

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"ceil": math.ceil, "min": min, "max": max, "sqrt": math.sqrt,
                                             "log2": math.log2}
_LONGEST = 200  # characters


def number(value: Any, sizes: Mapping[str, Any], place: str) -> int | float:
    """A number, or a text of arithmetic, at a row's sizes.

    Raises:
        ValueError: it is neither, names no size, or cannot be computed; the message begins with `place`.
    """
    if type(value) in (int, float):
        return value
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"{place} must be a number or arithmetic of sizes, got {described.GOT.repr(value)}")
    try:
        found = _value(ast.parse(value, mode="eval").body, sizes)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{place}: {described.GOT.repr(value)}: {error}") from error
    return int(found) if isinstance(found, bool) else found


def integer(value: Any, sizes: Mapping[str, Any], place: str) -> int:
    """Like `number`, for what must be whole."""
    found = number(value, sizes, place)
    if found != int(found):
        raise ValueError(f"{place} must be whole, got {found} of {described.GOT.repr(value)}")
    return int(found)


def _value(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Name(id=name) if isinstance(sizes.get(name), (int, float)):
            return sizes[name]
        case ast.Name(id=name):
            raise ValueError(f"no size is called {name}{did_you_mean(name, sizes)}; there are: {', '.join(sizes)}")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, sizes))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, sizes) else orelse, sizes)
        case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(one, sizes) for one in node.args))
    raise ValueError(f"no such arithmetic: {ast.unparse(node)}; there are + - * / // %, comparisons, `a if c else b`, "
                     f"{', '.join(_FUNCTIONS)}")
