# SPDX-License-Identifier: MIT
"""Products by the library of the GPU's vendor (hipBLASLt, cuBLAS), by way of torch: a candidate of the dispatcher."""

from __future__ import annotations

import torch
from torch import Tensor


def refusal(a: Tensor, out: Tensor, bias: Tensor | None, *rest: Tensor | None, activation: str = "none") -> str | None:
    """Why the library does not serve a product of 16 bits: it rounds before anything that follows but a bias."""
    if activation != "none" or any(one is not None for one in rest):
        return "the vendor's library has no activation and no residual"
    if out.dtype != a.dtype or bias is not None and bias.dtype != a.dtype:
        return "the vendor's library has out and bias in the dtype of a"
    return None


def linear(out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> None:
    """Writes out [m, n] = a [m, k] · b [n, k]ᵀ + bias [n]."""
    if bias is None:
        torch.mm(a, b.t(), out=out)
    else:
        torch.addmm(bias, a, b.t(), out=out)


def bmm(out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> None:
    """Writes out [batch, m, n] = a [batch, m, k] · b [batch, n, k]ᵀ + bias [batch, n]."""
    if bias is None:
        torch.bmm(a, b.mT, out=out)
    else:
        torch.baddbmm(bias[:, None], a, b.mT, out=out)
