# SPDX-License-Identifier: MIT
"""A token of each row of probabilities, of the largest ones. Kernels: csrc/sampling/sampling_from_probs.hip."""

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

__all__ = ["min_p_sampling_from_probs", "sampling_from_probs", "top_k_sampling_from_probs",
           "top_k_top_p_sampling_from_probs", "top_p_sampling_from_probs"]

_OP = "sampling_from_probs"
_MASS_UNITS, _MOST_PROBABILITY = 2.0**44, 256.0  # csrc/sampling/threshold.h, mass_of


class SamplingFromProbsCall(NamedTuple):
    """One call of sampling_from_probs. Rows of `probs` are evenly spaced, each with a sum of about 1.

    Attributes:
        indices: the row of `probs` that each is drawn from; None: the same.
        top_k, top_p, min_p, top_ks, top_ps, min_ps: which elements may be drawn: those that renorm_probs keeps.
        seed, offset, seeds, offsets: of the random numbers, as exponential has them.
    """

    out: Annotated[Tensor, "rows", torch.int32]
    probs: Annotated[Tensor, "_ columns", elements.FLOATS]
    indices: Annotated[Tensor | None, "rows", torch.int32] = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_ks: Annotated[Tensor | None, "_", elements.INTEGERS] = None
    top_ps: Annotated[Tensor | None, "_", torch.float32] = None
    min_ps: Annotated[Tensor | None, "_", torch.float32] = None
    seed: int = 0
    offset: int = 0
    seeds: Annotated[Tensor | None, "_", torch.int64] = None
    offsets: Annotated[Tensor | None, "_", torch.int64] = None


def sampling_from_probs_ref(call: SamplingFromProbsCall) -> None:
    """The same draw in torch, in integers; writes `out`."""
    probs = limits.clean(call.probs)
    rows = torch.arange(call.out.shape[0], device=probs.device) if call.indices is None else call.indices.long()
    is_row = (rows >= 0) & (rows < probs.shape[0])
    probs = probs[torch.where(is_row, rows, 0)]
    kept = torch.where(limits.kept(call, probs), probs, 0.0)
    sums = (kept.clamp(max=_MOST_PROBABILITY) * _MASS_UNITS).long().cumsum(-1)
    low, high = parts.words(call, probs.shape[0], 2, probs.device).unbind(-1)
    passed = sums > parts.share(sums[:, -1], low, high)[:, None]
    token = torch.where(passed.any(-1), passed.to(torch.uint8).argmax(-1), parts.best_column(kept))
    call.out.copy_(torch.where(is_row, token, -1))


@compile_ops("sampling/sampling_from_probs.hip", gen_func=parts.instance)
def _sampling_from_probs_hip(call: SamplingFromProbsCall) -> None: ...


def _check(call: SamplingFromProbsCall) -> object:
    parts.check_columns(_OP, "probs", call.probs)
    rows = (call.probs if call.indices is None else call.indices).shape[0]
    if rows and not call.probs.shape[0]:
        raise ValueError(f"{_OP}: probs must have a row, got shape {tuple(call.probs.shape)}")
    parts.check_per_row(_OP, rows, top_ks=call.top_ks, top_ps=call.top_ps, min_ps=call.min_ps, seeds=call.seeds,
                        offsets=call.offsets, out=call.out)
    limits.check_limits(_OP, call)
    parts.check_offset(_OP, call.offset)
    return SKIP if rows == 0 else None


class SamplingFromProbsKey(limits.LimitsKey):
    """The fields that a tuned row of sampling_from_probs is chosen by."""

    def make(self, device: torch.device, seed: int, top_ks: list[int] | None = None) -> SamplingFromProbsCall:
        probs, fields = self.inputs(device, seed)
        if top_ks is not None:
            fields["top_ks"] = torch.tensor(top_ks, device=device)
        return SamplingFromProbsCall(torch.empty(self.rows, dtype=torch.int32, device=device), probs, seed=seed,
                                     **fields)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[SamplingFromProbsKey]:
        return (cls(*size, "fp32", kind) for kind in ("none", "top_k", "top_p", "min_p", "top_k+top_p")
                for size in parts.logits(model, tokens))


