# SPDX-License-Identifier: MIT
"""What the tests of samplers share."""

import math

import torch
from torch import Tensor

BACKENDS = ("hip", "torch")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BIG = 0x123456789ABCDEF0 // 2


def logits_like(device, rows: int, columns: int, dtype=torch.float32, seed: int = 0,
                stride: int | None = None) -> Tensor:
    """Normal logits; `stride` elements from row to row, NaN between the rows."""
    random = torch.Generator().manual_seed(seed * 1000 + columns)
    x = (2 * torch.randn(rows, columns, generator=random)).to(dtype)
    if stride is None:
        return x.to(device)
    padded = torch.full((rows, stride), math.nan, dtype=dtype)
    padded[:, :columns] = x
    return padded.to(device)[:, :columns]


def assert_distribution(drawn: Tensor, probabilities: Tensor) -> None:
    """A chi-square test of tokens drawn from one row's exact probabilities: none of probability 0, and a statistic that
    fewer than 1 in 10^6 fair samples exceed. Columns expected less than 5 times are taken together.
    """
    expected = probabilities.double().cpu() * drawn.numel()
    counts = torch.bincount(drawn.long().cpu(), minlength=expected.numel()).double()
    assert counts.numel() == expected.numel(), "a token outside the row"
    assert counts[expected == 0].sum() == 0, "a token of probability 0"
    rare = expected < 5
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
    expected, counts = expected[expected > 0], counts[expected > 0]
    statistic = ((counts - expected).square() / expected).sum().item()
    freedom = expected.numel() - 1
    # Wilson and Hilferty: the cube root of a chi-square variable is nearly normal; 4.75 deviations.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3 if freedom else 1e-6
    assert statistic <= bound, (statistic, bound, freedom)


def probs_like(device, kind: str, rows: int, columns: int, dtype=torch.float32, seed: int = 0) -> Tensor:
    """Probabilities: "peaked" as of a language model, "flat" with many in each bin of a histogram, "equal"."""
    random = torch.Generator().manual_seed(seed * 1000 + columns)
    if kind == "peaked":
        x = torch.softmax(3 * torch.randn(rows, columns, generator=random), -1)
    else:
        x = torch.full((rows, columns), 1.0)
        if kind == "flat":
            x += 0.12 * torch.rand(rows, columns, generator=random)
        x /= x.sum(-1, keepdim=True)
    return x.to(dtype).to(device)


def kept64(probs: Tensor, top_k=None, top_p=None, min_p=None, slack: float = 0.0) -> Tensor:
    """Which elements the limits of each row keep, one row after the other, by sorting in float64; `slack` is added to
    what top-p is compared with.
    """
    probs = torch.where(probs > 0, probs, 0.0).double().cpu()
    kept = probs > 0
    for r in range(probs.shape[0]):
        row, values = probs[r], probs[r].sort(descending=True).values
        k, p, m = (None if limit is None else float(limit[r]) for limit in (top_k, top_p, min_p))
        if k is not None and 0 < k < row.numel():
            kept[r] &= row >= values[int(k) - 1]
        if p is not None and p < 1:
            is_below = values.cumsum(0) - values < p + slack
            is_below[0] = True
            kept[r] &= row >= values[is_below][-1]
        if m is not None and m > 0:
            kept[r] &= row.float() >= torch.tensor(min(m, 1.0)) * values[0].float()
    return kept
