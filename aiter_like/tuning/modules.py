# SPDX-License-Identifier: MIT
"""Which modules the calls of a model or of recorded shapes take, asked of the operators without data and without a GPU.

Read by `aiter-like build`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from aiter_like.build.recipe import ModuleSpec
from aiter_like.dispatch.selection import Request, select
from aiter_like.errors import TuningError
from aiter_like.tuning import models, shapes

if TYPE_CHECKING:
    from aiter_like.device import Target
    from aiter_like.dispatch import Op
    from aiter_like.dispatch.backend import Backend

TOKENS = (*range(1, 17), *range(24, 257, 8), *range(320, 1025, 64), *range(2048, 16385, 1024))
"""Tokens of a forward pass: the batches that engines capture as graphs, and lengths of prefills. A heuristic may choose
another tile between any two powers of two."""

Keys = list[dict[str, Any]]
_META = torch.device("meta")
_LARGE = 1 << 24  # elements: no table of indices has as many, and weights need no numbers


def of_model(model: models.Model, tp: int) -> Callable[[Op], Keys | None]:
    """The keys of an operator in a model on one of `tp` GPUs: none where the model does without it, None where the
    operator does not say.

    Raises:
        TuningError: `tp` does not divide the heads.
    """
    models.check_tp(model, tp)

    def keys(op: Op) -> Keys | None:
        if op.tuning is None or op.tuning.shapes is None:
            return None
        try:
            return models.keys(op, model, tp, TOKENS)
        except TuningError:  # it does not occur in the model
            return []

    return keys


def of_recorded(folder: Path, operators: Iterable[Op]) -> Callable[[Op], Keys | None]:
    """The keys of an operator that AITER_LIKE_RECORD left in a folder; None where none of its calls can be recorded.

    Raises:
        TuningError: there is no such folder, nothing is recorded in it, or a file is damaged.
    """
    if not folder.is_dir():
        raise TuningError(f"--recorded: {folder} is no directory: run a program with AITER_LIKE_RECORD={folder}")
    recorded = {path.name.split(".")[0] for path in folder.glob("*.csv")}
    found = {op.name: shapes.recorded(folder, op.name, op.tune_fields) for op in operators
             if op.tuning is not None and op.name in recorded}
    if not found:
        raise TuningError(f"--recorded: no shapes of an operator in {folder}: run a program with "
                          f"AITER_LIKE_RECORD={folder}")
    return lambda op: None if op.tuning is None else found.get(op.name, [])


def of_keys(op: Op, keys: Keys, target: Target) -> Iterator[tuple[Backend, ModuleSpec]]:
    """What calls with these keys load, with the tuned rows and, for a machine where these are stale, without.

    The first compiled backend counts, also behind others, and so does the first tuned row of one: they serve where the
    vendor's library or Triton does not.
    """
    for key in keys:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns where an address is asked of a tensor that has none
            args = _call(op, key)
            compiled = select(op, Request(target, args, compiled_only=True)).candidates
        first, untuned = compiled[:1], [candidate for candidate in compiled if candidate.row is None][:1]
        for chosen in (*first, *(one for one in untuned if one not in first)):
            yield chosen.backend, chosen.backend.module(target, args, chosen)


def _call(op: Op, key: Mapping[str, Any]) -> tuple:
    """Arguments of a call without memory behind them, or behind small ones only where the case computes with these."""
    cpu = torch.device("cpu")
    with torch.no_grad():
        try:
            with _WithoutMemory():
                return op.tuning.case(key, cpu, 0)
        except RuntimeError:  # it asks for data, or its own fault, which the next lines tell
            with _LargeAreFake():
                return op.tuning.case(key, cpu, 0)


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
