# SPDX-License-Identifier: MIT
"""The sparse-attention indexer's cache of fp8 keys with scales: writing and gathering. Kernels: csrc/kv_cache/."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule

__all__ = ["cp_gather_indexer_k_quant_cache", "indexer_k_quant_and_cache"]

_TILE = 16  # tokens and elements of a tile of the preshuffled layout
_MAX_ITEMS = 2**31 - 1  # of a launch


def _key_index(block: Tensor, offset: Tensor, head_dim: int, preshuffle: bool) -> Tensor:
    """Where in its block each element of tokens at these offsets is: [tokens, head_dim]."""
    dim = torch.arange(head_dim, device=block.device)
    offset = offset[:, None]
    if not preshuffle:
        return offset * head_dim + dim
    return (offset // _TILE * _TILE * head_dim + dim // _TILE * _TILE * _TILE + offset % _TILE * _TILE + dim % _TILE)


def _scale_index(offset: Tensor, page_size: int, head_dim: int, groups: int) -> Tensor:
    """Where in its block each byte of the tokens' scales is: [tokens, 4 · groups]."""
    return page_size * head_dim + offset[:, None] * 4 * groups + torch.arange(4 * groups, device=offset.device)


def indexer_k_quant_and_cache_ref(kv_cache: Tensor, k: Tensor, slot_mapping: Tensor, quant_block_size: int,
                                  scale_fmt: str, preshuffle: bool) -> None:
    """In torch, with the kernel's rounding."""
    kind, (num_blocks, page_size, width), head_dim = dtypes.fp8_of(target_of(k.device).arch), kv_cache.shape, k.shape[1]
    tokens, block, offset = paged_cache.places(slot_mapping, page_size, num_blocks)
    x = k[tokens].float()
    scale = quant_rule.row_scales(x, kind, quant_block_size)
    if scale_fmt == "ue8m0":  # up to a power of two; NaN and infinity stay
        mantissa, exponent = scale.frexp()
        above = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
        scale = torch.where(scale.isfinite(), above, scale)
    flat = paged_cache.as_bytes(kv_cache).as_strided((num_blocks, page_size * width), (kv_cache.stride(0), 1))
    flat[block[:, None], _key_index(block, offset, head_dim, preshuffle)] = (
        quant_rule.quantised(x, scale, kind).view(torch.uint8))
    where = _scale_index(offset, page_size, head_dim, scale.shape[1])
    flat[block[:, None], where] = scale.contiguous().view(torch.uint8)


def cp_gather_indexer_k_quant_cache_ref(dst_k: Tensor, dst_scale: Tensor, kv_cache: Tensor, block_table: Tensor,
                                        cu_seq_lens: Tensor, preshuffle: bool) -> None:
    """In torch."""
    (num_blocks, page_size, width), head_dim, starts = kv_cache.shape, dst_k.shape[1], cu_seq_lens.long()
    tokens = torch.arange(dst_k.shape[0], device=dst_k.device)
    tokens = tokens[(tokens >= starts[0]) & (tokens < starts[-1])]
    sequence = torch.searchsorted(starts, tokens, right=True) - 1
    position = tokens - starts[sequence]
    column = position // page_size
    is_there = column < block_table.shape[1]
    block = block_table[sequence, column.clamp(max=block_table.shape[1] - 1)].long()
    is_there &= (block >= 0) & (block < num_blocks)
    tokens, block, offset = tokens[is_there], block[is_there], position[is_there] % page_size
    flat = paged_cache.as_bytes(kv_cache).as_strided((num_blocks, page_size * width), (kv_cache.stride(0), 1))
    paged_cache.as_bytes(dst_k)[tokens] = flat[block[:, None], _key_index(block, offset, head_dim, preshuffle)]
    groups = _groups(dst_scale)
    where = _scale_index(offset, page_size, head_dim, groups)
    dst_scale.view(torch.uint8)[tokens] = flat[block[:, None], where]


def _groups(dst_scale: Tensor) -> int:
    return dst_scale.shape[1] * dst_scale.element_size() // 4


def _instance(kv_cache: Tensor, k: Tensor, slot_mapping: Tensor, quant_block_size: int, scale_fmt: str,
              preshuffle: bool) -> Instance:
    return _variant(k.dtype, quant_block_size)


def _variant(dtype: torch.dtype, quant_block_size: int) -> Instance:
    lanes = paged_cache.lanes_of(dtype, quant_block_size)
    return Instance(f"{dtypes.name(dtype)}_l{lanes}", {"SOURCE": elements.CPP[dtype], "LANES": lanes})


@compile_ops("kv_cache/indexer_k_quant_and_cache.hip", gen_func=_instance,
             prebuild=lambda: [_variant(torch.bfloat16, 128)])
