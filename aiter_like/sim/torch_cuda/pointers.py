# SPDX-License-Identifier: MIT
"""Memory on the GPU that a kernel reaches by addresses, which a program has put into a tensor or gives as numbers:
tables of pointers, such as those of grouped products. The bounds checker otherwise knows a launch's tensors alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from aiter_like.sim.torch_cuda import devices, memory

_MOST = 1 << 20
"""Elements up to which a tensor of 64-bit integers is looked through."""


def reached(arguments: Iterable[Any]) -> list[tuple[int, int, str]]:
    """Blocks of memory on the simulated GPUs, and pinned ones, that the arguments of a launch have addresses of, except
    as tensors: address, bytes, and a name for reports."""
    places = (*range(devices.count()), None)
    blocks = sorted(block for place in places for block in memory.of(place).blocks() if block[1])
    if not blocks:
        return []
    starts, sizes = (np.array(column, dtype=np.uint64) for column in zip(*blocks, strict=True))
    found: dict[int, int] = {}
    for number, argument in enumerate(arguments):
        values = _addresses(argument)
        block = np.searchsorted(starts, values, side="right").astype(np.int64) - 1
        inside = (block >= 0) & (values - starts[block] < sizes[block])
        for one in np.unique(block[inside]):
            found.setdefault(int(one), number)
    return [(*blocks[block], f"memory that argument {number} points to") for block, number in found.items()]


def _addresses(argument: Any) -> np.ndarray:
    """What may be addresses in a launch's argument, as unsigned numbers."""
    if isinstance(argument, torch.Tensor):
        if argument.dtype in (torch.int64, torch.uint64) and argument.numel() <= _MOST:
            with torch._C.DisableTorchFunction():  # the host looks at it, and the program does not wait for that
                return argument.detach().contiguous().view(-1).numpy().astype(np.uint64)
    elif isinstance(argument, int) and 0 < argument < 2**64:
        return np.array([argument], dtype=np.uint64)
    return np.empty(0, dtype=np.uint64)
