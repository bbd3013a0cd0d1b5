# SPDX-License-Identifier: MIT
"""softmax of logits, with temperatures. Kernels: csrc/sampling/softmax.hip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.sampling import parts

__all__ = ["softmax"]

_OP = "softmax"
_LEAST_TEMPERATURE = 1e-5


class SoftmaxCall(NamedTuple):
    """One call of softmax.

    Attributes:
        out: [rows, columns] bf16|fp16|fp32, written, rows evenly spaced.
        input: [rows, columns] bf16|fp16|fp32, rows evenly spaced.
        temperature: of all rows.
        temperatures: [rows] fp32: of each row.
    """

    out: Tensor
    input: Tensor
    temperature: float = 1.0
    temperatures: Tensor | None = None


def softmax_ref(call: SoftmaxCall) -> None:
    """The formula in torch, in float64."""
    x = call.input.double()
    temperature = call.temperature if call.temperatures is None else call.temperatures[:, None]
    scale = 1 / torch.as_tensor(temperature, dtype=x.dtype, device=x.device).clamp(min=_LEAST_TEMPERATURE)
    scale = scale.clamp(min=2.0**-126)  # An infinite temperature leaves -inf as it is.
    high = torch.where(x.isnan(), -torch.inf, x).amax(-1, keepdim=True)
    call.out.copy_(torch.softmax((x - high) * scale, -1))


def _instance(call: SoftmaxCall, *, groups: int = 0) -> Instance:
    element, out = call.input.dtype, call.out.dtype
    return parts.instance((elements.short(element), elements.short(out)), groups,
                          {"ELEMENT": elements.CPP[element], "OUT": elements.CPP[out]})


@compile_ops("sampling/softmax.hip", gen_func=_instance)
def _softmax_hip(call: SoftmaxCall) -> None: ...


def _check(call: SoftmaxCall) -> object:
    input = call.input
    parts.check_rows(_OP, "input", input)
    check.tensor(_OP, "out", call.out, dtypes=elements.FLOATS, shape=input.shape, device=input.device)
    check.real(_OP, "temperature", call.temperature, low=0.0)
    parts.check_per_row(_OP, "temperature", call.temperatures, input, (torch.float32,))
    return SKIP if input.numel() == 0 else None


def _refusal(target: Target, call: SoftmaxCall) -> str | None:
    return parts.refusal(input=call.input)


def _tune_key(call: SoftmaxCall) -> dict[str, int | str]:
    rows, columns = call.input.shape
    return {"rows": rows, "columns": columns, "dtype": dtypes.name(call.input.dtype),
            "out_dtype": dtypes.name(call.out.dtype)}


def _hip_space(target: Target, call: SoftmaxCall) -> list[dict[str, int]]:
    return parts.group_space(target, call.input)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> SoftmaxCall:
    x = tune_shapes.normal(device, seed, key["dtype"])(key["rows"], key["columns"])
    return SoftmaxCall(torch.empty_like(x, dtype=dtypes.DTYPES[key["out_dtype"]]), x)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[Mapping[str, Any]]:
    yield from parts.logit_keys(model, tokens, dtype="fp32", out_dtype="fp32")


def _cases(device: torch.device) -> dict[str, SoftmaxCall]:
    """Whole rows, short and longer than the registers of the lanes, and rows that are cut into slices."""
    random = torch.Generator().manual_seed(0)
    calls = {}
    for name, rows, columns in (("short", 160, 129), ("slices", 2, 20001)):
        x = torch.randn(rows, columns, generator=random).bfloat16().to(device)
        temperatures = torch.rand(rows, generator=random).to(device) + 0.5
        calls[name] = SoftmaxCall(torch.empty_like(x, dtype=torch.float32), x, temperatures=temperatures)
    return calls | {"dtype of the logits": SoftmaxCall(torch.empty_like(x), x)}


_softmax = Op(
    _OP, call=SoftmaxCall, reference=softmax_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "dtype", "out_dtype"), round_field="rows", cases=_cases,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    in_place={"out": ("input",)},
    backends=(Backend("hip", _softmax_hip, refusal=_refusal, space=_hip_space),
              Backend("torch", softmax_ref, differentiable=True)))


def softmax(x: Tensor, temperature: float | Tensor = 1.0, *, dtype: torch.dtype | None = None,
            out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """softmax of each row of logits.

    `out[r] = exp((x[r] - max) / T[r]) / sum of these`.

    Args:
        x: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance.
        temperature: of all rows, or [rows] fp32; less than 1e-5 counts as 1e-5: equal shares of the largest logits,
            more than 2^126 as 2^126: equal shares of all but -inf. A NaN gives NaNs.
        dtype: of the result: bf16, fp16 or fp32; default: that of `x`.
        out: [rows, columns] tensor to write, rows contiguous; default: a new one. It may be `x` itself.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        In fp32, rounded once. A row with a NaN or +inf, or of -inf alone, gives NaNs, as torch.softmax does.
        Deterministic: the order of sums depends on the shape and the device only. On sm_90 up to 8 workgroups hold a
        row, up to 1.5 MB of it, which is read once. On gfx942 it is where a workgroup's registers hold it (256 KB), and
        else in part twice; fewer rows than a third of the CUs are shared out among workgroups and read twice. Can be
        captured in a graph. Only "torch" has a derivative.

    Source: torch.softmax; Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
    """
    if out is None:
        if not isinstance(x, Tensor) or x.layout is not torch.strided:
            check.tensor(_OP, "x", x)
        out = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    elif dtype is not None and out.dtype != dtype:
        raise TypeError(f"{_OP}: dtype must be that of out, got {dtype} and {out.dtype}")
    if isinstance(temperature, Tensor):
        _softmax.run(out, x, temperatures=temperature, backend=backend)
    else:
        _softmax.run(out, x, temperature, backend=backend)
    return out


_softmax.public.append(softmax)
