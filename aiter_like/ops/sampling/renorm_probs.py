# SPDX-License-Identifier: MIT
"""The largest probabilities of each row, divided by their sum. Kernels: csrc/sampling/renorm_probs.hip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.sampling import limits, parts

__all__ = ["min_p_renorm_probs", "top_k_renorm_probs", "top_p_renorm_probs"]

_OP = "renorm_probs"


class RenormProbsCall(NamedTuple):
    """One call of renorm_probs.

    Attributes:
        out: [rows, columns], dtype of `probs`, written, rows evenly spaced.
        probs: [rows, columns] bf16|fp16|fp32, rows evenly spaced, each with a sum of about 1.
        top_k: an element is kept if fewer are larger; no limit if not positive.
        top_p: an element is kept if the sum of the larger ones is below; no limit from 1 on.
        min_p: an element is kept if it is at least this share of the largest; no limit if not positive.
        top_ks, top_ps, min_ps: [rows] int32|int64, fp32, fp32: in their place, for each row.
    """

    out: Tensor
    probs: Tensor
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_ks: Tensor | None = None
    top_ps: Tensor | None = None
    min_ps: Tensor | None = None


def renorm_probs_ref(call: RenormProbsCall) -> None:
    """The formula in torch, in float64."""
    probs = limits.clean(call.probs)
    kept = torch.where(limits.kept(call, probs), probs, 0.0)
    total = kept.sum(-1, keepdim=True)
    call.out.copy_(kept / torch.where(total > 0, total, 1.0))


def _instance(call: RenormProbsCall, *, groups: int = 0) -> Instance:
    dtype = call.probs.dtype
    return parts.instance((elements.short(dtype),), groups, {"ELEMENT": elements.CPP[dtype]})


@compile_ops("sampling/renorm_probs.hip", gen_func=_instance)
def _renorm_probs_hip(call: RenormProbsCall) -> None: ...


def _check(call: RenormProbsCall) -> object:
    probs = call.probs
    parts.check_rows(_OP, "probs", probs)
    check.tensor(_OP, "out", call.out, dtypes=(probs.dtype,), shape=probs.shape, device=probs.device)
    limits.check_limits(_OP, call, probs.shape[0])
    return SKIP if probs.numel() == 0 else None


def _refusal(target: Target, call: RenormProbsCall) -> str | None:
    return limits.refusal(call.probs)


def _tune_key(call: RenormProbsCall) -> dict[str, int | str]:
    return limits.tune_key(call, call.probs.shape[0])


def _hip_space(target: Target, call: RenormProbsCall) -> list[dict[str, int]]:
    return parts.group_space(target, call.probs)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> RenormProbsCall:
    probs, limited = limits.tune_case(key, device, seed)
    return RenormProbsCall(torch.empty_like(probs), probs, **limited)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[Mapping[str, Any]]:
    for kind in ("top_k", "top_p", "min_p"):
        yield from parts.logit_keys(model, tokens, dtype="fp32", features=kind)


def _cases(device: torch.device) -> dict[str, RenormProbsCall]:
    """Whole rows, more than half the CUs have, and rows that are cut into slices."""
    random = torch.Generator().manual_seed(0)
    calls = {}
    for name, rows, columns in (("whole", 3, 257), ("slices", 2, 10001)):
        probs = torch.softmax(torch.randn(rows, columns, generator=random), -1).to(device)
        top_ks = torch.tensor([5, 0, columns][:rows], dtype=torch.int32, device=device)
        for limit, fields in (("top-k", {"top_ks": top_ks}), ("top-p, min-p", {"top_p": 0.5, "min_p": 0.02})):
            calls[f"{limit}, {name}"] = RenormProbsCall(torch.empty_like(probs), probs, **fields)
    return calls


_renorm_probs = Op(
    _OP, call=RenormProbsCall, reference=renorm_probs_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "columns", "dtype", "features"), round_field="rows", cases=_cases,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    in_place={"out": ("probs",)},
    backends=(Backend("hip", _renorm_probs_hip, refusal=_refusal, space=_hip_space),
              Backend("torch", renorm_probs_ref)))


def top_k_renorm_probs(probs: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int, *, out: Tensor | None = None,
                       backend: str | None = None) -> Tensor:
    """The k largest probabilities of each row, divided by their sum; zeros elsewhere.

    `out[r, c] = probs[r, c] / sum of the kept ones`, kept where fewer than k of the row are larger.

    Args:
        probs: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance, each with a sum of about 1.
        maybe_top_k_arr: [rows] int32|int64, k of each row; None: `top_k_val`.
        top_k_val: k of all rows. Not positive, or at least the columns: all are kept.
        out: tensor to write, shape and dtype of `probs`; default: a new one. It may be `probs` itself.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        All elements equal to the k-th largest are kept. What is no positive number counts as zero; a row of these stays
        zero. Sums are made of integers in units of 2^-44: the result does not depend on any order or grid. On sm_90 a
        row is read once, up to 1.5 MB of it, where few rows share the device; else up to three times: for the cut, for
        the sum, to be written. Can be captured in a graph.

    Source: AITER's `top_k_renorm_probs`, FlashInfer's.
    """
    return _run(probs, out, backend, limits.per_row("top_k", maybe_top_k_arr, top_k_val))


def top_p_renorm_probs(probs: Tensor, maybe_top_p_arr: Tensor | None, top_p_val: float, *, out: Tensor | None = None,
                       backend: str | None = None) -> Tensor:
    """The largest probabilities of each row whose sum reaches p, divided by their sum; zeros elsewhere.

    `out[r, c] = probs[r, c] / sum of the kept ones`, kept where the sum of the larger ones is below p.

    Args:
        probs: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance, each with a sum of about 1.
        maybe_top_p_arr: [rows] fp32, p of each row; None: `top_p_val`.
        top_p_val: p of all rows. From 1 on all are kept; the largest always are.
        out: tensor to write, shape and dtype of `probs`; default: a new one. It may be `probs` itself.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As `top_k_renorm_probs`. The sum that is compared with p is exact to 2^-18 of each element.

    Source: FlashInfer's `top_p_renorm_probs`; Holtzman et al., The Curious Case of Neural Text Degeneration (2019).
    """
    return _run(probs, out, backend, limits.per_row("top_p", maybe_top_p_arr, top_p_val))


def min_p_renorm_probs(probs: Tensor, maybe_min_p_arr: Tensor | None, min_p_val: float, *, out: Tensor | None = None,
                       backend: str | None = None) -> Tensor:
    """The probabilities of each row from a share of the largest on, divided by their sum; zeros elsewhere.

    `out[r, c] = probs[r, c] / sum of the kept ones`, kept where `probs[r, c] ≥ min_p · max(probs[r])`.

    Args:
        probs: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance, each with a sum of about 1.
        maybe_min_p_arr: [rows] fp32, min_p of each row; None: `min_p_val`.
        min_p_val: min_p of all rows. Not positive: all are kept; from 1 on the largest alone are.
        out: tensor to write, shape and dtype of `probs`; default: a new one. It may be `probs` itself.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        As `top_k_renorm_probs`.

    Source: Nguyen et al., Turning Up the Heat: Min-p Sampling (2024).
    """
    return _run(probs, out, backend, limits.per_row("min_p", maybe_min_p_arr, min_p_val))


def _run(probs: Tensor, out: Tensor | None, backend: str | None, fields: dict[str, Any]) -> Tensor:
    if out is None:
        check.tensor(_OP, "probs", probs)
        out = torch.empty(probs.shape, dtype=probs.dtype, device=probs.device)
    _renorm_probs.run(out, probs, backend=backend, **fields)
    return out


_renorm_probs.public += [top_k_renorm_probs, top_p_renorm_probs, min_p_renorm_probs]
