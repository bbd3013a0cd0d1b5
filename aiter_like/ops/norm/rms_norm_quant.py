# SPDX-License-Identifier: MIT
"""RMSNorm quantised to fp8 or int8. Kernels: csrc/norm/rms_norm_quant.hip, ops/norm/triton/rms_norm_quant.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.common.quant_rule import check_scale, group_major, store_quantised
from aiter_like.ops.norm import parts

__all__ = ["add_rmsnorm_quant", "rmsnorm2d_fwd_with_add_dynamicquant", "rmsnorm2d_fwd_with_add_smoothquant",
           "rmsnorm2d_fwd_with_dynamicquant", "rmsnorm2d_fwd_with_smoothquant", "rmsnorm_quant"]

_OP = "rms_norm_quant"


class RmsNormQuantCall(NamedTuple):
    """One call of rms_norm_quant. Rows are evenly spaced.

    Attributes:
        scale: fp32, an element per row, or per row and group.
        residual_out: the sum that is normalised; comes with `residual_in`.
        plain_out: the normalised rows before smoothing and quantisation; None: not wanted.
        x_scale: what each column is multiplied with before it is quantised (smoothing).
        group_size: columns that share a scale; 0: the whole row does.
        use_model_sensitive_rmsnorm: 1 rounds to the dtype of `input` before the multiplication with `weight` (T5).
        gemma_norm: multiply with `weight + 1`.
    """

    out: Annotated[Tensor, "*rows hidden", quant_rule.DTYPES]
    scale: Tensor
    residual_out: Annotated[Tensor | None, "*rows hidden", "input"]
    plain_out: Annotated[Tensor | None, "*rows hidden", "input"]
    input: Annotated[Tensor, "*rows hidden", elements.FLOATS]
    weight: Annotated[Tensor, "hidden", ("input", torch.float32)]
    epsilon: float
    residual_in: Annotated[Tensor | None, "*rows hidden", "input"] = None
    x_scale: Annotated[Tensor | None, "hidden", torch.float32] = None
    group_size: int = 0
    use_model_sensitive_rmsnorm: int = 0
    gemma_norm: bool = False


def rms_norm_quant_ref(call: RmsNormQuantCall) -> None:
    """The formula in torch, in fp32; writes `out`, `scale`, `residual_out` and `plain_out`."""
    x = call.input.float()
    if call.residual_in is not None:
        x = x + call.residual_in.float()
        call.residual_out.copy_(x)
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + call.epsilon)
    if call.use_model_sensitive_rmsnorm:
        y = y.to(call.input.dtype).float()
    y = y * (call.weight.float() + call.gemma_norm)
    if call.plain_out is not None:
        call.plain_out.copy_(y)
    store_quantised(call.out, call.scale, y if call.x_scale is None else y * call.x_scale, call.group_size)


def _instance(call: RmsNormQuantCall, *, lanes: int | None = None, vec: int | None = None) -> Instance:
    dtype, group_size = call.input.dtype, call.group_size
    flags = {"HAS_RESIDUAL": call.residual_in is not None, "HAS_SMOOTH": call.x_scale is not None,
             "HAS_PLAIN": call.plain_out is not None, "IS_GEMMA": call.gemma_norm,
             "IS_MODEL_SENSITIVE": bool(call.use_model_sensitive_rmsnorm)}
    names = ("add", "smooth", "plain", "gemma", "t5")
    name = [*parts.dtype_names(dtype, call.weight.dtype), elements.short(call.out.dtype),
            *([f"g{group_size}"] if group_size else []),
            *(flag for flag, is_on in zip(names, flags.values(), strict=True) if is_on)]
    target = target_of(call.input.device)
    if lanes is None and vec is None and group_size:
        vec = rows.vec_of_groups(target, call.input)
    row_layout = rows.row_layout(target, call.input, lanes=lanes, vec=vec, takes_unaligned=True)
    return row_layout.instance("_".join(name), {
        "ELEMENT": elements.CPP[dtype], "WEIGHT": elements.CPP[call.weight.dtype], "OUT": elements.CPP[call.out.dtype],
        "GROUP": group_size, **{name: int(is_on) for name, is_on in flags.items()}})


@compile_ops("norm/rms_norm_quant.hip", gen_func=_instance)
def _rms_norm_quant_hip(call: RmsNormQuantCall) -> None: ...


def _check(call: RmsNormQuantCall) -> object:
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    quant_rule.check_group(_OP, call.input.shape[-1], call.group_size)
    check.choice(_OP, "use_model_sensitive_rmsnorm", call.use_model_sensitive_rmsnorm, (0, 1))
    check_scale(_OP, "scale", call.scale, call.input, call.group_size)
    check.together(_OP, residual_in=call.residual_in, residual_out=call.residual_out)
    return SKIP if call.input.numel() == 0 else None


def _kernel_refusal(target: Target, call: RmsNormQuantCall) -> str | None:
    """Says why no kernel takes a call."""
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(
        input=call.input, out=call.out, residual_in=call.residual_in, residual_out=call.residual_out,
        out_before_quant=call.plain_out)


class RmsNormQuantKey(NamedTuple):
    """The fields that a tuned row of rms_norm_quant is chosen by."""

    rows: int
    hidden: int
    dtype: str
    out_dtype: str
    group_size: int
    has_residual: bool

    @classmethod
    def of(cls, call: RmsNormQuantCall) -> RmsNormQuantKey:
        return cls(*tune_shapes.row_sizes(call.input), dtypes.name(call.out.dtype), call.group_size,
                   call.residual_in is not None)

    def make(self, device: torch.device, seed: int) -> RmsNormQuantCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        x, weight = random(self.rows, self.hidden), random(self.hidden)
        scale = torch.empty(self.rows, self.hidden // self.group_size if self.group_size else 1, device=device)
        call = RmsNormQuantCall(torch.empty_like(x, dtype=dtypes.DTYPES[self.out_dtype]), scale, None, None, input=x,
                                weight=weight, epsilon=1e-6, group_size=self.group_size)
        if not self.has_residual:
            return call
        return call._replace(residual_in=random(self.rows, self.hidden), residual_out=torch.empty_like(x))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[RmsNormQuantKey]:
        """A layer's norms: the first one's and, with the residual, all others'; to fp8 by row and by 128 columns."""
        return (cls(tokens, model.hidden_size, model.dtype, tune_shapes.fp8_name(), group_size, has_residual)
                for has_residual in (0, 1) for group_size in (0, 128))


