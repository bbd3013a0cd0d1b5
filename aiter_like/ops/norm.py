# SPDX-License-Identifier: MIT
"""Normalisation: rms_norm. Kernels: csrc/norm/, hsa/gfx942/norm/, triton_kernels/norm.py."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes, torch_ops
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Launch, asm_kernel, compile_ops
from aiter_like.jit.asm import ALIGNMENT

__all__ = ["rms_norm"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ASM_ARGUMENTS = {"out": "pointer", "input": "pointer", "weight": "pointer", "residual_in": "pointer",
                  "residual_out": "pointer", "out_stride": "u32", "input_stride": "u32", "epsilon": "fp32"}
_MAX_ROWS = 2**24 - 1  # a launch has fewer than 2^32 work-items, and a long row takes 256


def rms_norm_ref(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out`."""
    wide = torch.promote_types(input.dtype, torch.float32)
    x = input.to(wide)
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    if use_model_sensitive_rmsnorm:
        scaled = scaled.to(input.dtype).to(wide)
    out.copy_(scaled * weight.to(wide))


@compile_ops("norm/rms_norm.hip")
def _rms_norm_hip(out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
                  use_model_sensitive_rmsnorm: int) -> None: ...


@asm_kernel("gfx942/norm/rms_norm.s", op="rms_norm", arguments=_ASM_ARGUMENTS)
def _rms_norm_asm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
                  use_model_sensitive_rmsnorm: int) -> Launch:
    """One workgroup of four waves per row; without residual."""
    hidden = input.shape[-1]
    values = {"residual_in": None, "residual_out": None, "out_stride": 2 * _row_stride(out),
              "input_stride": 2 * _row_stride(input)}
    return Launch(_asm_facts(input), (input.numel() // hidden, 1, 1), (256, 1, 1), values)


def _check(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int) -> object:
    check.tensor("rms_norm", "input", input, dtypes=_DTYPES)
    if input.ndim == 0:
        raise ValueError("rms_norm: input must have at least 1 dimension, got a scalar")
    hidden = input.shape[-1]
    weight_dtypes = tuple(dict.fromkeys((input.dtype, torch.float32)))
    check.tensor("rms_norm", "weight", weight, dtypes=weight_dtypes, shape=(hidden,), device=input.device)
    check.tensor("rms_norm", "out", out, dtypes=(input.dtype,), shape=input.shape, device=input.device)
    check.real("rms_norm", "epsilon", epsilon, low=0.0)
    check.choice("rms_norm", "use_model_sensitive_rmsnorm", use_model_sensitive_rmsnorm, (0, 1))
    return SKIP if input.numel() == 0 else None


def _kernel_unsupported(target: Target, out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
                        use_model_sensitive_rmsnorm: int) -> str | None:
    """What every kernel refuses."""
    for name, tensor in (("input", input), ("out", out)):
        if not _has_even_rows(tensor):
            return f"the rows of {name} are not evenly spaced (shape {tuple(tensor.shape)}, strides {tensor.stride()})"
    if input.numel() // input.shape[-1] > _MAX_ROWS:
        return f"at most {_MAX_ROWS} rows fit one launch, got {input.numel() // input.shape[-1]}"
    if input.shape[-1] > check.INT32_MAX:
        return f"rows of at most {check.INT32_MAX} elements, got {input.shape[-1]}"
    return None


def _asm_unsupported(target: Target, out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
                     use_model_sensitive_rmsnorm: int) -> str | None:
    """Beyond what all kernels refuse: bf16 throughout, the manifest's row lengths, aligned rows, not the T5 variant."""
    reason = (_kernel_unsupported(target, out, input, weight, epsilon, use_model_sensitive_rmsnorm)
              or _rms_norm_asm.refusal(target, _asm_facts(input)))
    if reason:
        return reason
    if weight.dtype != input.dtype:
        return f"weight must have the dtype of input, got {weight.dtype}"
    if use_model_sensitive_rmsnorm:
        return "use_model_sensitive_rmsnorm must be 0"
    for name, tensor in (("out", out), ("input", input), ("weight", weight)):
        stride = _row_stride(tensor)
        if tensor.data_ptr() % ALIGNMENT or 2 * stride % ALIGNMENT or not 0 <= 2 * stride < 2**32:
            return f"the rows of {name} must start at multiples of {ALIGNMENT} bytes and be less than 4 GiB apart"
    return None


def _asm_facts(input: Tensor) -> dict[str, int | str]:
    return {"dtype": dtypes.name(input.dtype), "hidden": input.shape[-1]}


def _row_stride(tensor: Tensor) -> int:
    """Elements from row to row of a tensor with evenly spaced rows; 0 where there is one row."""
    return next((stride for size, stride in zip(tensor.shape[-2::-1], tensor.stride()[-2::-1]) if size > 1), 0)


def _has_even_rows(tensor: Tensor) -> bool:
    """The dimensions before the last collapse into one, so that one stride leads from row to row."""
    outer = [(size, stride) for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1]
    return all(outer[i][1] == outer[i + 1][0] * outer[i + 1][1] for i in range(len(outer) - 1))


def _tune_key(out: Tensor, input: Tensor, weight: Tensor, epsilon: float,
              use_model_sensitive_rmsnorm: int) -> dict[str, int | str]:
    hidden = input.shape[-1]
    return {"rows": input.numel() // hidden, "hidden": hidden, "dtype": dtypes.name(input.dtype)}


def _self_check(device: torch.device) -> list[tuple]:
    """One case per assembly kernel."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for hidden in (4096, 8192):
        x, weight = (torch.randn(rows, hidden, generator=generator).to(device, torch.bfloat16) for rows in (5, 1))
        cases.append((torch.empty_like(x), x, weight[0], 1e-6, 0))
    return cases


_rms_norm = Op(
    "rms_norm", reference=rms_norm_ref, check=_check, tune_key=_tune_key, tune_fields=("rows", "hidden", "dtype"),
    writes=("out",), self_check=_self_check,
    backends=(Backend("hip", _rms_norm_hip, unsupported=_kernel_unsupported),
              Backend("asm", _rms_norm_asm, unsupported=_asm_unsupported),
              Backend("triton", "norm:rms_norm", unsupported=_kernel_unsupported),
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
        Accumulated in fp32, rounded to nearest even once; deterministic; can be captured in a graph. Only "torch" has a
        derivative: an input that requires grad selects it.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019); AITER's `rms_norm`.
    """
    if out is None:
        if not isinstance(input, Tensor):
            raise TypeError(f"rms_norm: input must be a tensor, got {type(input).__name__}")
        out = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    _rms_norm(out, input, weight, epsilon, use_model_sensitive_rmsnorm, backend=backend)
    return out


torch_ops.register(_rms_norm, rms_norm)
