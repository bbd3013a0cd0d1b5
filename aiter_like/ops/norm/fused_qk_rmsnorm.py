# SPDX-License-Identifier: MIT
"""RMSNorm of queries and keys in one launch; and rms_norm's into padded rows, which has no kernel of its own. Kernels:
csrc/norm/fused_qk_rmsnorm.hip, ops/norm/triton/fused_qk_rmsnorm.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, rows, tune_shapes
from aiter_like.ops.norm.parts import dtype_names
from aiter_like.ops.norm.rms_norm import rmsnorm, rmsnorm2d_fwd_with_add

__all__ = ["fused_add_rmsnorm_pad", "fused_qk_rmsnorm"]

_OP = "fused_qk_rmsnorm"


class FusedQkRmsnormCall(NamedTuple):
    """One call of fused_qk_rmsnorm. Rows are evenly spaced, those of q and of k of any numbers."""

    q_out: Annotated[Tensor, "*q_rows q_hidden", "q"]
    k_out: Annotated[Tensor, "*k_rows k_hidden", "q"]
    q: Annotated[Tensor, "*q_rows q_hidden", elements.FLOATS]
    q_weight: Annotated[Tensor, "q_hidden", ("q", torch.float32)]
    q_eps: float
    k: Annotated[Tensor, "*k_rows k_hidden", "q"]
    k_weight: Annotated[Tensor, "k_hidden", "q_weight"]
    k_eps: float

    @property
    def longer(self) -> Tensor:
        """The one of `q` and `k` with the longer rows; `q` where they are equal."""
        return self.q if self.q.shape[-1] >= self.k.shape[-1] else self.k


def fused_qk_rmsnorm_ref(call: FusedQkRmsnormCall) -> None:
    """The formula in torch, in fp32, differentiable; writes `q_out` and `k_out`."""
    for out, x, weight, epsilon in ((call.q_out, call.q, call.q_weight, call.q_eps),
                                    (call.k_out, call.k, call.k_weight, call.k_eps)):
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
    check.real(_OP, "q_eps", call.q_eps, low=0.0)
    check.real(_OP, "k_eps", call.k_eps, low=0.0)
    return SKIP if call.q.numel() + call.k.numel() == 0 else None


def _kernel_refusal(target: Target, call: FusedQkRmsnormCall) -> str | None:
    """Says why no kernel takes a call."""
    q, k = call.q, call.k
    if q.numel() == 0 or k.numel() == 0:
        return "q and k must both have elements"
    if call.longer.shape[-1] > rows.LONGEST:
        return f"rows of at most {rows.LONGEST} elements, got {call.longer.shape[-1]}"
    if (q.numel() // q.shape[-1]) + (k.numel() // k.shape[-1]) > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} rows of q and k together"
    return rows.refusal(q=q, k=k, q_out=call.q_out, k_out=call.k_out)


class FusedQkRmsnormKey(NamedTuple):
    """The fields that a tuned row of fused_qk_rmsnorm is chosen by."""

    q_rows: int
    q_hidden: int
    k_rows: int
    k_hidden: int
    dtype: str

    @classmethod
    def of(cls, call: FusedQkRmsnormCall) -> FusedQkRmsnormKey:
        return cls(*tune_shapes.row_sizes(call.q)[:2], *tune_shapes.row_sizes(call.k))

    def make(self, device: torch.device, seed: int) -> FusedQkRmsnormCall:
        random = tune_shapes.normal(device, seed, self.dtype)
        q, k = random(self.q_rows, self.q_hidden), random(self.k_rows, self.k_hidden)
        return FusedQkRmsnormCall(torch.empty_like(q), torch.empty_like(k), q=q, q_weight=random(self.q_hidden),
                                  q_eps=1e-6, k=k, k_weight=random(self.k_hidden), k_eps=1e-6)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[FusedQkRmsnormKey]:
        """A GPU's own heads, as if every model normed them; in latent attention the ranks, which each does whole."""
        if model.q_lora_rank:
            yield cls(tokens, model.q_lora_rank, tokens, model.kv_lora_rank, model.dtype)
        else:
            yield cls(tokens * model.num_heads // tp, model.head_dim, tokens * max(model.num_kv_heads // tp, 1),
                      model.head_dim, model.dtype)


