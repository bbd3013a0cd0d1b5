# SPDX-License-Identifier: MIT
"""A Llama of two layers with random weights, and its logits by torch's attention in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 2, 128, 4, 2, 32, 256, 128
LONGEST, EPSILON = 96, 1e-5
DTYPE = torch.float16  # whose rounding is far below what decides a token


class Layer(NamedTuple):
    """Weights of one layer, which has experts (tiny_experts.py) or gate_up and down."""

    norm: Tensor
    qkv: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor | None
    down: Tensor | None
    experts: Any = None


class Weights(NamedTuple):
    """Weights of the model; cos and sin have a value per position and pair."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    cos: Tensor
    sin: Tensor


def weights(seed: int) -> Weights:
    """Random ones, in fp16; so large that attention decides tokens."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * gain / columns ** 0.5).to(DTYPE)

    def norm() -> Tensor:
        return (1 + 0.2 * torch.randn(HIDDEN, generator=generator)).to(DTYPE)

    layers = tuple(Layer(norm(), matrix((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, 1.5),
                         matrix(HIDDEN, HEADS * HEAD_DIM, 2.0), norm(), matrix(2 * INTERMEDIATE, HIDDEN),
                         matrix(HIDDEN, INTERMEDIATE)) for _ in range(LAYERS))
    angles = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    return Weights(torch.randn(VOCABULARY, HIDDEN, generator=generator).to(DTYPE), layers, norm(),
                   matrix(VOCABULARY, HIDDEN), angles.cos().to(DTYPE).float(), angles.sin().to(DTYPE).float())


def logits_of(model: Weights, tokens: Tensor, window: int = LONGEST,
              of_experts: Callable[[Any, Tensor], Tensor] | None = None) -> Tensor:
    """[batch, length, VOCABULARY] in float64 by torch's attention; a query sees `window` keys, its own included."""
    x = model.embedding.double()[tokens]
    length = tokens.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = (distance >= 0) & (distance < window)
    for layer in model.layers:
        qkv = (_norm64(x, layer.norm) @ layer.qkv.double().t()).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        q, k, v = qkv.split((HEADS, KV_HEADS, KV_HEADS), 1)
        q, k = (_rotated64(model, y) for y in (q, k))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + attended.transpose(1, 2).flatten(2) @ layer.o.double().t()
        y = _norm64(x, layer.mlp_norm)
        if layer.experts is not None:
            x = x + of_experts(layer.experts, y)
            continue
        gate, up = (y @ layer.gate_up.double().t()).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ layer.down.double().t()
    return _norm64(x, model.norm) @ model.head.double().t()


def _norm64(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (HIDDEN,), weight.double(), EPSILON)


def _rotated64(model: Weights, x: Tensor) -> Tensor:
    cos, sin = (table.double()[:x.shape[2]] for table in (model.cos, model.sin))
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
