# SPDX-License-Identifier: MIT
"""RMSNorm of queries and keys in one launch; and rms_norm's into padded rows, which has no kernel of its own. Kernels:
csrc/norm/fused_qk_rmsnorm.hip, ops/norm/triton/fused_qk_rmsnorm.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes
from aiter_like.ops.norm.parts import dtype_names, weight_dtypes
from aiter_like.ops.norm.rms_norm import rmsnorm, rmsnorm2d_fwd_with_add

__all__ = ["fused_add_rmsnorm_pad", "fused_qk_rmsnorm"]

_OP = "fused_qk_rmsnorm"
_LONGEST = 32768  # 1024 lanes of 32 elements


class FusedQkRmsnormCall(NamedTuple):
    """One call of fused_qk_rmsnorm: q and k are [..., q_hidden] and [..., k_hidden] with evenly spaced rows, of one
    dtype, and of any numbers of rows.

    Attributes:
        q_out: written.
        k_out: written.
        q_weight: [q_hidden], dtype of `q` or fp32.
        k_weight: [k_hidden], dtype of `q_weight`.
    """

    q_out: Tensor
    k_out: Tensor
    q: Tensor
    q_weight: Tensor
    q_eps: float
    k: Tensor
    k_weight: Tensor
    k_eps: float

    @property
    def longer(self) -> Tensor:
        """Which of `q` and `k` has the longer rows; `q` where they are equal."""
        return self.q if self.q.shape[-1] >= self.k.shape[-1] else self.k

    @property
    def sides(self) -> tuple[tuple[str, Tensor, Tensor, Tensor, float], ...]:
        """(name, out, input, weight, epsilon) of q and of k."""
        return (("q", self.q_out, self.q, self.q_weight, self.q_eps),
                ("k", self.k_out, self.k, self.k_weight, self.k_eps))


def fused_qk_rmsnorm_ref(call: FusedQkRmsnormCall) -> None:
    """The formula in torch, in fp32, differentiable; writes `q_out` and `k_out`."""
    for _, out, x, weight, epsilon in call.sides:
        wide = torch.promote_types(x.dtype, torch.float32)
        scale = torch.rsqrt(x.to(wide).square().mean(-1, keepdim=True) + epsilon)
        out.copy_(x.to(wide) * scale * weight.to(wide))


def _instance(call: FusedQkRmsnormCall, *, lanes: int | None = None) -> Instance:
    dtype, weight = call.q.dtype, call.q_weight.dtype
    row_layout = rows.whole_row_layout(_OP, target_of(call.q.device), call.longer, lanes)
    return row_layout.instance("_".join(dtype_names(dtype, weight)), {"ELEMENT": elements.CPP[dtype],
                                                                  "WEIGHT": elements.CPP[weight]})


@compile_ops("norm/fused_qk_rmsnorm.hip", gen_func=_instance)
def _fused_qk_rmsnorm_hip(call: FusedQkRmsnormCall) -> None: ...


def _check(call: FusedQkRmsnormCall) -> object:
    q = call.q
    check.tensor(_OP, "q", q, dtypes=elements.FLOATS)
    check.tensor(_OP, "k", call.k, dtypes=(q.dtype,), device=q.device)
    check.tensor(_OP, "q_weight", call.q_weight, dtypes=weight_dtypes(q))
    for name, out, x, weight, epsilon in call.sides:
        if x.ndim == 0:
            raise ValueError(f"{_OP}: {name} must have at least 1 dimension, got a scalar")
        check.tensor(_OP, f"{name}_weight", weight, dtypes=(call.q_weight.dtype,), shape=x.shape[-1:], device=q.device)
        check.tensor(_OP, f"{name}_out", out, dtypes=(q.dtype,), shape=x.shape, device=q.device)
        check.real(_OP, f"{name}_eps", epsilon, low=0.0)
    return SKIP if q.numel() + call.k.numel() == 0 else None


def _kernel_refusal(target: Target, call: FusedQkRmsnormCall) -> str | None:
    """What every kernel refuses."""
    q, k = call.q, call.k
    if q.numel() == 0 or k.numel() == 0:
        return "q and k must both have elements"
    if call.longer.shape[-1] > _LONGEST:
        return f"rows of at most {_LONGEST} elements, got {call.longer.shape[-1]}"
    if (q.numel() // q.shape[-1]) + (k.numel() // k.shape[-1]) > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} rows of q and k together"
    return rows.refusal(q=q, k=k, q_out=call.q_out, k_out=call.k_out)


def _tune_key(call: FusedQkRmsnormCall) -> dict[str, int | str]:
    q, k = call.q, call.k
    return {"q_rows": q.numel() // max(q.shape[-1], 1), "q_hidden": q.shape[-1],
            "k_rows": k.numel() // max(k.shape[-1], 1), "k_hidden": k.shape[-1], "dtype": dtypes.name(q.dtype)}


def _cases(device: torch.device) -> dict[str, FusedQkRmsnormCall]:
    """Rows of different lengths and numbers, aligned and odd."""
    return {name: _tune_case({"q_rows": 3, "q_hidden": q_hidden, "k_rows": 5, "k_hidden": k_hidden, "dtype": "bf16"},
                             device, 0) for name, q_hidden, k_hidden in (("aligned", 256, 128), ("odd", 101, 300))}


def _hip_space(target: Target, call: FusedQkRmsnormCall) -> list[dict[str, int]]:
    return rows.lane_space(target, max(call.q_out, call.k_out, key=lambda out: out.shape[-1]), takes_pieces=False)


def _triton_space(target: Target, call: FusedQkRmsnormCall) -> list[dict[str, int]]:
    return tune_shapes.wave_space(target, call.longer.shape[-1], _LONGEST)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> FusedQkRmsnormCall:
    random = tune_shapes.normal(device, seed, key["dtype"])
    (q, q_weight), (k, k_weight) = ((random(key[f"{side}_rows"], key[f"{side}_hidden"]), random(key[f"{side}_hidden"]))
                                    for side in "qk")
    return FusedQkRmsnormCall(torch.empty_like(q), torch.empty_like(k), q=q, q_weight=q_weight, q_eps=1e-6, k=k,
                              k_weight=k_weight, k_eps=1e-6)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A GPU's own heads, as if every model normed them; in latent attention the ranks, which every GPU does whole."""
    if model.q_lora_rank:
        sizes = (tokens, model.q_lora_rank, tokens, model.kv_lora_rank)
    else:
        sizes = (tokens * model.num_heads // tp, model.head_dim, tokens * max(model.num_kv_heads // tp, 1),
                 model.head_dim)
    yield {**dict(zip(("q_rows", "q_hidden", "k_rows", "k_hidden"), sizes)), "dtype": model.dtype}


