# SPDX-License-Identifier: MIT
"""The quantiser of each QuantType, and quantisers for weights that are made of torch operations."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.enums import QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import quant_rule
from aiter_like.ops.quant import parts
from aiter_like.ops.quant.block_quant import per_block_quant
from aiter_like.ops.quant.row_quant import per_group_quant_hip, per_token_quant_hip
from aiter_like.ops.quant.tensor_quant import per_tensor_quant_hip

__all__ = ["get_hip_quant", "get_torch_quant", "get_triton_quant", "per_block_quant_wrapper", "per_tensor_quant",
           "pertoken_quant"]

_BLOCKS = {QuantType.per_128x128: (128, 128), QuantType.per_256x128: (256, 128), QuantType.per_1024x128: (1024, 128)}


def pertoken_quant(x: Tensor, scale: Tensor | None = None, x_scale: Tensor | None = None,
                   scale_dtype: torch.dtype = torch.float32, quant_dtype: torch.dtype = torch.int8,
                   dtypeMax: float | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each row with its own scale, in torch: `q = round(x · x_scale · (1 / scale))`, saturated.

    Args:
        x: [..., K] floating point.
        scale: [..., 1], or None: found, as max(amax, 2^-110) / dtypeMax.
        x_scale: factors that broadcast to `x` (smooth-quant), or None.
        scale_dtype, quant_dtype: of the scales, and of q: torch.int8 or an fp8, not only the hardware's.
        dtypeMax: the largest magnitude of q; None: 127 (int8), 240 or 448 (fp8).

    Returns: q [..., K] and the scales [..., 1].

    Notes: To nearest even, in fp32. A NaN makes its scale and fp8 elements NaN, int8 0. Empty rows are refused.
    """
    op = "pertoken_quant"
    top = _largest(op, x, quant_dtype, dtypeMax)
    if x.ndim == 0 or not x.shape[-1]:
        raise ValueError(f"{op}: x must have rows of at least 1 element, got shape {tuple(x.shape)}")
    if scale is not None:
        check.tensor(op, "scale", scale, shape=(*x.shape[:-1], 1), device=x.device, last_contiguous=False)
    if x_scale is not None:
        check.tensor(op, "x_scale", x_scale, device=x.device, last_contiguous=False)
        sizes = (1,) * (x.ndim - x_scale.ndim) + tuple(x_scale.shape)
        if len(sizes) > x.ndim or any(size not in (1, of) for size, of in zip(sizes, x.shape)):
            raise ValueError(f"{op}: x_scale must broadcast to x, got shapes {tuple(x_scale.shape)} and "
                             f"{tuple(x.shape)}")
    check.floating(op, "scale_dtype", scale_dtype)
    wide = x.float() if x_scale is None else x.float() * x_scale
    amax = wide.abs().amax(-1, keepdim=True).clamp(min=quant_rule.SMALLEST_AMAX)
    own = quant_rule.divided(amax, top) if scale is None else scale.float()
    return quant_rule.rounded((wide * (1 / own)).clamp(-top, top), quant_dtype), own.to(scale_dtype)


def per_tensor_quant(x: Tensor, scale: Tensor | None = None, scale_dtype: torch.dtype = torch.float32,
                     quant_dtype: torch.dtype = torch.int8, dtypeMax: float | None = None) -> tuple[Tensor, Tensor]:
    """Quantises a tensor with one scale, in torch. Like `pertoken_quant` otherwise.

    Args:
        x: floating point, any shape but empty.
        scale: one number, or None: found, as max(amax, 2^-110) / dtypeMax.

    Returns: q like `x`, and the scale [1].
    """
    if isinstance(scale, Tensor) and scale.numel() != 1:
        raise ValueError(f"per_tensor_quant: scale must have one element, got shape {tuple(scale.shape)}")
    _largest("per_tensor_quant", x, quant_dtype, dtypeMax)
    if not x.numel():
        raise ValueError(f"per_tensor_quant: x must not be empty, got shape {tuple(x.shape)}")
    given = None if scale is None else scale.reshape(1, 1)
    q, own = pertoken_quant(x.reshape(1, -1), given, None, scale_dtype, quant_dtype, dtypeMax)
    return q.view(x.shape), own.view(1)