_sampling_from_probs = Op(
    _OP, call=SamplingFromProbsCall, reference=sampling_from_probs_ref, check=_check, key=SamplingFromProbsKey,
    round_field="rows",
    # With and without limits; whole rows, and rows that are cut into slices.
    cases={"all, whole": SamplingFromProbsKey(3, 257, "fp32", "none"),
           "limits, whole": (SamplingFromProbsKey(3, 257, "fp32", "top_p+min_p"), {"top_ks": [5, 0, 257]}),
           "all, slices": SamplingFromProbsKey(2, 10001, "fp32", "none"),
           "limits, slices": (SamplingFromProbsKey(2, 10001, "fp32", "top_p+min_p"), {"top_ks": [5, 0]})},
    backends=(Backend("hip", _sampling_from_probs_hip, refusal=limits.refusal, space=parts.group_space),
              Backend("torch", sampling_from_probs_ref)))


def sampling_from_probs(probs: Tensor, indices: Tensor | None = None, deterministic: bool = False, *,
                        seed: int | Tensor | None = None, offset: int | Tensor | None = None,
                        backend: str | None = None) -> Tensor:
    """A token of each row, drawn with its probability.

    `out[r] = min{c : Σ_{i ≤ c} probs[r, i] > u[r] · Σ_i probs[r, i]}`, u uniform numbers of [0, 1).

    Args:
        probs: [rows, columns] bf16|fp16|fp32, rows contiguous, at any distance, each with a sum of about 1.
        indices: [results] int32: which row of `probs` a result is drawn from; it then counts as a row below, and a
            number that is no row gives -1. None: each row once.
        deterministic: as AITER has it; results are so in any case.
        seed: of all rows; or [rows] int64, a seed of each. None: from torch's generator.
        offset: number of the draw of row 0, row r takes draw offset + r; or [rows] int64. With seeds of their own all
            rows take draw `offset`. Default: 0.

    Returns: [rows] int32.

    Notes:
        A function of seed, draw and probabilities alone, on any grid: u has 64 bits, one number of the generator for
        each row, and sums are of integers, an element's multiples of 2^-44, rounded down and at most those of 256. What
        is no positive number is never drawn; a row of these gives column 0. What is below 2^-44 is drawn only where
        nothing that is kept is larger, and then it is the largest, the first of equal ones.
        Nothing is copied to the host; a captured graph needs `seed` and `offset` as tensors to draw anew when it is
        replayed. A row is read once, with limits twice where no LDS holds it, and 4 KB of it, in long rows 1/256, once
        more.

    Source: FlashInfer's `sampling_from_probs`; inverse transform sampling; Philox4x32-10, Salmon et al. (2011).
    """
    return _run(probs, indices, seed, offset, backend, {})


def top_k_sampling_from_probs(probs: Tensor, indices: Tensor | None, maybe_top_k_arr: Tensor | None, top_k_val: int,
                              deterministic: bool = False, *, seed: int | Tensor | None = None,
                              offset: int | Tensor | None = None, backend: str | None = None) -> Tensor:
    """A token of those that `top_k_renorm_probs` keeps: fewer than k of the row are larger. Like `sampling_from_probs`.

    Args:
        maybe_top_k_arr: [rows] int32|int64, k of each row; None: `top_k_val`.
        top_k_val: k of all rows. Not positive, or at least the columns: no limit.

    Source: FlashInfer's `top_k_sampling_from_probs`; Fan et al., Hierarchical Neural Story Generation (2018).
    """
    return _run(probs, indices, seed, offset, backend, limits.per_row("top_k", maybe_top_k_arr, top_k_val))


