# SPDX-License-Identifier: MIT
"""Copying whole blocks of paged caches: copy_blocks, swap_blocks. Kernel: csrc/kv_cache/copy_blocks.hip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.dispatch.addresses import refuse_overlaps
from aiter_like.jit import compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.common.contents import are_on_host, check_distinct

__all__ = ["copy_blocks", "swap_blocks"]

_MAX_RANK = 5  # A cache has one dimension more than its blocks, of which the kernel takes four.
_GROUP_BYTES = 256 * 4  # A workgroup copies so much in the narrowest words; a launch has fewer than 2^24 of them.


class CopyBlocksCall(NamedTuple):
    """One call of copy_blocks: `dst[block_mapping[i, 1]] = src[block_mapping[i, 0]]`.

    Attributes:
        dst: [num_blocks, …] of any dtype and strides.
        src: like `dst` but for the number of blocks; None: `dst` itself.
        others: caches like `dst`, written too, each from itself; only without `src`.
    """

    dst: Annotated[Tensor, "*any _", STRIDED]
    src: Annotated[Tensor | None, "*source _", "dst", STRIDED]
    block_mapping: Annotated[Tensor, "pairs 2", elements.INTEGERS]
    others: tuple[Tensor, ...] | None = None


def copy_blocks_ref(call: CopyBlocksCall) -> None:
    """In torch; it copies the bytes of the elements, whatever their dtype."""
    dst, src, pairs = call.dst, call.src, call.block_mapping.long()
    limit = torch.tensor([len(dst if src is None else src), len(dst)], device=dst.device)
    pairs = pairs[((pairs >= 0) & (pairs < limit)).all(1)]
    for cache in (dst, *(call.others or ())):
        given = cache if src is None else src
        if cache.element_size() == 1:  # fp8, which torch cannot index
            cache, given = cache.view(torch.uint8), given.view(torch.uint8)
        cache[pairs[:, 1]] = given[pairs[:, 0]]


@compile_ops("kv_cache/copy_blocks.hip")
def _copy_blocks_hip(call: CopyBlocksCall) -> None: ...


def _check(call: CopyBlocksCall) -> object:
    dst, src = call.dst, call.src
    if src is not None:
        check.tensor("copy_blocks", "src", src, shape=(None, *dst.shape[1:]), last_contiguous=False)
        if call.others:
            raise ValueError("copy_blocks: others must be None where there is a src")
    for cache in call.others or ():
        check.tensor("copy_blocks", "others", cache, dtypes=(dst.dtype,), shape=dst.shape, device=dst.device,
                     last_contiguous=False)
        if cache.stride() != dst.stride():
            raise ValueError(f"copy_blocks: others must have strides {dst.stride()}, got {cache.stride()}")
    is_empty = 0 in (dst.numel(), call.block_mapping.numel()) or (src is not None and not src.numel())
    return SKIP if is_empty else None


def _hip_refusal(target: Target, call: CopyBlocksCall) -> str | None:
    if call.dst.ndim > _MAX_RANK:
        return f"caches of at most {_MAX_RANK} dimensions, got {call.dst.ndim}"
    if not call.block_mapping.is_contiguous():
        return "block_mapping must be contiguous"
    for name, tensor in (("dst", call.dst), ("src", call.src)):
        if tensor is not None and any(step <= 0 for size, step in zip(tensor.shape, tensor.stride()) if size > 1):
            return f"{name} must not be expanded, got strides {tensor.stride()}"
        if tensor is not None and all(step != 1 for size, step in zip(tensor.shape[1:], tensor.stride()[1:])
                                      if size > 1) and tensor[0].numel() > 1:
            return f"{name} must have contiguous elements, got strides {tensor.stride()}"
    size, pairs = call.dst[0].numel() * call.dst.element_size(), call.block_mapping.shape[0]
    if size >= 2**31 or -(-size // _GROUP_BYTES) * pairs >= 2**24:
        return f"{pairs} blocks of {size} bytes do not fit one launch"
    return None


def _cases(device: torch.device) -> dict[str, CopyBlocksCall]:
    """From cache to cache, and within one."""
    source = torch.randn(4, 16, 2, 24, generator=torch.Generator().manual_seed(0)).to(device)
    return {"swap": CopyBlocksCall(torch.zeros_like(source), source,
                                   torch.tensor([[0, 3], [2, 0], [1, 2], [3, 1]], device=device)),
            "copy": CopyBlocksCall(source.clone(), None, torch.tensor([[0, 3], [2, 1]], device=device))}


_copy_blocks = Op(
    "copy_blocks", call=CopyBlocksCall, reference=copy_blocks_ref, check=_check, writes=("dst", "others"), cases=_cases,
    backends=(Backend("hip", _copy_blocks_hip, refusal=_hip_refusal), Backend("torch", copy_blocks_ref)))


def copy_blocks(key_caches: Sequence[Tensor], value_caches: Sequence[Tensor], block_mapping: Tensor, *,
                backend: str | None = None) -> None:
    """Copies blocks within every layer's caches: `cache[block_mapping[i, 1]] = cache[block_mapping[i, 0]]`.

    Args:
        key_caches, value_caches: a layer's each, as many of both, [num_blocks, …] of any dtype and layout; written.
        block_mapping: [pairs, 2] int64|int32, contiguous, on the caches' device: from and to.

    Raises:
        ValueError: caches overlap one another in part, or the mapping; on the CPU, a block that one pair writes and
            another reads or writes.

    Notes:
        A pair with a block outside the cache is skipped. On a GPU, where nobody looks, a block that one pair writes and
        another reads or writes holds bytes of any of them. One launch for all caches of one shape, dtype and strides.
    """
    for name, caches in (("key_caches", key_caches), ("value_caches", value_caches)):
        if not isinstance(caches, (list, tuple)):
            raise TypeError(f"copy_blocks: {name} must be a list of tensors, got {type(caches).__name__}")
        for cache in caches:
            check.tensor("copy_blocks", name, cache, last_contiguous=False)
            if cache.ndim == 0:
                raise ValueError(f"copy_blocks: {name} must have at least 1 dimension each, got a scalar")
    if len(key_caches) != len(value_caches):
        raise ValueError(f"copy_blocks: value_caches must have {len(key_caches)} layers like key_caches, got "
                         f"{len(value_caches)}")
    alike: dict[tuple, list[Tensor]] = {}
    for cache in (*key_caches, *value_caches):
        alike.setdefault((cache.shape, cache.stride(), cache.dtype, cache.device), []).append(cache)
    if isinstance(block_mapping, Tensor):
        refuse_overlaps("copy_blocks", "key_caches and value_caches", alike, block_mapping=block_mapping)
    for first, *_ in alike.values():
        check.tensor("copy_blocks", "block_mapping", block_mapping, device=first.device, last_contiguous=False)
        check_pairs("copy_blocks", block_mapping, len(first), len(first), is_one_cache=True)
    for first, *others in alike.values():
        _copy_blocks.prepare(first, None, block_mapping, tuple(others) or None, backend=backend)
    for first, *others in alike.values():
        _copy_blocks.run(first, None, block_mapping, tuple(others) or None, backend=backend)


def swap_blocks(src: Tensor, dst: Tensor, block_mapping: Tensor, *, backend: str | None = None) -> None:
    """Copies blocks between caches, also of a GPU and the host: `dst[block_mapping[i, 1]] = src[block_mapping[i, 0]]`.

    Args:
        src: [num_blocks, …] of any dtype and layout.
        dst: [num_blocks, …], dtype and block shape of `src`; not `src` itself; written.
        block_mapping: [pairs, 2] int64|int32: from and to. On the device of both caches: one kernel; on the host: a
            copy for each pair.

    Raises:
        ValueError: with a mapping on the host, a block outside its cache, and one that several pairs write.

    Notes:
        The kernel skips a pair with a block outside its cache, and can be captured in a graph. Copies to and from
        pinned host memory are asynchronous on the current stream.
    """
    for name, tensor in (("src", src), ("dst", dst), ("block_mapping", block_mapping)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"swap_blocks: {name} must be a tensor, got {type(tensor).__name__}")
        if tensor.is_meta:
            raise ValueError(f"swap_blocks: {name} must have memory, got a tensor on the meta device")
    if src.ndim and dst.ndim:
        check_pairs("swap_blocks", block_mapping, len(src), len(dst))
    if src.device == dst.device == block_mapping.device:
        _copy_blocks.run(dst, src, block_mapping, backend=backend)
    else:
        copy_each(src, dst, block_mapping)


def check_pairs(op: str, pairs: Tensor, sources: int, targets: int, is_one_cache: bool = False) -> None:
    """No block is written by two pairs or, in one cache, written by one and read by another. Pairs that name no block
    are skipped.
    """
    if not are_on_host(pairs, rank=2) or pairs.shape[1] != 2:
        return
    limits = torch.tensor([sources, targets], device=pairs.device)
    source, target = pairs[((pairs >= 0) & (pairs < limits)).all(1)].unbind(1)
    check_distinct(op, "block_mapping", target, targets, "block to write")
    both = target[torch.isin(target, source[source != target])] if is_one_cache else target[:0]
    if both.numel():
        raise ValueError(f"{op}: block_mapping must not name a block to read that it writes, got {both[0].item()}")


def copy_each(src: Tensor, dst: Tensor, block_mapping: Tensor) -> None:
    """`swap_blocks` with a mapping on the host: one copy per pair, by torch.

    Raises:
        TypeError, ValueError: an argument is wrong, or a block is outside its cache; then nothing is copied.
    """
    check.tensor("swap_blocks", "block_mapping", block_mapping, dtypes=elements.INTEGERS, shape=(None, 2),
                 device=torch.device("cpu"))
    check.tensor("swap_blocks", "dst", dst, last_contiguous=False)
    if dst.ndim == 0:
        raise ValueError("swap_blocks: dst must have at least 1 dimension, got a scalar")
    check.tensor("swap_blocks", "src", src, dtypes=(dst.dtype,), shape=(None, *dst.shape[1:]), last_contiguous=False)
    pairs = block_mapping.tolist()
    for source, target in pairs:
        if not (0 <= source < src.shape[0] and 0 <= target < dst.shape[0]):
            raise ValueError(f"swap_blocks: block_mapping must name blocks below {src.shape[0]} and {dst.shape[0]}, "
                             f"got {source} → {target}")
    for source, target in pairs:
        dst[target].copy_(src[source], non_blocking=True)
