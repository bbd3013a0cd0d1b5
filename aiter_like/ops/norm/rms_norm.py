# SPDX-License-Identifier: MIT
"""Normalisation: rms_norm and its residual form. Kernels: csrc/norm/, hsa/gfx942/norm/, ops/norm/triton/rms_norm.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.jit import Instance, Launch, asm_kernel, compile_ops
from aiter_like.jit.asm import ALIGNMENT
from aiter_like.ops.common import elements, rows, tune_shapes, vectors
from aiter_like.ops.norm import norm_backward, parts

__all__ = ["add_rmsnorm", "fused_add_rms_norm_cu", "rms_norm", "rms_norm_cu", "rmsnorm", "rmsnorm2d_fwd",
           "rmsnorm2d_fwd_with_add"]

_ASM_ARGUMENTS = {"out": "pointer", "input": "pointer", "weight": "pointer", "residual_in": "pointer",
                  "residual_out": "pointer", "out_stride": "u32", "input_stride": "u32", "epsilon": "fp32"}


class RmsNormCall(NamedTuple):
    """One call of rms_norm. Rows are evenly spaced.

    Attributes:
        use_model_sensitive_rmsnorm: 1 rounds to the dtype of `input` before the multiplication with `weight` (T5).
        residual_in: added to `input` first; comes with `residual_out`, to which the sum is written.
        gemma_norm: multiply with `weight + 1`.
    """

    out: Annotated[Tensor, "*rows hidden", "input"]
    input: Annotated[Tensor, "*rows hidden", elements.FLOATS]
    weight: Annotated[Tensor, "hidden", ("input", torch.float32)]
    epsilon: float
    use_model_sensitive_rmsnorm: int = 0
    residual_in: Annotated[Tensor | None, "*rows hidden", "input"] = None
    residual_out: Annotated[Tensor | None, "*rows hidden", "input"] = None
    gemma_norm: bool = False

    @property
    def matrices(self) -> dict[str, Tensor]:
        """The tensors that have rows, by name."""
        found = {"out": self.out, "input": self.input, "residual_in": self.residual_in,
                 "residual_out": self.residual_out}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


def rms_norm_ref(call: RmsNormCall) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out` and `residual_out`."""
    wide = torch.promote_types(call.input.dtype, torch.float32)
    x = call.input.to(wide)
    if call.residual_in is not None:
        x = x + call.residual_in.to(wide)
        call.residual_out.copy_(x)
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + call.epsilon)
    if call.use_model_sensitive_rmsnorm:
        scaled = scaled.to(call.input.dtype).to(wide)
    call.out.copy_(scaled * (call.weight.to(wide) + call.gemma_norm))


def _instance(call: RmsNormCall, *, lanes: int | None = None) -> Instance:
    dtype, is_sensitive = call.input.dtype, bool(call.use_model_sensitive_rmsnorm)
    has_residual = call.residual_in is not None
    flags = {"add": has_residual, "gemma": call.gemma_norm, "t5": is_sensitive}
    name = [*parts.dtype_names(dtype, call.weight.dtype), *(flag for flag, is_on in flags.items() if is_on)]
    row_layout = rows.row_layout(target_of(call.input.device), *call.matrices.values(), lanes=lanes)
    return row_layout.instance("_".join(name), {
        "ELEMENT": elements.CPP[dtype], "WEIGHT": elements.CPP[call.weight.dtype], "HAS_RESIDUAL": int(has_residual),
        "IS_GEMMA": int(call.gemma_norm), "IS_MODEL_SENSITIVE": int(is_sensitive)})


def _prebuild() -> list[RmsNormCall]:
    """Decode and prefill of models with the usual hidden sizes in bf16."""
    calls = []
    for hidden, count, has_residual in itertools.product((4096, 5120, 7168, 8192), (1, 4096), (False, True)):
        x = torch.empty(count, hidden, dtype=torch.bfloat16)
        residual = x if has_residual else None
        calls.append(RmsNormCall(x, x, x[0], 1e-6, residual_in=residual, residual_out=residual))
    return calls


