# SPDX-License-Identifier: MIT
"""Quantisers to fp8 and int8 with one scale. Kernels: csrc/quant/tensor_quant.hip, ops/quant/triton/row_quant.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, tune_shapes
from aiter_like.ops.quant.row_quant import (
    check_matrices,
    check_number,
    kernel_refusal,
    outputs,
    used_rows,
    write_rows,
)

__all__ = ["dynamic_per_tensor_quant", "dynamic_per_tensor_quant_fp8_i8", "per_tensor_quant_hip",
           "static_per_tensor_quant", "static_per_tensor_quant_fp8_i8"]

_MOST_ELEMENTS = 2**31 - 2**16  # that tensor_quant.hip numbers


def tensor_quant_ref(out: Tensor, scale: Tensor, input: Tensor, is_dynamic: bool, num_rows: Tensor | None,
                     num_rows_factor: int) -> None:
    """The rule of scales.py in torch."""
    x, is_used = input.float(), used_rows(input, num_rows, num_rows_factor)
    if is_dynamic:
        used = x if is_used is None else torch.where(is_used, x, 0.0)
        scale.copy_(quant_rule.row_scales(used.reshape(1, -1), out.dtype).view(scale.shape))
    write_rows(out, quant_rule.rounded(x * (1 / scale.reshape(())), out.dtype), is_used)


def _tensor_instance(out: Tensor, scale: Tensor, input: Tensor, is_dynamic: bool, num_rows: Tensor | None,
                     num_rows_factor: int, *, vectors: int = 4) -> Instance:
    name = f"{dtypes.name(input.dtype)}_{elements.short(out.dtype)}_v{vectors}"
    return Instance(name, {"ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out.dtype], "VECTORS": vectors,
                           "VEC": 16 // input.element_size()})


@compile_ops("quant/tensor_quant.hip", gen_func=_tensor_instance, prebuild=list)
def _tensor_quant_hip(out: Tensor, scale: Tensor, input: Tensor, is_dynamic: bool, num_rows: Tensor | None,
                      num_rows_factor: int) -> None: ...


def _tensor_check(out: Tensor, scale: Tensor, input: Tensor, is_dynamic: bool, num_rows: Tensor | None,
                  num_rows_factor: int) -> object:
    op = "tensor_quant"
    check_matrices(op, out, input)
    check.tensor(op, "scale", scale, dtypes=(torch.float32,), device=input.device)
    check_number(op, "scale", scale, torch.float32, input.device)
    check_number(op, "num_rows", num_rows, torch.int32, input.device)
    check.integer(op, "num_rows_factor", num_rows_factor, low=1)
    return SKIP if input.numel() == 0 else None


def _hip_refusal(target: Target, out: Tensor, scale: Tensor, input: Tensor, *_: object) -> str | None:
    if input.numel() > _MOST_ELEMENTS:
        return f"at most {_MOST_ELEMENTS} elements, got {input.numel()}"
    return kernel_refusal(target, out, scale, input)


def _tune_key(out: Tensor, scale: Tensor, input: Tensor, is_dynamic: bool, *_: object) -> dict[str, int | str]:
    columns = input.shape[-1]
    return {"rows": input.numel() // columns, "columns": columns, "is_dynamic": is_dynamic,
            "dtype": dtypes.name(input.dtype), "out_dtype": dtypes.name(out.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    x = tune_shapes.normal(device, seed, key["dtype"])(key["rows"], key["columns"])
    out = torch.empty_like(x, dtype=dtypes.DTYPES[key["out_dtype"]])
    return out, torch.full((1,), 0.05, device=device), x, bool(key["is_dynamic"]), None, 1


def _traffic(out: Tensor, scale: Tensor, input: Tensor, is_dynamic: bool, *_: object) -> tuple[int, int]:
    """A scale that has to be found takes a pass of its own."""
    return out.nbytes + input.nbytes * (2 if is_dynamic else 1), 0


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """What linear layers read, with a scale that is known and with one to find."""
    for count, columns in tune_shapes.linear_inputs(model, tp, tokens):
        for is_dynamic in (0, 1):
            yield {"rows": count, "columns": columns, "is_dynamic": is_dynamic, "dtype": model.dtype,
                   "out_dtype": tune_shapes.fp8_name()}


def _tensor_self_check(device: torch.device) -> tuple:
    x = torch.randn(5, 4096, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    return torch.empty_like(x, dtype=torch.int8), torch.empty(1, device=device), x, True, None, 1


_tensor_quant = Op(
    "tensor_quant", reference=tensor_quant_ref, check=_tensor_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "is_dynamic", "dtype", "out_dtype"), round_field="rows", writes=("out", "scale"),
    self_check=_tensor_self_check, tuning=Tuning(_tune_case, _traffic, _tune_shapes),
    backends=(Backend("hip", _tensor_quant_hip, refusal=_hip_refusal,
                      space=lambda *_: [{"vectors": count} for count in (1, 2, 4, 8)]),
              Backend("triton", "ops.quant.triton.row_quant:tensor_quant", refusal=kernel_refusal,
                      space=lambda *_: [{"num_warps": count} for count in (2, 4, 8, 16)]),
              Backend("torch", tensor_quant_ref)))


def per_tensor_quant_hip(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                         num_rows: Tensor | None = None, num_rows_factor: int = 1, *,
                         backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises a tensor with one scale, given or found.

    Args:
        x: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: one fp32 number on the device, or None: found among the elements.
        quant_dtype: torch.int8 or the hardware's fp8.
        num_rows: one int32 on the device, or None: only the first num_rows · num_rows_factor rows are quantised.
        num_rows_factor: ≥ 1.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        q [..., K] and the scale [1] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `quant_dtype` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `per_tensor_quant_hip`.
    """
    out, found = outputs("per_tensor_quant_hip", x, quant_dtype, None)
    used = found if scale is None else scale
    _tensor_quant(out, used, x, scale is None, num_rows, num_rows_factor, backend=backend)
    return out, used.view(1)


