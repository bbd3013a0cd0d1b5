# SPDX-License-Identifier: MIT
"""Functions of torch that on the CPU add or multiply in the type of 16-bit tensors, and on a GPU in float32: within
sim.as_gpu() they do the latter. All others already do.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from aiter_like.sim.torch_cuda import marks

FUNCTIONS = frozenset((functional.layer_norm, torch.layer_norm, functional.embedding, torch.embedding, torch.prod,
                       torch.Tensor.prod))
"""layer_norm and embedding sum the gradients of their weights over rows, prod multiplies."""

_TYPES = (torch.float16, torch.bfloat16)
_KEPT = ("out", "dtype", "max_norm", "sparse")  # options under which a function of float32 would not be the same one


def is_meant(func: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether this call is to run in float32: it is of 16-bit tensors on a GPU, and float32 changes its values."""
    if func not in FUNCTIONS or any(kwargs.get(name) is not None and kwargs[name] is not False for name in _KEPT):
        return False
    first = _first(args, kwargs)
    if first is None or first.dtype not in _TYPES or marks.index_of(first) is None:
        return False
    if func in (functional.embedding, torch.embedding):  # forwards it copies rows; max_norm and sparse by position
        return len(args) <= 3 and first.requires_grad and torch.is_grad_enabled()
    return True


def called(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """The function in float32, rounded once to the type of its first tensor; of gradients likewise."""
    named = {name: _widened(value) for name, value in kwargs.items()}
    result = func(*map(_widened, args), **named).to(_first(args, kwargs).dtype)
    marks.follow(result, marks.tensors((args, kwargs)))
    return result


def _first(args: tuple, kwargs: dict) -> torch.Tensor | None:
    floating = (one for one in marks.tensors((args, kwargs)) if one.is_floating_point())
    return next(floating, None)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _TYPES else value
