# SPDX-License-Identifier: MIT
"""Calls without data and without a GPU: what an operator would do with them can be asked."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from aiter_like.dispatch.tuning import Tuning

_META = torch.device("meta")
_Made = TypeVar("_Made")
_LARGE = 1 << 24  # elements: no table of indices has as many, and weights need no numbers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the block torch does not warn where an address is asked of a tensor that has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def call_of(tuning: Tuning, key: Mapping[str, Any]) -> tuple:
    """Arguments of a call with a tune key, as `made` makes them."""
    return made(lambda device: tuning.case(key, device, 0))


def made(make: Callable[[torch.device], _Made]) -> _Made:
    """Calls `make` so that its tensors have no memory behind them, or small ones only where it computes with these."""
    cpu = torch.device("cpu")
    with torch.no_grad():
        try:
            with _WithoutMemory():
                return make(cpu)
        except RuntimeError:  # it asks for data, or its own fault, which the next lines tell
            with _LargeAreFake():
                return make(cpu)


class _WithoutMemory(TorchFunctionMode):
    """Makes every tensor on torch's device without memory, whatever device is asked for."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        named = {name: _META if isinstance(value, torch.device) else value for name, value in (kwargs or {}).items()
                 if name != "generator"}
        if func in (torch.ones, torch.rand, torch.randn, torch.zeros):  # alike without memory, at less cost
            func = torch.empty
        return func(*(_META if isinstance(arg, torch.device) else arg for arg in args), **named)


class _LargeAreFake(TorchFunctionMode):
    """Makes large tensors without memory, and small ones as they are."""

    def __init__(self):
        super().__init__()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in _FACTORIES or math.prod(_sizes(args, kwargs)) <= _LARGE:
            return func(*args, **kwargs)
        with self._fake:
            return func(*args, **kwargs)


_FACTORIES = ("empty", "full", "ones", "rand", "randint", "randn", "zeros")


def _sizes(args: tuple, kwargs: Mapping[str, Any]) -> Iterable[int]:
    """The sizes that a factory gets: in one sequence, or as numbers."""
    return next((one for one in (kwargs.get("size"), *args) if isinstance(one, (tuple, list, torch.Size))),
                [one for one in args if isinstance(one, int)])