def static_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor, *, backend: str | None = None) -> None:
    """Quantises a tensor with a scale that is known before.

    `out = round(input · (1 / scale))`, saturated.

    Args:
        out: [..., K], written; the hardware's fp8, or int8.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: one fp32 number on the device.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `out` is the fp8 of other hardware.

    Notes:
        To nearest even; NaN stays NaN in fp8, becomes 0 in int8; can be captured in a graph.

    Source: AITER's `static_per_tensor_quant`.
    """
    _tensor_quant(out, scale, input, False, None, 1, backend=backend)


def dynamic_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor, *, backend: str | None = None) -> None:
    """Quantises a tensor with one scale, which is found and written without a word to the host.

    Args:
        out: [..., K], written; the hardware's fp8, or int8.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: one fp32 number on the device, written.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `scale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `out` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `dynamic_per_tensor_quant`.
    """
    _tensor_quant(out, scale, input, True, None, 1, backend=backend)


def static_per_tensor_quant_fp8_i8(qx: Tensor, x_in: Tensor, scale_in: Tensor, *, backend: str | None = None) -> Tensor:
    """`static_per_tensor_quant` as AITER's Triton library has it.

    `qx = round(x_in · (1 / scale_in))`, saturated.

    Args:
        qx: [..., K], written; the hardware's fp8, or int8.
        x_in: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale_in: one fp32 number on the device.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `qx`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `qx` is the fp8 of other hardware.

    Notes:
        As `static_per_tensor_quant`.

    Source: AITER's `static_per_tensor_quant_fp8_i8`.
    """
    static_per_tensor_quant(qx, x_in, scale_in, backend=backend)
    return qx


def dynamic_per_tensor_quant_fp8_i8(qx: Tensor, x_in: Tensor, scale_out: Tensor, *,
                                    backend: str | None = None) -> tuple[Tensor, Tensor]:
    """`dynamic_per_tensor_quant` as AITER's Triton library has it.

    Args:
        qx: [..., K], written; the hardware's fp8, or int8.
        x_in: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale_out: one fp32 number on the device, written; what it holds before does not matter.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `qx` and `scale_out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `qx` is the fp8 of other hardware.

    Notes:
        As `dynamic_per_tensor_quant`.

    Source: AITER's `dynamic_per_tensor_quant_fp8_i8`.
    """
    dynamic_per_tensor_quant(qx, x_in, scale_out, backend=backend)
    return qx, scale_out


torch_ops.register(_tensor_quant, per_tensor_quant_hip)
