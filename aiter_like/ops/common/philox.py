# SPDX-License-Identifier: MIT
"""Philox4x32-10 in torch, which csrc/include/aiter_like/philox.h and ops/common/triton/philox.py compute on a GPU.

Read by the references of ops with dropout. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def words(seed: int, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> Tensor:
    """Four words for each counter.

    Args:
        seed: 64 bits, signed or not.
        c0, c1, c2, c3: int64 words of the counters, 0 … 2³² − 1, of shapes that broadcast.

    Returns:
        int64, the broadcast shape and 4.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(c0, c1, c2, c3)
    k0, k1 = seed & _MASK, seed >> 32 & _MASK
    for _ in range(10):
        high_a, low_a = _product(c0, 0xD2511F53)
        high_b, low_b = _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return torch.stack((c0, c1, c2, c3), -1)


def threshold(p: float) -> int:
    """A word is kept if its upper 24 bits are not below this: probability 1 − p in units of 2⁻²⁴."""
    return math.floor(p * (1 << 24))


def attention_kept(rng_state: Tensor, p: float, head: Tensor, row: Tensor, columns: int) -> Tensor:
    """The probabilities of an attention that survive dropout: a function of seed, offset and position alone.

    The word of (head, row, column) is number column mod 4 of the counter (column / 4, row, head, offset mod 2³²).

    Args:
        rng_state: int64 [2]: seed and offset.
        p: share that is dropped.
        head: int64, batch · num_heads + head; row: int64, position of the query in its sequence: shapes that broadcast.
        columns: number of keys.

    Returns:
        bool, the broadcast shape and `columns`.
    """
    seed, offset = rng_state.tolist()
    quads = torch.arange((columns + 3) // 4, device=head.device)
    counters = (quads, row[..., None], head[..., None], torch.full_like(quads, offset & _MASK))
    return words(seed, *counters).flatten(-2)[..., :columns] >> 8 >= threshold(p)


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Upper and lower half of the 64-bit product of 32-bit values, of which int64 holds no sign."""
    return a * (b >> 16) + (a * (b & 0xFFFF) >> 16) >> 16, a * b & _MASK
