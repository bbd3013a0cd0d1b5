# SPDX-License-Identifier: MIT
"""Normalisation: rms_norm and its residual form. Kernels: csrc/norm/, hsa/gfx942/norm/, ops/norm/triton/rms_norm.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, simulated_target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, Launch, asm_kernel, compile_ops
from aiter_like.jit.asm import ALIGNMENT
from aiter_like.ops.common import elements, rows, tune_shapes
from aiter_like.ops.norm import norm_backward

__all__ = ["add_rmsnorm", "fused_add_rms_norm_cu", "rms_norm", "rms_norm_cu", "rmsnorm", "rmsnorm2d_fwd",
           "rmsnorm2d_fwd_with_add"]

_ASM_ARGUMENTS = {"out": "pointer", "input": "pointer", "weight": "pointer", "residual_in": "pointer",
                  "residual_out": "pointer", "out_stride": "u32", "input_stride": "u32", "epsilon": "fp32"}


def rms_norm_ref(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int,
                 residual_in: Tensor | None, residual_out: Tensor | None, gemma_norm: bool) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out` and `residual_out`."""
    wide = torch.promote_types(input.dtype, torch.float32)
    x = input.to(wide)
    if residual_in is not None:
        x = x + residual_in.to(wide)
        residual_out.copy_(x)
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    if use_model_sensitive_rmsnorm:
        scaled = scaled.to(input.dtype).to(wide)
    out.copy_(scaled * (weight.to(wide) + gemma_norm))


def _instance(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int,
              residual_in: Tensor | None, residual_out: Tensor | None, gemma_norm: bool, *,
              lanes: int | None = None) -> Instance:
    return _variant(target_of(input.device), out, input, weight, use_model_sensitive_rmsnorm, residual_in, residual_out,
                    gemma_norm, lanes)


def _variant(target: Target, out: Tensor, input: Tensor, weight: Tensor, use_model_sensitive_rmsnorm: int,
             residual_in: Tensor | None, residual_out: Tensor | None, gemma_norm: bool,
             lanes: int | None = None) -> Instance:
    has_residual, is_sensitive = residual_in is not None, bool(use_model_sensitive_rmsnorm)
    tensors = [tensor for tensor in (out, input, residual_in, residual_out) if tensor is not None]
    parts = [dtypes.name(input.dtype), *(["wfp32"] if weight.dtype != input.dtype else []),
             *(name for name, is_on in (("add", has_residual), ("gemma", gemma_norm), ("t5", is_sensitive)) if is_on)]
    return rows.layout(target, *tensors, lanes=lanes).instance("_".join(parts), {
        "ELEMENT": elements.CPP[input.dtype], "WEIGHT": elements.CPP[weight.dtype], "HAS_RESIDUAL": int(has_residual),
        "IS_GEMMA": int(gemma_norm), "IS_MODEL_SENSITIVE": int(is_sensitive)})


def _prebuilt() -> list[Instance]:
    """For decode and prefill of models with the usual hidden sizes in bf16."""
    found = {}
    for hidden, count, has_residual in itertools.product((4096, 5120, 7168, 8192), (1, 4096), (False, True)):
        x = torch.empty(count, hidden, dtype=torch.bfloat16, device="meta")
        residual = x if has_residual else None
        instance = _variant(simulated_target(), x, x, x[0], 0, residual, residual, False)
        found[instance.name] = instance
    return list(found.values())


@compile_ops("norm/rms_norm.hip", gen_func=_instance, prebuild=_prebuilt)
def _rms_norm_hip(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int,
                  residual_in: Tensor | None, residual_out: Tensor | None, gemma_norm: bool) -> None: ...


