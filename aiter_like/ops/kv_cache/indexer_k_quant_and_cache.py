# SPDX-License-Identifier: MIT
"""Quantising the sparse-attention indexer's keys into their cache.

Kernel: csrc/kv_cache/indexer_k_quant_and_cache.hip; the cache: ops/kv_cache/indexer_cache.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule, vectors
from aiter_like.ops.kv_cache import indexer_cache

__all__ = ["indexer_k_quant_and_cache"]


class IndexerKQuantAndCacheCall(NamedTuple):
    """One call of indexer_k_quant_and_cache.

    Attributes:
        kv_cache: [num_blocks, page_size, ≥ head_dim + 4 · groups] of fp8 or bytes; only the named slots are written.
        slot_mapping: the place of each of the first tokens.
        quant_block_size: the elements of a group, which has a scale.
        scale_fmt: "ue8m0" rounds scales up to powers of two; "" does not.
        preshuffle: the cache's keys are in tiles.
    """

    kv_cache: Annotated[Tensor, "num_blocks page_size _"]
    k: Annotated[Tensor, "tokens head_dim", elements.FLOATS]
    slot_mapping: Annotated[Tensor, "_", elements.INTEGERS]
    quant_block_size: int
    scale_fmt: str = ""
    preshuffle: bool = False


def indexer_k_quant_and_cache_ref(call: IndexerKQuantAndCacheCall) -> None:
    """In torch, with the kernel's rounding."""
    kind, (num_blocks, page_size, _), head_dim = (
        dtypes.fp8_of(target_of(call.k.device).arch), call.kv_cache.shape, call.k.shape[1])
    tokens, block, offset = paged_cache.places(call.slot_mapping, page_size, num_blocks)
    x = call.k[tokens].float()
    scale = quant_rule.row_scales(x, kind, call.quant_block_size)
    if call.scale_fmt == "ue8m0":  # up to a power of two; NaN and infinity stay
        mantissa, exponent = scale.frexp()
        above = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
        scale = torch.where(scale.isfinite(), above, scale)
    flat = indexer_cache.blocks_of(call.kv_cache)
    flat[block[:, None], indexer_cache.key_index(block, offset, head_dim, call.preshuffle)] = (
        quant_rule.quantised(x, scale, kind).view(torch.uint8))
    where = indexer_cache.scale_index(offset, page_size, head_dim, scale.shape[1])
    flat[block[:, None], where] = scale.contiguous().view(torch.uint8)


def _instance(call: IndexerKQuantAndCacheCall) -> Instance:
    lanes = paged_cache.lanes_of(call.k.dtype, call.quant_block_size)
    return Instance(f"{dtypes.name(call.k.dtype)}_l{lanes}", {"SOURCE": elements.CPP[call.k.dtype], "LANES": lanes})


@compile_ops("kv_cache/indexer_k_quant_and_cache.hip", gen_func=_instance)
def _indexer_k_quant_and_cache_hip(call: IndexerKQuantAndCacheCall) -> None: ...


def _check(call: IndexerKQuantAndCacheCall) -> object:
    op, k, group = "indexer_k_quant_and_cache", call.k, call.quant_block_size
    head_dim = k.shape[1]
    check.integer(op, "quant_block_size", group, low=1)
    if head_dim % group:
        raise ValueError(f"{op}: quant_block_size must divide the head_dim {head_dim}, got {group}")
    check.choice(op, "scale_fmt", call.scale_fmt, ("ue8m0", ""))
    indexer_cache.check_cache(op, call.kv_cache, head_dim, head_dim // group, call.preshuffle, k.device)
    if call.preshuffle and group % indexer_cache.TILE:
        raise ValueError(f"{op}: preshuffle needs a quant_block_size that is a multiple of {indexer_cache.TILE}, got "
                         f"{group}")
    paged_cache.check_slots(op, call.slot_mapping, k.shape[0], k.device)
    return SKIP if 0 in (k.numel(), call.slot_mapping.numel(), call.kv_cache.numel()) else None


def _hip_refusal(target: Target, call: IndexerKQuantAndCacheCall) -> str | None:
    rows = call.slot_mapping.shape[0] * (call.k.shape[1] // call.quant_block_size)
    return (paged_cache.too_many_rows("groups", call.k.dtype, call.quant_block_size, rows)
            or paged_cache.too_many_slots(*call.kv_cache.shape[:2]))


def _cases(device: torch.device) -> dict[str, IndexerKQuantAndCacheCall]:
    """Each group size, which is an instance, in both forms; every byte of the cache is written."""
    calls, generator = {}, torch.Generator().manual_seed(0)
    for dtype in elements.FLOATS:
        for size in (64, 128, 256, 512):
            k = torch.randn(32, 512, generator=generator).to(device, dtype)
            cache = torch.zeros(2, 16, 512 + 2048 // size, dtype=dtypes.fp8_of(target_of(device).arch), device=device)
            slots = torch.randperm(32, generator=generator).to(device)
            plain = IndexerKQuantAndCacheCall(cache, k, slots, size, scale_fmt="ue8m0")
            calls[f"{dtypes.name(dtype)} groups of {size}"] = plain
            calls[f"{dtypes.name(dtype)} groups of {size} in tiles"] = plain._replace(preshuffle=True)
    return calls


_indexer_k_quant_and_cache = Op(
    "indexer_k_quant_and_cache", call=IndexerKQuantAndCacheCall, reference=indexer_k_quant_and_cache_ref, check=_check,
    writes=("kv_cache",), cases=_cases,
    backends=(Backend("hip", _indexer_k_quant_and_cache_hip, refusal=_hip_refusal,
                      address_refusal=vectors.begin_at({"kv_cache": 4}, limit=4)),
              Backend("torch", indexer_k_quant_and_cache_ref)))


def indexer_k_quant_and_cache(k: Tensor, kv_cache: Tensor, slot_mapping: Tensor, quant_block_size: int, scale_fmt: str,
                              preshuffle: bool = False, *, backend: str | None = None) -> None:
    """Quantises the indexer's keys in groups and writes them, and their scales, into their slots.

    `scale = max(amax(|x|), 2^-110) / largest`, rounded up to a power of two with "ue8m0"; stored is
    `round(x · (1 / scale))`.

    Args:
        k: [num_tokens, head_dim] bf16|fp16|fp32, last dimension contiguous.
        kv_cache: [num_blocks, page_size, ≥ head_dim + 4 · head_dim / quant_block_size], the device's e4m3 or uint8 for
            its bytes; a block holds [page_size, head_dim] keys, then [page_size, head_dim / quant_block_size] fp32.
            Only the slots that are named are written.
        slot_mapping: [≤ num_tokens] int64|int32, `block · page_size + offset` of each of the first tokens.
        quant_block_size: elements of a group; divides head_dim.
        scale_fmt: "ue8m0", or "" for scales of any value.
        preshuffle: keys in tiles of 16 tokens by 16 elements, [page_size / 16, head_dim / 16, 16, 16].

    Raises:
        TypeError: the cache is of another device's format.

    Notes:
        A slot below 0, and one beyond the cache, is skipped. Two tokens with one slot: undefined which stays. A NaN
        makes its group's scale NaN. Scales are the project's for all quantisers: AITER floors amax at 10^-4 instead.

    Source: AITER's `indexer_k_quant_and_cache`; DeepSeek-V3.2 (2025).
    """
    _indexer_k_quant_and_cache.run(kv_cache, k, slot_mapping, quant_block_size, scale_fmt=scale_fmt,
                                   preshuffle=preshuffle, backend=backend)
