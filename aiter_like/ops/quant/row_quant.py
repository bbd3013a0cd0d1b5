# SPDX-License-Identifier: MIT
"""Quantisers to fp8 and int8: by row or group. Kernels: csrc/quant/row_quant.hip, ops/quant/triton/row_quant.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, simulated_target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.common.quant_rule import check_scale, group_major

__all__ = ["dynamic_per_token_quant_fp8_i8", "dynamic_per_token_scaled_quant", "per_group_quant_hip",
           "per_token_quant_hip", "smoothquant_fwd"]


def row_quant_ref(out: Tensor, scale: Tensor, input: Tensor, group_size: int, smooth_scale: Tensor | None,
                  scale_ub: Tensor | None, num_rows: Tensor | None, num_rows_factor: int) -> None:
    """The rule of scales.py in torch."""
    x = input.float() if smooth_scale is None else input.float() * smooth_scale
    own = quant_rule.row_scales(x, out.dtype, group_size)
    if scale_ub is not None:
        bound = quant_rule.divided(scale_ub.reshape(()).clamp(min=quant_rule.SMALLEST_AMAX),
                                   quant_rule.largest(out.dtype))
        own = own.minimum(bound)
    is_used = used_rows(input, num_rows, num_rows_factor)
    write_rows(out, quant_rule.quantised(x, own, out.dtype), is_used)
    write_rows(scale, own, is_used)


def used_rows(matrix: Tensor, num_rows: Tensor | None, factor: int) -> Tensor | None:
    """[..., 1]: whether a row is one of the first num_rows · factor, without asking the device for the number; None for
    all rows.
    """
    if num_rows is None:
        return None
    index = torch.arange(matrix.shape[:-1].numel(), device=matrix.device)
    return (index < num_rows.reshape(()) * factor).view(*matrix.shape[:-1], 1)


def write_rows(out: Tensor, value: Tensor, is_used: Tensor | None) -> None:
    """Writes the used rows of `value` to `out`, which has as many elements."""
    if is_used is not None:
        bits = torch.int8 if out.element_size() == 1 else out.dtype  # torch cannot choose between fp8 elements
        value = torch.where(is_used, value.view(bits), out.reshape(value.shape).view(bits)).view(out.dtype)
    out.copy_(value.view(out.shape))


def _row_instance(out: Tensor, scale: Tensor, input: Tensor, group_size: int, smooth_scale: Tensor | None,
                  scale_ub: Tensor | None, num_rows: Tensor | None, num_rows_factor: int, *,
                  lanes: int | None = None, vec: int | None = None) -> Instance:
    return _row_variant(target_of(input.device), out, input, group_size, smooth_scale is not None, lanes, vec)


def _row_variant(target: Target, out: Tensor, input: Tensor, group_size: int, has_smooth: bool,
                 lanes: int | None, vec: int | None = None) -> Instance:
    parts = [dtypes.name(input.dtype), elements.short(out.dtype),
             *([f"g{group_size}"] if group_size else []), *(["smooth"] if has_smooth else [])]
    return rows.layout(target, input, lanes=lanes, vec=vec, takes_unaligned=True).instance("_".join(parts), {
        "ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out.dtype], "SMOOTH": "float", "GROUP": group_size,
        "HAS_SMOOTH": int(has_smooth)})


def _row_prebuilt() -> list[Instance]:
    """fp8 by token and by 128 columns, for decode and prefill of the usual hidden sizes in bf16."""
    found = {}
    for hidden in (4096, 5120, 7168, 8192):
        for count, group_size in ((1, 0), (4096, 0), (1, 128), (4096, 128)):
            x = torch.empty(count, hidden, dtype=torch.bfloat16, device="meta")
            out = x.to(torch.float8_e4m3fnuz)
            instance = _row_variant(simulated_target(), out, x, group_size, False, None)
            found[instance.name] = instance
    return list(found.values())


@compile_ops("quant/row_quant.hip", gen_func=_row_instance, prebuild=_row_prebuilt)
def _row_quant_hip(out: Tensor, scale: Tensor, input: Tensor, group_size: int, smooth_scale: Tensor | None,
                   scale_ub: Tensor | None, num_rows: Tensor | None, num_rows_factor: int) -> None: ...


def check_matrices(op: str, out: Tensor, input: Tensor) -> None:
    """`input` and `out` are what a quantiser takes.

    Raises:
        TypeError: of another kind or dtype.
        ValueError: of another shape, layout or device.
    """
    check.tensor(op, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError(f"{op}: input must have at least 1 dimension, got a scalar")
    check.tensor(op, "out", out, dtypes=quant_rule.DTYPES, shape=input.shape, device=input.device)


def check_number(op: str, name: str, value: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
    """`value` is None or one number on `device`.

    Raises:
        TypeError: of another kind or dtype.
        ValueError: several numbers, or elsewhere.
    """
    if value is not None:
        check.tensor(op, name, value, dtypes=(dtype,), device=device)
        if value.numel() != 1:
            raise ValueError(f"{op}: {name} must have one element, got shape {tuple(value.shape)}")


def _row_check(out: Tensor, scale: Tensor, input: Tensor, group_size: int, smooth_scale: Tensor | None,
               scale_ub: Tensor | None, num_rows: Tensor | None, num_rows_factor: int) -> object:
    op = "row_quant"
    check_matrices(op, out, input)
    quant_rule.check_group(op, input.shape[-1], group_size)
    check_scale(op, "scale", scale, input, group_size)
    if smooth_scale is not None:
        check.tensor(op, "smooth_scale", smooth_scale, dtypes=(torch.float32,), shape=input.shape[-1:],
                     device=input.device)
    if scale_ub is not None and group_size:
        raise ValueError(f"{op}: scale_ub must be None where scales are per group, got one with group {group_size}")
    check_number(op, "scale_ub", scale_ub, torch.float32, input.device)
    check_number(op, "num_rows", num_rows, torch.int32, input.device)
    check.integer(op, "num_rows_factor", num_rows_factor, low=1)
    return SKIP if input.numel() == 0 else None


def kernel_refusal(target: Target, out: Tensor, scale: Tensor, input: Tensor, *_: object) -> str | None:
    """What every kernel refuses."""
    return quant_rule.refusal(target, out.dtype) or rows.refusal(input=input, out=out)


def _tune_key(out: Tensor, scale: Tensor, input: Tensor, group_size: int, *_: object) -> dict[str, int | str]:
    columns = input.shape[-1]
    return {"rows": input.numel() // columns, "columns": columns, "group_size": group_size,
            "dtype": dtypes.name(input.dtype), "out_dtype": dtypes.name(out.dtype)}


def _self_check(device: torch.device) -> tuple:
    x = torch.randn(5, 4096, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    return torch.empty_like(x, dtype=torch.int8), torch.empty(5, 1, device=device), x, 0, None, None, None, 1


def _hip_space(target: Target, out: Tensor, scale: Tensor, input: Tensor, group_size: int,
               *_: object) -> list[dict[str, int]]:
    return rows.lane_space(target, input, group_size=group_size, is_8bit=True)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    x = torch.randn(key["rows"], key["columns"], generator=torch.Generator(device).manual_seed(seed), device=device,
                    dtype=dtypes.DTYPES[key["dtype"]])
    groups = key["columns"] // key["group_size"] if key["group_size"] else 1
    scale = torch.empty(key["rows"], groups, device=device)
    out = torch.empty(x.shape, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return out, scale, x, key["group_size"], None, None, None, 1


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """What linear layers read, with a scale per token and per 128 columns."""
    for count, columns in tune_shapes.linear_inputs(model, tp, tokens):
        for group_size in (0, 128):
            if group_size == 0 or columns % group_size == 0:
                yield {"rows": count, "columns": columns, "group_size": group_size, "dtype": model.dtype,
                       "out_dtype": tune_shapes.fp8_name()}


_row_quant = Op(
    "row_quant", reference=row_quant_ref, check=_row_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "group_size", "dtype", "out_dtype"), writes=("out", "scale"),
    self_check=_self_check, tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _row_quant_hip, refusal=kernel_refusal, space=_hip_space),
              Backend("triton", "ops.quant.triton.row_quant:row_quant",
                      refusal=kernel_refusal, space=tune_shapes.row_space),
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
    out, scale = outputs("per_token_quant_hip", x, quant_dtype, 0)
    _row_quant(out, scale, x, 0, None, None, num_rows, num_rows_factor, backend=backend)
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
    out, scale = outputs("per_group_quant_hip", x, quant_dtype, group_size)
    _row_quant(out, group_major(scale, transpose_scale), x, group_size, None, None, num_rows, num_rows_factor,
               backend=backend)
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
    _row_quant(out, group_major(scales, shuffle_scale), input, group_size, None, scale_ub, num_rows, num_rows_factor,
               backend=backend)


def dynamic_per_token_quant_fp8_i8(qx: Tensor, x_in: Tensor, scale_out: Tensor, *,
                                   backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises each row with its own scale, into tensors that are there.

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
    _row_quant(qx, scale_out, x_in, 0, None, None, None, 1, backend=backend)
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
    _row_quant(out, y_scale, input, 0, x_scale, None, None, 1, backend=backend)


def _refuse_scale(op: str, scale: object) -> None:
    if scale is not None:
        raise ValueError(f"{op}: scale must be None, the scales are found; got {type(scale).__name__}")


def outputs(op: str, x: Tensor, dtype: torch.dtype, group_size: int | None) -> tuple[Tensor, Tensor]:
    """New q and scales; one scale for the tensor where `group_size` is None."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: x must be a tensor, got {type(x).__name__}")
    check.choice(op, "quant_dtype", dtype, quant_rule.DTYPES)
    if x.ndim == 0:
        raise ValueError(f"{op}: x must have at least 1 dimension, got a scalar")
    shape = (1,) if group_size is None else (*x.shape[:-1], x.shape[-1] // group_size if group_size else 1)
    scale = torch.empty(shape, dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        scale.fill_(quant_rule.SMALLEST_AMAX / quant_rule.largest(dtype))  # as of zeros
    return torch.empty(x.shape, dtype=dtype, device=x.device), scale


torch_ops.register(_row_quant, per_token_quant_hip)