@asm_kernel("gfx942/norm/rms_norm.s", op="rms_norm", arguments=_ASM_ARGUMENTS)
def _rms_norm_asm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int,
                  residual_in: Tensor | None, residual_out: Tensor | None, gemma_norm: bool) -> Launch:
    """One workgroup of four waves per row; residual rows are `hidden` apart."""
    hidden = input.shape[-1]
    strides = {"out_stride": 2 * rows.stride(out), "input_stride": 2 * rows.stride(input)}
    return Launch(_asm_facts(input), (input.numel() // hidden, 1, 1), (256, 1, 1), strides)


def _check(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int,
           residual_in: Tensor | None, residual_out: Tensor | None, gemma_norm: bool) -> object:
    check.tensor("rms_norm", "input", input, dtypes=elements.FLOATS)
    if input.ndim == 0:
        raise ValueError("rms_norm: input must have at least 1 dimension, got a scalar")
    hidden = input.shape[-1]
    weight_dtypes = tuple(dict.fromkeys((input.dtype, torch.float32)))
    check.tensor("rms_norm", "weight", weight, dtypes=weight_dtypes, shape=(hidden,), device=input.device)
    check.tensor("rms_norm", "out", out, dtypes=(input.dtype,), shape=input.shape, device=input.device)
    check.real("rms_norm", "epsilon", epsilon, low=0.0)
    check.choice("rms_norm", "use_model_sensitive_rmsnorm", use_model_sensitive_rmsnorm, (0, 1))
    check.flag("rms_norm", "gemma_norm", gemma_norm)
    if (residual_in is None) != (residual_out is None):
        raise ValueError("rms_norm: residual_in and residual_out must come together, got one of them")
    for name, tensor in (("residual_in", residual_in), ("residual_out", residual_out)):
        if tensor is not None:
            check.tensor("rms_norm", name, tensor, dtypes=(input.dtype,), shape=input.shape, device=input.device)
    return SKIP if input.numel() == 0 else None


def _kernel_refusal(target: Target, out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
                        use_model_sensitive_rmsnorm: int, residual_in: Tensor | None, residual_out: Tensor | None,
                        gemma_norm: bool) -> str | None:
    """What every kernel refuses."""
    return rows.refusal(input=input, out=out, residual_in=residual_in, residual_out=residual_out)


def _asm_refusal(target: Target, out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
                     use_model_sensitive_rmsnorm: int, residual_in: Tensor | None, residual_out: Tensor | None,
                     gemma_norm: bool) -> str | None:
    """Beyond what all kernels refuse: bf16 throughout, the manifest's row lengths, aligned rows, no variants."""
    reason = (rows.refusal(input=input, out=out, residual_in=residual_in, residual_out=residual_out)
              or _rms_norm_asm.refusal(target, _asm_facts(input)))
    if reason:
        return reason
    if weight.dtype != input.dtype:
        return f"weight must have the dtype of input, got {weight.dtype}"
    if use_model_sensitive_rmsnorm or gemma_norm:
        return "use_model_sensitive_rmsnorm must be 0, gemma_norm False"
    for name, tensor in (("out", out), ("input", input), ("weight", weight), ("residual_in", residual_in),
                         ("residual_out", residual_out)):
        if tensor is None:
            continue
        step = rows.stride(tensor)
        if tensor.data_ptr() % ALIGNMENT or 2 * step % ALIGNMENT or not 0 <= 2 * step < 2**32:
            return f"the rows of {name} must start at multiples of {ALIGNMENT} bytes and be less than 4 GiB apart"
        if name.startswith("residual") and not tensor.is_contiguous():
            return f"{name} must be contiguous"
    return None


def _asm_facts(input: Tensor) -> dict[str, int | str]:
    return {"dtype": dtypes.name(input.dtype), "hidden": input.shape[-1]}


def _tune_key(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int,
              residual_in: Tensor | None, residual_out: Tensor | None, gemma_norm: bool) -> dict[str, int | str]:
    hidden = input.shape[-1]
    return {"rows": input.numel() // hidden, "hidden": hidden, "dtype": dtypes.name(input.dtype),
            "has_residual": residual_in is not None}


def _self_check(device: torch.device) -> list[tuple]:
    """One case per assembly kernel."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for hidden in (4096, 8192):
        x, weight = (torch.randn(rows, hidden, generator=generator).to(device, torch.bfloat16) for rows in (5, 1))
        cases.append((torch.empty_like(x), x, weight[0], 1e-6, 0, None, None, False))
    return cases


def _hip_space(target: Target, out: Tensor, input: Tensor, *_: object) -> list[dict[str, int]]:
    return rows.lane_space(target, out, input)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    random = tune_shapes.normal(device, seed, key["dtype"])
    x, weight = random(key["rows"], key["hidden"]), random(key["hidden"])
    residual = random(key["rows"], key["hidden"]) if key["has_residual"] else None
    return (torch.empty_like(x), x, weight, 1e-6, 0, residual, None if residual is None else torch.empty_like(x), False)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A layer's norms, which every GPU does whole; those of q and k heads, which it does for its own heads."""
    sizes = [(tokens, model.hidden_size, 0), (tokens, model.hidden_size, 1)]
    if model.qk_norm:
        sizes += [(tokens * max(heads // tp, 1), model.head_dim, 0) for heads in (model.num_heads, model.num_kv_heads)]
    sizes += [(tokens, rank, 0) for rank in (model.q_lora_rank, model.kv_lora_rank) if rank]
    for count, hidden, has_residual in sizes:
        yield {"rows": count, "hidden": hidden, "dtype": model.dtype, "has_residual": has_residual}


_rms_norm = Op(
    "rms_norm", reference=rms_norm_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "hidden", "dtype", "has_residual"), round_field="rows", writes=("out", "residual_out"),
    self_check=_self_check,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _rms_norm_hip, refusal=_kernel_refusal, space=_hip_space),
              Backend("asm", _rms_norm_asm, refusal=_asm_refusal),
              Backend("triton", "ops.norm.triton.rms_norm:rms_norm",
                      refusal=_kernel_refusal, space=tune_shapes.row_space),
              Backend("torch", rms_norm_ref, differentiable=True)))


def rms_norm(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0, *,
             out: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Root-mean-square normalisation of the last dimension.

    `out = input / sqrt(mean(input²) + epsilon) · weight`; with `use_model_sensitive_rmsnorm=1` (T5) the quotient is
    rounded to the dtype of `input` before it is multiplied by `weight`.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        use_model_sensitive_rmsnorm: 0, or 1 for the T5 variant.
        out: tensor to write, shape and dtype of `input`; default: a new contiguous one. It may be `input` itself.
        backend: "hip", "asm", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`. An empty input gives an empty result.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or epsilon do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Accumulated in fp32, rounded to nearest even once; deterministic; can be captured in a graph. Where an
        argument requires grad, the derivative is `rms_norm_backward`'s; with `out` or "torch", torch's own.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019); AITER's `rms_norm`.
    """
    if out is None:
        if not isinstance(input, Tensor):
            raise TypeError(f"rms_norm: input must be a tensor, got {type(input).__name__}")
        if backend != "torch" and norm_backward.needs_grad(input, weight):
            return norm_backward.Norm.apply(
                lambda input, weight, _: rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm, backend=backend),
                False, epsilon, input, weight, None)
        out = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    _rms_norm(out, input, weight, epsilon, use_model_sensitive_rmsnorm, None, None, False, backend=backend)
    return out


def rmsnorm2d_fwd_with_add(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor,
                           epsilon: float, gemma_norm: bool = False, use_model_sensitive_rmsnorm: int = 0, *,
                           backend: str | None = None) -> None:
    """Residual add and root-mean-square normalisation of the sum.

    `residual_out = input + residual_in`, `out = rms_norm(input + residual_in, weight)`; the norm takes the sum before
    its rounding. With `gemma_norm` the factor is `weight + 1`.

    Args:
        out: [..., hidden], written; dtype of `input`. It may be `input`.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        residual_in: [..., hidden], dtype of `input`.
        residual_out: [..., hidden], written; dtype of `input`. It may be `residual_in`.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        gemma_norm: multiply with `weight + 1`; 0 and 1 are taken too.
        use_model_sensitive_rmsnorm: 1 rounds to the dtype of `input` before the multiplication with `weight` (T5).
        backend: "hip", "asm", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `residual_out` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or epsilon do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Accumulated in fp32, each output rounded to nearest even once; deterministic; can be captured in a graph.

    Source: AITER's `rmsnorm2d_fwd_with_add`.
    """
    gemma_norm = bool(gemma_norm) if gemma_norm in (0, 1) else gemma_norm  # engines pass 0 by position
    _rms_norm(out, input, weight, epsilon, use_model_sensitive_rmsnorm, residual_in, residual_out, gemma_norm,
              backend=backend)


def rmsnorm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, gemma_norm: bool = False, *,
            backend: str | None = None) -> None:
    """Root-mean-square normalisation into `out`; the gemma form too.

    `out = rms_norm(input, weight)`, or `rms_norm(input, weight + 1)` with `gemma_norm`.

    Args:
        out: [..., hidden], written; dtype of `input`. It may be `input`.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        gemma_norm: multiply with `weight + 1`; 0 and 1 are taken too.
        backend: "hip", "asm", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` is written.

    Raises:
        TypeError, ValueError, UnsupportedError: as `rms_norm`.

    Notes:
        As `rms_norm`.

    Source: AITER's `rmsnorm`, `rms_norm_cu`.
    """
    gemma_norm = bool(gemma_norm) if gemma_norm in (0, 1) else gemma_norm
    _rms_norm(out, input, weight, epsilon, 0, None, None, gemma_norm, backend=backend)


def fused_add_rms_norm_cu(input: Tensor, residual_in: Tensor, weight: Tensor, epsilon: float, *,
                          backend: str | None = None) -> None:
    """Residual add and root-mean-square normalisation of the sum, both in place.

    `residual_in = input + residual_in`, `input = rms_norm(input + residual_in, weight)` of the sum before its rounding.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced; written.
        residual_in: [..., hidden], dtype of `input`; written.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        backend: "hip", "asm", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `input` and `residual_in` are written.

    Raises:
        TypeError, ValueError, UnsupportedError: as `rms_norm`.

    Notes:
        As `rmsnorm2d_fwd_with_add`.

    Source: AITER's `fused_add_rms_norm_cu`.
    """
    _rms_norm(input, input, weight, epsilon, 0, residual_in, residual_in, False, backend=backend)


# AITER's other names of the same calls, with the same order of arguments.
rmsnorm2d_fwd, rms_norm_cu, add_rmsnorm = rms_norm, rmsnorm, rmsnorm2d_fwd_with_add

torch_ops.register(_rms_norm, rms_norm)
