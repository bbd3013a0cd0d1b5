# SPDX-License-Identifier: MIT
"""What the operators of matrix products share: activations, views of rows, and what no ck kernel takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from aiter_like.device import Target
from aiter_like.ops.activation.parts import activated, gated

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh")
_GATED_SUFFIX = "_and_mul"
GATED = tuple(one + _GATED_SUFFIX for one in ACTIVATIONS[1:])
"""Of a product whose columns are gates and, in the second half, what they let through: act(gate) · up."""
_MAX_ROW_BYTES = 2**23  # the ck kernels count the bytes of a tile of 256 rows in 31 bits


def activation_of(activation: str) -> tuple[str, bool]:
    """One of ACTIVATIONS, and whether it is that of a gate."""
    return activation.removesuffix(_GATED_SUFFIX), activation in GATED


def after_product(product: Tensor, activation: str) -> Tensor:
    """What an activation, one of ACTIVATIONS and GATED, makes of a product, in torch."""
    name, is_gated = activation_of(activation)
    if is_gated:
        return gated(product, name, 0.0)
    return product if name == "none" else activated(product, name)


def matrix(x: Any, columns: int) -> Any:
    """[..., columns] as [rows, columns]: a view where the rows are evenly spaced, else a copy."""
    return x.reshape(-1 if columns else x.shape[:-1].numel(), columns) if isinstance(x, Tensor) and x.ndim != 2 else x


def mfma_refusal(target: Target) -> str | None:
    """Why a kernel of the tile library does not run there."""
    if target.platform != "hip" or target.arch != "gfx942":
        return f"an MFMA kernel for gfx942, not for {target.arch}"
    return None


def rows_refusal(**matrices: Tensor | None) -> str | None:
    """Why the ck kernels cannot read or write one of the matrices: its rows must be contiguous and not overlap."""
    for name, one in matrices.items():
        if one is None:
            continue
        rows, columns = one.shape[-2:]
        stride = one.stride(-2) if rows > 1 else columns
        if columns > 1 and one.stride(-1) != 1 or not columns <= stride < _MAX_ROW_BYTES // one.element_size():
            return (f"rows of {name} must be contiguous, not overlap and be less than 2^23 bytes apart, got strides "
                    f"{one.stride()}")
    return None
