# SPDX-License-Identifier: MIT
"""Quantisation to MXFP4: fp4 elements with a power of two for each 32. Kernels: csrc/quant/, ops/quant/triton/."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes

__all__ = ["quant_mxfp4"]

_OP = "mxfp4_quant"
GROUP = 32
NAN_SCALE = 255
_VEC = 8  # mxfp4_quant.hip counts these, in 31 bits
_MOST = (2**31 - 2**16) * _VEC

ROUNDING = (0, 0x3FFFFF, 0x200000, 0x7FFFFF)
"""Indexed by `round_mode`: added to the bits of the largest magnitude; mxfp4_quant.hip has them too."""


class Mxfp4QuantCall(NamedTuple):
    """One call of mxfp4_quant. The rows of each tensor are evenly spaced.

    Attributes:
        out: [..., K / 2]: two fp4 to a byte, the first in the low half.
        scale: [..., K / 32]: biased exponents.
        round_mode: how the scale is rounded: 0 down, 1 up, 2 to the nearest, 3 up from the largest power of two.
    """

    out: Annotated[Tensor, "*rows bytes", torch.uint8]
    scale: Annotated[Tensor, "*rows groups", torch.uint8]
    input: Annotated[Tensor, "*rows columns", elements.FLOATS, STRIDED]
    round_mode: int = 1


def mxfp4_quant_ref(call: Mxfp4QuantCall) -> None:
    """In torch, the same integers."""
    groups = call.input.float().unflatten(-1, (-1, GROUP))
    amax = groups.abs().view(torch.int32).amax(-1)  # bits of numbers without sign are ordered as they are, NaN last
    rounding = ROUNDING[call.round_mode]
    exponent = (amax + rounding >> 23) - 2
    least = ((amax != 0) & (rounding > ROUNDING[2])).int()
    own = torch.where(amax >= 0x7F800000, NAN_SCALE, exponent.maximum(least))
    y = groups.abs() * (254 - own << 23).view(torch.float32)[..., None]
    code = torch.where(y < 2, (2 * y).round(), torch.where(y < 4, y.round() + 2, (y / 2).round() + 4)).clamp(max=7)
    code = code.nan_to_num(0.0).int() | groups.signbit().int() << 3
    code = torch.where((own == NAN_SCALE)[..., None], 0, code).flatten(-2)
    call.out.copy_(code[..., ::2] | code[..., 1::2] << 4)
    call.scale.copy_(own)


def _instance(call: Mxfp4QuantCall, *, vectors: int = 2) -> Instance:
    dtype = call.input.dtype
    return Instance(f"{dtypes.name(dtype)}_v{vectors}", {"ELEMENT": elements.CPP[dtype], "VECTORS": vectors})


@compile_ops("quant/mxfp4_quant.hip", gen_func=_instance)
def _mxfp4_quant_hip(call: Mxfp4QuantCall) -> None: ...


def _check(call: Mxfp4QuantCall) -> object:
    input = call.input
    _check_groups(_OP, "input", input)
    check.choice(_OP, "round_mode", call.round_mode, tuple(range(len(ROUNDING))))
    for name, tensor, part in (("out", call.out, 2), ("scale", call.scale, GROUP)):
        check.tensor(_OP, name, tensor, shape=(*input.shape[:-1], input.shape[-1] // part))
    return SKIP if input.numel() == 0 else None


def _check_groups(op: str, name: str, x: Tensor) -> None:
    if x.ndim == 0 or x.shape[-1] % GROUP:
        raise ValueError(f"{op}: {name} must have whole groups of {GROUP} in its last dimension, got shape "
                         f"{tuple(x.shape)}")


def _refusal(target: Target, call: Mxfp4QuantCall) -> str | None:
    if call.input.numel() >= _MOST:
        return f"fewer than {_MOST} elements, got {call.input.numel()}"
    return rows.refusal(input=call.input, out=call.out, scale=call.scale)


class Mxfp4QuantKey(NamedTuple):
    """The fields that a tuned row of mxfp4_quant is chosen by."""

    rows: int
    columns: int
    dtype: str

    @classmethod
    def of(cls, call: Mxfp4QuantCall) -> Mxfp4QuantKey:
        return cls(*tune_shapes.row_sizes(call.input))

    def make(self, device: torch.device, seed: int, *, round_mode: int = 1) -> Mxfp4QuantCall:
        return _call(tune_shapes.normal(device, seed, self.dtype)(self.rows, self.columns), round_mode)


_mxfp4_quant = Op(
    _OP, call=Mxfp4QuantCall, reference=mxfp4_quant_ref, check=_check, key=Mxfp4QuantKey, writes=("out", "scale"),
    cases={f"{dtype}, rounding {mode}": (Mxfp4QuantKey(5, 320, dtype), {"round_mode": mode}) for dtype, mode in (
        ("bf16", 0), ("bf16", 1), ("bf16", 2), ("bf16", 3), ("fp16", 1), ("fp32", 2))},
    backends=(Backend("hip", _mxfp4_quant_hip, refusal=_refusal, space=tune_shapes.every(vectors=(1, 2, 4))),
              Backend("triton", "ops.quant.triton.mxfp4_quant:mxfp4_quant", refusal=_refusal,
                      space=tune_shapes.every(num_warps=(2, 4, 8))),
              Backend("torch", mxfp4_quant_ref)))


def quant_mxfp4(x: Tensor, round_mode: int = 1, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Quantises to MXFP4: each 32 elements of a row share a scale that is a power of two.
    `x ≈ fp4 · 2^(scale - 127)`, where fp4 (e2m1) is ±0, 0.5, 1, 1.5, 2, 3, 4 or 6.

    Args:
        x: [..., K] bf16|fp16|fp32, K a multiple of 32.
        round_mode: of the scale for a group's largest magnitude amax. 0 (RoundDown): the power of two at or below
            amax / 4; 1 (RoundUp): that at or above amax / 6, so that nothing saturates; 2 (Even): that at or below
            amax / 4 once amax is rounded to fp4's single bit of mantissa; 3 (Ceil): that at or above amax / 4.

    Returns:
        [..., K / 2] uint8, two codes to a byte, the first in the low half, and [..., K / 32] uint8, biased exponents
        (e8m0).

    Notes:
        Elements are rounded to the nearest, ties to the even code, saturated at 6. A group of zeros has the scale 0,
        one with a NaN or an infinity 255, which is NaN, and elements 0. `fused_moe` takes such weights. Deterministic;
        the kernels take a contiguous last dimension and evenly spaced rows.

    Source: the OCP Microscaling Formats (MX) specification 1.0; the four roundings are those of AITER and torchao.
    """
    check.tensor("quant_mxfp4", "x", x, dtypes=elements.FLOATS, last_contiguous=False)
    _check_groups("quant_mxfp4", "x", x)
    call = _call(x, round_mode)
    _mxfp4_quant.run(*call, backend=backend)
    return call.out, call.scale


def _call(x: Tensor, round_mode: int) -> Mxfp4QuantCall:
    """With new results."""
    out, scale = (torch.empty(*x.shape[:-1], x.shape[-1] // part, dtype=torch.uint8, device=x.device)
                  for part in (2, GROUP))
    return Mxfp4QuantCall(out, scale, x, round_mode)


torch_ops.register(_mxfp4_quant, quant_mxfp4)
