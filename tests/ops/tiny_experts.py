# SPDX-License-Identifier: MIT
"""Layers of experts for the small Llama of tiny_llama.py, routed as three kinds of models do, and theirs in float64."""

from typing import NamedTuple

import tiny_llama
import torch
from tiny_llama import DTYPE, HIDDEN, Layer, Weights
from torch import Tensor


class Kind(NamedTuple):
    """How a model's layers are.

    Attributes:
        experts: of a layer.
        slots: of them, those that a token has.
        width: columns between an expert's products.
        groups: of experts; of those with the best two, `best_groups` are looked at; 0: scores are softmaxes, without
            groups and without a bias.
        best_groups: see there.
        factor: of the renormalised weights.
    """

    experts: int
    slots: int
    width: int
    groups: int = 0
    best_groups: int = 0
    factor: float = 1.0


KINDS = {"mixtral": Kind(8, 2, 128), "qwen3_moe": Kind(16, 4, 64), "deepseek": Kind(16, 4, 64, 4, 2, 1.5)}


class Experts(NamedTuple):
    """Weights of one layer.

    Attributes:
        gate: [experts, HIDDEN].
        bias: [experts] fp32, for the choice alone; None without groups.
        w1: [experts, 2 · width, HIDDEN].
        w2: [experts, HIDDEN, width].
        shared: of all tokens, like w1 and w2 of one expert; None without groups.
    """

    kind: Kind
    gate: Tensor
    bias: Tensor | None
    w1: Tensor
    w2: Tensor
    shared: tuple[Tensor, Tensor] | None


def weights(name: str, seed: int) -> Weights:
    """tiny_llama's with experts in each layer."""
    model, kind = tiny_llama.weights(seed), KINDS[name]
    generator = torch.Generator().manual_seed(seed + 1)

    def matrix(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) / shape[-1] ** 0.5).to(DTYPE)

    def layer(dense: Layer) -> Layer:
        shared, bias = None, None
        if kind.groups:
            shared = matrix(2 * kind.width, HIDDEN), matrix(HIDDEN, kind.width)
            bias = torch.rand(kind.experts, generator=generator)
        experts = Experts(kind, matrix(kind.experts, HIDDEN) * 2, bias, matrix(kind.experts, 2 * kind.width, HIDDEN),
                          matrix(kind.experts, HIDDEN, kind.width) * 2, shared)
        return dense._replace(gate_up=None, down=None, experts=experts)

    return model._replace(layers=tuple(map(layer, model.layers)))


def forward64(experts: Experts, y: Tensor) -> Tensor:
    """What a layer of experts makes of [..., HIDDEN] in float64."""
    kind, rows = experts.kind, y.flatten(0, -2)
    chosen, scores = choice64(experts, rows)
    weight = scores.gather(1, chosen)
    weight = weight / weight.sum(1, keepdim=True) * kind.factor
    out = torch.zeros_like(rows)
    for expert in range(kind.experts):
        row, slot = (chosen == expert).nonzero(as_tuple=True)
        inner = _gated(rows[row] @ experts.w1[expert].double().t())
        out.index_add_(0, row, inner @ experts.w2[expert].double().t() * weight[row, slot, None])
    if experts.shared is not None:
        out += _gated(rows @ experts.shared[0].double().t()) @ experts.shared[1].double().t()
    return out.view_as(y)


def choice64(experts: Experts, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The experts of each row, and all scores."""
    kind, logits = experts.kind, rows @ experts.gate.double().t()
    if not kind.groups:
        return logits.topk(kind.slots, 1).indices, logits.softmax(1)
    scores = logits.sigmoid()
    grouped = (scores + experts.bias.double()).unflatten(1, (kind.groups, -1))
    best = grouped.topk(2, 2).values.sum(2).topk(kind.best_groups, 1).indices
    is_in = torch.zeros(len(rows), kind.groups, dtype=torch.bool).scatter(1, best, True)
    return grouped.masked_fill(~is_in[..., None], -torch.inf).flatten(1).topk(kind.slots, 1).indices, scores


def _gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up
