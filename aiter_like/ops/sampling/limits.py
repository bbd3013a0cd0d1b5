# SPDX-License-Identifier: MIT
"""top-k, top-p and min-p as arguments and in torch. Read by renorm_probs and sampling_from_probs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.ops.common import elements
from aiter_like.ops.sampling import parts

MOST_COLUMNS = 2**22
"""Of a row: csrc/sampling/threshold.h sums 10 bits of as many elements in 32 bits."""


def check_limits(op: str, call: Any, rows: int) -> None:
    """`top_k`, `top_p` and `min_p` of a call, and their tensors.

    Raises:
        TypeError, ValueError: one does not fit.
    """
    check.integer(op, "top_k", call.top_k, low=-2**63, high=2**63 - 1)
    check.real(op, "top_p", call.top_p)
    check.real(op, "min_p", call.min_p)
    parts.check_per_row(op, "top_ks", call.top_ks, call.probs, elements.INTEGERS, rows)
    parts.check_per_row(op, "top_ps", call.top_ps, call.probs, (torch.float32,), rows)
    parts.check_per_row(op, "min_ps", call.min_ps, call.probs, (torch.float32,), rows)


def refusal(probs: Tensor) -> str | None:
    """What the kernels do not take of probabilities."""
    if probs.shape[1] > MOST_COLUMNS:
        return f"rows of at most {MOST_COLUMNS} elements, got {probs.shape[1]}"
    return parts.refusal(probs=probs)


def tune_key(call: Any, rows: int) -> dict[str, int | str]:
    """rows, columns, dtype, and which limits there may be: "top_k+top_p", "none"."""
    columns = call.probs.shape[1]
    is_there = {"top_k": call.top_ks is not None or 0 < call.top_k < columns,
                "top_p": call.top_ps is not None or call.top_p < 1, "min_p": call.min_ps is not None or call.min_p > 0}
    names = "+".join(name for name, is_one in is_there.items() if is_one)
    return {"rows": rows, "columns": columns, "dtype": dtypes.name(call.probs.dtype), "features": names or "none"}


def tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple[Tensor, dict[str, Any]]:
    """Probabilities as of a language model, and the limits of a key."""
    generator = torch.Generator(device).manual_seed(seed)
    logits = 3 * torch.randn(key["rows"], key["columns"], generator=generator, device=device)
    usual = {"top_k": 50, "top_p": 0.9, "min_p": 0.1}
    limits = {name: usual[name] for name in key["features"].split("+") if name != "none"}
    return torch.softmax(logits, -1).to(dtypes.DTYPES[key["dtype"]]), limits


def kept(call: Any, probs: Tensor) -> Tensor:
    """Which of float64 probabilities [rows, columns], without NaNs or negative ones, the limits keep, in torch."""

    def column(numbers: Tensor | None, number: Any) -> Tensor:
        if numbers is None:
            dtype = torch.float32 if isinstance(number, float) else torch.int64
            numbers = torch.tensor(number, dtype=dtype, device=probs.device)
        return numbers.expand(probs.shape[0])[:, None]

    top_k, top_p, min_p = (column(*pair) for pair in ((call.top_ks, call.top_k), (call.top_ps, call.top_p),
                                                      (call.min_ps, call.min_p)))
    ordered = probs.sort(-1, descending=True).values
    # The elements above the first of equal ones, and their sum.
    first = torch.searchsorted(-ordered, -ordered.contiguous())
    above = torch.nn.functional.pad(ordered.cumsum(-1), (1, 0)).gather(1, first)
    is_allowed = (first < top_k) | (top_k <= 0)
    is_allowed &= (above < top_p.double()) | (top_p >= 1) | (first == 0)
    count = is_allowed.sum(-1, keepdim=True)  # at least 1, and they come first
    lowest = ordered.gather(1, count - 1)
    relative = torch.where(min_p > 0, min_p.float().clamp(0, 1) * ordered[:, :1].float(), 0.0).double()
    return (probs >= lowest) & (probs >= relative) & (probs > 0)


def clean(probs: Tensor) -> Tensor:
    """Probabilities in float64; what is no positive number is zero."""
    return torch.where(probs > 0, probs, 0.0).double()


def per_row(name: str, numbers: Tensor | None, number: Any) -> dict[str, Any]:
    """The field `name` or its tensor, from AITER's pair of arguments."""
    return {f"{name}s": numbers} if numbers is not None else {name: number}
