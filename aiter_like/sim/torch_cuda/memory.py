# SPDX-License-Identifier: MIT
"""Memory of simulated devices within sim.as_gpu(), counted as torch's allocator of a GPU counts: by 512 bytes.
Each tensor's memory is a block of its own, and none is kept for later.
"""

import threading

import torch

from aiter_like.sim.torch_cuda import devices

_BLOCK = 512
_BLOCKS, _BYTES, _REQUESTED = range(3)
_FIGURES = {"allocation": _BLOCKS, "segment": _BLOCKS, "active": _BLOCKS, "allocated_bytes": _BYTES,
            "reserved_bytes": _BYTES, "active_bytes": _BYTES, "requested_bytes": _REQUESTED}
"""torch's names of what is counted."""


class Memory:
    """That of a device, or of pinned memory of the host."""

    def __init__(self, index: int | None):
        self.index = index
        self._current, self._peak, self._num_ooms = [0, 0, 0], [0, 0, 0], 0
        self._blocks: dict[int, tuple[int, int, int]] = {}  # by number: address, size, requested size
        self._lock = threading.RLock()  # a storage can die, and tell so, while another one is being counted
        self._number = 0

    @property
    def now(self) -> int:
        """Bytes in use."""
        return self._current[_BYTES]

    @property
    def peak(self) -> int:
        """The most bytes that were in use."""
        return self._peak[_BYTES]

    def take(self, address: int, count: int) -> int:
        """A block of so many bytes is in use; the number by which `give_back` knows it.

        Raises:
            torch.OutOfMemoryError: the device has not so many.
        """
        size = -(-count // _BLOCK) * _BLOCK
        with self._lock:
            if self.index is not None and self.now + size > devices.properties(self.index).total_memory:
                raise self.out_of_memory(count)
            self._number += 1
            self._blocks[self._number] = address, size, count
            self._count(1, size, count)
            return self._number

    def give_back(self, number: int) -> None:
        """A block is in use no longer."""
        with self._lock:
            _, size, count = self._blocks.pop(number)
            self._count(-1, -size, -count)

    def blocks(self) -> list[tuple[int, int]]:
        """Those in use: address and bytes."""
        with self._lock:
            return [(address, count) for address, _, count in self._blocks.values()]

    def reset_peak(self) -> None:
        """The greatest values are today's."""
        with self._lock:
            self._peak = list(self._current)

    def stats(self) -> dict[str, int]:
        """The answer of torch.cuda.memory_stats, of all blocks."""
        told = {f"{name}.all.{key}": values[which] for name, which in _FIGURES.items()
                for key, values in (("current", self._current), ("peak", self._peak))}
        return told | {"num_ooms": self._num_ooms, "num_alloc_retries": 0}

    def out_of_memory(self, count: int, why: str = "") -> torch.OutOfMemoryError:
        """The error where there are not so many bytes."""
        self._num_ooms += 1
        total = devices.properties(self.index).total_memory
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {count / 2**30:.2f} GiB. GPU {self.index} has a total capacity of "
            f"{total / 2**30:.2f} GiB, of which {self.now / 2**30:.2f} GiB are in use. {why}".rstrip())

    def _count(self, blocks: int, size: int, count: int) -> None:
        if not size:
            return
        self._current = [one + more for one, more in zip(self._current, (blocks, size, count), strict=True)]
        self._peak = list(map(max, self._peak, self._current))


def of(index: int | None) -> Memory:
    """That of a simulated device, or with None that of pinned memory."""
    found = _memories.get(index)
    return found if found is not None else _memories.setdefault(index, Memory(index))


_memories: dict[int | None, Memory] = {}
