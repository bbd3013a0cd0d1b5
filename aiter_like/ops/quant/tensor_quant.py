# SPDX-License-Identifier: MIT
"""Quantisers to fp8 and int8 with one scale. Kernels: csrc/quant/tensor_quant.hip, ops/quant/triton/tensor_quant.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, tune_shapes
from aiter_like.ops.quant import parts

__all__ = ["dynamic_per_tensor_quant", "dynamic_per_tensor_quant_fp8_i8", "per_tensor_quant_hip",
           "static_per_tensor_quant", "static_per_tensor_quant_fp8_i8"]

_MOST_ELEMENTS = 2**31 - 2**16  # tensor_quant.hip counts no further


class TensorQuantCall(NamedTuple):
    """One call of tensor_quant. The rows of `out` and `input` are evenly spaced.

    Attributes:
        scale: one number, written where the call is dynamic.
        is_dynamic: the scale is found among the elements.
        num_rows: one number: only the first num_rows · num_rows_factor rows are quantised; None: all.
    """

    out: Annotated[Tensor, "*rows columns", quant_rule.DTYPES]
    scale: Annotated[Tensor, "*scale", torch.float32]
    input: Annotated[Tensor, "*rows columns", elements.FLOATS]
    is_dynamic: bool = True
    num_rows: Annotated[Tensor | None, "*count", torch.int32] = None
    num_rows_factor: int = 1


def tensor_quant_ref(call: TensorQuantCall) -> None:
    """The rule of ops/common/quant_rule.py."""
    out, scale, x = call.out, call.scale, call.input.float()
    is_used = parts.used_rows(call.input, call.num_rows, call.num_rows_factor)
    if call.is_dynamic:
        used = x if is_used is None else torch.where(is_used, x, 0.0)
        scale.copy_(quant_rule.row_scales(used.reshape(1, -1), out.dtype).view(scale.shape))
    parts.write_rows(out, quant_rule.rounded(x * (1 / scale.reshape(())), out.dtype), is_used)


def _instance(call: TensorQuantCall, *, vectors: int = 4) -> Instance:
    name, macros = parts.kinds(call)
    return Instance(f"{name}_v{vectors}", {**macros, "VECTORS": vectors, "VEC": 16 // call.input.element_size()})


@compile_ops("quant/tensor_quant.hip", gen_func=_instance)
def _tensor_quant_hip(call: TensorQuantCall) -> None: ...


def _check(call: TensorQuantCall) -> object:
    parts.check_numbers("tensor_quant", call, "scale")
    return SKIP if call.input.numel() == 0 else None


def _hip_refusal(target: Target, call: TensorQuantCall) -> str | None:
    if call.input.numel() > _MOST_ELEMENTS:
        return f"at most {_MOST_ELEMENTS} elements, got {call.input.numel()}"
    return parts.refusal(target, call)


class TensorQuantKey(NamedTuple):
    """The fields that a tuned row of tensor_quant is chosen by."""

    rows: int
    columns: int
    is_dynamic: bool
    dtype: str
    out_dtype: str

    @classmethod
    def of(cls, call: TensorQuantCall) -> TensorQuantKey:
        return cls(*tune_shapes.row_sizes(call.input)[:2], call.is_dynamic, *parts.names(call))

    def make(self, device: torch.device, seed: int, *, num_rows: int | None = None) -> TensorQuantCall:
        x = tune_shapes.normal(device, seed, self.dtype)(self.rows, self.columns)
        out = torch.empty_like(x, dtype=tune_shapes.dtype_on(device, self.out_dtype))
        return TensorQuantCall(out, parts.number(device, 0.05), x, bool(self.is_dynamic),
                               parts.number(device, num_rows))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[TensorQuantKey]:
        """The keys of what linear layers read, with a scale that is known and with one to find."""
        for sizes, is_dynamic in itertools.product(tune_shapes.linear_inputs(model, tp, tokens), (0, 1)):
            yield cls(*sizes, is_dynamic, model.dtype, tune_shapes.fp8_name())


def _traffic(call: TensorQuantCall) -> tuple[int, int]:
    """A scale that has to be found takes a pass of its own."""
    return call.out.nbytes + call.input.nbytes * (2 if call.is_dynamic else 1), 0


_tensor_quant = Op(
    "tensor_quant", call=TensorQuantCall, reference=tensor_quant_ref, check=_check, key=TensorQuantKey,
    traffic=_traffic, round_field="rows", writes=("out", "scale"),
    cases={"dynamic": TensorQuantKey(5, 4096, True, "bf16", "i8"),
           "first rows": (TensorQuantKey(5, 4096, True, "bf16", "i8"), {"num_rows": 3}),
           "fp8": TensorQuantKey(5, 4096, True, "bf16", "fp8")},
    backends=(Backend("hip", _tensor_quant_hip, refusal=_hip_refusal, space=tune_shapes.every(vectors=(1, 2, 4, 8))),
              Backend("triton", "ops.quant.triton.tensor_quant:tensor_quant", refusal=parts.refusal,
                      space=tune_shapes.every(num_warps=(2, 4, 8, 16))),
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

    Returns: q [..., K] and the scale [1] fp32.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic.
    """
    out, found = parts.outputs("per_tensor_quant_hip", x, quant_dtype, None)
    used = found if scale is None else scale
    _tensor_quant.run(out, used, x, scale is None, num_rows=num_rows,
                      num_rows_factor=num_rows_factor, backend=backend)
    return out, used.view(1)


def static_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor, *, backend: str | None = None) -> None:
    """Quantises a tensor with a scale that is known before: `out = round(input · (1 / scale))`, saturated.

    Args:
        out: [..., K], written; the hardware's fp8, or int8; rows evenly spaced.
        input: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale: one fp32 number on the device.

    Notes: To nearest even; NaN is NaN in fp8, 0 in int8, and a scale of NaN makes all elements so. Deterministic.
    """
    _tensor_quant.run(out, scale, input, is_dynamic=False, backend=backend)


def dynamic_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor, *, backend: str | None = None) -> None:
    """Quantises a tensor with the scale that `per_tensor_quant_hip` finds. Like `static_per_tensor_quant` otherwise.

    Args:
        scale: one fp32 number on the device, written; what it holds before does not matter.
    """
    _tensor_quant.run(out, scale, input, backend=backend)


def static_per_tensor_quant_fp8_i8(qx: Tensor, x_in: Tensor, scale_in: Tensor, *, backend: str | None = None) -> Tensor:
    """Quantises with a known scale, in the words of AITER's Triton library. Like `static_per_tensor_quant` otherwise.

    Args:
        qx: [..., K], written; the hardware's fp8, or int8; rows evenly spaced.
        x_in: [..., K] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        scale_in: one fp32 number on the device.

    Returns: `qx`.
    """
    static_per_tensor_quant(qx, x_in, scale_in, backend=backend)
    return qx


def dynamic_per_tensor_quant_fp8_i8(qx: Tensor, x_in: Tensor, scale_out: Tensor, *,
                                    backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises with the scale that `per_tensor_quant_hip` finds. Like `static_per_tensor_quant_fp8_i8` otherwise.

    Args:
        scale_out: one fp32 number on the device, written; what it holds before does not matter.

    Returns: `qx` and `scale_out`.
    """
    dynamic_per_tensor_quant(qx, x_in, scale_out, backend=backend)
    return qx, scale_out


torch_ops.register(_tensor_quant, per_tensor_quant_hip)
