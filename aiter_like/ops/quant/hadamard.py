# SPDX-License-Identifier: MIT
"""The Walsh-Hadamard transform, which spreads a row's outliers before quantisation. Kernels: csrc/quant/, triton/."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes

__all__ = ["hadamard_transform"]

_OP = "hadamard"
_MOST_COLUMNS = 4096  # A wave keeps a row of no more in its registers.


class HadamardCall(NamedTuple):
    """One call of hadamard; the sums are multiplied by `scale`."""

    out: Annotated[Tensor, "*rows columns", elements.FLOATS]
    input: Annotated[Tensor, "*rows columns", elements.FLOATS]
    scale: float


def hadamard_ref(call: HadamardCall) -> None:
    """The formula in torch, in fp32; writes `out`."""
    columns = call.input.shape[-1]
    x, half = call.input.float(), 1
    while half < columns:
        low, high = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack((low + high, low - high), -2).flatten(-3)
        half *= 2
    call.out.copy_(x * call.scale)


def _instance(call: HadamardCall) -> Instance:
    """One build per pair of dtypes and number of columns."""
    columns, kinds = call.input.shape[-1], (call.input.dtype, call.out.dtype)
    names = "_to_".join(dict.fromkeys(map(elements.short, kinds)))
    return Instance(f"{names}_{columns}", {"ELEMENT": elements.CPP[kinds[0]], "OUT_ELEMENT": elements.CPP[kinds[1]],
                                           "COLUMNS": columns})


@compile_ops("quant/hadamard.hip", gen_func=_instance)
def _hadamard_hip(call: HadamardCall) -> None: ...


def _check(call: HadamardCall) -> object:
    columns = call.input.shape[-1]
    if columns < 1 or columns & (columns - 1):
        raise ValueError(f"{_OP}: input must have a power of two of columns, got shape {tuple(call.input.shape)}")
    check.real(_OP, "scale", call.scale)
    return SKIP if call.input.numel() == 0 else None


def _refusal(target: Target, call: HadamardCall) -> str | None:
    """Says why no kernel takes a call that torch serves."""
    columns = call.input.shape[-1]
    if not 2 <= columns <= _MOST_COLUMNS:
        return f"2 to {_MOST_COLUMNS} columns, got {columns}"
    return rows.refusal(input=call.input, out=call.out)


class HadamardKey(NamedTuple):
    """The fields that a tuned row of hadamard is chosen by."""

    rows: int
    columns: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: HadamardCall) -> HadamardKey:
        return cls(*tune_shapes.row_sizes(call.input), dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int) -> HadamardCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, self.columns)
        return HadamardCall(torch.empty_like(x, dtype=dtypes.DTYPES[self.out_dtype]), x, self.columns ** -0.5)


_hadamard = Op(
    _OP, call=HadamardCall, reference=hadamard_ref, check=_check, key=HadamardKey, round_field="rows",
    sums_in_fp32=True, in_place={"out": ("input",)},
    # Rows of a few lanes, of a whole wave and of several accesses of each lane; results of fewer bits.
    cases={"bf16": HadamardKey(5, 128, "bf16", "bf16"), "fp16": HadamardKey(5, 512, "fp16", "fp16"),
           "fp32": HadamardKey(5, 2048, "fp32", "fp32"), "rounded": HadamardKey(5, 4, "fp32", "bf16")},
    backends=(Backend("hip", _hadamard_hip, refusal=_refusal),
              Backend("triton", "ops.quant.triton.hadamard:hadamard", refusal=_refusal,
                      space=tune_shapes.every(num_warps=(1, 2, 4, 8))),
              Backend("torch", hadamard_ref)))


def hadamard_transform(input: Tensor, scale: float | None = None, *, out: Tensor | None = None,
                       backend: str | None = None) -> Tensor:
    """Walsh-Hadamard transform of each row, in natural order:
    `out[i] = scale · Σ (−1)^|i & j| · input[j]`, where |·| counts the bits that are 1.

    Args:
        input: [..., columns] bf16|fp16|fp32, columns a power of two, last dimension contiguous, rows evenly spaced.
        scale: a number; default: columns^−½, with which the transform is its own inverse.
        out: [..., columns] bf16|fp16|fp32, may be `input`; default: a new contiguous one, dtype of `input`.

    Notes: Sums in fp32, rounded to nearest even once.

    Source: AITER's `rotate_activation`; fast-hadamard-transform's `hadamard_transform`, whose default is scale 1.
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"{_OP}: input must be a tensor, got {type(input).__name__}")
    if scale is None:
        scale = max(input.shape[-1] if input.ndim else 1, 1) ** -0.5
    if out is None:
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
    _hadamard.run(out, input, scale=scale, backend=backend)
    return out


torch_ops.register(_hadamard, hadamard_transform)