@compile_ops("norm/rms_norm.hip", gen_func=_instance, prebuild=_prebuild)
def _rms_norm_hip(call: RmsNormCall) -> None: ...


@asm_kernel("gfx942/norm/rms_norm.s", op="rms_norm", arguments=_ASM_ARGUMENTS)
def _rms_norm_asm(call: RmsNormCall) -> Launch:
    """One workgroup of four waves per row; residual rows are `hidden` apart."""
    hidden = call.input.shape[-1]
    strides = {"out_stride": 2 * rows.stride(call.out), "input_stride": 2 * rows.stride(call.input)}
    return Launch(_asm_facts(call.input), (call.input.numel() // hidden, 1, 1), (256, 1, 1), strides)


def _check(call: RmsNormCall) -> object:
    check.real("rms_norm", "epsilon", call.epsilon, low=0.0)
    check.choice("rms_norm", "use_model_sensitive_rmsnorm", call.use_model_sensitive_rmsnorm, (0, 1))
    check.together("rms_norm", residual_in=call.residual_in, residual_out=call.residual_out)
    return SKIP if call.input.numel() == 0 else None


def _kernel_refusal(target: Target, call: RmsNormCall) -> str | None:
    """Says why no kernel takes a call."""
    return rows.refusal(input=call.input, out=call.out, residual_in=call.residual_in, residual_out=call.residual_out)


def _asm_refusal(target: Target, call: RmsNormCall) -> str | None:
    """Beyond what all kernels refuse: bf16 throughout, the manifest's row lengths, aligned rows, no variants."""
    reason = _kernel_refusal(target, call) or _rms_norm_asm.refusal(target, _asm_facts(call.input))
    if reason:
        return reason
    if call.weight.dtype != call.input.dtype:
        return f"weight must have the dtype of input, got {call.weight.dtype}"
    if call.use_model_sensitive_rmsnorm or call.gemma_norm:
        return "use_model_sensitive_rmsnorm must be 0, gemma_norm False"
    for name, tensor in {**call.matrices, "weight": call.weight}.items():
        step = rows.stride(tensor)
        if 2 * step % ALIGNMENT or not 0 <= 2 * step < 2**32:
            return f"the rows of {name} must start at multiples of {ALIGNMENT} bytes and be less than 4 GiB apart"
        if name.startswith("residual") and not tensor.is_contiguous():
            return f"{name} must be contiguous"
    return None


def _asm_facts(input: Tensor) -> dict[str, int | str]:
    return {"dtype": dtypes.name(input.dtype), "hidden": input.shape[-1]}


class RmsNormKey(NamedTuple):
    """The fields that a tuned row of rms_norm is chosen by."""

    rows: int
    hidden: int
    dtype: str
    has_residual: bool

    @classmethod
    def of(cls, call: RmsNormCall) -> RmsNormKey:
        return cls(*tune_shapes.row_sizes(call.input), call.residual_in is not None)

    def make(self, device: torch.device, seed: int) -> RmsNormCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        x, weight = random(self.rows, self.hidden), random(self.hidden)
        call = RmsNormCall(torch.empty_like(x), x, weight, 1e-6)
        if not self.has_residual:
            return call
        return call._replace(residual_in=random(self.rows, self.hidden), residual_out=torch.empty_like(x))

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[RmsNormKey]:
        """A layer's norms, which every GPU does whole; those of q and k heads, which it does for its own heads."""
        sizes = [(tokens, model.hidden_size, 0), (tokens, model.hidden_size, 1)]
        if model.qk_norm:
            sizes += [(tokens * max(heads // tp, 1), model.head_dim, 0)
                      for heads in (model.num_heads, model.num_kv_heads)]
        sizes += [(tokens, rank, 0) for rank in (model.q_lora_rank, model.kv_lora_rank) if rank]
        return (cls(count, hidden, model.dtype, has_residual) for count, hidden, has_residual in sizes)


_rms_norm = Op(
    "rms_norm", call=RmsNormCall, reference=rms_norm_ref, check=_check, key=RmsNormKey, round_field="rows",
    writes=("out", "residual_out"),
    cases={"hidden 4096": RmsNormKey(5, 4096, "bf16", False), "hidden 8192": RmsNormKey(5, 8192, "bf16", False),
           "residual": RmsNormKey(5, 4096, "bf16", True)},
    in_place={"out": ("input", "residual_in"), "residual_out": ("residual_in", "input")},
    backends=(Backend("hip", _rms_norm_hip, refusal=_kernel_refusal, space=rows.lanes_of("out", "input")),
              Backend("asm", _rms_norm_asm, refusal=_asm_refusal,
                      address_refusal=vectors.begin_at(lambda call: dict.fromkeys((*call.matrices, "weight"), 8))),
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

    Notes:
        Accumulated in fp32, rounded to nearest even once; deterministic. Where an argument requires grad, the
        derivative is `rms_norm_backward`'s; with `out` or "torch", torch's own.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019); AITER's `rms_norm`.
    """
    if out is None:
        if backend != "torch" and torch_ops.needs_grad(input, weight):
            return norm_backward.Norm.apply(
                lambda input, weight, _: rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm, backend=backend),
                False, epsilon, input, weight, None)
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
    _rms_norm.run(out, input, weight, epsilon, use_model_sensitive_rmsnorm=use_model_sensitive_rmsnorm, backend=backend)
    return out


def rmsnorm2d_fwd_with_add(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor,
                           epsilon: float, gemma_norm: bool = False, use_model_sensitive_rmsnorm: int = 0, *,
                           backend: str | None = None) -> None:
    """Residual add and root-mean-square normalisation of the sum. Like `rms_norm` otherwise.

    `residual_out = input + residual_in`, `out = rms_norm(input + residual_in, weight)`; the norm takes the sum before
    its rounding. With `gemma_norm` the factor is `weight + 1`.

    Args:
        out: [..., hidden], written; dtype of `input`. It may be `input`.
        residual_in: [..., hidden], dtype of `input`.
        residual_out: [..., hidden], written; dtype of `input`. It may be `residual_in`.
        gemma_norm: multiply with `weight + 1`; 0 and 1 are taken too.

    Notes: Accumulated in fp32, each output rounded to nearest even once; deterministic.
    """
    _rms_norm.run(out, input, weight, epsilon, residual_in=residual_in, residual_out=residual_out,
                  use_model_sensitive_rmsnorm=use_model_sensitive_rmsnorm, gemma_norm=parts.as_flag(gemma_norm),
                  backend=backend)


def rmsnorm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, gemma_norm: bool = False, *,
            backend: str | None = None) -> None:
    """Root-mean-square normalisation into `out`, with `gemma_norm` by `weight + 1`. Like `rms_norm` otherwise.

    Args:
        out: [..., hidden], written; dtype of `input`. It may be `input`.
        gemma_norm: multiply with `weight + 1`; 0 and 1 are taken too.

    Source: AITER's `rmsnorm`, `rms_norm_cu`.
    """
    _rms_norm.run(out, input, weight, epsilon, gemma_norm=parts.as_flag(gemma_norm), backend=backend)


def fused_add_rms_norm_cu(input: Tensor, residual_in: Tensor, weight: Tensor, epsilon: float, *,
                          backend: str | None = None) -> None:
    """Residual add and root-mean-square normalisation, both in place. Like `rmsnorm2d_fwd_with_add` otherwise.

    Args:
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced; written with the result.
        residual_in: [..., hidden], dtype of `input`; written with the rounded sum.
    """
    _rms_norm.run(input, input, weight, epsilon, residual_in=residual_in, residual_out=residual_in, backend=backend)


# AITER's other names of the same calls, with the same order of arguments.
rmsnorm2d_fwd, rms_norm_cu, add_rmsnorm = rms_norm, rmsnorm, rmsnorm2d_fwd_with_add

torch_ops.register(_rms_norm, rms_norm)