def _indexer_k_quant_and_cache_hip(kv_cache: Tensor, k: Tensor, slot_mapping: Tensor, quant_block_size: int,
                                   scale_fmt: str, preshuffle: bool) -> None: ...


@compile_ops("kv_cache/cp_gather_indexer_k_quant_cache.hip")
def _cp_gather_indexer_k_quant_cache_hip(dst_k: Tensor, dst_scale: Tensor, kv_cache: Tensor, block_table: Tensor,
                                         cu_seq_lens: Tensor, preshuffle: bool) -> None: ...


def _check_cache(op: str, kv_cache: Tensor, head_dim: int, groups: int, preshuffle: bool,
                 device: torch.device) -> None:
    """Keys and scales fit the blocks, each of which is contiguous."""
    check.flag(op, "preshuffle", preshuffle)
    check.tensor(op, "kv_cache", kv_cache, rank=3, device=device)
    paged_cache.check_fp8(op, "kv_cache", kv_cache, (torch.uint8,))
    page_size, width = kv_cache.shape[1:]
    if width < head_dim + 4 * groups:
        raise ValueError(f"{op}: kv_cache must have at least {head_dim + 4 * groups} bytes per token, for {head_dim} "
                         f"elements and {groups} scales, got {width}")
    if page_size == 0 or page_size * head_dim % 4 or (kv_cache.shape[0] > 1 and kv_cache.stride(0) % 4):
        raise ValueError(f"{op}: kv_cache must have scales at multiples of 4 bytes, got shape {tuple(kv_cache.shape)}, "
                         f"strides {kv_cache.stride()}")
    if page_size > 1 and kv_cache.stride(1) != width:
        raise ValueError(f"{op}: kv_cache must be contiguous within a block, got strides {kv_cache.stride()}")
    if preshuffle and (page_size % _TILE or head_dim % _TILE):
        raise ValueError(f"{op}: preshuffle needs a page size and head_dim that are multiples of {_TILE}, got "
                         f"{page_size} and {head_dim}")


