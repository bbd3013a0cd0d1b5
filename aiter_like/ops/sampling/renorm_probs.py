# SPDX-License-Identifier: MIT
"""The largest probabilities of each row, divided by their sum. Kernels: csrc/sampling/renorm_probs.hip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.sampling import limits, parts

__all__ = ["min_p_renorm_probs", "top_k_renorm_probs", "top_p_renorm_probs"]

_OP = "renorm_probs"


class RenormProbsCall(NamedTuple):
    """One call of renorm_probs. Rows are evenly spaced, those of `probs` each have a sum of about 1.

    Attributes:
        top_k: an element is kept if fewer are larger; no limit if not positive.
        top_p: an element is kept if the sum of the larger ones is below; no limit from 1 on.
        min_p: an element is kept if it is at least this share of the largest; no limit if not positive.
        top_ks, top_ps, min_ps: in their place, for each row.
    """

    out: Annotated[Tensor, "rows columns", "probs"]
    probs: Annotated[Tensor, "rows columns", elements.FLOATS]
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_ks: Annotated[Tensor | None, "rows", elements.INTEGERS] = None
    top_ps: Annotated[Tensor | None, "rows", torch.float32] = None
    min_ps: Annotated[Tensor | None, "rows", torch.float32] = None


def renorm_probs_ref(call: RenormProbsCall) -> None:
    """The formula in torch, in float64."""
    probs = limits.clean(call.probs)
    kept = torch.where(limits.kept(call, probs), probs, 0.0)
    total = kept.sum(-1, keepdim=True)
    call.out.copy_(kept / torch.where(total > 0, total, 1.0))


@compile_ops("sampling/renorm_probs.hip", gen_func=parts.instance)
def _renorm_probs_hip(call: RenormProbsCall) -> None: ...


def _check(call: RenormProbsCall) -> object:
    parts.check_columns(_OP, "probs", call.probs)
    limits.check_limits(_OP, call)
    return SKIP if call.probs.numel() == 0 else None


class RenormProbsKey(limits.LimitsKey):
    """The fields that a tuned row of renorm_probs is chosen by."""

    def make(self, device: torch.device, seed: int, top_ks: list[int] | None = None) -> RenormProbsCall:
        probs, fields = self.inputs(device, seed)
        if top_ks is not None:
            fields["top_ks"] = torch.tensor(top_ks, dtype=torch.int32, device=device)
        return RenormProbsCall(torch.empty_like(probs), probs, **fields)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[RenormProbsKey]:
        return (cls(*size, "fp32", kind) for kind in ("top_k", "top_p", "min_p")
                for size in parts.logits(model, tokens))


_renorm_probs = Op(
    _OP, call=RenormProbsCall, reference=renorm_probs_ref, check=_check, key=RenormProbsKey, round_field="rows",
    # Whole rows, more than half the CUs have, and rows that are cut into slices.
    cases={"top-k, whole": (RenormProbsKey(3, 257, "fp32", "top_k"), {"top_ks": [5, 0, 257]}),
           "top-p, min-p, whole": RenormProbsKey(3, 257, "fp32", "top_p+min_p"),
           "top-k, slices": (RenormProbsKey(2, 10001, "fp32", "top_k"), {"top_ks": [5, 0]}),
           "top-p, min-p, slices": RenormProbsKey(2, 10001, "fp32", "top_p+min_p")},
    in_place={"out": ("probs",)},
    backends=(Backend("hip", _renorm_probs_hip, refusal=limits.refusal, space=parts.group_space),
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

    Notes:
        All elements equal to the least kept one are kept. What is no positive number counts as zero; a row of these
        stays zero. Sums are made of integers in units of 2^-44: the result does not depend on any order or grid. On
        sm_90 a row is read once, up to 1.5 MB of it, where few rows share the device; else up to three times: for the
        cut, for the sum, to be written.

    Source: AITER's `top_k_renorm_probs`, FlashInfer's.
    """
    return _run(probs, out, backend, limits.per_row("top_k", maybe_top_k_arr, top_k_val))


def top_p_renorm_probs(probs: Tensor, maybe_top_p_arr: Tensor | None, top_p_val: float, *, out: Tensor | None = None,
                       backend: str | None = None) -> Tensor:
    """The probabilities before which larger ones sum to less than p, divided by their sum. Like `top_k_renorm_probs`.

    The sum that is compared with p is exact to 2^-18 of each element.

    Args:
        maybe_top_p_arr: [rows] fp32, p of each row; None: `top_p_val`.
        top_p_val: p of all rows. From 1 on all are kept; the largest always are.

    Source: FlashInfer's `top_p_renorm_probs`; Holtzman et al., The Curious Case of Neural Text Degeneration (2019).
    """
    return _run(probs, out, backend, limits.per_row("top_p", maybe_top_p_arr, top_p_val))


def min_p_renorm_probs(probs: Tensor, maybe_min_p_arr: Tensor | None, min_p_val: float, *, out: Tensor | None = None,
                       backend: str | None = None) -> Tensor:
    """The probabilities that are at least `min_p · max(probs[r])`, divided by their sum. Like `top_k_renorm_probs`.

    Args:
        maybe_min_p_arr: [rows] fp32, min_p of each row; None: `min_p_val`.
        min_p_val: min_p of all rows. Not positive: all are kept; from 1 on the largest alone are.

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
