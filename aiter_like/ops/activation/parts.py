# SPDX-License-Identifier: MIT
"""What the operators of this family share: the activations in torch, and the shapes they have in a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

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


def mlp_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """The rows between the two products of an MLP, and of an expert where the model has experts."""
    sizes = {model.intermediate_size: tokens}
    if model.num_experts:
        sizes[model.moe_intermediate_size] = tokens * model.experts_per_token
    for size, count in sizes.items():
        if size // tp:
            yield {"rows": count, "columns": size // tp, "dtype": model.dtype, "out_dtype": model.dtype}
