# SPDX-License-Identifier: MIT
"""Shared by the operators of this family: the activations in torch, and the shapes they have in a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from aiter_like import check

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swiglu")
SWIGLU_LIMIT, _SWIGLU_ALPHA = 7.0, 1.702  # GPT-OSS


def activated(x: Tensor, activation: str) -> Tensor:
    """act(x) in torch; swiglu is x · sigmoid(1.702 x). torch's gelu loses the lower tail in 1 + erf, 1 + tanh."""
    if activation == "swiglu":
        return x * torch.sigmoid(_SWIGLU_ALPHA * x)
    if activation == "silu":
        return torch.nn.functional.silu(x)
    if activation == "gelu_tanh":
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    return x * 0.5 * torch.special.erfc(x * -math.sqrt(0.5))


def gated(x: Tensor, activation: str, limit: float) -> Tensor:
    """act(gate) · up of rows that hold gate and up, in the dtype of `x`."""
    gate, up = x.chunk(2, -1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return activated(gate, activation) * (up + 1 if activation == "swiglu" else up)


def check_halves(op: str, name: str, x: Tensor) -> tuple[int, ...]:
    """The shape [..., d] of what comes of `x`, whose rows [..., 2d] hold gate and up."""
    check.dense(op, name, x)
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"{op}: {name} must have an even last dimension, gate and up, got shape {tuple(x.shape)}")
    return *x.shape[:-1], x.shape[-1] // 2


def mlp_sizes(model: Any, tp: int, tokens: int) -> Iterator[tuple[int, int]]:
    """(rows, columns) between the two products of an MLP, and of an expert where the model has experts."""
    sizes = {model.intermediate_size: tokens}
    if model.num_experts:
        sizes[model.moe_intermediate_size] = tokens * model.experts_per_token
    for size, count in sizes.items():
        if size // tp:
            yield count, size // tp
