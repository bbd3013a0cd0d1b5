# SPDX-License-Identifier: MIT
"""Exponential random numbers. Kernel: csrc/sampling/exponential.hip."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from aiter_like import check
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.sampling import parts

__all__ = ["exponential"]

_OP = "exponential"


class ExponentialCall(NamedTuple):
    """One call of exponential. Rows are evenly spaced.

    Attributes:
        lambd: rate.
        epsilon: added to each number.
        seed, offset: of the random numbers of all rows: row r takes draw offset + r.
        seeds, offsets: of each row by itself, which then takes draw offsets[r].
    """

    out: Annotated[Tensor, "rows columns", torch.float32]
    lambd: float = 1.0
    epsilon: float = 1e-10
    seed: int = 0
    offset: int = 0
    seeds: Annotated[Tensor | None, "_", torch.int64] = None
    offsets: Annotated[Tensor | None, "_", torch.int64] = None


def exponential_ref(call: ExponentialCall) -> None:
    """The formula in torch, in float64."""
    call.out.copy_(parts.exponentials(call, *call.out.shape, call.out.device) / call.lambd + call.epsilon)


@compile_ops("sampling/exponential.hip")
def _exponential_hip(call: ExponentialCall) -> None: ...


def _check(call: ExponentialCall) -> object:
    check.real(_OP, "lambd", call.lambd, above=0.0)
    check.real(_OP, "eps", call.epsilon, low=0.0)
    parts.check_offset(_OP, call.offset)
    parts.check_per_row(_OP, call.out.shape[0], seeds=call.seeds, offsets=call.offsets)
    return SKIP if call.out.numel() == 0 else None


def _cases(device: torch.device) -> dict[str, ExponentialCall]:
    """Whole accesses, and rows of odd length with a draw whose upper bits are used."""
    return {"aligned": ExponentialCall(torch.empty(3, 256, device=device), seed=5),
            "odd": ExponentialCall(torch.empty(3, 101, device=device), 2.0, seed=-5, offset=2**31 - 1)}


_exponential = Op(
    _OP, call=ExponentialCall, reference=exponential_ref, check=_check, cases=_cases,
    backends=(Backend("hip", _exponential_hip, refusal=parts.refusal), Backend("torch", exponential_ref)))


def exponential(out: Tensor, lambd: float = 1.0, generator: Generator | None = None, eps: float = 1e-10, *,
                seed: int | Tensor | None = None, offset: int | Tensor | None = None,
                backend: str | None = None) -> None:
    """Exponential random numbers, those that `random_sample` makes for itself from the same seed.

    `out[r, c] = -ln(1 - u) / lambd + eps`, u uniform in (0, 1) with 32 bits.

    Args:
        out: [rows, columns] fp32, written, rows contiguous, at any distance.
        lambd: rate of the exponentials, > 0.
        generator: of torch, whose seed and offset are taken where `seed` is None; default: the device's.
        eps: added to the exponentials, ≥ 0.
        seed: of all rows; or [rows] int64, a seed of each.
        offset: number of the draw of row 0, row r takes draw offset + r; or [rows] int64. With seeds of their own all
            rows take draw `offset`. Default: 0.

    Notes:
        Within 1e-5 of the formula, relative; deterministic. Column c of draw d is word c mod 4 of Philox's counter
        d · 2^32 + c / 4. A captured graph needs `seed` and `offset` as tensors to draw anew when it is replayed.

    Source: AITER's `exponential`; Philox4x32-10, Salmon et al. (2011).
    """
    check.tensor(_OP, "out", out, rank=2)
    fields = parts.seeds(_OP, seed, offset, generator, out.device, out.shape[0])
    _exponential.run(out, lambd, epsilon=eps, backend=backend, **fields)


_exponential.public.append(exponential)
