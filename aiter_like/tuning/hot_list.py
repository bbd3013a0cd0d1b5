# SPDX-License-Identifier: MIT
"""The shapes that matter first, of an operator: configs/hot_list.toml names models, tokens, and shapes of others."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiter_like import paths
from aiter_like.dispatch import table
from aiter_like.errors import TuningError
from aiter_like.tuning import models, shapes

if TYPE_CHECKING:
    from aiter_like.dispatch import Op


def keys(op: Op) -> list[dict[str, Any]]:
    """The tune keys of an operator's hot list, each once: those named for it, then those of the models.

    Raises:
        TuningError: it has none, or one that is named for it has other fields.
    """
    listed = tomllib.loads((paths.configs() / "hot_list.toml").read_text(encoding="utf-8"))
    named = (shapes.parse(text, op.name, op.tune_fields) for text in listed["shapes"].get(op.name, ()))
    found = (table.normalised(op.name, op.tune_fields, key)
             for key in itertools.chain(named, _of_models(op, listed["models"], listed["tokens"])))
    result = list(itertools.islice(dict.fromkeys(found), listed["most"]))
    if not result:
        raise TuningError(f"{op.name} has no shapes in configs/hot_list.toml: use --shapes, --shape or --recorded")
    return [dict(zip(op.tune_fields, values)) for values in result]


def _of_models(op: Op, names: dict[str, int], tokens: list[int]) -> Iterator[dict[str, Any]]:
    """The shapes of all models for each number of tokens; a model that does without the operator has none."""
    if op.tuning is not None and op.tuning.shapes is not None:
        for count, (name, tp) in itertools.product(tokens, names.items()):
            yield from op.tuning.shapes(models.load(name), tp, count)
