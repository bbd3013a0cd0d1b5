# SPDX-License-Identifier: MIT
"""Quantisers to fp8 and int8: by row or group. Kernels: csrc/quant/row_quant.hip, ops/quant/triton/row_quant.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["dynamic_per_token_quant_fp8_i8", "dynamic_per_token_scaled_quant", "per_group_quant_hip",
           "per_token_quant_hip", "smoothquant_fwd"]


class RowQuantCall(NamedTuple):
    """One call of row_quant. The rows of `out` and `input` are evenly spaced.

    Attributes:
        scale: a number per row, or per row and group.
        group_size: columns with a scale of their own; 0: one scale per row.
        smooth_scale: a factor per column.
        scale_ub: one number: the largest magnitude that a row's scale covers.
        num_rows: one number: only the first num_rows · num_rows_factor rows are quantised; None: all.
    """

    out: Annotated[Tensor, "*rows columns", quant_rule.DTYPES]
    scale: Annotated[Tensor, "*scale", torch.float32, STRIDED]
    input: Annotated[Tensor, "*rows columns", elements.FLOATS]
    group_size: int = 0
    smooth_scale: Annotated[Tensor | None, "columns", torch.float32] = None
    scale_ub: Annotated[Tensor | None, "*bound", torch.float32] = None
    num_rows: Annotated[Tensor | None, "*count", torch.int32] = None
    num_rows_factor: int = 1


def row_quant_ref(call: RowQuantCall) -> None:
    """The rule of ops/common/quant_rule.py."""
    out, x = call.out, call.input.float()
    if call.smooth_scale is not None:
        x = x * call.smooth_scale
    own = quant_rule.row_scales(x, out.dtype, call.group_size)
    if call.scale_ub is not None:
        own = parts.bounded(own, call.scale_ub, out.dtype)
    is_used = parts.used_rows(call.input, call.num_rows, call.num_rows_factor)
    parts.write_rows(out, quant_rule.quantised(x, own, out.dtype), is_used)
    parts.write_rows(call.scale, own, is_used)


def _instance(call: RowQuantCall, *, lanes: int | None = None, vec: int | None = None) -> Instance:
    has_smooth, (name, macros) = call.smooth_scale is not None, parts.kinds(call)
    name += (f"_g{call.group_size}" if call.group_size else "") + "_smooth" * has_smooth
    row_layout = rows.row_layout(target_of(call.input.device), call.input, lanes=lanes, vec=vec, takes_unaligned=True)
    return row_layout.instance(name, {**macros, "SMOOTH": "float", "GROUP": call.group_size,
                                      "HAS_SMOOTH": int(has_smooth)})


def _prebuild() -> list[RowQuantCall]:
    """fp8 by token and by 128 columns, for decode and prefill of the usual hidden sizes in bf16."""
    calls = []
    for hidden, group_size, count in itertools.product((4096, 5120, 7168, 8192), (0, 128), (1, 4096)):
        x = torch.empty(count, hidden, dtype=torch.bfloat16)
        scale = torch.empty(count, hidden // group_size if group_size else 1)
        calls.append(RowQuantCall(torch.empty_like(x, dtype=torch.float8_e4m3fnuz), scale, x, group_size))
    return calls


@compile_ops("quant/row_quant.hip", gen_func=_instance, prebuild=_prebuild)
def _row_quant_hip(call: RowQuantCall) -> None: ...


def _check(call: RowQuantCall) -> object:
    op, input = "row_quant", call.input
    quant_rule.check_group(op, input.shape[-1], call.group_size)
    quant_rule.check_scale(op, "scale", call.scale, input, call.group_size)
    if call.scale_ub is not None and call.group_size:
        raise ValueError(f"{op}: scale_ub must be None where scales are per group, got one with group "
                         f"{call.group_size}")
    parts.check_numbers(op, call, "scale_ub")
    return SKIP if input.numel() == 0 else None


class RowQuantKey(NamedTuple):
    """The fields that a tuned row of row_quant is chosen by."""

    rows: int
    columns: int
    group_size: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: RowQuantCall) -> RowQuantKey:
        return cls(*tune_shapes.row_sizes(call.input)[:2], call.group_size, *parts.names(call))

    def make(self, device: torch.device, seed: int, *, is_smoothed: bool = False, scale_ub: float | None = None,
             num_rows: int | None = None) -> RowQuantCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        x, groups = random(self.rows, self.columns), self.columns // self.group_size if self.group_size else 1
        out = torch.empty_like(x, dtype=tune_shapes.dtype_on(device, self.out_dtype))
        return RowQuantCall(out, torch.empty(self.rows, groups, device=device), x, self.group_size,
                            random(self.columns).abs().float() if is_smoothed else None,
                            parts.number(device, scale_ub), parts.number(device, num_rows))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[RowQuantKey]:
        """The keys of what linear layers read, with a scale per token and per 128 columns."""
        for (count, columns), group_size in itertools.product(tune_shapes.linear_inputs(model, tp, tokens), (0, 128)):
            if group_size == 0 or columns % group_size == 0:
                yield cls(count, columns, group_size, model.dtype, tune_shapes.fp8_name())


_row_quant = Op(
    "row_quant", call=RowQuantCall, reference=row_quant_ref, check=_check, key=RowQuantKey, writes=("out", "scale"),
    cases={"row": RowQuantKey(5, 4096, 0, "bf16", "i8"),
           "bounded row": (RowQuantKey(5, 4096, 0, "bf16", "i8"), {"scale_ub": 2.0}),
           "first rows": (RowQuantKey(5, 4096, 0, "bf16", "i8"), {"num_rows": 3}),
           "smoothed": (RowQuantKey(5, 1024, 0, "bf16", "i8"), {"is_smoothed": True}),
           "long row": RowQuantKey(1, 36864, 0, "bf16", "i8"), "group": RowQuantKey(5, 1024, 128, "bf16", "fp8")},
    backends=(Backend("hip", _row_quant_hip, refusal=parts.refusal, space=rows.lanes_of("input", is_8bit=True)),
              Backend("triton", "ops.quant.triton.row_quant:row_quant", refusal=parts.refusal,
                      space=tune_shapes.row_space),
              Backend("torch", row_quant_ref)))


def per_token_quant_hip(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                        num_rows: Tensor | None = None, num_rows_factor: int = 1, *,
                        backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each row with its own scale.

    Args:
        x: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: None; AITER has no static form.
        quant_dtype: torch.int8 or the hardware's fp8.
        num_rows: one int32 on the device, or None: only the first num_rows · num_rows_factor rows are quantised.
        num_rows_factor: ≥ 1.

    Returns: q [..., K] and the scales [..., 1] fp32.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic.
    """
    parts.refuse_scale("per_token_quant_hip", scale)
    out, scale = parts.outputs("per_token_quant_hip", x, quant_dtype, 0)
    _row_quant.run(out, scale, x, num_rows=num_rows, num_rows_factor=num_rows_factor, backend=backend)
    return out, scale


