# SPDX-License-Identifier: MIT
"""AITER's decorator that makes a function an operator of torch, which compiled graphs do not look into. Named by
names.txt.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

_NAMESPACE = "aiter"
_Function = Callable[..., Any]


def torch_compile_guard(mutates_args: Sequence[str] | str = "unknown", device: str = "cpu",
                        calling_func_: _Function | None = None,
                        gen_fake: _Function | None = None) -> Callable[[_Function], _Function]:
    """A decorator: the function becomes torch.ops.aiter.<its name>, and calls of it calls of that.

    Args:
        mutates_args: names of the tensors that it writes; "unknown": any of them.
        device: of no meaning: an operator without tensors needs none here.
        calling_func_: the function whose name, parameters and annotations the operator has; None: the decorated one.
        gen_fake: what a graph sees of it, results of the right shapes; None: the function itself is called with tensors
            that have no elements in memory.

    Raises:
        ValueError: by the decorator: an annotation for which an operator of torch has no type.
    """

    def decorator(function: _Function) -> _Function:
        described = calling_func_ or function
        name = described.__name__
        if not hasattr(getattr(torch.ops, _NAMESPACE), name):
            schema = torch.library.infer_schema(described, mutates_args=mutates_args)
            _library().define(name + schema)
            _library().impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{_NAMESPACE}::{name}", gen_fake or described, lib=_library())
        operator = getattr(getattr(torch.ops, _NAMESPACE), name)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return operator(*args, **kwargs)

        return call

    return decorator


def is_torch_equal_or_newer(target: str) -> bool:
    """Whether torch is this version or a later one; what follows the numbers of a version does not count."""
    return _numbers(torch.__version__) >= _numbers(target)


@functools.cache
def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.match(r"\d+(\.\d+)*", str(version))[0].split(".")))


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library(_NAMESPACE, "FRAGMENT")
