# SPDX-License-Identifier: MIT
"""Paged caches in every layout over one storage of bytes, and a plain model of what a write leaves there.

Read by the op_tests of the cache writers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import target_of

LAYOUTS = ("nhd", "hnd", "packed", "padded", "columns", "shuffled")
"""[B, bs, H, D]; the same of [B, H, bs, D]; of [B, H, bs, Dk + Dv] with K and V side by side; with gaps in every
dimension; K [B, H, D/x, bs, x] with V [B, H, D, bs]; the same K with V [B, H, bs/x, D, x]."""


@dataclass
class Caches:
    """A storage of random bytes, and K and V in it.

    Attributes:
        storage: uint8; a write may change nothing of it but its slots.
        views: storage → (key_cache, value_cache).
    """

    storage: Tensor
    views: Callable[[Tensor], tuple[Tensor, Tensor]]

    @property
    def key(self) -> Tensor:
        return self.views(self.storage)[0]

    @property
    def value(self) -> Tensor:
        return self.views(self.storage)[1]

    def check(self, before: Tensor, rows: list[Tensor], slots: Tensor) -> None:
        """Every byte is what it was, but for `rows` (K's and V's, in the cache's dtype) in their slots."""
        expected = before.clone()
        put(*self.views(expected), *rows, slots)
        assert not torch.equal(expected, before) or not rows[0].numel()
        wrong = (self.storage != expected).nonzero().flatten()
        assert not wrong.numel(), f"{wrong.numel()} bytes differ, the first at {wrong[0].item()}"


def make(device: torch.device, layout: str, num_blocks: int, page_size: int, heads: int, dims: tuple[int, int],
         dtype: torch.dtype) -> Caches:
    """Caches of a layout, filled with random bytes."""
    x = 16 // dtype.itemsize
    key_dim, value_dim = dims
    if layout in ("columns", "shuffled"):
        key_shape = (num_blocks, heads, key_dim // x, page_size, x)
        value_shape = ((num_blocks, heads, value_dim, page_size) if layout == "columns" else
                       (num_blocks, heads, page_size // x, value_dim, x))
    else:
        key_shape, value_shape = ((num_blocks, page_size, heads, dim) for dim in dims)
    key_size, value_size = (num_blocks * page_size * heads * dim for dim in dims)

    def views(storage: Tensor) -> tuple[Tensor, Tensor]:
        flat = storage.view(dtype)
        if layout == "packed":
            both = flat.view(num_blocks, heads, page_size, key_dim + value_dim).transpose(1, 2)
            return both[..., :key_dim], both[..., key_dim:]
        if layout == "padded":  # rows of whole 16 bytes, so that vectors still serve
            sizes = (num_blocks, page_size + 1, heads + 1, max(dims) + x)
            whole = flat[:2 * num_blocks * (page_size + 1) * (heads + 1) * sizes[3]].view(2, *sizes)
            return tuple(whole[i, :, 1:, :heads, :dim] for i, dim in enumerate(dims))
        key, value = flat[:key_size], flat[key_size:key_size + value_size]
        if layout == "hnd":
            return tuple(plane.view(num_blocks, heads, page_size, dim).transpose(1, 2)
                         for plane, dim in ((key, key_dim), (value, value_dim)))
        return key.view(key_shape), value.view(value_shape)

    count = key_size + value_size
    if layout == "padded":
        count = 2 * num_blocks * (page_size + 1) * (heads + 1) * (max(dims) + x)
    generator = torch.Generator(device).manual_seed(count)
    return Caches(torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator,
                                device=device), views)


def put(key_cache: Tensor, value_cache: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """The tables of the layouts, token by token; negative slots and those beyond the cache are skipped."""
    key_cache, value_cache, key, value = (
        tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        for tensor in (key_cache, value_cache, key, value))
    page_size = key_cache.shape[1 if key_cache.ndim == 4 else 3]
    for token, slot in enumerate(slots.tolist()):
        if not 0 <= slot < key_cache.shape[0] * page_size:
            continue
        block, offset = divmod(slot, page_size)
        if key_cache.ndim == 4:
            key_cache[block, offset], value_cache[block, offset] = key[token], value[token]
            continue
        x = key_cache.shape[4]
        for dim in range(key.shape[2]):
            key_cache[block, :, dim // x, offset, dim % x] = key[token, :, dim]
        for dim in range(value.shape[2]):
            if value_cache.ndim == 4:
                value_cache[block, :, dim, offset] = value[token, :, dim]
            else:
                value_cache[block, :, offset // x, dim, offset % x] = value[token, :, dim]


def to_fp8(x: Tensor, scale: float) -> Tensor:
    """x · (1 / scale) in fp32, saturated and rounded to the device's fp8."""
    kind = dtypes.fp8_of(target_of(x.device).arch)
    largest = torch.finfo(kind).max
    inverse = 1 / torch.tensor(scale, dtype=torch.float32, device=x.device)
    return (x.float() * inverse).clamp(-largest, largest).to(kind)


def indexer_key_at(offset: int, dim: int, head_dim: int, preshuffle: bool) -> int:
    """Byte of a block of the indexer's cache that holds an element of the token at `offset`."""
    if not preshuffle:
        return offset * head_dim + dim
    return (offset // 16 * head_dim // 16 + dim // 16) * 256 + offset % 16 * 16 + dim % 16


def slots_of(device: torch.device, tokens: int, num_slots: int, seed: int = 0, skip: tuple[int, ...] = ()) -> Tensor:
    """Distinct random slots; the first tokens get those of `skip`."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(num_slots, generator=generator)[:tokens]
    slots[:len(skip)] = torch.tensor(skip, dtype=slots.dtype)
    return slots.to(device)


def runs_of_slots() -> Tensor:
    """Of 240, on the host: sequences that begin amid a page or amid 16 tokens; descending, random and skipped slots."""
    return torch.cat((torch.arange(5, 42), torch.arange(64, 144), torch.arange(160, 176).flip(0),
                      176 + slots_of(torch.device("cpu"), 24, 24), torch.tensor([-1]), torch.arange(200, 233)))


def tokens_of(device: torch.device, tokens: int, heads: int, dims: tuple[int, int], dtype: torch.dtype,
              seed: int = 0) -> tuple[Tensor, Tensor]:
    """Key and value."""
    generator = torch.Generator(device).manual_seed(seed)
    return tuple((torch.randn(tokens, heads, dim, generator=generator, device=device) * 3).to(dtype) for dim in dims)
