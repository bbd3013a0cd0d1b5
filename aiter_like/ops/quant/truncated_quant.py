# SPDX-License-Identifier: MIT
"""Quantisation to int8 towards zero. Kernels: csrc/quant/truncated_quant.hip, ops/quant/triton/truncated_quant.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["truncated_quant"]

_OP = "truncated_quant"


class TruncatedQuantCall(NamedTuple):
    """One call of truncated_quant: the fields of TensorQuantCall (tensor_quant.py), and another.

    Attributes:
        out: int8.
        scale: where the call is dynamic a number for each row, found among its elements, dense.
        scale_ub: one fp32 number: the largest magnitude that a scale that is found covers.
    """

    out: Tensor
    scale: Tensor
    input: Tensor
    is_dynamic: bool = True
    scale_ub: Tensor | None = None
    num_rows: Tensor | None = None
    num_rows_factor: int = 1


def truncated_quant_ref(call: TruncatedQuantCall) -> None:
    """The formula in torch, in fp32; writes `out` and `scale`."""
    x, own = call.input.float(), call.scale
    is_used = parts.used_rows(call.input, call.num_rows, call.num_rows_factor)
    if call.is_dynamic:
        own = quant_rule.row_scales(x, torch.int8)
        if call.scale_ub is not None:
            own = own.minimum(quant_rule.divided(call.scale_ub.reshape(()).clamp(min=quant_rule.SMALLEST_AMAX), 127.0))
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
    input = call.input
    parts.check_matrices(_OP, call.out, input)
    check.tensor(_OP, "out", call.out, dtypes=(torch.int8,))
    check.flag(_OP, "is_dynamic", call.is_dynamic)
    check.tensor(_OP, "scale", call.scale, dtypes=(torch.float32,), device=input.device, last_contiguous=False)
    count = input.shape[:-1].numel() if call.is_dynamic else 1
    if call.scale.numel() != count or not call.scale.is_contiguous():
        raise ValueError(f"{_OP}: scale must be contiguous with {count} elements, got shape {tuple(call.scale.shape)}, "
                         f"strides {call.scale.stride()}")
    if call.scale_ub is not None and not call.is_dynamic:
        raise ValueError(f"{_OP}: scale_ub must be None where the scale is given, got one")
    parts.check_limits(_OP, call)
    return SKIP if input.numel() == 0 else None


def _tune_key(call: TruncatedQuantCall) -> dict[str, int | str]:
    columns = call.input.shape[-1]
    return {"rows": call.input.numel() // columns, "columns": columns, "is_dynamic": call.is_dynamic,
            "dtype": dtypes.name(call.input.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> TruncatedQuantCall:
    x = tune_shapes.normal(device, seed, key["dtype"])(key["rows"], key["columns"])
    scale = torch.full((key["rows"] if key["is_dynamic"] else 1,), 0.05, device=device)
    return TruncatedQuantCall(torch.empty_like(x, dtype=torch.int8), scale, x, bool(key["is_dynamic"]))


def _cases(device: torch.device) -> dict[str, TruncatedQuantCall]:
    """Scales by row, bounded, of fewer rows than there are, of a row in pieces; one that is given."""
    key = {"rows": 5, "columns": 1024, "is_dynamic": 1, "dtype": "bf16"}
    row = _tune_case(key, device, 0)
    return {"row": row, "bounded row": row._replace(scale_ub=torch.full((1,), 2.0, device=device)),
            "first rows": row._replace(num_rows=torch.full((1,), 3, dtype=torch.int32, device=device)),
            "long row": _tune_case({**key, "rows": 1, "columns": 36864}, device, 1),
            "given": _tune_case({**key, "columns": 1000, "is_dynamic": 0}, device, 2)}


_truncated_quant = Op(
    _OP, call=TruncatedQuantCall, reference=truncated_quant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "is_dynamic", "dtype"), round_field="rows", writes=("out", "scale"), cases=_cases,
    tuning=Tuning(_tune_case),
    backends=(Backend("hip", _truncated_quant_hip, refusal=parts.refusal,
                      space=lambda target, call: rows.lane_space(target, call.input)),
              Backend("triton", "ops.quant.triton.truncated_quant:truncated_quant", refusal=parts.refusal,
                      space=tune_shapes.row_space),
              Backend("torch", truncated_quant_ref)))


def truncated_quant(out: Tensor, input: Tensor, scale: Tensor, is_dynamic: bool = True,
                    scale_ub: Tensor | None = None, num_rows: Tensor | None = None, num_rows_factor: int = 1, *,
                    backend: str | None = None) -> None:
    """Quantises to int8 towards zero, with a scale per row or one that is given.

    `out = trunc(input · (1 / scale))`.

    Args:
        out: [..., K] int8, written.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: fp32, contiguous: an element for each row, written; where not is_dynamic one number.
        is_dynamic: the scales are found: a row's largest magnitude becomes 127.
        scale_ub: one fp32 number on the device, or None: the largest magnitude that a scale that is found covers.
        num_rows: one int32 on the device, or None: only the first num_rows · num_rows_factor rows are quantised.
        num_rows_factor: ≥ 1.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out`, and where the call is dynamic `scale`, are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit, or there is a scale_ub for a scale that is given.
        UnsupportedError: the backend asked for cannot serve the call.

    Notes:
        scale = max(amax, 2^-110) / 127; results within −128 … 127, of NaN 0. For results that must be those of programs
        that convert so, as AITER's quantisers to int8 do; `per_token_quant_hip` rounds to nearest, with half of the
        error. Deterministic; can be captured in a graph.

    Source: AITER's `dynamic_per_token_quant_fp8_i8` and `static_per_tensor_quant_fp8_i8`.
    """
    _truncated_quant.run(out, scale, input, is_dynamic, scale_ub, num_rows, num_rows_factor, backend=backend)


_truncated_quant.public.append(truncated_quant)
