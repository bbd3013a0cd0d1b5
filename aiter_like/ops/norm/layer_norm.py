# SPDX-License-Identifier: MIT
"""LayerNorm, with residual and quantised. Kernels: csrc/norm/layer_norm.hip, ops/norm/triton/layer_norm.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.norm import norm_backward, parts

__all__ = ["layer_norm", "layernorm2d_fwd", "layernorm2d_fwd_with_add", "layernorm2d_fwd_with_add_dynamicquant",
           "layernorm2d_fwd_with_add_smoothquant", "layernorm2d_fwd_with_dynamicquant",
           "layernorm2d_fwd_with_smoothquant"]

_OP = "layer_norm"


class LayerNormCall(NamedTuple):
    """One call of layer_norm. Rows are evenly spaced.

    Attributes:
        out: dtype of `input`, with `scale` fp8 or int8.
        scale: fp32, an element per row; None: the result is not quantised.
        residual_out: the sum that is normalised; comes with `residual_in`.
        weight: None: 1.
        bias: dtype of `weight`; None: 0.
        x_bias: added to each row first; None: 0.
        x_scale: what each column is multiplied with before it is quantised (smoothing).
    """

    out: Annotated[Tensor, "*rows hidden"]
    scale: Tensor | None
    residual_out: Annotated[Tensor | None, "*rows hidden", "input"]
    input: Annotated[Tensor, "*rows hidden", elements.FLOATS]
    weight: Annotated[Tensor | None, "hidden", ("input", torch.float32)]
    bias: Annotated[Tensor | None, "hidden", ("input", torch.float32)]
    epsilon: float
    x_bias: Annotated[Tensor | None, "hidden", "input"] = None
    residual_in: Annotated[Tensor | None, "*rows hidden", "input"] = None
    x_scale: Annotated[Tensor | None, "hidden", torch.float32] = None


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
        quant_rule.store_quantised(call.out, call.scale, y, 0)


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
    if call.weight is not None and call.bias is not None:
        check.tensor(_OP, "bias", call.bias, dtypes=(call.weight.dtype,))
    check.tensor(_OP, "out", call.out, dtypes=(call.input.dtype,) if call.scale is None else quant_rule.DTYPES)
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    if call.scale is not None:
        quant_rule.check_scale(_OP, "scale", call.scale, call.input, 0)
    check.together(_OP, residual_in=call.residual_in, residual_out=call.residual_out)
    return SKIP if call.input.numel() == 0 else None


def _kernel_refusal(target: Target, call: LayerNormCall) -> str | None:
    """Says why no kernel takes a call."""
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(
        input=call.input, out=call.out, residual_in=call.residual_in, residual_out=call.residual_out)


class LayerNormKey(NamedTuple):
    """The fields that a tuned row of layer_norm is chosen by."""

    rows: int
    hidden: int
    dtype: str
    out_dtype: str
    has_residual: bool

    @classmethod
    def of(cls, call: LayerNormCall) -> LayerNormKey:
        return cls(*tune_shapes.row_sizes(call.input), dtypes.name(call.out.dtype), call.residual_out is not None)

    def make(self, device: torch.device, seed: int) -> LayerNormCall:
        """With weight and bias, as models have them."""
        random = tune_shapes.normal(device, seed, self.dtype)
        x = random(self.rows, self.hidden)
        out = torch.empty_like(x, dtype=dtypes.DTYPES[self.out_dtype])
        scale = None if self.out_dtype == self.dtype else torch.empty(self.rows, 1, device=device)
        call = LayerNormCall(out, scale, None, x, weight=random(self.hidden), bias=random(self.hidden), epsilon=1e-5)
        if not self.has_residual:
            return call
        return call._replace(residual_in=random(self.rows, self.hidden), residual_out=torch.empty_like(x))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[LayerNormKey]:
        """A layer's norms, as if they were LayerNorms: the first one's and, with the residual, all others'."""
        return (cls(tokens, model.hidden_size, model.dtype, model.dtype, has_residual) for has_residual in (0, 1))


def _cases(device: torch.device) -> dict[str, LayerNormCall]:
    """All that may be added, and the quantised form with smoothing."""
    plain, residual, quantised = (LayerNormKey(3, 256, "bf16", *form).make(device, 0)
                                  for form in (("bf16", False), ("bf16", True), ("i8", True)))
    return {"plain": plain, "residual": residual, "x_bias, no weight": plain._replace(weight=None, x_bias=plain.bias),
            "quantised": quantised._replace(x_scale=quantised.weight.float().abs() + 0.5)}