def _check_write(kv_cache: Tensor, k: Tensor, slot_mapping: Tensor, quant_block_size: int, scale_fmt: str,
                 preshuffle: bool) -> object:
    op = "indexer_k_quant_and_cache"
    check.tensor(op, "k", k, rank=2, dtypes=elements.FLOATS)
    head_dim = k.shape[1]
    check.integer(op, "quant_block_size", quant_block_size, low=1)
    if head_dim % quant_block_size:
        raise ValueError(f"{op}: quant_block_size must divide the head_dim {head_dim}, got {quant_block_size}")
    check.choice(op, "scale_fmt", scale_fmt, ("ue8m0", ""))
    _check_cache(op, kv_cache, head_dim, head_dim // quant_block_size, preshuffle, k.device)
    if preshuffle and quant_block_size % _TILE:
        raise ValueError(f"{op}: preshuffle needs a quant_block_size that is a multiple of {_TILE}, got "
                         f"{quant_block_size}")
    paged_cache.check_slots(op, slot_mapping, k.shape[0], k.device)
    return SKIP if 0 in (k.numel(), slot_mapping.numel(), kv_cache.numel()) else None


def _check_gather(dst_k: Tensor, dst_scale: Tensor, kv_cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor,
                  preshuffle: bool) -> object:
    op = "cp_gather_indexer_k_quant_cache"
    check.tensor(op, "dst_k", dst_k, rank=2)
    check.tensor(op, "dst_scale", dst_scale, shape=(dst_k.shape[0], None), device=dst_k.device)
    if dst_scale.shape[1] * dst_scale.element_size() % 4:
        raise ValueError(f"{op}: dst_scale must have whole fp32 numbers, got shape {tuple(dst_scale.shape)} of "
                         f"{dst_scale.dtype}")
    check.tensor(op, "dst_scale", dst_scale, dtypes=(torch.float32, torch.uint8, *quant_rule.DTYPES))
    _check_cache(op, kv_cache, dst_k.shape[1], _groups(dst_scale), preshuffle, dst_k.device)
    check.tensor(op, "dst_k", dst_k, dtypes=tuple(dict.fromkeys((kv_cache.dtype, torch.uint8,
                                                                 dtypes.fp8_of(target_of(dst_k.device).arch)))))
    check.tensor(op, "block_table", block_table, rank=2, dtypes=(torch.int32,), device=dst_k.device)
    check.tensor(op, "cu_seq_lens", cu_seq_lens, dtypes=(torch.int32,), shape=(block_table.shape[0] + 1,),
                 device=dst_k.device)
    return SKIP if 0 in (dst_k.numel(), kv_cache.numel(), block_table.numel()) else None


def _write_refusal(target: Target, kv_cache: Tensor, k: Tensor, slot_mapping: Tensor, quant_block_size: int,
                       scale_fmt: str, preshuffle: bool) -> str | None:
    rows = slot_mapping.shape[0] * (k.shape[1] // quant_block_size)
    return (paged_cache.too_many_rows("groups", k.dtype, quant_block_size, rows)
            or paged_cache.too_many_slots(*kv_cache.shape[:2]))


def _gather_refusal(target: Target, dst_k: Tensor, dst_scale: Tensor, kv_cache: Tensor, block_table: Tensor,
                        cu_seq_lens: Tensor, preshuffle: bool) -> str | None:
    if dst_k.shape[0] * (dst_k.shape[1] + _groups(dst_scale)) > _MAX_ITEMS:
        return f"{dst_k.shape[0]} tokens do not fit one launch"
    if dst_scale.stride(0) * dst_scale.element_size() % 4:
        return f"the rows of dst_scale must start at multiples of 4 bytes, got strides {dst_scale.stride()}"
    return None


def _write_case(device: torch.device) -> list[tuple]:
    """Each group size and layout; every byte of the cache is written."""
    cases, generator = [], torch.Generator().manual_seed(0)
    for dtype in elements.FLOATS:
        for size in (64, 128, 256, 512):  # an instance each
            k = torch.randn(32, 512, generator=generator).to(device, dtype)
            cache = torch.zeros(2, 16, 512 + 2048 // size, dtype=dtypes.fp8_of(target_of(device).arch), device=device)
            slots = torch.randperm(32, generator=generator).to(device)
            cases += [(cache, k, slots, size, "ue8m0", preshuffle) for preshuffle in (False, True)]
    return cases


def _gather_case(device: torch.device) -> tuple:
    cache = torch.randint(0, 120, (4, 16, 132), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=device)
    keys, made = (torch.zeros(40, width, dtype=torch.uint8, device=device) for width in (128, 4))
    return keys, made, cache.to(device), table, torch.tensor([0, 20, 40], dtype=torch.int32, device=device), True


_write = Op(
    "indexer_k_quant_and_cache", reference=indexer_k_quant_and_cache_ref, check=_check_write, writes=("kv_cache",),
    self_check=_write_case,
    backends=(Backend("hip", _indexer_k_quant_and_cache_hip, refusal=_write_refusal),
              Backend("torch", indexer_k_quant_and_cache_ref)))

_gather = Op(
    "cp_gather_indexer_k_quant_cache", reference=cp_gather_indexer_k_quant_cache_ref, check=_check_gather,
    writes=("dst_k", "dst_scale"), self_check=_gather_case,
    backends=(Backend("hip", _cp_gather_indexer_k_quant_cache_hip, refusal=_gather_refusal),
              Backend("torch", cp_gather_indexer_k_quant_cache_ref)))


def indexer_k_quant_and_cache(k: Tensor, kv_cache: Tensor, slot_mapping: Tensor, quant_block_size: int, scale_fmt: str,
                              preshuffle: bool = False, *, backend: str | None = None) -> None:
    """Quantises the indexer's keys in groups and writes them, and their scales, into their slots.

    `scale = max(amax(|x|), 2^-110) / largest`, rounded up to a power of two with "ue8m0"; stored is
    `round(x · (1 / scale))`.

    Args:
        k: [num_tokens, head_dim] bf16|fp16|fp32, last dimension contiguous.
        kv_cache: [num_blocks, page_size, ≥ head_dim + 4 · head_dim / quant_block_size], the device's e4m3 or uint8 for
            its bytes; a block holds [page_size, head_dim] keys, then [page_size, head_dim / quant_block_size] fp32.
        slot_mapping: [≤ num_tokens] int64|int32, `block · page_size + offset` of each of the first tokens.
        quant_block_size: elements of a group; divides head_dim.
        scale_fmt: "ue8m0", or "" for scales of any value.
        preshuffle: keys in tiles of 16 tokens by 16 elements, [page_size / 16, head_dim / 16, 16, 16].
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `kv_cache` is written, and in it only the slots that are named.

    Raises:
        TypeError: an argument is of another kind or dtype; the cache is of another device's format.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        A slot below 0, and one beyond the cache, is skipped. Two tokens with one slot: undefined which stays. A NaN
        makes its group's scale NaN. Scales are the project's for all quantisers: AITER floors amax at 10^-4 instead.

    Source: AITER's `indexer_k_quant_and_cache`; DeepSeek-V3.2 (2025).
    """
    _write(kv_cache, k, slot_mapping, quant_block_size, scale_fmt, preshuffle, backend=backend)


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
        cu_seq_lens: [num_sequences + 1] int32, ascending.
        preshuffle: the cache's keys are in tiles.
        backend: "hip" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `dst_k` and `dst_scale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        Rows outside all sequences, and those whose block is not in the table or the cache, are left as they are.

    Source: AITER's `cp_gather_indexer_k_quant_cache`.
    """
    _gather(dst_k, dst_scale, kv_cache, block_table, cu_seq_lens, preshuffle, backend=backend)
