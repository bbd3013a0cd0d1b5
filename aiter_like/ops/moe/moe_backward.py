# SPDX-License-Identifier: MIT
"""A layer of experts with its derivatives, of 16-bit matrices: what fused_moe does where autograd wants them.

It is made of operators: moe_sorting, moe_gemm, moe_sum and moe_weight_grad.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.moe.moe_gemm import activated_rows, moe_gemm
from aiter_like.ops.moe.moe_gemm_call import block_for, is_gated
from aiter_like.ops.moe.moe_sorting import moe_sorting
from aiter_like.ops.moe.moe_sum import moe_sum_op
from aiter_like.ops.moe.moe_weight_grad import moe_weight_grad

_OP = "fused_moe"
_ROWS = 4096  # pairs whose activation is derived at a time, in fp32


class _Layer(NamedTuple):
    """The arguments of a layer that are no tensors of autograd.

    Attributes:
        ids: [tokens, slots] int32, the experts.
        activation, limit, is_interleaved: of the first product, as in moe_gemm.
        order: which pairs are of which expert, as moe_gemm's arguments by name.
        weights: the pairs' weights in that order.
        backend: of the products, or None.
    """

    ids: Tensor
    activation: str
    limit: float
    is_interleaved: bool
    order: dict[str, Any]
    weights: Tensor
    backend: str | None

    @property
    def beside(self) -> str | None:
        """The backend of what has no kernel of every kind."""
        return "torch" if self.backend == "torch" else None

    def products(self, a: Tensor, b: Tensor, bias: Tensor | None = None, **rest: Any) -> Tensor:
        """[pairs, columns] of rows of tokens or pairs with the matrices of their experts, zeros of those without."""
        columns = b.shape[1] // (2 if is_gated(rest.get("activation", "none")) else 1)
        out = a.new_zeros(self.ids.numel(), columns)
        moe_gemm.run(out, a, b, bias=bias, backend=self.backend, **self.order, **rest)
        return out

    def sums(self, of_pairs: Tensor, experts: int) -> Tensor:
        """[tokens, columns]: the sums over the slots."""
        tokens, slots = self.ids.shape
        out = of_pairs.new_empty(tokens, of_pairs.shape[1])
        moe_sum_op.run(out, of_pairs.view(tokens, slots, -1), ids=self.ids, experts=experts, backend=self.beside)
        return out

    def weight_grad(self, like: Tensor, g: Tensor, a: Tensor) -> Tensor:
        """The derivative of experts' matrices or, with one column in `a`, of their biases."""
        out = torch.empty(like.shape[0], g.shape[1], a.shape[1], dtype=like.dtype, device=like.device)
        order = {name: value for name, value in self.order.items() if name != "slots"}
        moe_weight_grad.run(out, g, a, tokens=len(self.ids), slots=self.ids.shape[1], backend=self.beside, **order)
        return out.view(like.shape)


