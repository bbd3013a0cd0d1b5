# SPDX-License-Identifier: MIT
"""RMSNorm quantised, in one launch with that of a second matrix. Kernels: csrc/norm/fused_rms_quant.hip,
ops/norm/triton/fused_rms_quant.py; what engines call of it: ops/norm/fused_rms_fp8.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.enums import QuantType
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.common.quant_rule import check_scale, group_major

__all__ = ["fused_qk_rmsnorm_quant"]

_OP = "fused_rms_quant"
_LONGEST = 32768  # 1024 lanes of 32 elements


def fused_rms_quant_ref(out: Tensor | None, scale: Tensor | None, plain_out: Tensor | None,
                        residual_out: Tensor | None, second_out: Tensor | None, input: Tensor, weight: Tensor,
                        epsilon: float, residual_in: Tensor | None, second: Tensor | None,
                        second_weight: Tensor | None, second_epsilon: float, group_size: int, is_static: bool,
                        is_rounded: bool, gemma_norm: bool) -> None:
    """The formula in torch, in fp32; writes the first five."""
    def normed(x: Tensor, factor: Tensor, epsilon: float) -> Tensor:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * (factor.float() + gemma_norm)
        return y.to(input.dtype).float() if is_rounded else y

    x = input.float()
    if residual_in is not None:
        x = x + residual_in.float()
        residual_out.copy_(x)
    y = normed(x, weight, epsilon)
    if plain_out is not None:
        plain_out.copy_(y)
    if out is not None and is_static:
        out.copy_(quant_rule.rounded(y * (1 / scale.reshape(())), out.dtype))
    elif out is not None:
        own = quant_rule.row_scales(y, out.dtype, group_size)
        out.copy_(quant_rule.quantised(y, own, out.dtype))
        scale.copy_(own.view(scale.shape))
    if second is not None:
        second_out.copy_(normed(second.float(), second_weight, second_epsilon))


def _instance(out: Tensor | None, scale: Tensor | None, plain_out: Tensor | None, residual_out: Tensor | None,
              second_out: Tensor | None, input: Tensor, weight: Tensor, epsilon: float, residual_in: Tensor | None,
              second: Tensor | None, second_weight: Tensor | None, second_epsilon: float, group_size: int,
              is_static: bool, is_rounded: bool, gemma_norm: bool, *, lanes: int | None = None) -> Instance:
    target = target_of(input.device)
    lanes = rows.whole_layout(_OP, target, _longer(input, second), lanes).lanes
    layout, other = (rows.whole_layout(_OP, target, x, lanes) for x in (input, input if second is None else second))
    quant = "none" if out is None else "fixed" if is_static else "found"
    out_name = "int8_t" if out is None else elements.CPP[out.dtype]
    flags = {"HAS_RESIDUAL": residual_in is not None, "HAS_PLAIN": plain_out is not None,
             "HAS_SECOND": second is not None, "IS_ROUNDED": is_rounded, "IS_GEMMA": gemma_norm}
    names = ("add", "plain", f"second_v{other.vectors}", "rounded", "gemma")
    parts = [dtypes.name(input.dtype), *(["wfp32"] if weight.dtype != input.dtype else []), quant,
             *([] if out is None else [out_name.removesuffix("_t")]), *([f"g{group_size}"] if group_size else []),
             *(name for name, is_on in zip(names, flags.values(), strict=True) if is_on)]
    return layout.instance("_".join(parts), {
        "ELEMENT": elements.CPP[input.dtype], "WEIGHT": elements.CPP[weight.dtype], "OUT": out_name, "QUANT": quant,
        "GROUP": group_size, "SECOND_VECTORS": other.vectors, **{name: int(is_on) for name, is_on in flags.items()}})


@compile_ops("norm/fused_rms_quant.hip", gen_func=_instance, prebuild=list)
def _fused_rms_quant_hip(out: Tensor | None, scale: Tensor | None, plain_out: Tensor | None,
                         residual_out: Tensor | None, second_out: Tensor | None, input: Tensor, weight: Tensor,
                         epsilon: float, residual_in: Tensor | None, second: Tensor | None,
                         second_weight: Tensor | None, second_epsilon: float, group_size: int, is_static: bool,
                         is_rounded: bool, gemma_norm: bool) -> None: ...


def _check(out: Tensor | None, scale: Tensor | None, plain_out: Tensor | None, residual_out: Tensor | None,
           second_out: Tensor | None, input: Tensor, weight: Tensor, epsilon: float, residual_in: Tensor | None,
           second: Tensor | None, second_weight: Tensor | None, second_epsilon: float, group_size: int,
           is_static: bool, is_rounded: bool, gemma_norm: bool) -> object:
    check.tensor(_OP, "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError(f"{_OP}: input must have at least 1 dimension, got a scalar")
    hidden, device, dtype = input.shape[-1], input.device, input.dtype
    check.tensor(_OP, "weight", weight, dtypes=tuple(dict.fromkeys((dtype, torch.float32))), shape=(hidden,),
                 device=device)
    for name, value in (("is_static", is_static), ("is_rounded", is_rounded), ("gemma_norm", gemma_norm)):
        check.flag(_OP, name, value)
    check.real(_OP, "epsilon", epsilon, low=0.0)
    quant_rule.check_group(_OP, hidden, group_size)
    for names, given in ((("out", "scale"), (out, scale)),
                         (("residual_in", "residual_out"), (residual_in, residual_out)),
                         (("second", "second_out", "second_weight"), (second, second_out, second_weight))):
        if len({value is None for value in given}) > 1:
            raise ValueError(f"{_OP}: {', '.join(names[:-1])} and {names[-1]} must come together, got some of them")
    for name, tensor in (("residual_in", residual_in), ("residual_out", residual_out), ("plain_out", plain_out)):
        if tensor is not None:
            check.tensor(_OP, name, tensor, dtypes=(dtype,), shape=input.shape, device=device)
    if out is None and plain_out is None:
        raise ValueError(f"{_OP}: out or plain_out must be given, got neither")
    if (is_static or out is None) and group_size:
        raise ValueError(f"{_OP}: group_size must be 0 where no scales are found, got {group_size}")
    if out is not None:
        check.tensor(_OP, "out", out, dtypes=quant_rule.DTYPES, shape=input.shape, device=device)
        _check_scale(scale, input, group_size, is_static)
    if second is not None:
        _check_second(second_out, input, weight, second, second_weight, second_epsilon)
    return SKIP if input.numel() + (0 if second is None else second.numel()) == 0 else None


def _check_scale(scale: Tensor, input: Tensor, group_size: int, is_static: bool) -> None:
    if not is_static:
        check_scale(_OP, "scale", scale, input, group_size)
        return
    check.tensor(_OP, "scale", scale, dtypes=(torch.float32,), device=input.device)
    if scale.numel() != 1:
        raise ValueError(f"{_OP}: scale must have one element, got shape {tuple(scale.shape)}")


def _check_second(second_out: Tensor, input: Tensor, weight: Tensor, second: Tensor, second_weight: Tensor,
                  second_epsilon: float) -> None:
    check.tensor(_OP, "second", second, dtypes=(input.dtype,), device=input.device)
    if second.ndim == 0:
        raise ValueError(f"{_OP}: second must have at least 1 dimension, got a scalar")
    check.tensor(_OP, "second_weight", second_weight, dtypes=(weight.dtype,), shape=second.shape[-1:],
                 device=input.device)
    check.tensor(_OP, "second_out", second_out, dtypes=(input.dtype,), shape=second.shape, device=input.device)
    check.real(_OP, "second_epsilon", second_epsilon, low=0.0)


def _refusal(target: Target, out: Tensor | None, scale: Tensor | None, plain_out: Tensor | None,
                 residual_out: Tensor | None, second_out: Tensor | None, input: Tensor, weight: Tensor, epsilon: float,
                 residual_in: Tensor | None, second: Tensor | None, *_: object) -> str | None:
    """What every kernel refuses."""
    for name, tensor in (("input", input), ("second", second)):
        if tensor is not None and tensor.numel() == 0:
            return f"{name} must have elements"
        if tensor is not None and tensor.shape[-1] > _LONGEST:
            return f"rows of at most {_LONGEST} elements, {name} has {tensor.shape[-1]}"
    count = sum(tensor.numel() // tensor.shape[-1] for tensor in (input, second) if tensor is not None)
    if count > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} rows of both matrices, got {count}"
    if out is not None and quant_rule.refusal(target, out.dtype):
        return quant_rule.refusal(target, out.dtype)
    return rows.refusal(input=input, out=out, plain_out=plain_out, residual_in=residual_in, residual_out=residual_out,
                        second=second, second_out=second_out)


def _tune_key(out: Tensor | None, scale: Tensor | None, plain_out: Tensor | None, residual_out: Tensor | None,
              second_out: Tensor | None, input: Tensor, weight: Tensor, epsilon: float, residual_in: Tensor | None,
              second: Tensor | None, second_weight: Tensor | None, second_epsilon: float, group_size: int,
              is_static: bool, *_: object) -> dict[str, int | str]:
    return {"rows": input.numel() // max(input.shape[-1], 1), "hidden": input.shape[-1],
            "second_hidden": 0 if second is None else second.shape[-1], "dtype": dtypes.name(input.dtype),
            "out_dtype": "none" if out is None else dtypes.name(out.dtype), "group_size": group_size,
            "is_static": is_static, "has_residual": residual_in is not None}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    """The second matrix, where there is one, has as many rows."""
    random, group_size, count = tune_shapes.normal(device, seed, key["dtype"]), key["group_size"], key["rows"]
    x, weight = random(count, key["hidden"]), random(key["hidden"])
    has_out, is_static = key["out_dtype"] != "none", bool(key["is_static"])
    out = torch.empty_like(x, dtype=dtypes.DTYPES[key["out_dtype"]]) if has_out else None
    shape = (1,) if is_static else (count, key["hidden"] // group_size if group_size else 1)
    residual = random(count, key["hidden"]) if key["has_residual"] else None
    second = random(count, key["second_hidden"]) if key["second_hidden"] else None
    second_weight = None if second is None else random(key["second_hidden"])
    empty = [None if tensor is None else torch.empty_like(tensor) for tensor in (residual, second)]
    return (out, torch.ones(shape, device=device) if has_out else None, None if has_out else torch.empty_like(x),
            *empty, x, weight, 1e-6, residual, second, second_weight, 1e-6, group_size, is_static, False, False)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A layer's norms before its linear layers; in latent attention also those of q's and k's ranks together."""
    sizes = [(model.hidden_size, 0, 0), (model.hidden_size, 0, 1)]
    if model.q_lora_rank:
        sizes.append((model.q_lora_rank, model.kv_lora_rank, 0))
    for hidden, second_hidden, has_residual in sizes:
        for group_size, is_static in ((0, 0), (0, 1), (128, 0)):
            if hidden % max(group_size, 1) == 0:
                yield {"rows": tokens, "hidden": hidden, "second_hidden": second_hidden, "dtype": model.dtype,
                       "out_dtype": tune_shapes.fp8_name(), "group_size": group_size, "is_static": is_static,
                       "has_residual": has_residual}


