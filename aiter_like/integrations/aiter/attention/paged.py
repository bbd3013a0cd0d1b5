# SPDX-License-Identifier: MIT
"""AITER's PagedAttention, whose methods engines of before its time call. Named by names.txt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import aiter_like


def get_supported_head_sizes() -> list[int]:
    """Those that AITER names; paged_attention takes any up to 256."""
    return [64, 80, 96, 112, 120, 128, 192, 256]


def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> tuple[int, ...]:
    """Of one tensor that has K and V."""
    return 2, num_blocks, block_size * num_kv_heads * head_size


def split_kv_cache(kv_cache: Tensor, num_kv_heads: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Views: K [num_blocks, num_kv_heads, head_size / x, block_size, x], V [num_blocks, num_kv_heads, head_size,
    block_size].
    """
    x, blocks = 16 // kv_cache.element_size(), kv_cache.shape[1]
    return (kv_cache[0].view(blocks, num_kv_heads, head_size // x, -1, x),
            kv_cache[1].view(blocks, num_kv_heads, head_size, -1))


def write_to_paged_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor,
                         kv_cache_dtype: str, k_scale: Tensor | None, v_scale: Tensor | None,
                         asm_layout: bool = False) -> None:
    """`reshape_and_cache`."""
    aiter_like.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping.flatten(), kv_cache_dtype, k_scale,
                                 v_scale, asm_layout)


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


def swap_blocks(src_kv_cache: Tensor, dst_kv_cache: Tensor, src_to_dst: Tensor) -> None:
    """Of K and of V."""
    for source, target in zip(src_kv_cache[:2], dst_kv_cache[:2]):
        aiter_like.swap_blocks(source, target, src_to_dst)


def copy_blocks(kv_caches: list[Tensor], src_to_dists: Tensor) -> None:
    """Of K and of V of each layer."""
    aiter_like.copy_blocks([cache[0] for cache in kv_caches], [cache[1] for cache in kv_caches], src_to_dists)
