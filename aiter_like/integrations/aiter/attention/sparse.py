# SPDX-License-Identifier: MIT
"""AITER's functions of sparse attention that have other parameters here."""

from __future__ import annotations

from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.integrations.aiter.declare import aiter

_PAGED = "deepgemm_fp8_paged_mqa_logits"


@aiter("aiter.ops.triton.[attention.]fp8_mqa_logits", callers="S")
def fp8_mqa_logits(Q: Tensor, KV: Tensor, kv_scales: Tensor, weights: Tensor, cu_starts: Tensor, cu_ends: Tensor,
                   clean_logits: bool = True) -> Tensor:
    """`mqa_logits` into new memory, which without `clean_logits` holds anything where a row sees nothing. `kv_scales`
    may have any dimensions.
    """
    return aiter_like.mqa_logits(Q, KV, kv_scales.flatten(), weights, cu_starts, cu_ends, clean_logits)


@aiter("aiter.ops.triton.[attention.]pa_mqa_logits", callers="S")
def deepgemm_fp8_paged_mqa_logits(
        q_fp8: Tensor, kv_cache: Tensor, weights: Tensor, out_logits: Tensor, context_lens: Tensor, kv_indices: Tensor,
        max_model_len: int, Preshuffle: bool = False, KVBlockSize: int = 1, ChunkK: int = 256,
        TotalCuCount: int | None = None, WavePerEU: int = 2, VarCtxSchedule: Tensor | None = None) -> None:
    """`paged_mqa_logits` of the first `max_model_len` columns, which leaves those behind a sequence's keys as they are.
    `ChunkK` and what follows it say how AITER's own kernel shares out the work and have no meaning here.
    """
    check.tensor(_PAGED, "kv_cache", kv_cache, rank=4)
    check.tensor(_PAGED, "out_logits", out_logits, rank=2)
    check.integer(_PAGED, "max_model_len", max_model_len, 0)
    if kv_cache.shape[1] != KVBlockSize:
        raise ValueError(f"{_PAGED}: KVBlockSize must be the {kv_cache.shape[1]} tokens of a page of kv_cache, got "
                         f"{KVBlockSize}")
    aiter_like.paged_mqa_logits(q_fp8, kv_cache, weights, out_logits[:, :max_model_len], context_lens, kv_indices,
                                Preshuffle, clean_logits=False)