def per_block_quant_wrapper(block_shape: tuple[int, int] = (1, 128)) -> Callable[[Callable], Callable]:
    """Makes a quantiser of blocks of a quantiser of rows.

    `per_block_quant_wrapper((128, 128))(per_token_quant_hip)(weight, quant_dtype=…)` gives q and a scale per block.

    Args:
        block_shape: rows and columns of a block.

    Returns:
        A decorator. The function it makes takes x [N, K] and keyword arguments that go to the quantiser of rows, and
        returns q [N, K] and the scales [ceil(N / rows), ceil(K / columns)] fp32.

    Notes:
        Blocks are copied into rows and back; those at the edges are filled up with zeros. `per_block_quant` is a kernel
        that copies nothing.

    Source: AITER's `per_block_quant_wrapper`, which takes one-row blocks.
    """
    block_rows, block_columns = parts.check_block("per_block_quant_wrapper", block_shape)

    def decorate(quantise: Callable) -> Callable:
        @functools.wraps(quantise)
        def wrapper(x: Tensor, scale: Tensor | None = None, **options: object) -> tuple[Tensor, Tensor]:
            check.tensor("per_block_quant", "x", x, rank=2, last_contiguous=False)
            (n, k), rows, columns = x.shape, -(-x.shape[0] // block_rows), -(-x.shape[1] // block_columns)
            if (n % block_rows, k % block_columns) != (0, 0):
                x = torch.nn.functional.pad(x, (0, columns * block_columns - k, 0, rows * block_rows - n))
            blocks = x.reshape(rows, block_rows, columns, block_columns).transpose(1, 2)
            given = None if scale is None else scale.reshape(-1, 1)
            q, own = quantise(blocks.reshape(rows * columns, -1), given, **options)
            q = q.view(rows, columns, block_rows, block_columns).transpose(1, 2)
            return q.reshape(rows * block_rows, -1)[:n, :k].contiguous(), own.view(rows, columns)

        return wrapper

    return decorate


def get_hip_quant(qType: QuantType) -> Callable:
    """The quantiser of a QuantType, on the best backend there is.

    No: returns (x, None). per_Tensor: `per_tensor_quant_hip`; per_Token: `per_token_quant_hip`; per_1x128:
    `per_group_quant_hip`; per_128x128, per_256x128 and per_1024x128: `per_block_quant`.

    Args:
        qType: a QuantType or its number.

    Returns:
        A function of (x, scale=None, quant_dtype=…, …) that returns q and the scales. For a type that has no quantiser
        here (per_1x32 is MXFP4 and MXFP8, of gfx950) one that raises UnsupportedError.
    """
    return _quantiser(qType, None)


def get_triton_quant(qType: QuantType) -> Callable:
    """The quantiser of a QuantType with backend="triton". Like `get_hip_quant` otherwise."""
    return _quantiser(qType, "triton")


def get_torch_quant(qType: QuantType) -> Callable:
    """The quantiser of a QuantType in torch operations, for any device and fp8. Like `get_hip_quant` otherwise.

    per_Tensor: `per_tensor_quant`; per_Token: `pertoken_quant`; per_1x128 and larger blocks: blocks of the latter.
    """
    return {QuantType.No: _unchanged, QuantType.per_Tensor: per_tensor_quant, QuantType.per_Token: pertoken_quant,
            QuantType.per_1x128: per_block_quant_wrapper((1, 128))(pertoken_quant),
            **{kind: per_block_quant_wrapper(shape)(pertoken_quant) for kind, shape in _BLOCKS.items()},
            }.get(QuantType(qType)) or _refusing(qType)


def _quantiser(kind: QuantType, backend: str | None) -> Callable:
    return {QuantType.No: _unchanged, QuantType.per_Tensor: functools.partial(per_tensor_quant_hip, backend=backend),
            QuantType.per_Token: functools.partial(per_token_quant_hip, backend=backend),
            QuantType.per_1x128: functools.partial(per_group_quant_hip, group_size=128, backend=backend),
            **{kind: functools.partial(per_block_quant, block_shape=shape, backend=backend)
               for kind, shape in _BLOCKS.items()},
            }.get(QuantType(kind)) or _refusing(kind)


def _unchanged(x: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
    return x, None


def _refusing(kind: QuantType) -> Callable:
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError(f"{QuantType(kind)}: MXFP4 and MXFP8 are of gfx950; there are No, per_Tensor, "
                               "per_Token, per_1x128, per_128x128, per_256x128 and per_1024x128", "quant")

    return refuse


def _largest(op: str, x: Tensor, dtype: torch.dtype, top: float | None) -> float:
    check.tensor(op, "x", x, last_contiguous=False)
    if not x.is_floating_point():
        raise TypeError(f"{op}: x must be floating point, got {x.dtype}")
    check.choice(op, "quant_dtype", dtype, quant_rule.DTYPES)
    if top is None:
        return quant_rule.largest(dtype)
    check.real(op, "dtypeMax", top, above=0.0)
    if top > quant_rule.largest(dtype):
        raise ValueError(f"{op}: dtypeMax must be at most {quant_rule.largest(dtype)} for {dtype}, got {top}")
    return float(top)
