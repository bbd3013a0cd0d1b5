# SPDX-License-Identifier: MIT
"""softmax of logits, with temperatures. Kernels: csrc/sampling/softmax.hip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.sampling import parts

__all__ = ["softmax"]

_OP = "softmax"
_LEAST_TEMPERATURE = 1e-5


class SoftmaxCall(NamedTuple):
    """One call of softmax. Rows are evenly spaced.

    Attributes:
        temperature: of all rows.
        temperatures: of each row.
    """

    out: Annotated[Tensor, "rows columns", elements.FLOATS]
    input: Annotated[Tensor, "rows columns", elements.FLOATS]
    temperature: float = 1.0
    temperatures: Annotated[Tensor | None, "rows", torch.float32] = None


def softmax_ref(call: SoftmaxCall) -> None:
    """The formula in torch, in float64."""
    x = call.input.double()
    temperature = call.temperature if call.temperatures is None else call.temperatures[:, None]
    scale = 1 / torch.as_tensor(temperature, dtype=x.dtype, device=x.device).clamp(min=_LEAST_TEMPERATURE)
    scale = scale.clamp(min=2.0**-126)  # An infinite temperature leaves -inf as it is.
    high = torch.where(x.isnan(), -torch.inf, x).amax(-1, keepdim=True)
    call.out.copy_(torch.softmax((x - high) * scale, -1))


def _instance(call: SoftmaxCall, *, groups: int = 0) -> Instance:
    return parts.build_of(groups, ELEMENT=call.input.dtype, OUT=call.out.dtype)


@compile_ops("sampling/softmax.hip", gen_func=_instance)
def _softmax_hip(call: SoftmaxCall) -> None: ...


def _check(call: SoftmaxCall) -> object:
    parts.check_columns(_OP, "input", call.input)
    check.real(_OP, "temperature", call.temperature, low=0.0)
    return SKIP if call.input.numel() == 0 else None


class SoftmaxKey(NamedTuple):
    """The fields that a tuned row of softmax is chosen by."""

    rows: int
    columns: int
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: SoftmaxCall) -> SoftmaxKey:
        return cls(*call.input.shape, dtypes.name(call.input.dtype), dtypes.name(call.out.dtype))

    def make(self, device: torch.device, seed: int, has_temperatures: bool = False) -> SoftmaxCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        x = random(self.rows, self.columns)
        call = SoftmaxCall(torch.empty_like(x, dtype=dtypes.DTYPES[self.out_dtype]), x)
        return call._replace(temperatures=random(self.rows).float().exp()) if has_temperatures else call

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[SoftmaxKey]:
        return (cls(*size, "fp32", "fp32") for size in parts.logits(model, tokens))


_softmax = Op(
    _OP, call=SoftmaxCall, reference=softmax_ref, check=_check, key=SoftmaxKey, round_field="rows",
    # Whole rows, short and longer than the registers of the lanes, and rows that are cut into slices.
    cases={"short": (SoftmaxKey(160, 129, "bf16", "fp32"), {"has_temperatures": True}),
           "slices": (SoftmaxKey(2, 20001, "bf16", "fp32"), {"has_temperatures": True}),
           "dtype of the logits": SoftmaxKey(2, 20001, "bf16", "bf16")},
    in_place={"out": ("input",)},
    backends=(Backend("hip", _softmax_hip, refusal=parts.refusal, space=parts.group_space),
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

    Notes:
        In fp32, rounded once. A row with a NaN or +inf, or of -inf alone, gives NaNs, as torch.softmax does.
        Deterministic: the order of sums depends on the shape and the device only. A row is read once where it is held,
        on sm_90 by up to 8 workgroups (1.5 MB), on gfx942 by one (256 KB), else in part twice; on gfx942 fewer rows
        than a third of the CUs are shared out among workgroups and read twice. Only "torch" has a derivative.

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
