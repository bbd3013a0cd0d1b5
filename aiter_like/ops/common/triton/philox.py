# SPDX-License-Identifier: MIT
"""Dropout of attention probabilities, the same bits in forward and backward: aiter_like/ops/common/philox.py states
the rule.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attention_kept(seed, offset, head, rows, first_column, threshold, COLUMNS: tl.constexpr,
                   IS_TRANSPOSED: tl.constexpr = False):
    """The probabilities that survive: bool [len(rows), COLUMNS], or [COLUMNS, len(rows)] where transposed.

    seed, offset: scalars, rng_state[0] and [1]. head: batch · num_heads + head. rows: int32 vector, positions in the
    sequence. first_column: key of the tile's first column, a multiple of 4. threshold: aiter_like.philox.threshold(p).
    One evaluation gives four neighbouring columns.
    """
    quads = (first_column // 4 + tl.arange(0, COLUMNS // 4)).to(tl.uint32)
    if IS_TRANSPOSED:
        c0 = tl.broadcast_to(quads[:, None], [COLUMNS // 4, rows.shape[0]])
        c1 = tl.broadcast_to(rows.to(tl.uint32)[None, :], [COLUMNS // 4, rows.shape[0]])
    else:
        c0 = tl.broadcast_to(quads[None, :], [rows.shape[0], COLUMNS // 4])
        c1 = tl.broadcast_to(rows.to(tl.uint32)[:, None], [rows.shape[0], COLUMNS // 4])
    zero = c0 * 0
    r0, r1, r2, r3 = tl.philox(seed, c0, c1, zero + head.to(tl.uint32), zero + offset.to(tl.uint32))
    if IS_TRANSPOSED:
        pairs = tl.join(tl.join(r0, r2), tl.join(r1, r3))  # [COLUMNS / 4, rows, 2, 2]: word 2 i + j at [i, j]
        words = tl.reshape(tl.permute(pairs, (0, 2, 3, 1)), [COLUMNS, rows.shape[0]])
    else:
        words = tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))
    return (words >> 8).to(tl.int32) >= threshold