def _longer(input: Tensor, second: Tensor | None) -> Tensor:
    return input if second is None else max(input, second, key=lambda tensor: tensor.shape[-1])


def _hip_space(target: Target, *args: Any) -> list[dict[str, int]]:
    input, second, group_size = args[5], args[9], args[12]
    return rows.lane_space(target, _longer(input, second), group_size=group_size, takes_pieces=False)


def _triton_space(target: Target, *args: Any) -> list[dict[str, int]]:
    return tune_shapes.wave_space(target, _longer(args[5], args[9]).shape[-1], _LONGEST)


def _self_check(device: torch.device) -> tuple:
    generator = torch.Generator().manual_seed(0)
    x, residual, weight = (torch.randn(*shape, generator=generator).to(device, torch.bfloat16)
                           for shape in ((5, 1024), (5, 1024), (1024,)))
    second = residual[:, :512]
    return (torch.empty_like(x, dtype=torch.int8), torch.empty(5, 8, device=device), torch.empty_like(x),
            torch.empty_like(x), torch.empty(5, 512, dtype=x.dtype, device=device), x, weight, 1e-6, residual, second,
            weight[:512], 1e-5, 128, False, False, False)


fused_rms_quant = Op(
    _OP, reference=fused_rms_quant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "hidden", "second_hidden", "dtype", "out_dtype", "group_size", "is_static", "has_residual"),
    round_field="rows", writes=("out", "scale", "plain_out", "residual_out", "second_out"), self_check=_self_check,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _fused_rms_quant_hip, refusal=_refusal, space=_hip_space),
              Backend("triton", "ops.norm.triton.fused_rms_quant:fused_rms_quant",
                      refusal=_refusal, space=_triton_space),
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
        q_epsilon: added to the mean; finite, ≥ 0.
        q_out_unquantized: [..., q_hidden], written: y, dtype of `q`; None: not wanted.
        k_out: [..., k_hidden], written, dtype of `q`. It may be `k`.
        q_res_out: [..., q_hidden], written: the rounded sum q + q_residual. It may be `q_residual`.
        k: [..., k_hidden], dtype of `q`; its rows may be another number. None: only q.
        k_weight: [k_hidden], dtype of `q_weight`.
        k_epsilon: None: `q_epsilon`.
        q_residual: [..., q_hidden], dtype of `q`, added to it in fp32; None: nothing is.
        gemma_norm: weights are weight + 1, of q and of k.
        quant_type: QuantType.No, per_Token or per_1x128.
        group_size: with per_1x128: 32, 64 or 128; None: 128.
        transpose_scale: the scales' memory is group-major: that of (row, group) at `group · rows + row`.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: the outputs are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: arguments do not belong together, or shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call (fp8 of other hardware, rows above 32768, …).

    Notes:
        In fp32; scales by ops/common/quant_rule.py (zeros, NaN, infinity); deterministic; can be captured in a graph.

    Source: `fused_qk_rmsnorm` of AITER's fused_qk_rmsnorm_group_quant.
    """
    name = "fused_qk_rmsnorm_quant"
    kind = QuantType(quant_type)
    if kind not in (QuantType.No, QuantType.per_Token, QuantType.per_1x128):
        raise ValueError(f"{name}: quant_type must be QuantType.No, per_Token or per_1x128, got {kind}")
    for argument, tensor in (("q", q), ("q_weight", q_weight)):
        if tensor is None:
            raise TypeError(f"{name}: {argument} must be a tensor, got NoneType")
    group, plain = 0, q_out_unquantized
    if kind == QuantType.No:
        plain = q_out_quantized if plain is None else plain
        q_out_quantized = q_out_scale = None
    elif q_out_quantized is None or q_out_scale is None:
        raise ValueError(f"{name}: q_out_quantized and q_out_scale must be given with {kind}")
    elif kind == QuantType.per_1x128:
        group = 128 if group_size is None else group_size
        q_out_scale = group_major(q_out_scale, transpose_scale)
    fused_rms_quant(q_out_quantized, q_out_scale, plain, q_res_out, k_out, q, q_weight, q_epsilon, q_residual, k,
                    k_weight, q_epsilon if k_epsilon is None else k_epsilon, group, False, False, gemma_norm,
                    backend=backend)