def _cases(device: torch.device) -> dict[str, RmsNormQuantCall]:
    """A scale per row and per group, with and without residual; smoothing with the rows as they are before it."""
    row, groups, summed, smooth = (RmsNormQuantKey(3, 256, "bf16", "i8", *form).make(device, 0)
                                   for form in ((0, False), (64, False), (64, True), (0, True)))
    return {"row": row._replace(weight=row.weight.float(), gemma_norm=True), "groups": groups,
            "groups, residual": summed,
            "smooth, T5": smooth._replace(plain_out=torch.empty_like(smooth.input), use_model_sensitive_rmsnorm=1,
                                          x_scale=smooth.weight.float().abs() + 0.5)}


rms_norm_quant = Op(
    _OP, call=RmsNormQuantCall, reference=rms_norm_quant_ref, check=_check, key=RmsNormQuantKey, round_field="rows",
    writes=("out", "scale", "residual_out", "plain_out"), cases=_cases, in_place={"residual_out": ("residual_in",)},
    backends=(Backend("hip", _rms_norm_quant_hip, refusal=_kernel_refusal, space=rows.lanes_of("input", is_8bit=True)),
              Backend("triton", "ops.norm.triton.rms_norm_quant:rms_norm_quant",
                      refusal=_kernel_refusal, space=tune_shapes.row_space),
              Backend("torch", rms_norm_quant_ref)))


def rmsnorm2d_fwd_with_dynamicquant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, epsilon: float,
                                    use_model_sensitive_rmsnorm: int = 0, group_size: int = 0,
                                    shuffle_scale: bool = False, *, backend: str | None = None) -> None:
    """Root-mean-square normalisation with a quantised result.

    `y = rms_norm(input, weight)`; `out · yscale ≈ y`, the scale being the largest magnitude of the row or
    group over the largest value of `out`'s dtype.

    Args:
        out: [..., hidden] fp8 (the device's e4m3) or int8, written.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        yscale: [..., 1] or [..., hidden / group_size] fp32, dense, written; `out · yscale` is the value.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        use_model_sensitive_rmsnorm: 1 rounds to the dtype of `input` before the multiplication with `weight` (T5).
        group_size: 0: one scale per row; 32, 64 or 128: one per so many columns.
        shuffle_scale: the scales' memory is group-major: that of (row, group) at `group · rows + row`.

    Notes: In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic.
    """
    rms_norm_quant.run(out, group_major(yscale, shuffle_scale), None, None, input=input, weight=weight, epsilon=epsilon,
                       group_size=group_size, use_model_sensitive_rmsnorm=use_model_sensitive_rmsnorm, backend=backend)


