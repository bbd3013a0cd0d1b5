# SPDX-License-Identifier: MIT
"""Quantisation to int8 towards zero. Kernels: csrc/quant/truncated_quant.hip, ops/quant/triton/truncated_quant.py."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["truncated_quant"]

_OP = "truncated_quant"


class TruncatedQuantCall(NamedTuple):
    """One call of truncated_quant: the fields of TensorQuantCall (tensor_quant.py), and another.

    Attributes:
        scale: where the call is dynamic a number for each row, found among its elements, dense.
        scale_ub: one number: the largest magnitude that a scale that is found covers.
    """

    out: Annotated[Tensor, "*rows columns", torch.int8]
    scale: Annotated[Tensor, "*scale", torch.float32, STRIDED]
    input: Annotated[Tensor, "*rows columns", elements.FLOATS]
    is_dynamic: bool = True
    scale_ub: Annotated[Tensor | None, "*bound", torch.float32] = None
    num_rows: Annotated[Tensor | None, "*count", torch.int32] = None
    num_rows_factor: int = 1


def truncated_quant_ref(call: TruncatedQuantCall) -> None:
    """The formula in torch, in fp32; writes `out` and `scale`."""
    x, own = call.input.float(), call.scale
    is_used = parts.used_rows(call.input, call.num_rows, call.num_rows_factor)
    if call.is_dynamic:
        own = quant_rule.row_scales(x, torch.int8)
        if call.scale_ub is not None:
            own = parts.bounded(own, call.scale_ub, torch.int8)
        parts.write_rows(call.scale, own, is_used)
    y = (x * (1 / own if call.is_dynamic else 1 / own.reshape(()))).clamp(-128, 127).trunc().nan_to_num(0.0)
    parts.write_rows(call.out, y.to(torch.int8), is_used)


def _instance(call: TruncatedQuantCall, *, lanes: int | None = None) -> Instance:
    input = call.input
    row_layout = rows.row_layout(target_of(input.device), input, lanes=lanes, takes_unaligned=True)
    return row_layout.instance("_".join([dtypes.name(input.dtype), *([] if call.is_dynamic else ["static"])]), {
        "ELEMENT": elements.CPP[input.dtype], "IS_DYNAMIC": int(call.is_dynamic)})


@compile_ops("quant/truncated_quant.hip", gen_func=_instance)
def _truncated_quant_hip(call: TruncatedQuantCall) -> None: ...


def _check(call: TruncatedQuantCall) -> object:
    count = call.input.shape[:-1].numel() if call.is_dynamic else 1
    if call.scale.numel() != count or not call.scale.is_contiguous():
        raise ValueError(f"{_OP}: scale must be contiguous with {count} elements, got shape {tuple(call.scale.shape)}, "
                         f"strides {call.scale.stride()}")
    if call.scale_ub is not None and not call.is_dynamic:
        raise ValueError(f"{_OP}: scale_ub must be None where the scale is given, got one")
    parts.check_numbers(_OP, call, "scale_ub")
    return SKIP if call.input.numel() == 0 else None


class TruncatedQuantKey(NamedTuple):
    """The fields that a tuned row of truncated_quant is chosen by."""

    rows: int
    columns: int
    is_dynamic: bool
    dtype: str

    @classmethod
    def of(cls, call: TruncatedQuantCall) -> TruncatedQuantKey:
        return cls(*tune_shapes.row_sizes(call.input)[:2], call.is_dynamic, dtypes.name(call.input.dtype))

    def make(self, device: torch.device, seed: int, *, scale_ub: float | None = None,
             num_rows: int | None = None) -> TruncatedQuantCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, self.columns)
        scale = torch.full((self.rows if self.is_dynamic else 1,), 0.05, device=device)
        return TruncatedQuantCall(torch.empty_like(x, dtype=torch.int8), scale, x, bool(self.is_dynamic),
                                  parts.number(device, scale_ub), parts.number(device, num_rows))


_truncated_quant = Op(
    _OP, call=TruncatedQuantCall, reference=truncated_quant_ref, check=_check, key=TruncatedQuantKey,
    round_field="rows", writes=("out", "scale"),
    cases={"row": TruncatedQuantKey(5, 1024, True, "bf16"),
           "bounded row": (TruncatedQuantKey(5, 1024, True, "bf16"), {"scale_ub": 2.0}),
           "first rows": (TruncatedQuantKey(5, 1024, True, "bf16"), {"num_rows": 3}),
           "long row": TruncatedQuantKey(1, 36864, True, "bf16"), "given": TruncatedQuantKey(5, 1000, False, "bf16")},
    backends=(Backend("hip", _truncated_quant_hip, refusal=parts.refusal, space=rows.lanes_of("input")),
              Backend("triton", "ops.quant.triton.truncated_quant:truncated_quant", refusal=parts.refusal,
                      space=tune_shapes.row_space),
              Backend("torch", truncated_quant_ref)))


def truncated_quant(out: Tensor, input: Tensor, scale: Tensor, is_dynamic: bool = True,
                    scale_ub: Tensor | None = None, num_rows: Tensor | None = None, num_rows_factor: int = 1, *,
                    backend: str | None = None) -> None:
    """Quantises to int8 towards zero, with a scale per row or one that is given: `out = trunc(input · (1 / scale))`.

    Args:
        out: [..., K] int8, written.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: fp32, contiguous: an element for each row, written; where not is_dynamic one number.
        is_dynamic: the scales are found: a row's largest magnitude becomes 127.
        scale_ub: one fp32 number on the device: the largest magnitude that a scale that is found covers; or None.
        num_rows: one int32 on the device, or None: only the first num_rows · num_rows_factor rows are quantised.
        num_rows_factor: ≥ 1.

    Notes:
        scale = max(amax, 2^-110) / 127; results within −128 … 127, of NaN 0. For results that must be those of programs
        that convert so, as AITER's quantisers to int8 do; `per_token_quant_hip` rounds to nearest, with half of the
        error. Deterministic.

    Source: AITER's `dynamic_per_token_quant_fp8_i8` and `static_per_tensor_quant_fp8_i8`.
    """
    _truncated_quant.run(out, scale, input, is_dynamic, scale_ub, num_rows, num_rows_factor, backend=backend)


_truncated_quant.public.append(truncated_quant)
