# SPDX-License-Identifier: MIT
"""Quantisers to fp8 and int8: by row or group. Kernels: csrc/quant/row_quant.hip, ops/quant/triton/row_quant.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["dynamic_per_token_quant_fp8_i8", "dynamic_per_token_scaled_quant", "per_group_quant_hip",
           "per_token_quant_hip", "smoothquant_fwd"]


class RowQuantCall(NamedTuple):
    """One call of row_quant. The rows of `out` and `input` are evenly spaced.

    Attributes:
        out: [..., K], written; fp8 or int8.
        scale: written: an fp32 number per row, or per row and group.
        input: [..., K].
        group_size: columns with a scale of their own; 0: one scale per row.
        smooth_scale: [K] fp32: a factor per column.
        scale_ub: one fp32 number: the largest magnitude that a row's scale covers.
        num_rows: one int32 number: only the first num_rows · num_rows_factor rows are quantised; None: all.
    """

    out: Tensor
    scale: Tensor
    input: Tensor
    group_size: int = 0
    smooth_scale: Tensor | None = None
    scale_ub: Tensor | None = None
    num_rows: Tensor | None = None
    num_rows_factor: int = 1


def row_quant_ref(call: RowQuantCall) -> None:
    """The rule of ops/common/quant_rule.py."""
    out, x = call.out, call.input.float()
    if call.smooth_scale is not None:
        x = x * call.smooth_scale
    own = quant_rule.row_scales(x, out.dtype, call.group_size)
    if call.scale_ub is not None:
        bound = quant_rule.divided(call.scale_ub.reshape(()).clamp(min=quant_rule.SMALLEST_AMAX),
                                   quant_rule.largest(out.dtype))
        own = own.minimum(bound)
    is_used = parts.used_rows(call.input, call.num_rows, call.num_rows_factor)
    parts.write_rows(out, quant_rule.quantised(x, own, out.dtype), is_used)
    parts.write_rows(call.scale, own, is_used)


def _instance(call: RowQuantCall, *, lanes: int | None = None, vec: int | None = None) -> Instance:
    input, out_dtype, group_size = call.input, call.out.dtype, call.group_size
    has_smooth = call.smooth_scale is not None
    name = "_".join([dtypes.name(input.dtype), elements.short(out_dtype), *([f"g{group_size}"] if group_size else []),
                     *(["smooth"] if has_smooth else [])])
    row_layout = rows.row_layout(target_of(input.device), input, lanes=lanes, vec=vec, takes_unaligned=True)
    return row_layout.instance(name, {
        "ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out_dtype], "SMOOTH": "float", "GROUP": group_size,
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
    parts.check_matrices(op, call.out, input)
    quant_rule.check_group(op, input.shape[-1], call.group_size)
    quant_rule.check_scale(op, "scale", call.scale, input, call.group_size)
    if call.smooth_scale is not None:
        check.tensor(op, "smooth_scale", call.smooth_scale, dtypes=(torch.float32,), shape=input.shape[-1:],
                     device=input.device)
    if call.scale_ub is not None and call.group_size:
        raise ValueError(f"{op}: scale_ub must be None where scales are per group, got one with group "
                         f"{call.group_size}")
    parts.check_limits(op, call)
    return SKIP if input.numel() == 0 else None


def _tune_key(call: RowQuantCall) -> dict[str, int | str]:
    columns = call.input.shape[-1]
    return {"rows": call.input.numel() // columns, "columns": columns, "group_size": call.group_size,
            "dtype": dtypes.name(call.input.dtype), "out_dtype": dtypes.name(call.out.dtype)}


def _cases(device: torch.device) -> dict[str, RowQuantCall]:
    """By row, also bounded, smoothed, long and of fewer rows than there are; by group."""
    generator = torch.Generator().manual_seed(0)
    x, narrow = (torch.randn(5, size, generator=generator).to(device, torch.bfloat16) for size in (4096, 1024))
    row = RowQuantCall(torch.empty_like(x, dtype=torch.int8), torch.empty(5, 1, device=device), x)
    fp8 = torch.empty_like(narrow, dtype=dtypes.fp8_of(target_of(device).arch))
    smooth = torch.rand(1024, generator=generator).to(device) + 0.5
    return {"row": row, "bounded row": row._replace(scale_ub=torch.full((1,), 2.0, device=device)),
            "first rows": row._replace(num_rows=torch.full((1,), 3, dtype=torch.int32, device=device)),
            "smoothed": RowQuantCall(torch.empty_like(fp8, dtype=torch.int8), torch.empty_like(row.scale), narrow,
                                     smooth_scale=smooth),
            "long row": RowQuantCall(torch.empty(1, 36864, dtype=torch.int8, device=device),
                                     torch.empty(1, 1, device=device), x[:1].repeat(1, 9)),
            "group": RowQuantCall(fp8, torch.empty(5, 8, device=device), narrow, 128)}


def _hip_space(target: Target, call: RowQuantCall) -> list[dict[str, int]]:
    return rows.lane_space(target, call.input, group_size=call.group_size, is_8bit=True)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> RowQuantCall:
    x = tune_shapes.normal(device, seed, key["dtype"])(key["rows"], key["columns"])
    groups = key["columns"] // key["group_size"] if key["group_size"] else 1
    out = torch.empty(x.shape, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return RowQuantCall(out, torch.empty(key["rows"], groups, device=device), x, key["group_size"])


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """What linear layers read, with a scale per token and per 128 columns."""
    for count, columns in tune_shapes.linear_inputs(model, tp, tokens):
        for group_size in (0, 128):
            if group_size == 0 or columns % group_size == 0:
                yield {"rows": count, "columns": columns, "group_size": group_size, "dtype": model.dtype,
                       "out_dtype": tune_shapes.fp8_name()}


_row_quant = Op(
    "row_quant", call=RowQuantCall, reference=row_quant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "group_size", "dtype", "out_dtype"), writes=("out", "scale"), cases=_cases,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _row_quant_hip, refusal=parts.refusal, space=_hip_space),
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
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        q [..., K] and the scales [..., 1] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `quant_dtype` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `per_token_quant_hip`.
    """
    _refuse_scale("per_token_quant_hip", scale)
    out, scale = parts.outputs("per_token_quant_hip", x, quant_dtype, 0)
    _row_quant.run(out, scale, x, num_rows=num_rows, num_rows_factor=num_rows_factor, backend=backend)
    return out, scale