def rmsnorm2d_fwd_with_add_dynamicquant(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                                        yscale: Tensor, weight: Tensor, epsilon: float,
                                        use_model_sensitive_rmsnorm: int = 0, group_size: int = 0,
                                        shuffle_scale: bool = False, *, backend: str | None = None) -> None:
    """Residual add and root-mean-square normalisation of the sum. Like `rmsnorm2d_fwd_with_dynamicquant` otherwise.

    `residual_out = input + residual_in`, `y = rms_norm(input + residual_in, weight)` of the sum before its rounding;
    `out · yscale ≈ y`.

    Args:
        residual_in: [..., hidden], dtype of `input`; added to it in fp32.
        residual_out: [..., hidden], written: the rounded sum; dtype of `input`. It may be `residual_in`.
    """
    rms_norm_quant.run(out, group_major(yscale, shuffle_scale), residual_out, None, input=input, weight=weight,
                       epsilon=epsilon, residual_in=residual_in, group_size=group_size,
                       use_model_sensitive_rmsnorm=use_model_sensitive_rmsnorm, backend=backend)


def rmsnorm2d_fwd_with_smoothquant(out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor,
                                   epsilon: float, use_model_sensitive_rmsnorm: int = 0, *,
                                   backend: str | None = None) -> None:
    """Root-mean-square normalisation and smoothing by column. Like `rmsnorm2d_fwd_with_dynamicquant` otherwise.

    `y = rms_norm(input, weight) · xscale`; `out · yscale ≈ y`.

    Args:
        xscale: [hidden] fp32: what each column is multiplied with before it is quantised.
        yscale: [..., 1] fp32, dense, written; `out · yscale` is the value.
    """
    rms_norm_quant.run(out, yscale, None, None, input=input, weight=weight, epsilon=epsilon, x_scale=xscale,
                       use_model_sensitive_rmsnorm=use_model_sensitive_rmsnorm, backend=backend)


def rmsnorm2d_fwd_with_add_smoothquant(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor,
                                       xscale: Tensor, yscale: Tensor, weight: Tensor, epsilon: float,
                                       out_before_quant: Tensor | None = None, use_model_sensitive_rmsnorm: int = 0, *,
                                       backend: str | None = None) -> None:
    """Residual add, and normalisation and smoothing of the sum. Like `rmsnorm2d_fwd_with_smoothquant` otherwise.

    `residual_out = input + residual_in`, `y = rms_norm(input + residual_in, weight) · xscale` of the sum before its
    rounding; `out · yscale ≈ y`.

    Args:
        residual_in: [..., hidden], dtype of `input`; added to it in fp32.
        residual_out: [..., hidden], written: the rounded sum; dtype of `input`. It may be `residual_in`.
        out_before_quant: [..., hidden], dtype of `input`, written: the normalised rows, rounded; None: not wanted.
    """
    rms_norm_quant.run(out, yscale, residual_out, out_before_quant, input=input, weight=weight, epsilon=epsilon,
                       residual_in=residual_in, x_scale=xscale, use_model_sensitive_rmsnorm=use_model_sensitive_rmsnorm,
                       backend=backend)


def rmsnorm_quant(out: Tensor, input: Tensor, scale: Tensor, weight: Tensor, epsilon: float, group_size: int = 0,
                  shuffle_scale: bool = False, gemma_norm: bool = False, *, backend: str | None = None) -> None:
    """Quantised root-mean-square normalisation, the gemma form too. Like `rmsnorm2d_fwd_with_dynamicquant` otherwise.

    `out · scale ≈ rms_norm(input, weight)`, or `rms_norm(input, weight + 1)` with `gemma_norm`.

    Args:
        scale: [..., 1] or [..., hidden / group_size] fp32, dense, written; `out · scale` is the value.
        gemma_norm: multiply with `weight + 1`; 0 and 1 are taken too.
    """
    rms_norm_quant.run(out, group_major(scale, shuffle_scale), None, None, input=input, weight=weight, epsilon=epsilon,
                       group_size=group_size, gemma_norm=parts.as_flag(gemma_norm), backend=backend)


def add_rmsnorm_quant(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, scale: Tensor,
                      weight: Tensor, epsilon: float, group_size: int = 0, shuffle_scale: bool = False,
                      gemma_norm: bool = False, *, backend: str | None = None) -> None:
    """Residual add and normalisation of the sum. Like `rmsnorm_quant` otherwise.

    `residual_out = input + residual_in`, `out · scale ≈ rms_norm(input + residual_in, weight)` of the sum before its
    rounding, or with `weight + 1` for `gemma_norm`.

    Args:
        residual_in: [..., hidden], dtype of `input`; added to it in fp32.
        residual_out: [..., hidden], written: the rounded sum; dtype of `input`. It may be `residual_in`.
    """
    rms_norm_quant.run(out, group_major(scale, shuffle_scale), residual_out, None, input=input, weight=weight,
                       epsilon=epsilon, residual_in=residual_in, group_size=group_size,
                       gemma_norm=parts.as_flag(gemma_norm), backend=backend)
