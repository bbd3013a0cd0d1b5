# SPDX-License-Identifier: MIT
"""Finds the modules that calls of a model or of recorded shapes take, by asking the operators without data or a GPU.

Read by `aiter-like build`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like.dispatch.selection import Request, select
from aiter_like.dispatch.without_memory import call_of, quiet
from aiter_like.errors import TuningError
from aiter_like.modules.recipe import ModuleSpec
from aiter_like.tuning import models, shapes

if TYPE_CHECKING:
    from aiter_like.device import Target
    from aiter_like.dispatch import Op
    from aiter_like.dispatch.backend import Backend

TOKENS = (*range(1, 17), *range(24, 257, 8), *range(320, 1025, 64), *range(2048, 16385, 1024))
"""Tokens of a forward pass: the batches that engines capture as graphs, and lengths of prefills. A heuristic may choose
another tile between any two powers of two."""

Keys = list[dict[str, Any]]


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
    """The modules that calls with these keys load, with the tuned rows and, for a machine where these are stale,
    without.

    The first compiled backend counts, also behind others, and so does the first tuned row of one: they serve where the
    vendor's library or Triton does not.
    """
    for key in keys:
        with quiet():
            args = call_of(op.tuning, key)
            compiled = select(op, Request(target, args, compiled_only=True)).candidates
        first, untuned = compiled[:1], [candidate for candidate in compiled if candidate.row is None][:1]
        for chosen in (*first, *(one for one in untuned if one not in first)):
            yield chosen.backend, chosen.backend.module(target, args, chosen)
