# SPDX-License-Identifier: MIT
"""RMSNorm fused with what stands beside it. Kernels: csrc/norm/, ops/norm/triton/fused_qk_rmsnorm.py."""

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
from aiter_like.ops.common import elements, rows, tune_shapes
from aiter_like.ops.norm.rms_norm import rmsnorm, rmsnorm2d_fwd_with_add

__all__ = ["fused_add_rmsnorm_pad", "fused_qk_rmsnorm"]

_QK = "fused_qk_rmsnorm"
_LONGEST = 32768  # 1024 lanes of 32 elements


def fused_qk_rmsnorm_ref(q_out: Tensor, k_out: Tensor, q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor,
                         k_weight: Tensor, k_eps: float) -> None:
    """The formula in torch, in fp32, differentiable; writes `q_out` and `k_out`."""
    for out, x, weight, epsilon in ((q_out, q, q_weight, q_eps), (k_out, k, k_weight, k_eps)):
        wide = torch.promote_types(x.dtype, torch.float32)
        scale = torch.rsqrt(x.to(wide).square().mean(-1, keepdim=True) + epsilon)
        out.copy_(x.to(wide) * scale * weight.to(wide))


def _qk_instance(q_out: Tensor, k_out: Tensor, q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor, k_weight: Tensor,
                 k_eps: float, *, lanes: int | None = None) -> Instance:
    longer = q if q.shape[-1] >= k.shape[-1] else k
    layout = rows.whole_layout(_QK, target_of(q.device), longer, lanes)
    name = f"{dtypes.name(q.dtype)}{'_wfp32' if q_weight.dtype != q.dtype else ''}"
    return layout.instance(name, {"ELEMENT": elements.CPP[q.dtype], "WEIGHT": elements.CPP[q_weight.dtype]})


@compile_ops("norm/fused_qk_rmsnorm.hip", gen_func=_qk_instance, prebuild=list)
def _fused_qk_rmsnorm_hip(q_out: Tensor, k_out: Tensor, q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor,
                          k_weight: Tensor, k_eps: float) -> None: ...


def _qk_check(q_out: Tensor, k_out: Tensor, q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor, k_weight: Tensor,
              k_eps: float) -> object:
    check.tensor(_QK, "q", q, dtypes=elements.FLOATS)
    check.tensor(_QK, "k", k, dtypes=(q.dtype,), device=q.device)
    check.tensor(_QK, "q_weight", q_weight, dtypes=tuple(dict.fromkeys((q.dtype, torch.float32))))
    for name, out, x, weight, epsilon in (("q", q_out, q, q_weight, q_eps), ("k", k_out, k, k_weight, k_eps)):
        if x.ndim == 0:
            raise ValueError(f"{_QK}: {name} must have at least 1 dimension, got a scalar")
        check.tensor(_QK, f"{name}_weight", weight, dtypes=(q_weight.dtype,), shape=x.shape[-1:], device=q.device)
        check.tensor(_QK, f"{name}_out", out, dtypes=(q.dtype,), shape=x.shape, device=q.device)
        check.real(_QK, f"{name}_eps", epsilon, low=0.0)
    return SKIP if q.numel() + k.numel() == 0 else None


def _qk_refusal(target: Target, q_out: Tensor, k_out: Tensor, q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor,
                    k_weight: Tensor, k_eps: float) -> str | None:
    """What every kernel refuses."""
    if q.numel() == 0 or k.numel() == 0:
        return "q and k must both have elements"
    if max(q.shape[-1], k.shape[-1]) > _LONGEST:
        return f"rows of at most {_LONGEST} elements, got {max(q.shape[-1], k.shape[-1])}"
    if (q.numel() // q.shape[-1]) + (k.numel() // k.shape[-1]) > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} rows of q and k together"
    return rows.refusal(q=q, k=k, q_out=q_out, k_out=k_out)


def _qk_tune_key(q_out: Tensor, k_out: Tensor, q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor, k_weight: Tensor,
                 k_eps: float) -> dict[str, int | str]:
    return {"q_rows": q.numel() // max(q.shape[-1], 1), "q_hidden": q.shape[-1],
            "k_rows": k.numel() // max(k.shape[-1], 1), "k_hidden": k.shape[-1], "dtype": dtypes.name(q.dtype)}


def _hip_space(target: Target, q_out: Tensor, k_out: Tensor, *_: object) -> list[dict[str, int]]:
    return rows.lane_space(target, max(q_out, k_out, key=lambda out: out.shape[-1]), takes_pieces=False)


def _triton_space(target: Target, q_out: Tensor, k_out: Tensor, *_: object) -> list[dict[str, int]]:
    return tune_shapes.wave_space(target, max(q_out.shape[-1], k_out.shape[-1]), _LONGEST)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    random = tune_shapes.normal(device, seed, key["dtype"])
    (q, q_weight), (k, k_weight) = ((random(key[f"{side}_rows"], key[f"{side}_hidden"]), random(key[f"{side}_hidden"]))
                                    for side in "qk")
    return torch.empty_like(q), torch.empty_like(k), q, q_weight, 1e-6, k, k_weight, 1e-6


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A GPU's own heads, as if every model normed them; in latent attention the ranks, which every GPU does whole."""
    if model.q_lora_rank:
        sizes = (tokens, model.q_lora_rank, tokens, model.kv_lora_rank)
    else:
        sizes = (tokens * model.num_heads // tp, model.head_dim, tokens * max(model.num_kv_heads // tp, 1),
                 model.head_dim)
    yield {**dict(zip(("q_rows", "q_hidden", "k_rows", "k_hidden"), sizes)), "dtype": model.dtype}


_fused_qk_rmsnorm = Op(
    _QK, reference=fused_qk_rmsnorm_ref, check=_qk_check, tune_key=_qk_tune_key,
    tune_fields=("q_rows", "q_hidden", "k_rows", "k_hidden", "dtype"), writes=("q_out", "k_out"),
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _fused_qk_rmsnorm_hip, refusal=_qk_refusal, space=_hip_space),
              Backend("triton", "ops.norm.triton.fused_qk_rmsnorm:fused_qk_rmsnorm",
                      refusal=_qk_refusal, space=_triton_space),
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
            raise TypeError(f"{_QK}: {name} must be a tensor, got {type(x).__name__}")
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if q_out is None else q_out
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device) if k_out is None else k_out
    _fused_qk_rmsnorm(q_out, k_out, q, q_weight, q_eps, k, k_weight, k_eps, backend=backend)
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
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rmsnorm2d_fwd_with_add(padded[..., :hidden], x, res, total, weight, epsilon, backend=backend)
    return padded, total
