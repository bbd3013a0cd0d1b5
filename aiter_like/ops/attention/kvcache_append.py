# SPDX-License-Identifier: MIT
"""Prepares flash_attn_with_kvcache: finds each sequence's keys, rotates q and k, and appends new keys.

The operators: ops/rope/rope.py, ops/kv_cache/reshape_and_cache.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common.contents import check_lengths, check_values
from aiter_like.ops.kv_cache.reshape_and_cache import reshape_and_cache_flash
from aiter_like.ops.rope.parts import check_positions
from aiter_like.ops.rope.rope import rope_cached_positions_fwd

OP = "flash_attn_with_kvcache"


@dataclass(frozen=True)
class Cache:
    """Keys and values, and where those of each sequence are.

    Attributes:
        k, v: [num_pages, page_size, num_kv_heads, dim].
        table: int32 [batch, pages]: the page of each page_size keys; None: page b holds those of sequence b.
        name: of the argument that is the table.
    """

    k: Tensor
    v: Tensor
    table: Tensor | None
    name: str = "page_table"

    @property
    def capacity(self) -> int:
        """Keys of a sequence for which there is room."""
        return self.k.shape[1] * (1 if self.table is None else self.table.shape[1])

    def slots(self, sequences: Tensor, places: Tensor) -> Tensor:
        """int64: the place in the cache of key `places` of `sequences`; −1 where there is no room for it."""
        page_size = max(self.k.shape[1], 1)
        pages = sequences
        if self.table is not None:
            pages = self.table[sequences, (places // page_size).clamp(0, self.table.shape[1] - 1)].long()
        slots = pages * page_size + places % page_size
        return slots.where((places >= 0) & (places < self.capacity) & (pages >= 0), -1)


@dataclass(frozen=True)
class Tokens:
    """The sequence of each row of packed or dense tokens, and the row's place in that sequence.

    Attributes:
        sequences, places: int64 [rows]; place −1: a row of no sequence.
    """

    sequences: Tensor
    places: Tensor

    @staticmethod
    def of(batch: int, rows: int, starts: Tensor | None, device: torch.device) -> Tokens:
        """The tokens of `rows` rows, split evenly between the sequences where these do not begin at `starts`."""
        row = torch.arange(rows, device=device)
        if starts is None:
            length = max(rows // max(batch, 1), 1)
            return Tokens(row // length, row % length)
        sequences = torch.searchsorted(starts[1:].contiguous(), row, right=True)
        places = (row - starts[sequences.clamp(max=batch - 1)]).where(sequences < batch, -1)
        return Tokens(sequences.clamp(max=batch - 1), places)


def read_cache(k_cache: Tensor, v_cache: Tensor, page_table: Tensor | None, cache_batch_idx: Tensor | None, batch: int,
                device: torch.device) -> Cache:
    """The caches of a call.

    Raises:
        TypeError, ValueError: the tensors do not fit one another.
    """
    check.tensor(OP, "k_cache", k_cache, rank=4, device=device)
    check.tensor(OP, "v_cache", v_cache, shape=(*k_cache.shape[:3], None), device=device)
    integers = {"dtypes": (torch.int32,), "device": device}
    if page_table is not None:
        if cache_batch_idx is not None:
            raise ValueError(f"{OP}: cache_batch_idx must be None beside page_table, which names the pages")
        check.tensor(OP, "page_table", page_table, shape=(batch, None), **integers)
        if not page_table.shape[1]:
            raise ValueError(f"{OP}: page_table must have a page for each sequence at least, got shape "
                             f"{tuple(page_table.shape)}")
        return Cache(k_cache, v_cache, page_table)
    if cache_batch_idx is not None:
        check.tensor(OP, "cache_batch_idx", cache_batch_idx, shape=(batch,), **integers)
        return Cache(k_cache, v_cache, cache_batch_idx[:, None], "cache_batch_idx")
    check.tensor(OP, "k_cache", k_cache, shape=(batch, *k_cache.shape[1:]))
    return Cache(k_cache, v_cache, None)


def check_new(k: Tensor | None, v: Tensor | None, cache: Cache, starts: Tensor | None, batch: int) -> None:
    """Raises where the keys and values to append, whose sequences begin at `starts`, do not fit the caches."""
    device, outer = cache.k.device, (batch, None) if starts is None else (None,)
    check.tensor(OP, "k", k, shape=(*outer, *cache.k.shape[2:]), device=device)
    check.tensor(OP, "v", v, dtypes=(k.dtype,), shape=(*k.shape[:-1], cache.v.shape[3]), device=device)
    if starts is not None:
        check.tensor(OP, "cu_seqlens_k_new", starts, dtypes=(torch.int32,), shape=(batch + 1,), device=device)
        check_lengths(OP, "cu_seqlens_k_new", starts, len(k), None)


def rotated(q: Tensor, k: Tensor | None, cos: Tensor | None, sin: Tensor | None, first: Tensor | int,
             cu_seqlens_q: Tensor | None, cu_seqlens_k_new: Tensor | None, is_interleaved: bool,
             is_all_at_first: bool, name: str) -> tuple[Tensor, Tensor]:
    """q and k, rotated from position `first` of each sequence on, which is the argument `name`. Rows of no sequence
    take the first position, and those whose position is not in the tables become NaN.

    Raises:
        TypeError, ValueError: they do not fit the tables.
    """
    check.tensor(OP, "rotary_cos", cos, rank=2, device=q.device)
    check.tensor(OP, "rotary_sin", sin, dtypes=(cos.dtype,), shape=cos.shape, device=q.device)
    check.flag(OP, "rotary_interleaved", is_interleaved)
    if k is None:
        raise ValueError(f"{OP}: k must be given with rotary_cos and rotary_sin, as in FlashAttention")
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    found = []
    for x, starts, is_at_first in ((q, cu_seqlens_q, is_all_at_first), (k, cu_seqlens_k_new, False)):
        heads = x.reshape(-1, 1, *x.shape[-2:])  # [rows, 1, heads, head_dim]
        tokens = Tokens.of(batch, len(heads), starts, x.device)
        begin = first[tokens.sequences] if isinstance(first, Tensor) else first
        positions = (begin + (0 * tokens.places if is_at_first else tokens.places)).where(tokens.places >= 0, 0)
        check_positions(OP, f"{name} and the tokens from there on", positions, None, cos)
        if isinstance(first, int) and starts is None and x.numel():
            last = first if is_at_first else first + x.shape[1] - 1
            check.integer(OP, f"{name} of the last row", last, 0, len(cos) - 1)
        found.append(rope_cached_positions_fwd(heads, cos, sin, positions[:, None], int(is_interleaved), True,
                                               False).view(x.shape))
    return found[0], found[1]


@dataclass(frozen=True)
class Appending:
    """Keys and values that are going to be written.

    Attributes:
        write: does it.
        lengths: of the sequences, afterwards.
    """

    write: Callable[[], None]
    lengths: Tensor | int


def appending(k: Tensor, v: Tensor, cache: Cache, lengths: Tensor | int, starts: Tensor | None,
              descales: tuple[Tensor | None, Tensor | None], batch: int) -> Appending:
    """How `k` and `v` come behind the cache's keys. Nothing is written yet, and nothing waits for the device.

    Raises:
        ValueError: lengths known here leave no room.
    """
    added = k.shape[1] if starts is None else starts.clamp(0, len(k)).diff().clamp(min=0)
    if isinstance(lengths, int) and isinstance(added, int):
        check.integer(OP, "cache_seqlens and the length of k together", lengths + added, 0, cache.capacity)
    if isinstance(lengths, Tensor):
        lengths = lengths.clamp(0, cache.capacity)
    keys, values = k.reshape(-1, *k.shape[-2:]), v.reshape(-1, *v.shape[-2:])
    tokens = Tokens.of(batch, len(keys), starts, k.device)
    before = lengths[tokens.sequences] if isinstance(lengths, Tensor) else lengths
    places = (before + tokens.places).where(tokens.places >= 0, -1)
    is_quantised = k.dtype != cache.k.dtype
    write = functools.partial(
        reshape_and_cache_flash, keys, values, cache.k, cache.v, cache.slots(tokens.sequences, places),
        "fp8" if is_quantised else "auto", *(descales if is_quantised else (None, None)))
    grown = lengths + added
    return Appending(write, grown if isinstance(grown, int) else grown.clamp(max=cache.capacity))


def check_places(cache: Cache, lengths: tuple[Tensor | int, Tensor | int], leftpad: Tensor | None, batch: int) -> None:
    """The pages of the keys in use are in the cache, those that are written belong to one sequence, and none begins
    behind its end, where the host can look. `lengths`: before and after the call.

    Raises:
        TypeError, ValueError: they are not, or `leftpad` is not of the kind it must be.
    """
    if leftpad is not None:
        check.tensor(OP, "cache_leftpad", leftpad, dtypes=(torch.int32,), shape=(batch,), device=cache.k.device)
    if not check.is_on_host(cache.k) or not batch:
        return
    before, after = (each if isinstance(each, Tensor) else torch.full((batch,), each, device=cache.k.device)
                     for each in lengths)
    if leftpad is not None and ((leftpad < 0) | (leftpad > after)).any():
        raise ValueError(f"{OP}: cache_leftpad must be between 0 and the keys of each sequence, got {leftpad.tolist()} "
                         f"of {after.tolist()}")
    if (table := cache.table) is None:
        return
    begin = torch.arange(table.shape[1], device=table.device) * cache.k.shape[1]
    end = begin + cache.k.shape[1]
    is_used = begin < after[:, None]
    if leftpad is not None:
        is_used &= end > torch.minimum(leftpad, before)[:, None]
    check_values(OP, cache.name, table[is_used], 0, len(cache.k) - 1, "name pages")
    is_written = is_used & (end > before[:, None]) & (after > before)[:, None]
    if (torch.bincount(table[is_used])[table[is_written].long()] > 1).any():
        raise ValueError(f"{OP}: {cache.name} must give new keys no page that has other keys, got "
                         f"{table[is_written].tolist()} for those of the new ones")


def without_padding(cache: Cache, lengths: Tensor | int, leftpad: Tensor, batch: int) -> tuple[Cache, Tensor]:
    """The same keys in pages of one, those before `leftpad` left out.

    Raises:
        UnsupportedError: the rows of all pages are not one tensor of rows, which only a copy could make of them, or
            more than its table of 32 bits can name.
    """
    if cache.k.shape[0] * cache.k.shape[1] > check.INT32_MAX:
        raise UnsupportedError(f"{OP}: no backend supports cache_leftpad with caches of more than {check.INT32_MAX} "
                               f"keys, got {tuple(cache.k.shape)}", OP, {"cache_leftpad": "size"})
    try:
        k, v = (tensor.view(-1, 1, *tensor.shape[2:]) for tensor in (cache.k, cache.v))
    except RuntimeError:
        raise UnsupportedError(f"{OP}: no backend supports cache_leftpad with caches whose pages do not follow one "
                               f"another at their row's distance, got strides {cache.k.stride()} and "
                               f"{cache.v.stride()}", OP, {"cache_leftpad": "strides"}) from None
    places = leftpad.clamp(min=0)[:, None] + torch.arange(cache.capacity, device=leftpad.device)
    table = cache.slots(torch.arange(batch, device=leftpad.device)[:, None].expand_as(places), places)
    if isinstance(lengths, Tensor):
        lengths = lengths.clamp(0, cache.capacity)
    return Cache(k, v, table.to(torch.int32)), (lengths - leftpad.clamp(min=0)).clamp(min=0)
