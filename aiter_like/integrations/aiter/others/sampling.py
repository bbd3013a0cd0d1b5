# SPDX-License-Identifier: MIT
"""AITER's samplers that have other parameters here."""

from __future__ import annotations

from torch import Tensor

import aiter_like
from aiter_like import device
from aiter_like.integrations.aiter.declare import aiter

_FAST_K = 2048  # of AITER's kernels in assembly


@aiter("aiter aiter.ops.topk")
def top_k_per_row_prefill_fast(logits: Tensor, rowStarts: Tensor, rowEnds: Tensor, indices: Tensor,
                               values: Tensor | None, numRows: int, stride0: int, stride1: int) -> None:
    """`aiter_like.top_k_per_row_prefill` of 2048 columns, in their order."""
    aiter_like.top_k_per_row_prefill(logits, rowStarts, rowEnds, indices, values, numRows, stride0, stride1, _FAST_K,
                                     stable=True)


@aiter("aiter aiter.ops.topk")
def top_k_per_row_decode_fast(logits: Tensor, next_n: int, seqLens: Tensor, indices: Tensor, numRows: int, stride0: int,
                              stride1: int) -> None:
    """`aiter_like.top_k_per_row_decode` of 2048 columns, in their order."""
    aiter_like.top_k_per_row_decode(logits, next_n, seqLens, indices, numRows, stride0, stride1, _FAST_K, stable=True)


@aiter("aiter aiter.ops.topk")
def topk_use_mulblocks(numRows: int, stride0: int) -> bool:
    """Whether several workgroups take a row of `top_k_per_row_prefill`."""
    return 2 * numRows <= device.default_target().cu_num and stride0 * 4 >= 2 * 16384
