# SPDX-License-Identifier: MIT
"""Causal attention of packed sequences by its formula, what engines' attention is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, queries: Sequence[int], lengths: Sequence[int],
              left: int = -1) -> Tensor:
    """[all queries, heads, dim] in fp32; the queries of a sequence are its last tokens.

    Args:
        key, value: [all keys, kv heads, dim].
        queries, lengths: of each sequence.
        left: keys that a query sees before its own; -1: all.
    """
    rows = []
    for q, k, v in zip(query.float().split(list(queries)), key.float().split(list(lengths)),
                       value.float().split(list(lengths))):
        k, v = (side.repeat_interleave(q.shape[1] // k.shape[1], 1) for side in (k, v))
        position = torch.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None]
        distance = position - torch.arange(k.shape[0])
        hidden = (distance < 0) | ((distance > left) if left >= 0 else False)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
        rows.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v))
    return torch.cat(rows)
