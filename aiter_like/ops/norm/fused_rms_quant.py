# SPDX-License-Identifier: MIT
"""RMSNorm quantised, in one launch with that of a second matrix. Kernels: csrc/norm/fused_rms_quant.hip,
ops/norm/triton/fused_rms_quant.py; what engines call of it: ops/norm/fused_rms_fp8.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.enums import QuantType
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.norm.parts import dtype_names

__all__ = ["fused_qk_rmsnorm_quant"]

_OP = "fused_rms_quant"


class FusedRmsQuantCall(NamedTuple):
    """One call of fused_rms_quant. All rows are evenly spaced, those of `second` of any number.

    Attributes:
        out: None: only `plain_out` is wanted.
        scale: fp32: an element per row, or per row and group; with `is_static` one element that is read.
        plain_out: the normalised rows before quantisation; None: not wanted.
        residual_out: the sum that is normalised; comes with `residual_in`.
        second_out: `second` normalised; comes with it and `second_weight`.
        group_size: columns that share a scale; 0: the whole row does.
        is_rounded: the normalised rows are rounded to the dtype of `input` before they are quantised.
        gemma_norm: multiply with the weights + 1.
    """

    out: Annotated[Tensor | None, "*rows hidden", quant_rule.DTYPES]
    scale: Tensor | None
    plain_out: Annotated[Tensor | None, "*rows hidden", "input"]
    residual_out: Annotated[Tensor | None, "*rows hidden", "input"]
    second_out: Annotated[Tensor | None, "*second_rows second_hidden", "input"]
    input: Annotated[Tensor, "*rows hidden", elements.FLOATS]
    weight: Annotated[Tensor, "hidden", ("input", torch.float32)]
    epsilon: float
    residual_in: Annotated[Tensor | None, "*rows hidden", "input"] = None
    second: Annotated[Tensor | None, "*second_rows second_hidden", "input"] = None
    second_weight: Annotated[Tensor | None, "second_hidden", "weight"] = None
    second_epsilon: float = 1e-6
    group_size: int = 0
    is_static: bool = False
    is_rounded: bool = False
    gemma_norm: bool = False

    @property
    def longer(self) -> Tensor:
        """The one of `input` and `second` with the longer rows; `input` where there is no other or they are equal."""
        return self.input if self.second is None else max(self.input, self.second, key=lambda x: x.shape[-1])


def fused_rms_quant_ref(call: FusedRmsQuantCall) -> None:
    """The formula in torch, in fp32; writes all that is to be written."""
    def normed(x: Tensor, factor: Tensor, epsilon: float) -> Tensor:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * (factor.float() + call.gemma_norm)
        return y.to(call.input.dtype).float() if call.is_rounded else y

    x, out = call.input.float(), call.out
    if call.residual_in is not None:
        x = x + call.residual_in.float()
        call.residual_out.copy_(x)
    y = normed(x, call.weight, call.epsilon)
    if call.plain_out is not None:
        call.plain_out.copy_(y)
    if out is not None and call.is_static:
        out.copy_(quant_rule.rounded(y * (1 / call.scale.reshape(())), out.dtype))
    elif out is not None:
        quant_rule.store_quantised(out, call.scale, y, call.group_size)
    if call.second is not None:
        call.second_out.copy_(normed(call.second.float(), call.second_weight, call.second_epsilon))


def _instance(call: FusedRmsQuantCall, *, lanes: int | None = None) -> Instance:
    input, weight, out, second, group_size = call.input, call.weight, call.out, call.second, call.group_size
    target = target_of(input.device)
    lanes = rows.whole_row_layout(_OP, target, call.longer, lanes).lanes
    row_layout, other = (rows.whole_row_layout(_OP, target, x, lanes)
                         for x in (input, input if second is None else second))
    quant = "none" if out is None else "fixed" if call.is_static else "found"
    out_name = "int8_t" if out is None else elements.CPP[out.dtype]
    flags = {"HAS_RESIDUAL": call.residual_in is not None, "HAS_PLAIN": call.plain_out is not None,
             "HAS_SECOND": second is not None, "IS_ROUNDED": call.is_rounded, "IS_GEMMA": call.gemma_norm}
    names = ("add", "plain", f"second_v{other.vectors}", "rounded", "gemma")
    name = [*dtype_names(input.dtype, weight.dtype), quant, *([] if out is None else [out_name.removesuffix("_t")]),
            *([f"g{group_size}"] if group_size else []),
            *(flag for flag, is_on in zip(names, flags.values(), strict=True) if is_on)]
    return row_layout.instance("_".join(name), {
        "ELEMENT": elements.CPP[input.dtype], "WEIGHT": elements.CPP[weight.dtype], "OUT": out_name, "QUANT": quant,
        "GROUP": group_size, "SECOND_VECTORS": other.vectors, **{name: int(is_on) for name, is_on in flags.items()}})


@compile_ops("norm/fused_rms_quant.hip", gen_func=_instance)
def _fused_rms_quant_hip(call: FusedRmsQuantCall) -> None: ...


def _check(call: FusedRmsQuantCall) -> object:
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    quant_rule.check_group(_OP, call.input.shape[-1], call.group_size)
    check.together(_OP, out=call.out, scale=call.scale)
    check.together(_OP, residual_in=call.residual_in, residual_out=call.residual_out)
    check.together(_OP, second=call.second, second_out=call.second_out, second_weight=call.second_weight)
    if call.out is None and call.plain_out is None:
        raise ValueError(f"{_OP}: out or plain_out must be given, got neither")
    if (call.is_static or call.out is None) and call.group_size:
        raise ValueError(f"{_OP}: group_size must be 0 where no scales are found, got {call.group_size}")
    if call.out is not None and call.is_static:
        check.tensor(_OP, "scale", call.scale, dtypes=(torch.float32,), device=call.input.device)
        if call.scale.numel() != 1:
            raise ValueError(f"{_OP}: scale must have one element, got shape {tuple(call.scale.shape)}")
    elif call.out is not None:
        quant_rule.check_scale(_OP, "scale", call.scale, call.input, call.group_size)
    if call.second is None:
        return SKIP if call.input.numel() == 0 else None
    check.real(_OP, "second_epsilon", call.second_epsilon, low=0.0)
    return SKIP if call.input.numel() + call.second.numel() == 0 else None


def _kernel_refusal(target: Target, call: FusedRmsQuantCall) -> str | None:
    """Says why no kernel takes a call."""
    for name, tensor in (("input", call.input), ("second", call.second)):
        if tensor is not None and tensor.numel() == 0:
            return f"{name} must have elements"
        if tensor is not None and tensor.shape[-1] > rows.LONGEST:
            return f"rows of at most {rows.LONGEST} elements, {name} has {tensor.shape[-1]}"
    count = sum(tensor.numel() // tensor.shape[-1] for tensor in (call.input, call.second) if tensor is not None)
    if count > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} rows of both matrices, got {count}"
    if call.out is not None and (reason := quant_rule.refusal(target, call.out.dtype)):
        return reason
    return rows.refusal(input=call.input, out=call.out, plain_out=call.plain_out, residual_in=call.residual_in,
                        residual_out=call.residual_out, second=call.second, second_out=call.second_out)


class FusedRmsQuantKey(NamedTuple):
    """The fields that a tuned row of fused_rms_quant is chosen by; `out_dtype` is "none" where nothing is quantised."""

    rows: int
    hidden: int
    second_hidden: int
    dtype: str
    out_dtype: str
    group_size: int
    is_static: bool
    has_residual: bool

    @classmethod
    def of(cls, call: FusedRmsQuantCall) -> FusedRmsQuantKey:
        count, hidden, dtype = tune_shapes.row_sizes(call.input)
        return cls(count, hidden, 0 if call.second is None else call.second.shape[-1], dtype,
                   "none" if call.out is None else dtypes.name(call.out.dtype), call.group_size, call.is_static,
                   call.residual_in is not None)

    def make(self, device: torch.device, seed: int, **others: Any) -> FusedRmsQuantCall:
        """The second matrix, where there is one, has as many rows; `others` are fields that no key has."""
        random = tune_shapes.normal(device, seed, self.dtype)
        x, scales = random(self.rows, self.hidden), self.hidden // self.group_size if self.group_size else 1
        call = FusedRmsQuantCall(None, None, None, None, None, input=x, weight=random(self.hidden), epsilon=1e-6,
                                 group_size=self.group_size, is_static=bool(self.is_static), **others)
        if self.out_dtype == "none":
            call = call._replace(plain_out=torch.empty_like(x))
        else:
            scale = torch.full((1,) if self.is_static else (self.rows, scales), 0.03, device=device)
            call = call._replace(out=torch.empty_like(x, dtype=dtypes.DTYPES[self.out_dtype]), scale=scale)
        if self.has_residual:
            call = call._replace(residual_in=random(self.rows, self.hidden), residual_out=torch.empty_like(x))
        if self.second_hidden:
            second = random(self.rows, self.second_hidden)
            call = call._replace(second=second, second_out=torch.empty_like(second),
                                 second_weight=random(self.second_hidden))
        return call

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[FusedRmsQuantKey]:
        """A layer's norms before its linear layers; in latent attention also those of q's and k's ranks together."""
        sizes = [(model.hidden_size, 0, 0), (model.hidden_size, 0, 1)]
        if model.q_lora_rank:
            sizes.append((model.q_lora_rank, model.kv_lora_rank, 0))
        return (cls(tokens, hidden, second_hidden, model.dtype, tune_shapes.fp8_name(), group_size, is_static,
                    has_residual)
                for hidden, second_hidden, has_residual in sizes
                for group_size, is_static in ((0, 0), (0, 1), (128, 0)) if hidden % max(group_size, 1) == 0)


