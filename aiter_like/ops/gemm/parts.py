# SPDX-License-Identifier: MIT
"""Shared by the operators of matrix products: activations, views of rows, and refusals of all ck kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiter_like.device import Target
from aiter_like.ops.activation.parts import activated, gated
from aiter_like.ops.common import elements
from aiter_like.ops.gemm import tiles

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh")
_GATED_SUFFIX = "_and_mul"
GATED = tuple(one + _GATED_SUFFIX for one in ACTIVATIONS[1:])
"""Activations of a product whose columns are gates and, in the second half, what they let through: act(gate) · up."""
_INT8_DEPTH = 2**17  # the largest sum of so many products needs 32 bits
_MAX_TILES = 2**22  # tiles of a launch of the ck kernels
_MAX_ROW_BYTES = 2**23  # the ck kernels count the bytes of a tile of 256 rows in 31 bits


def activation_of(activation: str) -> tuple[str, bool]:
    """One of ACTIVATIONS, and whether it is that of a gate."""
    return activation.removesuffix(_GATED_SUFFIX), activation in GATED


def after_product(product: Tensor, activation: str) -> Tensor:
    """Applies an activation, one of ACTIVATIONS and GATED, to a product, in torch."""
    name, is_gated = activation_of(activation)
    if is_gated:
        return gated(product, name, 0.0)
    return product if name == "none" else activated(product, name)


def check_shuffled(op: str, b: Tensor, n: int) -> None:
    """Shuffled weights [..., n or 2 · n, k] lie as shuffle_weight stores them."""
    if n % 16 or b.shape[-2] % 16 or b.shape[-1] % 32 or not b.is_contiguous():
        raise ValueError(f"{op}: shuffled, b must be contiguous with n % 16 == 0 and k % 32 == 0, got shape "
                         f"{tuple(b.shape)}, strides {b.stride()}")


def check_linear(op: str, A: Any, B: Any, otype: Any) -> None:
    """A linear layer's arguments have so many dimensions that its result has a shape."""
    if not isinstance(A, Tensor) or not isinstance(B, Tensor):
        name, tensor = ("B", B) if isinstance(A, Tensor) else ("A", A)
        raise TypeError(f"{op}: {name} must be a tensor, got {type(tensor).__name__}")
    if A.ndim == 0:
        raise ValueError(f"{op}: A must have at least 1 dimension, got a scalar")
    if B.ndim != 2:
        raise ValueError(f"{op}: B must have 2 dimensions, got {B.ndim}")
    if otype is not None and not isinstance(otype, torch.dtype):
        raise TypeError(f"{op}: otype must be a dtype, got {type(otype).__name__}")


def check_results(op: str, shape: tuple[int, ...], otype: torch.dtype | None, residual: Any, out: Any) -> None:
    """Checks that residual and out have the shape of a linear layer's result, and `out` the dtype that is asked for."""
    for name, tensor in (("residual", residual), ("out", out)):
        if isinstance(tensor, Tensor) and tensor.shape != shape:
            raise ValueError(f"{op}: {name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")
    if isinstance(out, Tensor) and otype is not None and out.dtype != otype:
        raise TypeError(f"{op}: out must have dtype {otype}, the otype, got {out.dtype}")


def matrix(x: Any, columns: int) -> Any:
    """[..., columns] as [rows, columns]: a view where the rows are evenly spaced, else a copy."""
    return x.reshape(-1 if columns else x.shape[:-1].numel(), columns) if isinstance(x, Tensor) and x.ndim != 2 else x


def write_rows(out: Tensor, write: Callable[[Tensor], None]) -> Tensor:
    """`out` [..., columns], written by write(rows): a view of it as [rows, columns], else a matrix that is copied."""
    if out.ndim == 2:
        write(out)
        return out
    rows = matrix(out, out.shape[-1])
    write(rows)
    if rows.data_ptr() != out.data_ptr():
        out.copy_(rows.view(out.shape))
    return out


def is_rough(a: Tensor, target: Target) -> bool:
    """Whether the matrix unit alone would keep too few bits of the sums: that of NVIDIA does for fp8."""
    return target.platform == "cuda" and a.dtype in elements.FP8


def traffic(call: Any) -> tuple[int, int]:
    """(bytes, flops) of a product: each tensor once, and two operations for each of the depth."""
    moved = sum(one.numel() * one.element_size() for one in call if isinstance(one, Tensor))
    return moved, 2 * call.out.shape[:-1].numel() * call.b.shape[-2] * call.a.shape[-1]


def sum_refusal(target: Target, call: Any) -> str | None:
    """Why no kernel adds so many products up."""
    a = call.a
    if a.dtype == torch.int8 and a.shape[-1] >= _INT8_DEPTH:
        return f"sums of int8 have 32 bits: k must be less than {_INT8_DEPTH}, got {a.shape[-1]}"
    return None


def ck_refusal(target: Target, call: Any) -> str | None:
    """Why the ck kernel of a product, or of a batch of them, does not take it: they are alike."""
    return (mfma_refusal(target) or sum_refusal(target, call) or depth_refusal(call.a, call.out.shape[-1])
            or rows_refusal(a=call.a, b=call.b, out=call.out, residual=getattr(call, "residual", None))
            or tiles_refusal(*call.out.shape[:-1], call.b.shape[-2]))


def depth_refusal(a: Tensor, n: int) -> str | None:
    """Why the ck kernels do not take a depth or a number of columns: they move 16 bytes of each row at a time."""
    unit = 16 // a.element_size()
    if a.shape[-1] % unit or n % 4:
        return f"k must be a multiple of {unit} and n of 4, got k = {a.shape[-1]}, n = {n}"
    return None


def tiles_refusal(*sizes: int) -> str | None:
    """Why one launch of the ck kernels does not hold an out of these sizes: [batch,] rows, columns."""
    *batch, m, n = sizes
    if math.prod(batch) * tiles.count(m, n, tiles.SMALLEST) >= _MAX_TILES:
        return f"out must have less than 2^22 tiles, got {' × '.join(map(str, sizes))}"
    return None


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
