# SPDX-License-Identifier: MIT
"""The derivative of products, by the operator that makes them. Read by gemm_a16w16.py and batched_gemm.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Linear(torch.autograd.Function):
    """a · bᵀ + bias of matrices, or of batches of them, and its derivative: two products, whose operands are views.
    `product` is of (out, a, b, bias, backend=)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype, backend: str | None,
                product: Callable[..., None]) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.bias_dtype, ctx.product = None if bias is None else bias.dtype, product
        out = a.new_empty(*a.shape[:-1], b.shape[-2], dtype=dtype)
        product(out, a, b, bias, backend=backend)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        rounded, grad_a, grad_b, grad_bias = grad.to(a.dtype), None, None, None
        if ctx.needs_input_grad[0]:
            ctx.product(grad_a := torch.empty_like(a), rounded, b.mT)
        if ctx.needs_input_grad[1]:
            ctx.product(grad_b := torch.empty_like(b), rounded.mT, a.mT)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.float().sum(-2).to(ctx.bias_dtype)
        return grad_a, grad_b, grad_bias, None, None, None
