# SPDX-License-Identifier: MIT
"""Models whose layers give the tuner its shapes: configs/models/<name>.toml, from their public configurations."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiter_like import paths
from aiter_like.dispatch import table
from aiter_like.errors import TuningError, did_you_mean

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a forward pass, from decoding one sequence to prefill."""


@dataclass(frozen=True)
class Model:
    """The sizes of a decoder.

    Attributes:
        intermediate_size: of a dense layer's MLP; of an expert: moe_intermediate_size.
        qk_norm: q and k heads are normalised.
        num_dense_layers: of a model with experts, the first layers that have none.
        q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim: of latent attention, else 0.
        dtype: of activations.
    """

    name: str
    source: str
    parameters: float
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    dtype: str = "bf16"


def names() -> list[str]:
    """The models that there are."""
    return sorted(path.stem for path in (paths.configs() / "models").glob("*.toml"))


def load(name: str) -> Model:
    """A model by the name of its file.

    Raises:
        TuningError: there is none of that name, or its file has other fields than Model.
    """
    path = paths.configs() / "models" / f"{name}.toml"
    if name not in names():
        raise TuningError(f"no model {name!r}{did_you_mean(name, names())}; there are: {', '.join(names())}; shapes of "
                          "another one: AITER_LIKE_RECORD and --recorded, or --shape")
    sizes = tomllib.loads(path.read_text())
    fields = {field.name: field for field in dataclasses.fields(Model)}
    unknown = sorted(sizes.keys() - fields.keys() - {"name"})
    missing = [field.name for field in fields.values()
               if field.default is dataclasses.MISSING and field.name not in ("name", *sizes)]
    if unknown or missing:
        raise TuningError(f"{path}:1: unknown: {', '.join(unknown) or 'nothing'}; missing: "
                          f"{', '.join(missing) or 'nothing'}")
    return Model(name=name, **sizes)


def keys(op: Op, model: Model, tp: int, tokens: Sequence[int] = TOKENS) -> list[dict[str, Any]]:
    """The tune keys that an operator has in a model on one of `tp` GPUs, each once.

    Raises:
        TuningError: the operator declares no shapes, has none in this model, or `tp` does not divide the heads.
    """
    if op.tuning is None or op.tuning.shapes is None:
        raise TuningError(f"{op.name} declares no shapes of models (dispatch/tuning.py): use --shapes or --recorded")
    check_tp(model, tp)
    found = {table.normalised(op.name, op.tune_fields, key): None for key in _keys(op, model, tp, tokens)}
    if not found:
        raise TuningError(f"{op.name} does not occur in {model.name}")
    return [dict(zip(op.tune_fields, values)) for values in found]


def check_tp(model: Model, tp: int) -> None:
    """A number of GPUs that shares a model.

    Raises:
        TuningError: it does not divide the heads.
    """
    if tp < 1 or model.num_heads % tp:
        raise TuningError(f"{model.name}: tp must divide its {model.num_heads} heads, got {tp}")


def _keys(op: Op, model: Model, tp: int, tokens: Sequence[int]) -> Iterator[dict[str, Any]]:
    for count in tokens:
        yield from op.tuning.shapes(model, tp, count)