_fused_qk_rmsnorm = Op(
    _OP, call=FusedQkRmsnormCall, reference=fused_qk_rmsnorm_ref, check=_check, tune_key=_tune_key,
    tune_fields=("q_rows", "q_hidden", "k_rows", "k_hidden", "dtype"), writes=("q_out", "k_out"), cases=_cases,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    in_place={"q_out": ("q",), "k_out": ("k",)},
    backends=(Backend("hip", _fused_qk_rmsnorm_hip, refusal=_kernel_refusal, space=_hip_space),
              Backend("triton", "ops.norm.triton.fused_qk_rmsnorm:fused_qk_rmsnorm",
                      refusal=_kernel_refusal, space=_triton_space),
              Backend("torch", fused_qk_rmsnorm_ref, differentiable=True)))


def fused_qk_rmsnorm(q_out: Tensor | None, q: Tensor, q_weight: Tensor, q_eps: float, k_out: Tensor | None, k: Tensor,
                     k_weight: Tensor, k_eps: float, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Root-mean-square normalisation of queries and keys, each of its last dimension, in one launch.

    `q_out = rms_norm(q, q_weight, q_eps)`, `k_out = rms_norm(k, k_weight, k_eps)`.

    Args:
        q_out: [..., q_hidden], written; dtype of `q`; None: a new contiguous one. It may be `q`.
        q: [..., q_hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        q_weight: [q_hidden], dtype of `q` or fp32, contiguous.
        q_eps: added to the mean; finite, ≥ 0.
        k_out: [..., k_hidden], written; dtype of `q`; None: a new contiguous one. It may be `k`.
        k: [..., k_hidden], dtype of `q`; its rows may be another number than those of `q`.
        k_weight: [k_hidden], dtype of `q_weight`.
        k_eps: added to the mean; finite, ≥ 0.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `q_out` and `k_out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or values do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Accumulated in fp32, rounded to nearest even once; deterministic; can be captured in a graph.

    Source: AITER's `_fused_qk_rmsnorm`.
    """
    for name, x in (("q", q), ("k", k)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{_OP}: {name} must be a tensor, got {type(x).__name__}")
    q_out = torch.empty_like(q, memory_format=torch.contiguous_format) if q_out is None else q_out
    k_out = torch.empty_like(k, memory_format=torch.contiguous_format) if k_out is None else k_out
    _fused_qk_rmsnorm.run(q_out, k_out, q=q, q_weight=q_weight, q_eps=q_eps, k=k, k_weight=k_weight, k_eps=k_eps,
                          backend=backend)
    return q_out, k_out


def fused_add_rmsnorm_pad(x: Tensor, weight: Tensor, epsilon: float, res: Tensor | None = None,
                          x_pad_to_multiple: int = 0, *,
                          backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalisation into rows padded with zeros, after a residual add where `res` is given.

    `out[..., :hidden] = rms_norm(x + res, weight)`, zeros from there to the next multiple.

    Args:
        x: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `x` or fp32, contiguous.
        epsilon: added to the mean; finite, ≥ 0.
        res: [..., hidden], dtype of `x`; None: nothing is added.
        x_pad_to_multiple: the length of the result's rows is the next multiple of it; 0: hidden.
        backend: "hip", "asm", "triton" or "torch" instead of the automatic choice.

    Returns:
        The new padded rows; with `res` also the new rounded sum `x + res`, which is not padded.

    Raises:
        TypeError, ValueError, UnsupportedError: as `rms_norm`; ValueError also for a negative multiple.

    Notes:
        As `rms_norm`; the padding is written by a launch of its own.

    Source: AITER's `fused_add_rmsnorm_pad`.
    """
    check.tensor("fused_add_rmsnorm_pad", "x", x, dtypes=elements.FLOATS)
    check.integer("fused_add_rmsnorm_pad", "x_pad_to_multiple", x_pad_to_multiple, low=0)
    if x.ndim == 0:
        raise ValueError("fused_add_rmsnorm_pad: x must have at least 1 dimension, got a scalar")
    hidden = x.shape[-1]
    size = -(-hidden // x_pad_to_multiple) * x_pad_to_multiple if x_pad_to_multiple else hidden
    padded = torch.empty(*x.shape[:-1], size, dtype=x.dtype, device=x.device)
    padded[..., hidden:].zero_()
    if res is None:
        rmsnorm(padded[..., :hidden], x, weight, epsilon, backend=backend)
        return padded
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    rmsnorm2d_fwd_with_add(padded[..., :hidden], x, res, total, weight, epsilon, backend=backend)
    return padded, total
