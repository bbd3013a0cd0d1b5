# SPDX-License-Identifier: MIT
"""Quantisation to fp8 and int8 by blocks of rows and columns. Kernels: csrc/quant/, ops/quant/triton/."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["per_block_quant"]

_OP = "block_quant"
_MOST_ROWS = 2**16  # rows of a block
_MOST_BLOCKS = 2**24 - 1  # blocks of a launch, which has fewer than 2^32 work-items


class BlockQuantCall(NamedTuple):
    """One call of block_quant. The rows of `out` and `input` are evenly spaced; `scale` is dense."""

    out: Annotated[Tensor, "*matrices rows columns", quant_rule.DTYPES]
    scale: Annotated[Tensor, "*blocks", torch.float32]
    input: Annotated[Tensor, "*matrices rows columns", elements.FLOATS]
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
    name, macros = parts.kinds(call)
    return Instance(f"{name}_{call.block_rows}x{call.block_columns}", {
        **macros, "BLOCK_ROWS": call.block_rows, "BLOCK_COLUMNS": call.block_columns,
        "VEC": 16 // call.input.element_size()})


@compile_ops("quant/block_quant.hip", gen_func=_instance)
def _block_quant_hip(call: BlockQuantCall) -> None: ...


def _check(call: BlockQuantCall) -> object:
    check.integer(_OP, "block_rows", call.block_rows, low=1, high=_MOST_ROWS)
    check.choice(_OP, "block_columns", call.block_columns, quant_rule.GROUPS)
    shape = _scale_shape(call.input.shape, call.block_rows, call.block_columns)
    check.tensor(_OP, "scale", call.scale, shape=shape)
    if not call.scale.is_contiguous():
        raise ValueError(f"{_OP}: scale must be dense in memory, got strides {call.scale.stride()}")
    return SKIP if call.input.numel() == 0 else None


def _scale_shape(shape: torch.Size, block_rows: int, block_columns: int) -> tuple[int, ...]:
    """The shape of the scales of [..., rows, columns]."""
    return (*shape[:-2], -(-shape[-2] // block_rows), -(-shape[-1] // block_columns))


def _refusal(target: Target, call: BlockQuantCall) -> str | None:
    if call.scale.numel() > _MOST_BLOCKS:
        return f"at most {_MOST_BLOCKS} blocks, got {call.scale.numel()}"
    return parts.refusal(target, call)


class BlockQuantKey(NamedTuple):
    """The fields that a tuned row of block_quant is chosen by."""

    matrices: int
    rows: int
    columns: int
    block_rows: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: BlockQuantCall) -> BlockQuantKey:
        shape = call.input.shape
        return cls(shape[:-2].numel(), shape[-2], shape[-1], call.block_rows, *parts.names(call))

    def make(self, device: torch.device, seed: int, *, block_columns: int = 128) -> BlockQuantCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.matrices, self.rows, self.columns)
        scale = torch.empty(_scale_shape(x.shape, self.block_rows, block_columns), device=device)
        out = torch.empty_like(x, dtype=tune_shapes.dtype_on(device, self.out_dtype))
        return BlockQuantCall(out, scale, x, self.block_rows, block_columns)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[BlockQuantKey]:
        """The weights of linear layers in blocks of 128 × 128, whatever the number of tokens."""
        for sizes in tune_shapes.linear_weights(model, tp):
            yield cls(*sizes, 128, model.dtype, tune_shapes.fp8_name())


_block_quant = Op(
    _OP, call=BlockQuantCall, reference=block_quant_ref, check=_check, key=BlockQuantKey, writes=("out", "scale"),
    # The last blocks of each matrix are cut; a tall block has more rows than a workgroup keeps.
    cases={"int8": BlockQuantKey(2, 130, 300, 128, "bf16", "i8"), "fp8": BlockQuantKey(2, 130, 300, 128, "bf16", "fp8"),
           "tall": (BlockQuantKey(2, 130, 300, 300, "bf16", "i8"), {"block_columns": 64})},
    backends=(Backend("hip", _block_quant_hip, refusal=_refusal),
              Backend("triton", "ops.quant.triton.block_quant:block_quant", refusal=_refusal,
                      space=tune_shapes.every(num_warps=(4, 8, 16))),
              Backend("torch", block_quant_ref)))


def per_block_quant(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                    block_shape: tuple[int, int] = (128, 128), *,
                    backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each block of rows × columns with its own scale, as block-scaled products take their weights.
    `q · scale` is x up to the rounding of q, which is that of `per_token_quant_hip`.

    Args:
        x: [..., N, K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: None; the scales are found.
        quant_dtype: torch.int8 or the hardware's fp8.
        block_shape: (rows, columns) of a block; columns 32, 64 or 128. Blocks at the edges of [N, K] end there.

    Returns: q [..., N, K] and the scales [..., ceil(N / rows), ceil(K / columns)] fp32.

    Source: the 128 × 128 weight scales of DeepSeek-V3 (2024); AITER's `QuantType.per_128x128`.
    """
    name = "per_block_quant"
    parts.refuse_scale(name, scale)
    check.tensor(name, "x", x, last_contiguous=False)
    if x.ndim < 2:
        raise ValueError(f"{name}: x must have at least 2 dimensions, got shape {tuple(x.shape)}")
    check.choice(name, "quant_dtype", quant_dtype, quant_rule.DTYPES)
    rows, columns = parts.check_block(name, block_shape)
    check.choice(name, "block_shape[1]", columns, quant_rule.GROUPS)
    out = torch.empty_like(x, dtype=quant_dtype, memory_format=torch.contiguous_format)
    own = x.new_empty(*_scale_shape(x.shape, rows, columns), dtype=torch.float32)
    _block_quant.run(out, own, x, rows, block_columns=columns, backend=backend)
    return out, own


torch_ops.register(_block_quant, per_block_quant)