def per_group_quant_hip(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                        group_size: int = 128, transpose_scale: bool = False, num_rows: Tensor | None = None,
                        num_rows_factor: int = 1, scale_type: torch.dtype = torch.float32, *,
                        backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each `group_size` columns of a row with their own scale.

    Args:
        x: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: None; AITER has no static form.
        quant_dtype: torch.int8 or the hardware's fp8.
        group_size: 32, 64 or 128; divides K.
        transpose_scale: the scales lie in memory with groups outermost: that of row m, group g at g · M + m.
        num_rows: one int32 on the device, or None: only the first num_rows · num_rows_factor rows are quantised.
        num_rows_factor: ≥ 1.
        scale_type: torch.float32.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        q [..., K] and the scales [..., K / group_size] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `quant_dtype` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `per_group_quant_hip`.
    """
    _refuse_scale("per_group_quant_hip", scale)
    check.choice("per_group_quant_hip", "group_size", group_size, quant_rule.GROUPS)
    check.choice("per_group_quant_hip", "scale_type", scale_type, (torch.float32,))
    out, scale = parts.outputs("per_group_quant_hip", x, quant_dtype, group_size)
    _row_quant.run(out, quant_rule.group_major(scale, transpose_scale), x, group_size, num_rows=num_rows,
                   num_rows_factor=num_rows_factor, backend=backend)
    return out, scale


def dynamic_per_token_scaled_quant(out: Tensor, input: Tensor, scales: Tensor, scale_ub: Tensor | None = None,
                                   shuffle_scale: bool = False, num_rows: Tensor | None = None,
                                   num_rows_factor: int = 1, *, backend: str | None = None) -> None:
    """Quantises rows, or groups of columns where `scales` has several per row.

    Args:
        out: [..., K], written; the hardware's fp8, or int8.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scales: [..., 1] fp32, or [..., K / 32|64|128]; written.
        scale_ub: one fp32 number on the device: the largest magnitude that a row's scale covers. None: no such limit.
        shuffle_scale: the scales lie in memory with groups outermost.
        num_rows: one int32 on the device, or None: only the first num_rows · num_rows_factor rows are quantised.
        num_rows_factor: ≥ 1.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `scales` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `out` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `dynamic_per_token_scaled_quant`.
    """
    group_size = 0
    if isinstance(input, Tensor) and isinstance(scales, Tensor) and input.ndim and scales.numel():
        groups = scales.numel() * input.shape[-1] // max(input.numel(), 1)
        group_size = input.shape[-1] // groups if groups > 1 else 0
    _row_quant.run(out, quant_rule.group_major(scales, shuffle_scale), input, group_size, scale_ub=scale_ub,
                   num_rows=num_rows, num_rows_factor=num_rows_factor, backend=backend)


def dynamic_per_token_quant_fp8_i8(qx: Tensor, x_in: Tensor, scale_out: Tensor, *,
                                   backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each row with its own scale, into tensors that the caller gives.

    Args:
        qx: [..., K], written; the hardware's fp8, or int8.
        x_in: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale_out: [...] or [..., 1] fp32, written.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `qx` and `scale_out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `qx` is the fp8 of other hardware.

    Notes:
        As `per_token_quant_hip`.

    Source: AITER's `dynamic_per_token_quant_fp8_i8`.
    """
    _row_quant.run(qx, scale_out, x_in, backend=backend)
    return qx, scale_out


def smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, y_scale: Tensor, *,
                    backend: str | None = None) -> None:
    """Quantises rows of `input · x_scale`.

    Args:
        out: [..., K], written; the hardware's fp8, or int8.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        x_scale: [K] or [1, K] fp32: a factor per column.
        y_scale: [..., 1] fp32, written: the rows' scales.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `y_scale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `out` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `smoothquant_fwd`.
    """
    if isinstance(x_scale, Tensor) and x_scale.ndim == 2 and x_scale.shape[0] == 1:
        x_scale = x_scale[0]
    _row_quant.run(out, y_scale, input, smooth_scale=x_scale, backend=backend)


def _refuse_scale(op: str, scale: object) -> None:
    if scale is not None:
        raise ValueError(f"{op}: scale must be None, the scales are found; got {type(scale).__name__}")


torch_ops.register(_row_quant, per_token_quant_hip)
