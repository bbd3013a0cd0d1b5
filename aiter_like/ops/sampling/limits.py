# SPDX-License-Identifier: MIT
"""top-k, top-p and min-p as arguments and in torch. Read by renorm_probs and sampling_from_probs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.ops.common import tune_shapes
from aiter_like.ops.sampling import parts

MOST_COLUMNS = 2**22
"""Most columns of a row: csrc/sampling/threshold.h sums 10 bits of as many elements in 32 bits."""


class LimitsKey(NamedTuple):
    """The fields that a tuned row of an operator on probabilities is chosen by.

    Attributes:
        features: which limits there may be: "top_k+top_p"; "none".
    """

    rows: int
    columns: int
    dtype: str
    features: str

    @classmethod
    def of(cls, call: Any) -> LimitsKey:
        columns = call.probs.shape[1]
        is_there = {"top_k": call.top_ks is not None or 0 < call.top_k < columns,
                    "top_p": call.top_ps is not None or call.top_p < 1,
                    "min_p": call.min_ps is not None or call.min_p > 0}
        names = "+".join(name for name, is_one in is_there.items() if is_one)
        return cls(call.out.shape[0], columns, dtypes.name(call.probs.dtype), names or "none")

    def inputs(self, device: torch.device, seed: int) -> tuple[Tensor, dict[str, Any]]:
        """Probabilities as of a language model, and fields of the limits."""
        logits = 3 * tune_shapes.normal(device, seed, "fp32")(self.rows, self.columns)
        usual = {"top_k": 50, "top_p": 0.9, "min_p": 0.1}
        limits = {name: usual[name] for name in self.features.split("+") if name != "none"}
        return torch.softmax(logits, -1).to(dtypes.DTYPES[self.dtype]), limits


def check_limits(op: str, call: Any) -> None:
    """`top_p` and `min_p` of a call are numbers that fp32 holds."""
    check.real(op, "top_p", call.top_p)
    check.real(op, "min_p", call.min_p)


def refusal(target: Target, call: Any) -> str | None:
    """Says why the kernels do not take a call's probabilities."""
    if call.probs.shape[1] > MOST_COLUMNS:
        return f"rows of at most {MOST_COLUMNS} elements, got {call.probs.shape[1]}"
    return parts.too_many_rows(call.out.shape[0]) or parts.refusal(target, call)


def kept(call: Any, probs: Tensor) -> Tensor:
    """The float64 probabilities [rows, columns], without NaNs or negative ones, that the limits keep, in torch."""

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