_layer_norm = Op(
    _OP, call=LayerNormCall, reference=layer_norm_ref, check=_check, key=LayerNormKey, round_field="rows",
    writes=("out", "scale", "residual_out"), cases=_cases,
    in_place={"out": ("input", "residual_in"), "residual_out": ("residual_in", "input")},
    backends=(Backend("hip", _layer_norm_hip, refusal=_kernel_refusal, space=rows.lanes_of("input")),
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

    Notes:
        In fp32, the variance from the deviations themselves, rounded to nearest even once; deterministic. Where an
        argument requires grad, the derivative is `layer_norm_backward`'s; with `out`, `x_bias` or "torch", torch's own.

    Source: Ba, Kiros and Hinton, Layer Normalization (2016); AITER's `layer_norm`, `layernorm2d_fwd`.
    """
    if out is None:
        if backend != "torch" and x_bias is None and torch_ops.needs_grad(input, weight, bias):
            return norm_backward.Norm.apply(
                lambda input, weight, bias: layer_norm(input, weight, bias, epsilon, backend=backend), True, epsilon,
                input, weight, bias)
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
    _layer_norm.run(out, None, None, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias, backend=backend)
    return out


def layernorm2d_fwd(input: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float = 1e-5,
                    x_bias: Tensor | None = None, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """`layer_norm` with weight and bias that must be given. Like `layer_norm` otherwise."""
    return layer_norm(input, weight, bias, epsilon, x_bias, out=out, backend=backend)


def layernorm2d_fwd_with_add(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                             weight: Tensor | None, bias: Tensor | None, epsilon: float, x_bias: Tensor | None = None,
                             *, backend: str | None = None) -> None:
    """Residual add and layer normalisation of the sum. Like `layer_norm` otherwise.

    `x = input + x_bias + residual_in`, `residual_out = x`, `out = layer_norm(x, weight, bias)` of x before it is
    rounded.

    Args:
        out: [..., hidden], written; dtype of `input`. It may be `input`.
        residual_in: [..., hidden], dtype of `input`; added in fp32.
        residual_out: [..., hidden], written: the rounded sum; dtype of `input`. It may be `residual_in`.

    Notes: In fp32, each output rounded once; deterministic.
    """
    _layer_norm.run(out, None, residual_out, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias,
                    residual_in=residual_in, backend=backend)


def layernorm2d_fwd_with_dynamicquant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor | None,
                                      bias: Tensor | None, epsilon: float, x_bias: Tensor | None = None, *,
                                      backend: str | None = None) -> None:
    """Layer normalisation with a quantised result. Like `layer_norm` otherwise.

    `out · yscale ≈ layer_norm(input, weight, bias)`, the scale being the largest magnitude of the row over the
    largest value of `out`'s dtype.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        yscale: [..., 1] fp32, written; `out · yscale` is the value.

    Notes: In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic.
    """
    _layer_norm.run(out, yscale, None, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias, backend=backend)


def layernorm2d_fwd_with_add_dynamicquant(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                                          yscale: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float,
                                          x_bias: Tensor | None = None, *, backend: str | None = None) -> None:
    """Residual add and layer normalisation of the sum, quantised. Like `layernorm2d_fwd_with_dynamicquant` otherwise.

    `x = input + x_bias + residual_in`, `residual_out = x`, `out · yscale ≈ layer_norm(x, weight, bias)` of x before its
    rounding.

    Args:
        residual_in: [..., hidden], dtype of `input`; added in fp32.
        residual_out: [..., hidden], written: the rounded sum; dtype of `input`. It may be `residual_in`.
    """
    _layer_norm.run(out, yscale, residual_out, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias,
                    residual_in=residual_in, backend=backend)


def layernorm2d_fwd_with_smoothquant(out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor | None,
                                     bias: Tensor | None, epsilon: float, x_bias: Tensor | None = None, *,
                                     backend: str | None = None) -> None:
    """Layer normalisation, smoothing by column, and quantisation. Like `layernorm2d_fwd_with_dynamicquant` otherwise.

    `out · yscale ≈ layer_norm(input, weight, bias) · xscale`.

    Args:
        xscale: [hidden] fp32: what each column is multiplied with before it is quantised.
    """
    _layer_norm.run(out, yscale, None, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias, x_scale=xscale,
                    backend=backend)


def layernorm2d_fwd_with_add_smoothquant(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                                         xscale: Tensor, yscale: Tensor, weight: Tensor | None, bias: Tensor | None,
                                         epsilon: float, x_bias: Tensor | None = None, *,
                                         backend: str | None = None) -> None:
    """Residual add, and normalisation and smoothing of the sum. Like `layernorm2d_fwd_with_add_dynamicquant` otherwise.

    `x = input + x_bias + residual_in`, `residual_out = x`, `out · yscale ≈ layer_norm(x, weight, bias) · xscale` of x
    before its rounding.

    Args:
        xscale: [hidden] fp32: what each column is multiplied with before it is quantised.
    """
    _layer_norm.run(out, yscale, residual_out, input, weight=weight, bias=bias, epsilon=epsilon, x_bias=x_bias,
                    residual_in=residual_in, x_scale=xscale, backend=backend)


torch_ops.register(_layer_norm, layer_norm)
