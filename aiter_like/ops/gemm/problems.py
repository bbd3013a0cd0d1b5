# SPDX-License-Identifier: MIT
"""What the operators of many products share, those of a batch and those of groups of rows: checks of what callers give,
random operands, what Triton's kernels can be told. Read by batched_gemm.py and grouped_gemm.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_HOPPER_BYTES = 220 << 10  # an SM has 227 KB of shared memory; a kernel needs a little beside its operands


def check_matrices(op: str, **matrices: Any) -> None:
    """Each is a dense tensor that has not been shuffled.

    Raises:
        TypeError: one is no tensor.
        ValueError: one is marked as shuffled.
    """
    for name, one in matrices.items():
        if not isinstance(one, Tensor):
            raise TypeError(f"{op}: {name} must be a tensor, got {type(one).__name__}")
        if getattr(one, "is_shuffled", False):
            raise ValueError(f"{op}: {name} must not be shuffled, got a result of shuffle_weight")


def needs_grad(*tensors: Any) -> bool:
    """Whether autograd wants the derivative by one of them."""
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in tensors)


def operands(random: Callable[..., Tensor], dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Random matrices of a dtype, from a source of normal numbers."""
    factor = 40 if dtype == torch.int8 else 1
    return tuple((random(*shape) * factor).to(dtype) for shape in shapes)


def tma_moves(*matrices: Tensor) -> bool:
    """Whether Hopper's copies by descriptor move them: contiguous rows that do not overlap, all 16 bytes apart or a
    multiple.
    """
    return all(one.numel() > 0 and one.stride(-1) == 1 and one.stride(-2) >= one.shape[-1]
               and all(stride > 0 and stride * one.element_size() % 16 == 0 for stride in one.stride()[:-1])
               for one in matrices)


def hopper_space(m: int, element_bytes: int) -> Iterator[dict[str, int]]:
    """Blocks for products with about m rows each, which fit shared memory; those for few rows have the weights on the
    left side of the matrix unit.
    """
    rows = max(16, 1 << (m - 1).bit_length())
    few = [(rows, block_n, depth, 4, 1) for block_n in (64, 128) for depth in (64, 128, 256)] if m <= 128 else []
    many = [(*blocks, 0) for blocks in ((64, 128, 64, 4), (64, 256, 64, 4), (128, 128, 64, 4), (128, 128, 64, 8),
                                        (128, 256, 64, 8)) if m > 32 and blocks[0] <= 2 * m]
    for block_m, block_n, depth, num_warps, swap in (*few, *many):
        most = min(8, _HOPPER_BYTES // (2 * depth * (block_m + block_n)))
        for stages in {most, max(most // 2, 3)}:
            if 3 <= stages <= most:
                yield {"block_m": block_m, "block_n": block_n, "block_k": depth * 2 // element_bytes,
                       "num_warps": num_warps, "num_stages": stages, "swap": swap}


def plain_space(m: int, element_bytes: int) -> Iterator[dict[str, int]]:
    """Blocks for products with about m rows each; deep ones for few rows, which are bound by memory."""
    for block_m, block_n, depth, num_warps in ((16, 64, 128, 4), (32, 64, 128, 4), (64, 64, 64, 4), (64, 128, 64, 4),
                                               (128, 128, 64, 4), (128, 128, 64, 8), (128, 256, 64, 8)):
        if block_m <= max(16, 2 * m) and (block_m >= 64 or m < 512):
            for num_stages in (2, 3, 4):
                yield {"block_m": block_m, "block_n": block_n, "block_k": depth * 2 // element_bytes,
                       "num_warps": num_warps, "num_stages": num_stages}