def _cases(device: torch.device) -> dict[str, FusedRmsQuantCall]:
    """Scales by group, by row and given; no quantisation; with and without the second matrix, its rows apart or not."""
    groups = FusedRmsQuantKey(5, 1024, 512, "bf16", "i8", 128, False, True).make(device, 0, second_epsilon=1e-5)
    row = FusedRmsQuantKey(5, 1024, 0, "bf16", "i8", 0, False, False).make(device, 0, gemma_norm=True)
    static = FusedRmsQuantKey(5, 1024, 0, "bf16", "i8", 0, True, False).make(device, 0, is_rounded=True)
    plain = FusedRmsQuantKey(5, 1024, 512, "bf16", "none", 0, False, False).make(device, 0, second_epsilon=1e-5)
    return {"groups, second": groups._replace(plain_out=torch.empty_like(groups.input),
                                              second=groups.residual_in[:, :512]),
            "row, gemma": row, "static": static._replace(plain_out=torch.empty_like(static.input)),
            "plain, second": plain}


fused_rms_quant = Op(
    _OP, call=FusedRmsQuantCall, reference=fused_rms_quant_ref, check=_check, key=FusedRmsQuantKey, round_field="rows",
    writes=("out", "scale", "plain_out", "residual_out", "second_out"), cases=_cases,
    in_place={"residual_out": ("residual_in",), "second_out": ("second",)},
    backends=(Backend("hip", _fused_rms_quant_hip, refusal=_kernel_refusal,
                      space=rows.lanes_of("longer", takes_pieces=False)),
              Backend("triton", "ops.norm.triton.fused_rms_quant:fused_rms_quant",
                      refusal=_kernel_refusal, space=tune_shapes.waves_of("longer", rows.LONGEST)),
              Backend("torch", fused_rms_quant_ref)))


