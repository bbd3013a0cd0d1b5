# SPDX-License-Identifier: MIT
"""Gathering keys and scales from the sparse-attention indexer's cache.

Kernel: csrc/kv_cache/cp_gather_indexer_k_quant_cache.hip; the cache: ops/kv_cache/indexer_cache.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import compile_ops
from aiter_like.ops.common import paged_cache, quant_rule, vectors
from aiter_like.ops.common.contents import check_starts
from aiter_like.ops.kv_cache import indexer_cache

__all__ = ["cp_gather_indexer_k_quant_cache"]

_MAX_ITEMS = 2**31 - 1  # A launch numbers its items with 32 bits.


class CpGatherIndexerKQuantCacheCall(NamedTuple):
    """One call of cp_gather_indexer_k_quant_cache.

    Attributes:
        dst_scale: fp32, or its bytes, of `groups` scales.
        kv_cache: [num_blocks, page_size, ≥ head_dim + 4 · groups].
        cu_seq_lens: [sequences + 1], the rows of `dst_k` where sequences begin.
        preshuffle: the cache's keys are in tiles.
    """

    dst_k: Annotated[Tensor, "tokens head_dim"]
    dst_scale: Annotated[Tensor, "tokens _", (torch.float32, torch.uint8, *quant_rule.DTYPES)]
    kv_cache: Annotated[Tensor, "num_blocks page_size _"]
    block_table: Annotated[Tensor, "sequences max_blocks", torch.int32]
    cu_seq_lens: Annotated[Tensor, "_", torch.int32]
    preshuffle: bool = False

    @property
    def groups(self) -> int:
        """The scales of a token."""
        return self.dst_scale.shape[1] * self.dst_scale.element_size() // 4


def cp_gather_indexer_k_quant_cache_ref(call: CpGatherIndexerKQuantCacheCall) -> None:
    """In torch."""
    (num_blocks, page_size, _), head_dim, starts = call.kv_cache.shape, call.dst_k.shape[1], call.cu_seq_lens.long()
    tokens = torch.arange(call.dst_k.shape[0], device=call.dst_k.device)
    tokens = tokens[(tokens >= starts[0]) & (tokens < starts[-1])]
    sequence = torch.searchsorted(starts, tokens, right=True) - 1
    position = tokens - starts[sequence]
    column, columns = position // page_size, call.block_table.shape[1]
    is_there = column < columns
    block = call.block_table[sequence, column.clamp(max=columns - 1)].long()
    is_there &= (block >= 0) & (block < num_blocks)
    tokens, block, offset = tokens[is_there], block[is_there], position[is_there] % page_size
    flat = indexer_cache.blocks_of(call.kv_cache)
    where = indexer_cache.key_index(block, offset, head_dim, call.preshuffle)
    paged_cache.as_bytes(call.dst_k)[tokens] = flat[block[:, None], where]
    where = indexer_cache.scale_index(offset, page_size, head_dim, call.groups)
    scale = paged_cache.as_bytes(call.dst_scale)
    scale[tokens] = flat[block[:, None], where].view(scale.dtype)


@compile_ops("kv_cache/cp_gather_indexer_k_quant_cache.hip")
def _cp_gather_indexer_k_quant_cache_hip(call: CpGatherIndexerKQuantCacheCall) -> None: ...


def _check(call: CpGatherIndexerKQuantCacheCall) -> object:
    op, dst_k, dst_scale = "cp_gather_indexer_k_quant_cache", call.dst_k, call.dst_scale
    if not dst_scale.shape[1] or dst_scale.shape[1] * dst_scale.element_size() % 4:
        raise ValueError(f"{op}: dst_scale must have whole fp32 numbers, got shape {tuple(dst_scale.shape)} of "
                         f"{dst_scale.dtype}")
    indexer_cache.check_cache(op, call.kv_cache, dst_k.shape[1], call.groups, call.preshuffle, dst_k.device)
    key_dtypes = call.kv_cache.dtype, torch.uint8, dtypes.fp8_of(target_of(dst_k.device).arch)
    check.tensor(op, "dst_k", dst_k, dtypes=dict.fromkeys(key_dtypes))
    check.tensor(op, "cu_seq_lens", call.cu_seq_lens, shape=(call.block_table.shape[0] + 1,))
    return SKIP if 0 in (dst_k.numel(), call.kv_cache.numel(), call.block_table.numel()) else None


def _hip_refusal(target: Target, call: CpGatherIndexerKQuantCacheCall) -> str | None:
    tokens, head_dim = call.dst_k.shape
    if tokens * (head_dim + call.groups) > _MAX_ITEMS:
        return f"{tokens} tokens do not fit one launch"
    if call.dst_scale.stride(0) * call.dst_scale.element_size() % 4:
        return f"the rows of dst_scale must start at multiples of 4 bytes, got strides {call.dst_scale.stride()}"
    return None


def _cases(device: torch.device) -> dict[str, CpGatherIndexerKQuantCacheCall]:
    """Two sequences of two blocks, plain and in tiles."""
    cache = torch.randint(0, 120, (4, 16, 132), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=device)
    starts = torch.tensor([0, 20, 40], dtype=torch.int32, device=device)
    keys, scales = (torch.zeros(40, width, dtype=torch.uint8, device=device) for width in (128, 4))
    tiles = CpGatherIndexerKQuantCacheCall(keys, scales, cache.to(device), table, cu_seq_lens=starts, preshuffle=True)
    return {"plain": tiles._replace(preshuffle=False), "tiles": tiles}


_cp_gather_indexer_k_quant_cache = Op(
    "cp_gather_indexer_k_quant_cache", call=CpGatherIndexerKQuantCacheCall,
    reference=cp_gather_indexer_k_quant_cache_ref, check=_check, writes=("dst_k", "dst_scale"), cases=_cases,
    backends=(Backend("hip", _cp_gather_indexer_k_quant_cache_hip, refusal=_hip_refusal,
                      address_refusal=vectors.begin_at({"kv_cache": 4, "dst_scale": 4}, limit=4)),
              Backend("torch", cp_gather_indexer_k_quant_cache_ref)))


def cp_gather_indexer_k_quant_cache(kv_cache: Tensor, dst_k: Tensor, dst_scale: Tensor, block_table: Tensor,
                                    cu_seq_lens: Tensor, preshuffle: bool = False, *,
                                    backend: str | None = None) -> None:
    """Gathers the keys and scales of sequences from the indexer's cache into rows.

    Row `cu_seq_lens[b] + p` becomes token `p` of sequence b, of block `block_table[b, p // page_size]`.

    Args:
        kv_cache: [num_blocks, page_size, …] as `indexer_k_quant_and_cache` writes it.
        dst_k: [num_tokens, head_dim], e4m3 or uint8, written.
        dst_scale: [num_tokens, groups] fp32, or [num_tokens, 4 · groups] of 1-byte elements, written.
        block_table: [num_sequences, max_blocks] int32.
        cu_seq_lens: [num_sequences + 1] int32, ascending within the rows of `dst_k`.
        preshuffle: the cache's keys are in tiles.

    Raises:
        ValueError: on the CPU, starts that fall or rows that are not there.

    Notes: Rows outside all sequences, and those whose block is not in the table or the cache, are left as they are.
    """
    check.tensor("cp_gather_indexer_k_quant_cache", "dst_k", dst_k, rank=2)
    check_starts("cp_gather_indexer_k_quant_cache", "cu_seq_lens", cu_seq_lens, dst_k.shape[0], "rows of dst_k")
    _cp_gather_indexer_k_quant_cache.run(dst_k, dst_scale, kv_cache, block_table, cu_seq_lens=cu_seq_lens,
                                         preshuffle=preshuffle, backend=backend)