def per_group_quant_hip(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                        group_size: int = 128, transpose_scale: bool = False, num_rows: Tensor | None = None,
                        num_rows_factor: int = 1, scale_type: torch.dtype = torch.float32, *,
                        backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each `group_size` columns of a row with their own scale. Like `per_token_quant_hip` otherwise.

    Args:
        group_size: 32, 64 or 128; divides K.
        transpose_scale: the scales lie in memory with groups outermost: that of row m, group g at g · M + m.
        scale_type: torch.float32.

    Returns: q [..., K] and the scales [..., K / group_size] fp32.
    """
    parts.refuse_scale("per_group_quant_hip", scale)
    check.choice("per_group_quant_hip", "group_size", group_size, quant_rule.GROUPS)
    check.choice("per_group_quant_hip", "scale_type", scale_type, (torch.float32,))
    out, scale = parts.outputs("per_group_quant_hip", x, quant_dtype, group_size)
    _row_quant.run(out, quant_rule.group_major(scale, transpose_scale), x, group_size, num_rows=num_rows,
                   num_rows_factor=num_rows_factor, backend=backend)
    return out, scale


def dynamic_per_token_scaled_quant(out: Tensor, input: Tensor, scales: Tensor, scale_ub: Tensor | None = None,
                                   shuffle_scale: bool = False, num_rows: Tensor | None = None,
                                   num_rows_factor: int = 1, *, backend: str | None = None) -> None:
    """Quantises rows, or groups of columns where `scales` has several per row. Like `per_token_quant_hip` otherwise.

    Args:
        out: [..., K], written; the hardware's fp8, or int8; rows evenly spaced.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scales: [..., 1] fp32, or [..., K / 32|64|128]; written.
        scale_ub: one fp32 number on the device: the largest magnitude that a row's scale covers. None: no such limit.
        shuffle_scale: the scales lie in memory with groups outermost.

    Returns: Nothing.
    """
    group_size = 0
    if isinstance(input, Tensor) and isinstance(scales, Tensor) and input.ndim and scales.numel():
        groups = scales.numel() * input.shape[-1] // max(input.numel(), 1)
        group_size = input.shape[-1] // groups if groups > 1 else 0
    _row_quant.run(out, quant_rule.group_major(scales, shuffle_scale), input, group_size, scale_ub=scale_ub,
                   num_rows=num_rows, num_rows_factor=num_rows_factor, backend=backend)


def dynamic_per_token_quant_fp8_i8(qx: Tensor, x_in: Tensor, scale_out: Tensor, *,
                                   backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each row into tensors that the caller gives. Like `per_token_quant_hip` otherwise.

    Args:
        qx: [..., K], written; the hardware's fp8, or int8; rows evenly spaced.
        x_in: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale_out: [...] or [..., 1] fp32, written.

    Returns: `qx` and `scale_out`.
    """
    _row_quant.run(qx, scale_out, x_in, backend=backend)
    return qx, scale_out


def smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, y_scale: Tensor, *,
                    backend: str | None = None) -> None:
    """Quantises rows of `input · x_scale`. Like `dynamic_per_token_scaled_quant` otherwise.

    Args:
        x_scale: [K] or [1, K] fp32: a factor per column.
        y_scale: [..., 1] fp32, written: the rows' scales.
    """
    if isinstance(x_scale, Tensor) and x_scale.ndim == 2 and x_scale.shape[0] == 1:
        x_scale = x_scale[0]
    _row_quant.run(out, y_scale, input, smooth_scale=x_scale, backend=backend)


torch_ops.register(_row_quant, per_token_quant_hip)
