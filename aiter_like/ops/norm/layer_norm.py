# SPDX-License-Identifier: MIT
"""LayerNorm, with residual and quantised. Kernels: csrc/norm/layer_norm.hip, ops/norm/triton/layer_norm.py."""

from __future__ import annotations

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
from aiter_like.ops.common.quant_rule import check_scale, store_quantised
from aiter_like.ops.norm import norm_backward, parts

__all__ = ["layer_norm", "layernorm2d_fwd", "layernorm2d_fwd_with_add", "layernorm2d_fwd_with_add_dynamicquant",
           "layernorm2d_fwd_with_add_smoothquant", "layernorm2d_fwd_with_dynamicquant",
           "layernorm2d_fwd_with_smoothquant"]

_OP = "layer_norm"


class LayerNormCall(NamedTuple):
    """One call of layer_norm. `out`, `residual_out`, `input` and `residual_in` are [..., hidden], rows evenly spaced.

    Attributes:
        out: written; dtype of `input`, with `scale` fp8 or int8.
        scale: written: fp32, an element per row; None: the result is not quantised.
        residual_out: written: the sum that is normalised; comes with `residual_in`.
        weight: [hidden], dtype of `input` or fp32; None: 1.
        bias: [hidden], dtype of `weight`; None: 0.
        x_bias: [hidden], dtype of `input`, added to each row first; None: 0.
        x_scale: [hidden] fp32: what each column is multiplied with before it is quantised (smoothing).
    """

    out: Tensor
    scale: Tensor | None
    residual_out: Tensor | None
    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    epsilon: float
    x_bias: Tensor | None = None
    residual_in: Tensor | None = None
    x_scale: Tensor | None = None