_fused_qk_rmsnorm = Op(
    _OP, call=FusedQkRmsnormCall, reference=fused_qk_rmsnorm_ref, check=_check, key=FusedQkRmsnormKey,
    writes=("q_out", "k_out"), in_place={"q_out": ("q",), "k_out": ("k",)},
    cases={"aligned": FusedQkRmsnormKey(3, 256, 5, 128, "bf16"), "odd": FusedQkRmsnormKey(3, 101, 5, 300, "bf16")},
    backends=(Backend("hip", _fused_qk_rmsnorm_hip, refusal=_kernel_refusal,
                      space=rows.lanes_of("longer", takes_pieces=False)),
              Backend("triton", "ops.norm.triton.fused_qk_rmsnorm:fused_qk_rmsnorm",
                      refusal=_kernel_refusal, space=tune_shapes.waves_of("longer", rows.LONGEST)),
              Backend("torch", fused_qk_rmsnorm_ref, differentiable=True)))


def fused_qk_rmsnorm(q_out: Tensor | None, q: Tensor, q_weight: Tensor, q_eps: float, k_out: Tensor | None, k: Tensor,
                     k_weight: Tensor, k_eps: float, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Root-mean-square normalisation of queries and keys, each of its last dimension, in one launch.

    `q_out = rms_norm(q, q_weight, q_eps)`, `k_out = rms_norm(k, k_weight, k_eps)`.

    Args:
        q_out: [..., q_hidden], written; dtype of `q`; None: a new contiguous one. It may be `q`.
        q: [..., q_hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        q_weight: [q_hidden], dtype of `q` or fp32, contiguous.
        q_eps, k_eps: added to the mean; finite, ≥ 0.
        k_out: [..., k_hidden], written; dtype of `q`; None: a new contiguous one. It may be `k`.
        k: [..., k_hidden], dtype of `q`; its rows may be another number than those of `q`.
        k_weight: [k_hidden], dtype of `q_weight`.

    Returns: `q_out` and `k_out`.

    Notes:
        Accumulated in fp32, rounded to nearest even once; deterministic.

    Source: AITER's `_fused_qk_rmsnorm`.
    """
    q_out = torch.empty_like(q, memory_format=torch.contiguous_format) if q_out is None else q_out
    k_out = torch.empty_like(k, memory_format=torch.contiguous_format) if k_out is None else k_out
    _fused_qk_rmsnorm.run(q_out, k_out, q=q, q_weight=q_weight, q_eps=q_eps, k=k, k_weight=k_weight, k_eps=k_eps,
                          backend=backend)
    return q_out, k_out


def fused_add_rmsnorm_pad(x: Tensor, weight: Tensor, epsilon: float, res: Tensor | None = None,
                          x_pad_to_multiple: int = 0, *,
                          backend: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Normalisation into rows padded with zeros, after a residual add where `res` is given. Like `rms_norm` otherwise.

    `out[..., :hidden] = rms_norm(x + res, weight)`, zeros from there to the next multiple.

    Args:
        x: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `x` or fp32, contiguous.
        res: [..., hidden], dtype of `x`; None: nothing is added.
        x_pad_to_multiple: the length of the result's rows is the next multiple of it, ≥ 0; 0: hidden.
        backend: "hip", "asm", "triton" or "torch" instead of the automatic choice.

    Returns: The new padded rows; with `res` also the new rounded sum `x + res`, which is not padded.

    Notes:
        Accumulated in fp32, rounded to nearest even once; deterministic. A launch of its own writes the padding.
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
