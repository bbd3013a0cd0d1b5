# SPDX-License-Identifier: MIT
"""AITER's attention of blocks of queries to the blocks of keys that each of them chose."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common.contents import as_int32, check_values

_NAME = "vsa_sparse_attention"
_HALVES = (torch.bfloat16, torch.float16)
_BLOCK = 128


@aiter("aiter aiter.ops.vsa_sparse_attention")
def vsa_sparse_attention(q: Tensor, k: Tensor, v: Tensor, block_lut: Tensor, block_counts: Tensor) -> Tensor:
    """`softmax(q kᵀ / sqrt(dim)) v` where 128 queries see the blocks of 128 keys that their list names: on
    `mha_batch_prefill_func`, whose sequences are blocks of a head's queries, and whose pages are blocks of keys.

    Args:
        q: [batch, heads, seqlen_q, dim] bf16|fp16, contiguous.
        k, v: [batch, kv_heads, seqlen_k, dim], likewise; heads is a multiple of kv_heads. The rows of a seqlen_k that
            is no multiple of 128 are copied.
        block_lut: [batch, heads, ⌈seqlen_q / 128⌉, ⌈seqlen_k / 128⌉] int32: a list's first number is a block, each
            further one is the distance to the next, more than 0. On a GPU, where nobody looks, what is no block becomes
            the nearest that is.
        block_counts: [batch, heads, ⌈seqlen_q / 128⌉] int32: how many numbers a list has; the queries of an empty one
            become 0. AITER wants 1 at least, and fewer than there are blocks. On a GPU less than 0 means none, and more
            than there are blocks all.

    Returns:
        [batch, heads, seqlen_q, dim], dtype of `q`.
    """
    check.tensor(_NAME, "q", q, rank=4, dtypes=_HALVES)
    batch, heads, rows, dim = q.shape
    check.tensor(_NAME, "k", k, dtypes=(q.dtype,), shape=(batch, None, None, dim), device=q.device)
    check.tensor(_NAME, "v", v, dtypes=(q.dtype,), shape=k.shape, device=q.device)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not tensor.is_contiguous():
            raise ValueError(f"{_NAME}: {name} must be contiguous, got shape {tuple(tensor.shape)}, strides "
                             f"{tensor.stride()}")
    kv_heads, keys = k.shape[1:3]
    if not kv_heads or heads % kv_heads:
        raise ValueError(f"{_NAME}: q must have a multiple of the {kv_heads} heads of k, got {heads}")
    blocks, kv_blocks = -(-rows // _BLOCK), -(-keys // _BLOCK)
    check.tensor(_NAME, "block_lut", block_lut, dtypes=(torch.int32,), shape=(batch, heads, blocks, kv_blocks),
                 device=q.device)
    check.tensor(_NAME, "block_counts", block_counts, dtypes=(torch.int32,), shape=(batch, heads, blocks),
                 device=q.device)
    _check_lists(block_lut, block_counts, kv_blocks)
    out = torch.empty_like(q)
    if not q.numel():
        return out
    if not keys:
        return out.zero_()
    pages = [torch.nn.functional.pad(x, (0, 0, 0, -keys % _BLOCK)).view(-1, _BLOCK, 1, dim) for x in (k, v)]
    listed = block_lut.cumsum(-1).clamp(0, kv_blocks - 1)
    counts = block_counts.clamp(0, kv_blocks)
    last = listed.gather(-1, (counts - 1).clamp(min=0).long()[..., None])[..., 0]
    in_last = torch.where(last == kv_blocks - 1, keys - (kv_blocks - 1) * _BLOCK, _BLOCK)
    lengths = ((counts - 1) * _BLOCK + in_last).where(counts > 0, 0)
    head = torch.arange(batch * heads, device=q.device).view(batch, heads, 1, 1)
    first = (head // heads * kv_heads + head % heads // (heads // kv_heads)) * kv_blocks
    whole = torch.arange(batch * heads, device=q.device, dtype=torch.int32)[:, None] * rows
    starts = (whole + torch.arange(blocks, device=q.device, dtype=torch.int32) * _BLOCK).flatten()
    starts = torch.cat((starts, starts.new_tensor([batch * heads * rows])))
    aiter_like.mha_batch_prefill_func(
        q.view(-1, 1, dim), *pages, starts, None, None, min(rows, _BLOCK), kv_blocks * _BLOCK,
        out=out.view(-1, 1, dim), block_table=as_int32((listed + first).flatten(0, 2)),
        seqlen_k=as_int32(lengths.flatten()))
    return out


def _check_lists(lists: Tensor, counts: Tensor, blocks: int) -> None:
    """Lists are within their rows, and name blocks that rise, so that only the last is the one with fewer keys.

    Raises:
        ValueError: they are not.
    """
    check_values(_NAME, "block_counts", counts, 0, blocks)
    if check.is_on_host(lists):
        is_used = torch.arange(blocks) < counts[..., None]
        check_values(_NAME, "block_lut", lists.cumsum(-1)[is_used], 0, blocks - 1, "name blocks of keys")
        check_values(_NAME, "block_lut", lists[..., 1:][is_used[..., 1:]], 1, blocks - 1, "hold distances")