def layer_norm_ref(call: LayerNormCall) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out`, `scale` and `residual_out`."""
    x = call.input.to(wide := torch.promote_types(call.input.dtype, torch.float32))
    if call.x_bias is not None:
        x = x + call.x_bias.to(wide)
    if call.residual_in is not None:
        x = x + call.residual_in.to(wide)
        call.residual_out.copy_(x)
    deviation = x - x.mean(-1, keepdim=True)
    y = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + call.epsilon)
    if call.weight is not None:
        y = y * call.weight.to(wide)
    if call.bias is not None:
        y = y + call.bias.to(wide)
    if call.x_scale is not None:
        y = y * call.x_scale
    if call.scale is None:
        call.out.copy_(y)
    else:
        store_quantised(call.out, call.scale, y, 0)


def _instance(call: LayerNormCall, *, lanes: int | None = None) -> Instance:
    input, out = call.input, call.out
    factors = next((tensor.dtype for tensor in (call.weight, call.bias) if tensor is not None), input.dtype)
    flags = {"HAS_RESIDUAL": call.residual_in, "HAS_X_BIAS": call.x_bias, "HAS_WEIGHT": call.weight,
             "HAS_BIAS": call.bias, "IS_QUANT": call.scale, "HAS_SMOOTH": call.x_scale}
    names = ("add", "xbias", "w", "b", elements.short(out.dtype), "smooth")
    name = [*parts.dtype_names(input.dtype, factors),
            *(flag for flag, tensor in zip(names, flags.values(), strict=True) if tensor is not None)]
    return rows.row_layout(target_of(input.device), input, lanes=lanes, takes_unaligned=True).instance("_".join(name), {
        "ELEMENT": elements.CPP[input.dtype], "WEIGHT": elements.CPP[factors], "OUT": elements.CPP[out.dtype],
        **{name: int(tensor is not None) for name, tensor in flags.items()}})


@compile_ops("norm/layer_norm.hip", gen_func=_instance)
def _layer_norm_hip(call: LayerNormCall) -> None: ...


def _check(call: LayerNormCall) -> object:
    input, weight = call.input, call.weight
    check.tensor(_OP, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError(f"{_OP}: input must have at least 1 dimension, got a scalar")
    hidden, device = input.shape[-1], input.device
    factors, either = weight.dtype if isinstance(weight, Tensor) else None, parts.weight_dtypes(input)
    for name, tensor, accepted in (("weight", weight, either),
                                   ("bias", call.bias, (factors,) if factors in either else either),
                                   ("x_bias", call.x_bias, (input.dtype,)), ("xscale", call.x_scale, (torch.float32,))):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=accepted, shape=(hidden,), device=device)
    out_dtypes = (input.dtype,) if call.scale is None else quant_rule.DTYPES
    check.tensor(_OP, "out", call.out, dtypes=out_dtypes, shape=input.shape, device=device)
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    if call.scale is not None:
        check_scale(_OP, "yscale", call.scale, input, 0)
    if (call.residual_in is None) != (call.residual_out is None):
        raise ValueError(f"{_OP}: residual_in and residual_out must come together, got one of them")
    for name, tensor in (("residual_in", call.residual_in), ("residual_out", call.residual_out)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=(input.dtype,), shape=input.shape, device=device)
    return SKIP if input.numel() == 0 else None


def _kernel_refusal(target: Target, call: LayerNormCall) -> str | None:
    """What every kernel refuses."""
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(
        input=call.input, out=call.out, residual_in=call.residual_in, residual_out=call.residual_out)


def _tune_key(call: LayerNormCall) -> dict[str, int | str]:
    hidden = call.input.shape[-1]
    return {"rows": call.input.numel() // hidden, "hidden": hidden, "dtype": dtypes.name(call.input.dtype),
            "out_dtype": dtypes.name(call.out.dtype), "has_residual": call.residual_out is not None}


def _cases(device: torch.device) -> dict[str, LayerNormCall]:
    """All that may be added, and the quantised form with smoothing."""
    random = tune_shapes.normal(device, 0, "bf16")
    x, residual, weight, bias = random(3, 256), random(3, 256), random(256), random(256)
    plain = LayerNormCall(torch.empty_like(x), None, None, x, weight=weight, bias=bias, epsilon=1e-5)
    residual = plain._replace(residual_out=torch.empty_like(x), residual_in=residual)
    quantised = residual._replace(out=torch.empty_like(x, dtype=torch.int8), scale=torch.empty(3, 1, device=device),
                                  x_scale=weight.float().abs() + 0.5)
    return {"plain": plain, "residual": residual, "x_bias, no weight": plain._replace(weight=None, x_bias=bias),
            "quantised": quantised}


def _hip_space(target: Target, call: LayerNormCall) -> list[dict[str, int]]:
    return rows.lane_space(target, call.input)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> LayerNormCall:
    """With weight and bias, as models have them."""
    random = tune_shapes.normal(device, seed, key["dtype"])
    x, residual = (random(key["rows"], key["hidden"]) for _ in range(2))
    out = torch.empty_like(x, dtype=dtypes.DTYPES[key["out_dtype"]])
    scale = None if key["out_dtype"] == key["dtype"] else torch.empty(key["rows"], 1, device=device)
    residual, residual_out = (residual, torch.empty_like(x)) if key["has_residual"] else (None, None)
    return LayerNormCall(out, scale, residual_out, x, weight=random(key["hidden"]), bias=random(key["hidden"]),
                         epsilon=1e-5, residual_in=residual)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """As if the model's norms were LayerNorms: the models of configs/models/ give the sizes."""
    return tune_shapes.layer_keys(model, tokens, model.dtype)


_layer_norm = Op(
    _OP, call=LayerNormCall, reference=layer_norm_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "hidden", "dtype", "out_dtype", "has_residual"), writes=("out", "scale", "residual_out"),
    round_field="rows", cases=_cases, tuning=Tuning(_tune_case, shapes=_tune_shapes),
    in_place={"out": ("input", "residual_in"), "residual_out": ("residual_in", "input")},
    backends=(Backend("hip", _layer_norm_hip, refusal=_kernel_refusal, space=_hip_space),
              Backend("triton", "ops.norm.triton.layer_norm:layer_norm",
                      refusal=_kernel_refusal, space=tune_shapes.row_space),
              Backend("torch", layer_norm_ref, differentiable=True)))


def layer_norm(input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5,
               x_bias: Tensor | None = None, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Layer normalisation of the last dimension.

    `x = input + x_bias`, `out = (x - mean(x)) / sqrt(var(x) + epsilon) · weight + bias`.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `input` or fp32, contiguous; None: 1.
        bias: [hidden], dtype of `weight`, contiguous; None: 0.
        epsilon: added to the variance; finite, ≥ 0.
        x_bias: [hidden], dtype of `input`, contiguous; None: 0.
        out: tensor to write, shape and dtype of `input`; default: a new contiguous one. It may be `input` itself.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. An empty input gives an empty result.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or epsilon do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        In fp32, the variance from the deviations themselves, rounded to nearest even once; deterministic; can be
        captured in a graph. Where an argument requires grad, the derivative is `layer_norm_backward`'s; with `out`,
        `x_bias` or "torch", torch's own.

    Source: Ba, Kiros and Hinton, Layer Normalization (2016); AITER's `layer_norm`, `layernorm2d_fwd`.
    """
    if out is None:
        if not isinstance(input, Tensor):
            raise TypeError(f"{_OP}: input must be a tensor, got {type(input).__name__}")
        if backend != "torch" and x_bias is None and torch_ops.needs_grad(input, weight, bias):
            return norm_backward.Norm.apply(
                lambda input, weight, bias: layer_norm(input, weight, bias, epsilon, backend=backend), True, epsilon,
                input, weight, bias)
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
    _layer_norm.run(out, None, None, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias, backend=backend)
    return out


def layernorm2d_fwd(input: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float = 1e-5,
                    x_bias: Tensor | None = None, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """`layer_norm` by AITER's other name, with weight and bias that must be given.

    `(x − mean) · rsqrt(var + epsilon) · weight + bias`.

    Args:
        input, weight, bias, epsilon, x_bias, out, backend: see `layer_norm`.

    Returns:
        See `layer_norm`.

    Raises:
        TypeError, ValueError, UnsupportedError: see `layer_norm`.

    Notes:
        See `layer_norm`.

    Source: AITER's `layernorm2d_fwd`.
    """
    return layer_norm(input, weight, bias, epsilon, x_bias, out=out, backend=backend)


def layernorm2d_fwd_with_add(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                             weight: Tensor | None, bias: Tensor | None, epsilon: float, x_bias: Tensor | None = None,
                             *, backend: str | None = None) -> None:
    """Residual add and layer normalisation of the sum.

    `x = input + x_bias + residual_in`, `residual_out = x`, `out = layer_norm(x, weight, bias)` of x before it is
    rounded.

    Args:
        out: [..., hidden], written; dtype of `input`. It may be `input`.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        residual_in: [..., hidden], dtype of `input`; added in fp32.
        residual_out: [..., hidden], written: the rounded sum; dtype of `input`. It may be `residual_in`.
        weight: [hidden], dtype of `input` or fp32, contiguous; None: 1.
        bias: [hidden], dtype of `weight`, contiguous; None: 0.
        epsilon: added to the variance; finite, ≥ 0.
        x_bias: [hidden], dtype of `input`, added to it first; None: 0.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `residual_out` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call.

    Notes:
        In fp32, each output rounded once; deterministic; can be captured in a graph.

    Source: AITER's `layernorm2d_fwd_with_add`.
    """
    _layer_norm.run(out, None, residual_out, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias,
                    residual_in=residual_in, backend=backend)


def layernorm2d_fwd_with_dynamicquant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor | None,
                                      bias: Tensor | None, epsilon: float, x_bias: Tensor | None = None, *,
                                      backend: str | None = None) -> None:
    """Layer normalisation with a quantised result.

    `out · yscale ≈ layer_norm(input, weight, bias)`, the scale being the largest magnitude of the row over the
    largest value of `out`'s dtype.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        yscale: [..., 1] fp32, written; `out · yscale` is the value.
        weight: [hidden], dtype of `input` or fp32, contiguous; None: 1.
        bias: [hidden], dtype of `weight`, contiguous; None: 0.
        epsilon: added to the variance; finite, ≥ 0.
        x_bias: [hidden], dtype of `input`, added to it first; None: 0.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `yscale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call (fp8 of other hardware, …).

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic; can be captured in a graph.

    Source: AITER's `layernorm2d_fwd_with_dynamicquant`.
    """
    _layer_norm.run(out, yscale, None, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias, backend=backend)


def layernorm2d_fwd_with_add_dynamicquant(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                                          yscale: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float,
                                          x_bias: Tensor | None = None, *, backend: str | None = None) -> None:
    """Residual add and layer normalisation of the sum, with a quantised result.

    `x = input + x_bias + residual_in`, `residual_out = x`, `out · yscale ≈ layer_norm(x, weight, bias)` of x before its
    rounding.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        yscale: [..., 1] fp32, written; `out · yscale` is the value.
        input, residual_in, residual_out, weight, bias, epsilon, x_bias, backend: see `layernorm2d_fwd_with_add`.

    Returns:
        Nothing: `out`, `residual_out` and `yscale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call (fp8 of other hardware, …).

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic; can be captured in a graph.

    Source: AITER's `layernorm2d_fwd_with_add_dynamicquant`.
    """
    _layer_norm.run(out, yscale, residual_out, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias,
                    residual_in=residual_in, backend=backend)


def layernorm2d_fwd_with_smoothquant(out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor | None,
                                     bias: Tensor | None, epsilon: float, x_bias: Tensor | None = None, *,
                                     backend: str | None = None) -> None:
    """Layer normalisation, smoothing by column, and quantisation by row.

    `out · yscale ≈ layer_norm(input, weight, bias) · xscale`.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        xscale: [hidden] fp32: what each column is multiplied with before it is quantised.
        yscale: [..., 1] fp32, written; `out · yscale` is the value.
        input, weight, bias, epsilon, x_bias, backend: see `layernorm2d_fwd_with_dynamicquant`.

    Returns:
        Nothing: `out` and `yscale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call (fp8 of other hardware, …).

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic; can be captured in a graph.

    Source: AITER's `layernorm2d_fwd_with_smoothquant`.
    """
    _layer_norm.run(out, yscale, None, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias, x_scale=xscale,
                    backend=backend)


def layernorm2d_fwd_with_add_smoothquant(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                                         xscale: Tensor, yscale: Tensor, weight: Tensor | None, bias: Tensor | None,
                                         epsilon: float, x_bias: Tensor | None = None, *,
                                         backend: str | None = None) -> None:
    """Residual add, layer normalisation of the sum, smoothing by column, and quantisation by row.

    `x = input + x_bias + residual_in`, `residual_out = x`, `out · yscale ≈ layer_norm(x, weight, bias) · xscale` of x
    before its rounding.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        xscale: [hidden] fp32: what each column is multiplied with before it is quantised.
        yscale: [..., 1] fp32, written; `out · yscale` is the value.
        input, residual_in, residual_out, weight, bias, epsilon, x_bias, backend: see `layernorm2d_fwd_with_add`.

    Returns:
        Nothing: `out`, `residual_out` and `yscale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call (fp8 of other hardware, …).

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic; can be captured in a graph.

    Source: AITER's `layernorm2d_fwd_with_add_smoothquant`.
    """
    _layer_norm.run(out, yscale, residual_out, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias,
                    residual_in=residual_in, x_scale=xscale, backend=backend)


torch_ops.register(_layer_norm, layer_norm)
