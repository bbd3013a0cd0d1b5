# SPDX-License-Identifier: MIT
"""Functions of torch that on the CPU add or multiply in the type of 16-bit tensors, and on a GPU in float32: within
sim.as_gpu() they do the latter. All others already do. And those that the CPU has not for a type, and a GPU has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from aiter_like.sim.torch_cuda import marks

FUNCTIONS = frozenset((functional.layer_norm, torch.layer_norm, functional.embedding, torch.embedding, torch.prod,
                       torch.Tensor.prod))
"""layer_norm and embedding sum the gradients of their weights over rows, prod multiplies."""

_LACKING = frozenset((torch.histc, torch.Tensor.histc, functional.avg_pool3d, functional.multi_margin_loss,
                      functional.multilabel_margin_loss))
"""histc of integers, and the others of 16 bits, are a GPU's alone. Else a GPU refuses what the CPU does."""
_REFUSED = ("not implemented for '", "without overflow")  # the latter for no elements of uint8
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
    result = _run(func, args, kwargs, _widened).to(_first(args, kwargs).dtype)
    marks.follow(result, [*marks.tensors(args), *marks.tensors(kwargs)])
    return result


def instead(func: Callable, args: tuple, kwargs: dict, error: RuntimeError) -> torch.Tensor | None:
    """What a call gives on a GPU that the CPU refuses for the type of its tensors: computed in float32, or float64 for
    integers, whose limits are integers too, and rounded to that type. None: it is no such call.
    """
    if func not in _LACKING or kwargs.get("out") is not None or not any(text in str(error) for text in _REFUSED):
        return None
    first = next(marks.tensors((args, kwargs)))
    if marks.index_of(first) is None:
        return None
    wider = torch.float32 if first.dtype in _TYPES else torch.float64

    def widened(value: Any) -> Any:
        if wider is torch.float64 and isinstance(value, float):
            return int(value)
        return value.to(wider) if isinstance(value, torch.Tensor) and value.dtype == first.dtype else value

    return _run(func, args, kwargs, widened).to(first.dtype)


def _run(func: Callable, args: tuple, kwargs: dict, widened: Callable[[Any], Any]) -> torch.Tensor:
    return func(*map(widened, args), **{name: widened(value) for name, value in kwargs.items()})


def _first(args: tuple, kwargs: dict) -> torch.Tensor | None:
    floating = (one for one in marks.tensors((*args, *kwargs.values())) if one.is_floating_point())
    return next(floating, None)


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _TYPES else value
