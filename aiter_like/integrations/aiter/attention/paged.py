# SPDX-License-Identifier: MIT
"""AITER's PagedAttention, whose methods engines of before its time call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like.integrations.aiter.declare import aiter


@aiter("aiter.paged_attn:PagedAttention.forward_decode")
def forward_decode(query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor,
                   max_seq_len: int, kv_cache_dtype: str, num_kv_heads: int, scale: float | None,
                   alibi_slopes: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None,
                   q_scale: Tensor | None = None, tp_rank: int = 0, blocksparse_local_blocks: int = 0,
                   blocksparse_vert_stride: int = 0, blocksparse_block_size: int = 64,
                   blocksparse_head_sliding_step: int = 0, fp8_out_scale: Tensor | None = None, mtp: int = 1,
                   output_dtype: torch.dtype | None = None) -> Tensor:
    """`paged_attention_rocm` into a new tensor. Block-sparse attention is refused."""
    if blocksparse_vert_stride > 1 or blocksparse_local_blocks:
        raise aiter_like.errors.UnsupportedError("forward_decode: no backend supports block-sparse attention",
                                                 "paged_attention")
    dtype = output_dtype or (query.dtype if query.element_size() > 1 else torch.bfloat16)
    if fp8_out_scale is not None:
        dtype = aiter_like.dtypes.get_dtype_fp8()
    out = torch.empty(query.shape, dtype=dtype, device=query.device)
    scratch: Any = None
    aiter_like.paged_attention_rocm(
        out, scratch, scratch, scratch, query, key_cache, value_cache, num_kv_heads,
        max(query.shape[2], 1) ** -0.5 if scale is None else scale, block_tables, seq_lens, key_cache.shape[3],
        max_seq_len, alibi_slopes, kv_cache_dtype, k_scale, v_scale, fp8_out_scale, mtp=mtp, q_scale=q_scale)
    return out if fp8_out_scale is None else out.flatten(1)