class _Experts(torch.autograd.Function):
    """The layer, without second derivatives: `_Experts.apply(hidden_states, w1, w2, topk_weight, bias1, bias2, layer)`.

    What is between the products is computed again for the derivatives, not kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, bias1: Tensor | None,
                bias2: Tensor | None, layer: _Layer) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(hidden, w1, w2, weights, bias1, bias2)
        inner = layer.products(hidden, w1, bias1, activation=layer.activation, limit=layer.limit,
                               is_interleaved=layer.is_interleaved)
        return layer.sums(layer.products(inner, w2, bias2, weights=layer.weights), w1.shape[0])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph
            raise UnsupportedError("the derivative of experts has no derivative", _OP)
        hidden, w1, w2, weights, bias1, bias2 = ctx.saved_tensors
        layer, wanted, found = ctx.layer, ctx.needs_input_grad, [None] * 7
        slope = slope.contiguous()  # a sum's derivative is one number, expanded
        before = layer.products(hidden, w1, bias1)
        inner, of_weights = _derive_rows(before, layer.products(slope, w2.mT), weights, layer)
        if wanted[0]:
            found[0] = layer.sums(layer.products(before, w1.mT), w1.shape[0])
        if wanted[1]:
            found[1] = layer.weight_grad(w1, before, hidden)
        if wanted[2]:
            found[2] = layer.weight_grad(w2, slope, inner)
        if wanted[3]:
            found[3] = of_weights.view(weights.shape)
            if bias2 is not None:
                found[3] += _of_biases(slope, bias2, layer.ids)
        if bias1 is not None and wanted[4]:
            found[4] = layer.weight_grad(bias1, before, torch.ones_like(hidden[:, :1]))
        if bias2 is not None and wanted[5]:
            found[5] = layer.weight_grad(bias2, slope, weights.reshape(-1, 1).to(slope.dtype))
        return tuple(found)


def _derive_rows(before: Tensor, slope: Tensor, weights: Tensor, layer: _Layer) -> tuple[Tensor, Tensor]:
    """Returns what the second product multiplies, times the pairs' weights, and the weights' derivatives. `before`, the
    first product, becomes its derivative; slope: that of what is between the products, without the weights."""
    inner, of_weights = torch.empty_like(slope), torch.empty(len(slope), device=slope.device, dtype=torch.float32)
    factors = weights.reshape(-1, 1)
    for first in range(0, len(slope), _ROWS):
        rows = slice(first, first + _ROWS)
        with torch.enable_grad():
            product = before[rows].float().requires_grad_()
            active = activated_rows(product, layer.activation, layer.limit, layer.is_interleaved)
        (before[rows],) = torch.autograd.grad(active, product, slope[rows].float() * factors[rows])
        active = active.detach()
        of_weights[rows] = (active * slope[rows].float()).sum(1)
        inner[rows] = active * factors[rows]
    return inner, of_weights


def _of_biases(slope: Tensor, bias: Tensor, ids: Tensor) -> Tensor:
    """[tokens, slots]: what the biases of the experts contribute to the derivatives of the weights."""
    is_here = (ids >= 0) & (ids < bias.shape[0])
    each = slope.float() @ bias.float().t()
    return each.gather(1, ids.clamp(0, bias.shape[0] - 1).long()).masked_fill(~is_here, 0.0)


def experts_with_grad(hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weight: Tensor, topk_ids: Tensor,
                      activation: str, *, limit: float = 0.0, is_interleaved: bool = False,
                      bias1: Tensor | None = None, bias2: Tensor | None = None, block: int | None = None,
                      backend: str | None = None) -> Tensor:
    """`out[t] = Σ over its experts e of topk_weight · (act(hidden · w1[e]ᵀ + bias1[e]) · w2[e]ᵀ + bias2[e])`, with
    derivatives by all but topk_ids; the arguments have been checked.

    Args:
        hidden_states: [tokens, k] bf16|fp16, rows evenly spaced.
        w1: [experts, n, k], dtype of `hidden_states`, of any strides.
        w2: [experts, k, n, or n / 2 of a gate's activation], likewise.
        topk_weight: [tokens, slots] fp32.
        topk_ids: [tokens, slots] int32; pairs of other experts than 0 … experts - 1 do not count.
        activation: of the first product, as in moe_gemm.
        limit: as in moe_gemm.
        is_interleaved: gates are the even rows of `w1`.
        bias1: [experts, n] bf16|fp16|fp32.
        bias2: [experts, k].
        block: places of an expert's block; default: by the rows that it has in the mean.
        backend: of the products, instead of the automatic choice.

    Returns: [tokens, k], dtype of `hidden_states`.

    Raises:
        UnsupportedError: the backend asked for cannot serve a product, or a second derivative is asked for.

    Notes:
        Products are summed in fp32 and rounded to the dtype of `hidden_states`, those of derivatives to that of what
        they belong to; equal calls give equal results. Backward computes the first product again.
    """
    arch = target_of(hidden_states.device).arch
    block = block or block_for(max(topk_ids.numel(), 1), max(w1.shape[0], 1), arch)
    sorted_ids, weights, experts, valid, _ = moe_sorting(
        topk_ids, topk_weight.detach(), w1.shape[0], 0, hidden_states.dtype, block, accumulate=False,
        backend="torch" if backend == "torch" else None)
    order = {"experts": experts, "sorted_ids": sorted_ids, "valid": valid, "block": block, "slots": topk_ids.shape[1]}
    layer = _Layer(topk_ids, activation, limit, is_interleaved, order, weights, backend)
    return _Experts.apply(hidden_states, w1, w2, topk_weight, bias1, bias2, layer)
