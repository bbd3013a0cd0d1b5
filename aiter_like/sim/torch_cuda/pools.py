# SPDX-License-Identifier: MIT
"""torch.cuda.MemPool within sim.as_gpu(): a name that blocks of memory bear. Each tensor's memory is a block of its own
anyway, so that no pool keeps any.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from aiter_like.errors import UnsupportedError
from aiter_like.sim.torch_cuda import devices, memory

_numbers = itertools.count(2)  # (0, 1) is the pool of graphs


class MemPool:
    """In place of torch.cuda.MemPool.

    Raises:
        UnsupportedError: it is to have an allocator of its own.
    """

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False):
        if allocator is not None:
            raise UnsupportedError("sim.as_gpu: torch.cuda.MemPool has no allocator of its own on the simulated "
                                   "MI300X: tensors are in the host's memory", op="torch.cuda.MemPool")
        self._id, self.entered = (0, next(_numbers)), 0

    @property
    def id(self) -> tuple[int, int]:
        """Two numbers, of which no other pool has the same."""
        return self._id

    @property
    def allocator(self) -> None:
        """None: it has none of its own."""
        return None

    def use_count(self) -> int:
        """One for the object, and one for each block of use_mem_pool that is open."""
        return 1 + self.entered

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The segments of tensors that were made in the pool and live."""
        return memory.snapshot((*self._id, include_traces))["segments"]


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Tensors that the calling thread makes on the device within the block are of that pool."""
    index = devices.number_of(device)
    before = memory.pools.of_device.get(index)
    memory.pools.of_device[index] = pool.id
    pool.entered += 1
    try:
        yield
    finally:
        pool.entered -= 1
        memory.pools.of_device[index] = before or memory.NO_POOL