def fused_qk_rmsnorm_quant(
        q_out_quantized: Tensor | None = None, q_out_scale: Tensor | None = None, q: Tensor | None = None,
        q_weight: Tensor | None = None, q_epsilon: float = 1e-06, q_out_unquantized: Tensor | None = None,
        k_out: Tensor | None = None, q_res_out: Tensor | None = None, k: Tensor | None = None,
        k_weight: Tensor | None = None, k_epsilon: float | None = None, q_residual: Tensor | None = None,
        gemma_norm: bool = False, quant_type: QuantType | int = QuantType.No, group_size: int | None = None,
        transpose_scale: bool = False, *, backend: str | None = None) -> None:
    """Root-mean-square normalisation of q, quantised or not and after a residual add, and of k, in one launch.

    `y = rms_norm(q + q_residual, q_weight)`; `q_out_quantized · q_out_scale ≈ y`; `k_out = rms_norm(k, k_weight)`.

    Args:
        q_out_quantized: [..., q_hidden], written; fp8 (the device's e4m3) or int8. With QuantType.No y itself, where
            `q_out_unquantized` is None.
        q_out_scale: fp32, written: [..., 1] with QuantType.per_Token, [..., q_hidden / group_size] with per_1x128.
        q: [..., q_hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        q_weight: [q_hidden], dtype of `q` or fp32, contiguous.
        q_epsilon, k_epsilon: added to the mean; finite, ≥ 0; `k_epsilon` None: `q_epsilon`.
        q_out_unquantized: [..., q_hidden], written: y, dtype of `q`; None: not wanted.
        k_out: [..., k_hidden], written, dtype of `q`. It may be `k`.
        q_res_out: [..., q_hidden], written: the rounded sum q + q_residual. It may be `q_residual`.
        k: [..., k_hidden], dtype of `q`; its rows may be another number. None: only q.
        k_weight: [k_hidden], dtype of `q_weight`.
        q_residual: [..., q_hidden], dtype of `q`, added to it in fp32; None: nothing is.
        gemma_norm: weights are weight + 1, of q and of k.
        quant_type: QuantType.No, per_Token or per_1x128.
        group_size: with per_1x128: 32, 64 or 128; None: 128.
        transpose_scale: the scales' memory is group-major: that of (row, group) at `group · rows + row`.

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic. Kernels take rows of at
        most 32768 elements.

    Source: `fused_qk_rmsnorm` of AITER's fused_qk_rmsnorm_group_quant.
    """
    name = "fused_qk_rmsnorm_quant"
    kinds = (QuantType.No, QuantType.per_Token, QuantType.per_1x128)
    check.choice(name, "quant_type", quant_type, tuple(map(int, kinds)))
    kind = QuantType(quant_type)
    for argument, tensor in (("q", q), ("q_weight", q_weight)):
        if tensor is None:
            raise TypeError(f"{name}: {argument} must be a tensor, got NoneType")
    group, plain = 0, q_out_unquantized
    if kind == QuantType.No:
        plain = q_out_quantized if plain is None else plain
        q_out_quantized = q_out_scale = None
        if plain is None:
            raise ValueError(f"{name}: q_out_unquantized or q_out_quantized must be given with {kind}")
    elif q_out_quantized is None or q_out_scale is None:
        raise ValueError(f"{name}: q_out_quantized and q_out_scale must be given with {kind}")
    elif kind == QuantType.per_1x128:
        group = 128 if group_size is None else group_size
        q_out_scale = quant_rule.group_major(q_out_scale, transpose_scale)
    fused_rms_quant.run(q_out_quantized, q_out_scale, plain, q_res_out, second_out=k_out, input=q, weight=q_weight,
                        epsilon=q_epsilon, residual_in=q_residual, second=k, second_weight=k_weight,
                        second_epsilon=q_epsilon if k_epsilon is None else k_epsilon, group_size=group,
                        gemma_norm=gemma_norm, backend=backend)
