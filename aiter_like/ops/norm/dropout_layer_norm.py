# SPDX-License-Identifier: MIT
"""Dropout, residual add and LayerNorm. Kernels: csrc/norm/, ops/norm/triton/dropout_layer_norm.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, philox, rows, tune_shapes

__all__ = ["dropout_layer_norm"]

_OP = "dropout_layer_norm"
_LONGEST = 32768  # 1024 lanes of 32 elements
_MASK = 0xFFFFFFFF


def dropout_layer_norm_ref(out: Tensor, residual_out: Tensor, input: Tensor, residual_in: Tensor, weight: Tensor,
                           bias: Tensor, p: float, seed: int, offset: int, epsilon: float) -> None:
    """The formula in torch, in fp32, differentiable; writes `out` and `residual_out`."""
    kept = _random_words(input, seed, offset) >> 8 >= philox.threshold(p)
    x = torch.where(kept, input.float() * (1.0 / (1.0 - p)), 0.0) + residual_in.float()
    residual_out.copy_(x)
    deviation = x - x.mean(-1, keepdim=True)
    scaled = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + epsilon)
    out.copy_(scaled * weight.float() + bias.float())


def _random_words(like: Tensor, seed: int, offset: int) -> Tensor:
    """Philox4x32-10, the rule of csrc/include/aiter_like/philox.h: a word per element, a counter per four columns."""
    hidden = like.shape[-1]
    per_row = (hidden + 3) // 4
    counter = offset + torch.arange(like.numel() // hidden * per_row, device=like.device)
    zero = torch.zeros_like(counter)
    words = philox.words(seed, counter & _MASK, counter >> 32, zero, zero)
    return words.view(-1, per_row * 4)[:, :hidden].reshape(like.shape)


def _instance(out: Tensor, residual_out: Tensor, input: Tensor, residual_in: Tensor, weight: Tensor, bias: Tensor,
              p: float, seed: int, offset: int, epsilon: float, *, lanes: int | None = None) -> Instance:
    layout = rows.whole_layout(_OP, target_of(input.device), input, lanes)
    name = f"{dtypes.name(input.dtype)}{'_wfp32' if weight.dtype != input.dtype else ''}"
    return layout.instance(name, {"ELEMENT": elements.CPP[input.dtype], "WEIGHT": elements.CPP[weight.dtype]})


@compile_ops("norm/dropout_layer_norm.hip", gen_func=_instance, prebuild=list)
def _dropout_layer_norm_hip(out: Tensor, residual_out: Tensor, input: Tensor, residual_in: Tensor, weight: Tensor,
                            bias: Tensor, p: float, seed: int, offset: int, epsilon: float) -> None: ...


def _check(out: Tensor, residual_out: Tensor, input: Tensor, residual_in: Tensor, weight: Tensor, bias: Tensor,
           p: float, seed: int, offset: int, epsilon: float) -> object:
    check.tensor(_OP, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError(f"{_OP}: input must have at least 1 dimension, got a scalar")
    for name, tensor in (("residual", residual_in), ("out", out), ("residual_out", residual_out)):
        check.tensor(_OP, name, tensor, dtypes=(input.dtype,), shape=input.shape, device=input.device)
    weight_dtypes = tuple(dict.fromkeys((input.dtype, torch.float32)))
    check.tensor(_OP, "weight", weight, dtypes=weight_dtypes, shape=input.shape[-1:], device=input.device)
    check.tensor(_OP, "bias", bias, dtypes=(weight.dtype,), shape=input.shape[-1:], device=input.device)
    check.real(_OP, "p", p, low=0.0)
    if p >= 1:
        raise ValueError(f"{_OP}: p must be less than 1, got {p}")
    check.integer(_OP, "seed", seed, low=0, high=2**63 - 1)
    check.integer(_OP, "offset", offset, low=0, high=2**62)
    check.real(_OP, "epsilon", epsilon, low=0.0)
    return SKIP if input.numel() == 0 else None


def _kernel_refusal(target: Target, out: Tensor, residual_out: Tensor, input: Tensor, residual_in: Tensor,
                        *_: object) -> str | None:
    """What every kernel refuses."""
    if input.shape[-1] > _LONGEST:
        return f"rows of at most {_LONGEST} elements, got {input.shape[-1]}"
    return rows.refusal(input=input, residual=residual_in, out=out, residual_out=residual_out)


def _tune_key(out: Tensor, residual_out: Tensor, input: Tensor, *_: object) -> dict[str, int | str]:
    hidden = input.shape[-1]
    return {"rows": input.numel() // hidden, "hidden": hidden, "dtype": dtypes.name(input.dtype)}


def _hip_space(target: Target, out: Tensor, residual_out: Tensor, input: Tensor, *_: object) -> list[dict[str, int]]:
    return rows.lane_space(target, input, takes_pieces=False)


def _triton_space(target: Target, out: Tensor, *_: object) -> list[dict[str, int]]:
    return tune_shapes.wave_space(target, out.shape[-1], _LONGEST)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    random = tune_shapes.normal(device, seed, key["dtype"])
    x, residual = (random(key["rows"], key["hidden"]) for _ in range(2))
    weight, bias = random(key["hidden"]), random(key["hidden"])
    return torch.empty_like(x), torch.empty_like(x), x, residual, weight, bias, 0.1, seed, 0, 1e-5


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """As if the model's norms were these: the models of configs/models/ give the sizes."""
    yield {"rows": tokens, "hidden": model.hidden_size, "dtype": model.dtype}


_dropout_layer_norm = Op(
    _OP, reference=dropout_layer_norm_ref, check=_check, tune_key=_tune_key, tune_fields=("rows", "hidden", "dtype"),
    round_field="rows", writes=("out", "residual_out"), tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _dropout_layer_norm_hip, refusal=_kernel_refusal, space=_hip_space),
              Backend("triton", "ops.norm.triton.dropout_layer_norm:dropout_layer_norm",
                      refusal=_kernel_refusal,
                      space=_triton_space),
              Backend("torch", dropout_layer_norm_ref, differentiable=True)))


def dropout_layer_norm(input: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, p: float, seed: int,
                       offset: int = 0, epsilon: float = 1e-5, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Dropout, residual add and layer normalisation of the sum.

    `x = dropout(input, p) / (1 - p) + residual`, `residual_out = x`, `out = layer_norm(x, weight, bias)` of x before
    its rounding.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        residual: [..., hidden], dtype of `input`.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        bias: [hidden], dtype of `weight`.
        p: share of `input` that is dropped, in units of 2^-24; 0 ≤ p < 1.
        seed: of the mask; 0 ≤ seed < 2^63.
        offset: the first counter: a call uses rows · ceil(hidden / 4) of them; 0 ≤ offset ≤ 2^62.
        epsilon: added to the variance; finite, ≥ 0.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out` and `residual_out`, new tensors.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        The mask is a function of seed, offset and position alone (Philox4x32-10): the same on every backend and device.
        In fp32, each output rounded once; a captured graph repeats its mask. Only "torch" has a derivative.

    Source: HipKittens' fused dropout, residual and layer norm; Salmon et al., Parallel Random Numbers (2011).
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"{_OP}: input must be a tensor, got {type(input).__name__}")
    out, residual_out = (torch.empty(input.shape, dtype=input.dtype, device=input.device) for _ in range(2))
    _dropout_layer_norm(out, residual_out, input, residual, weight, bias, p, seed, offset, epsilon, backend=backend)
    return out, residual_out