def top_p_sampling_from_probs(probs: Tensor, indices: Tensor | None, maybe_top_p_arr: Tensor | None, top_p_val: float,
                              deterministic: bool = False, *, seed: int | Tensor | None = None,
                              offset: int | Tensor | None = None, backend: str | None = None) -> Tensor:
    """A token of those that `top_p_renorm_probs` keeps: the sum of larger ones is below p. Like `sampling_from_probs`.

    Args:
        maybe_top_p_arr: [rows] fp32, p of each row; None: `top_p_val`.
        top_p_val: p of all rows. From 1 on no limit; the largest are always kept.

    Source: AITER's `top_p_sampling_from_probs`, FlashInfer's; Holtzman et al. (2019).
    """
    return _run(probs, indices, seed, offset, backend, limits.per_row("top_p", maybe_top_p_arr, top_p_val))


def min_p_sampling_from_probs(probs: Tensor, indices: Tensor | None, maybe_min_p_arr: Tensor | None, min_p_val: float,
                              deterministic: bool = False, *, seed: int | Tensor | None = None,
                              offset: int | Tensor | None = None, backend: str | None = None) -> Tensor:
    """A token of those that `min_p_renorm_probs` keeps: at least `min_p · max(probs[r])`. Like `sampling_from_probs`.

    Args:
        maybe_min_p_arr: [rows] fp32, min_p of each row; None: `min_p_val`.
        min_p_val: min_p of all rows. Not positive: no limit; from 1 on the largest alone are kept.

    Source: FlashInfer's `min_p_sampling_from_probs`; Nguyen et al. (2024).
    """
    return _run(probs, indices, seed, offset, backend, limits.per_row("min_p", maybe_min_p_arr, min_p_val))


def top_k_top_p_sampling_from_probs(probs: Tensor, indices: Tensor | None, maybe_top_k_arr: Tensor | None,
                                    top_k_val: int, maybe_top_p_arr: Tensor | None, top_p_val: float,
                                    deterministic: bool = False, *, min_p: float | Tensor = 0.0,
                                    seed: int | Tensor | None = None, offset: int | Tensor | None = None,
                                    backend: str | None = None) -> Tensor:
    """A token of those that top-k and top-p both keep. Like `top_k_sampling_from_probs` otherwise.

    Both limits are of the probabilities as they are: p is no share of what top-k keeps, as in AITER, and in FlashInfer
    with `filter_apply_order="joint"`.

    Args:
        maybe_top_p_arr: [rows] fp32, p of each row; None: `top_p_val`.
        top_p_val: p of all rows. From 1 on no limit; the largest are always kept.
        min_p: one of these too, for all rows or [rows] fp32: none below this share of the largest is drawn.

    Source: AITER's `top_k_top_p_sampling_from_probs`, FlashInfer's.
    """
    return _run(probs, indices, seed, offset, backend, {
        **limits.per_row("top_k", maybe_top_k_arr, top_k_val), **limits.per_row("top_p", maybe_top_p_arr, top_p_val),
        **limits.per_row("min_p", min_p if isinstance(min_p, Tensor) else None, min_p)})


def _run(probs: Tensor, indices: Tensor | None, seed: int | Tensor | None, offset: int | Tensor | None,
         backend: str | None, fields: dict[str, Any]) -> Tensor:
    check.tensor(_OP, "probs", probs, rank=2)
    if indices is not None:
        check.tensor(_OP, "indices", indices, rank=1)
    rows = (probs if indices is None else indices).shape[0]
    out = torch.empty(rows, dtype=torch.int32, device=probs.device)
    fields |= parts.seeds(_OP, seed, offset, None, probs.device, rows)
    _sampling_from_probs.run(out, probs, indices, backend=backend, **fields)
    return out


_sampling_from_probs.public += [sampling_from_probs, top_k_sampling_from_probs, top_p_sampling_from_probs,
                                min_p_sampling_from_probs, top_k_top_p_sampling_from_probs]
