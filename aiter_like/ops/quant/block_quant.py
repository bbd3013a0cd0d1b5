# SPDX-License-Identifier: MIT
"""Quantisation to fp8 and int8 by blocks of rows and columns. Kernels: csrc/quant/block_quant.hip,
ops/quant/triton/block_quant.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["per_block_quant"]

_OP = "block_quant"
_MOST_ROWS = 2**16  # of a block
_MOST_BLOCKS = 2**24 - 1  # of a launch, which has fewer than 2^32 work-items


class BlockQuantCall(NamedTuple):
    """One call of block_quant.

    Attributes:
        out: [..., N, K], written; fp8 or int8; rows evenly spaced.
        scale: [..., ceil(N / block_rows), ceil(K / block_columns)] fp32, written; dense.
        input: [..., N, K], rows evenly spaced.
    """

    out: Tensor
    scale: Tensor
    input: Tensor
    block_rows: int = 128
    block_columns: int = 128


def block_quant_ref(call: BlockQuantCall) -> None:
    """The rule of ops/common/quant_rule.py."""
    out, block_rows, block_columns = call.out, call.block_rows, call.block_columns
    rows, columns = call.input.shape[-2:]
    padded = torch.nn.functional.pad(call.input.float(), (0, -columns % block_columns, 0, -rows % block_rows))
    blocks = padded.unflatten(-1, (-1, block_columns)).unflatten(-3, (-1, block_rows))  # [..., R, rows, C, columns]
    amax = blocks.abs().amax((-3, -1)).clamp(min=quant_rule.SMALLEST_AMAX)
    own = quant_rule.divided(amax, quant_rule.largest(out.dtype))
    call.scale.copy_(own)
    q = quant_rule.rounded(blocks * (1 / own)[..., :, None, :, None], out.dtype)
    out.copy_(q.flatten(-2).flatten(-3, -2)[..., :rows, :columns])


def _instance(call: BlockQuantCall) -> Instance:
    dtype, out_dtype = call.input.dtype, call.out.dtype
    name = f"{dtypes.name(dtype)}_{elements.short(out_dtype)}_{call.block_rows}x{call.block_columns}"
    return Instance(name, {"ELEMENT": elements.CPP[dtype], "OUT": elements.CPP[out_dtype],
                           "BLOCK_ROWS": call.block_rows, "BLOCK_COLUMNS": call.block_columns,
                           "VEC": 16 // dtype.itemsize})


@compile_ops("quant/block_quant.hip", gen_func=_instance)
def _block_quant_hip(call: BlockQuantCall) -> None: ...


def _check(call: BlockQuantCall) -> object:
    input, scale = call.input, call.scale
    parts.check_matrices(_OP, call.out, input)
    check.integer(_OP, "block_rows", call.block_rows, low=1, high=_MOST_ROWS)
    check.choice(_OP, "block_columns", call.block_columns, quant_rule.GROUPS)
    if input.ndim < 2:
        raise ValueError(f"{_OP}: input must have at least 2 dimensions, got shape {tuple(input.shape)}")
    shape = _scale_shape(input.shape, call.block_rows, call.block_columns)
    check.tensor(_OP, "scale", scale, dtypes=(torch.float32,), shape=shape, device=input.device)
    if not scale.is_contiguous():
        raise ValueError(f"{_OP}: scale must be dense in memory, got strides {scale.stride()}")
    return SKIP if input.numel() == 0 else None


def _scale_shape(shape: torch.Size, block_rows: int, block_columns: int) -> tuple[int, ...]:
    """The shape of the scales of [..., rows, columns]."""
    return (*shape[:-2], -(-shape[-2] // block_rows), -(-shape[-1] // block_columns))


def _refusal(target: Target, call: BlockQuantCall) -> str | None:
    if call.scale.numel() > _MOST_BLOCKS:
        return f"at most {_MOST_BLOCKS} blocks, got {call.scale.numel()}"
    return parts.refusal(target, call)


def _tune_key(call: BlockQuantCall) -> dict[str, int | str]:
    input = call.input
    return {"matrices": input.shape[:-2].numel(), "rows": input.shape[-2], "columns": input.shape[-1],
            "block_rows": call.block_rows, "dtype": dtypes.name(input.dtype), "out_dtype": dtypes.name(call.out.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> BlockQuantCall:
    x = tune_shapes.normal(device, seed, key["dtype"])(key["matrices"], key["rows"], key["columns"])
    scale = torch.empty(_scale_shape(x.shape, key["block_rows"], 128), device=device)
    return BlockQuantCall(torch.empty_like(x, dtype=dtypes.DTYPES[key["out_dtype"]]), scale, x, key["block_rows"])


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """The weights of linear layers in blocks of 128 × 128, whatever the number of tokens."""
    for matrices, rows, columns in tune_shapes.linear_weights(model, tp):
        yield {"matrices": matrices, "rows": rows, "columns": columns, "block_rows": 128, "dtype": model.dtype,
               "out_dtype": tune_shapes.fp8_name()}


def _triton_space(*_: object) -> Iterator[dict[str, int]]:
    return ({"num_warps": count} for count in (4, 8, 16))


def _cases(device: torch.device) -> dict[str, BlockQuantCall]:
    """Several matrices whose last blocks are cut, in int8 and fp8; more rows than a workgroup keeps."""
    x = torch.randn(2, 130, 300, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    call = BlockQuantCall(torch.empty_like(x, dtype=torch.int8), torch.empty(2, 2, 3, device=device), x)
    return {"int8": call, "fp8": call._replace(out=torch.empty_like(x, dtype=dtypes.fp8_of(target_of(device).arch))),
            "tall": call._replace(scale=torch.empty(2, 1, 5, device=device), block_rows=300, block_columns=64)}


_block_quant = Op(
    _OP, call=BlockQuantCall, reference=block_quant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("matrices", "rows", "columns", "block_rows", "dtype", "out_dtype"), writes=("out", "scale"),
    cases=_cases, tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _block_quant_hip, refusal=_refusal),
              Backend("triton", "ops.quant.triton.block_quant:block_quant", refusal=_refusal, space=_triton_space),
              Backend("torch", block_quant_ref)))


def per_block_quant(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                    block_shape: tuple[int, int] = (128, 128), *,
                    backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each block of rows × columns with its own scale, as block-scaled products take their weights.

    `q · scale` is x up to the rounding of q.

    Args:
        x: [..., N, K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: None; the scales are found.
        quant_dtype: torch.int8 or the hardware's fp8.
        block_shape: (rows, columns) of a block; columns 32, 64 or 128. Blocks at the edges of [N, K] end there.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        q [..., N, K] and the scales [..., ceil(N / rows), ceil(K / columns)] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `quant_dtype` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its block's scale and fp8 elements NaN, int8 0. Deterministic; can be captured.

    Source: the 128 × 128 weight scales of DeepSeek-V3 (2024); AITER's `QuantType.per_128x128`.
    """
    if scale is not None:
        raise ValueError(f"per_block_quant: scale must be None, the scales are found; got {type(scale).__name__}")
    _check_matrix("per_block_quant", x, quant_dtype)
    rows, columns = check_shape("per_block_quant", block_shape)
    check.choice("per_block_quant", "block_shape[1]", columns, quant_rule.GROUPS)
    out = torch.empty_like(x, dtype=quant_dtype, memory_format=torch.contiguous_format)
    own = x.new_empty(*_scale_shape(x.shape, rows, columns), dtype=torch.float32)
    _block_quant.run(out, own, x, rows, block_columns=columns, backend=backend)
    return out, own


def _check_matrix(op: str, x: Tensor, dtype: torch.dtype) -> None:
    """`x` is a matrix or several; `dtype` is one that a quantiser writes.

    Raises:
        TypeError: `x` is no tensor.
        ValueError: it is no matrix, or the dtype is another.
    """
    check.tensor(op, "x", x, last_contiguous=False)
    if x.ndim < 2:
        raise ValueError(f"{op}: x must have at least 2 dimensions, got shape {tuple(x.shape)}")
    check.choice(op, "quant_dtype", dtype, quant_rule.DTYPES)


def check_shape(op: str, block_shape: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a block.

    Raises:
        TypeError: a side is no integer.
        ValueError: there are not two sides, or one is below 1.
    """
    if not isinstance(block_shape, (tuple, list)) or len(block_shape) != 2:
        raise ValueError(f"{op}: block_shape must be (rows, columns), got {block_shape!r}")
    for side in block_shape:
        check.integer(op, "block_shape", side, low=1)
    return tuple(block_shape)


torch_ops.register(_block_quant, per_block_quant)
