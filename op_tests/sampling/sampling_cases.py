# SPDX-License-Identifier: MIT
"""What the tests of samplers share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BACKENDS = ("hip", "torch")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BIG = 0x123456789ABCDEF0 // 2


def logits_like(device, rows: int, columns: int, dtype=torch.float32, seed: int = 0, stride: int | None = None) -> Tensor:
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
