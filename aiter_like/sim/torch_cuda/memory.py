# SPDX-License-Identifier: MIT
"""Memory of simulated devices within sim.as_gpu(), counted as torch's allocator of a GPU counts: by 512 bytes.
Each tensor's memory is a segment of one block, and none is kept for later.
"""

from __future__ import annotations

import collections
import sys
import threading
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices

_BLOCK = 512
_SMALL = 1 << 20
"""Bytes up to which a block is of the small pool."""


NO_POOL = (0, 0)


class _Pools(threading.local):
    """By device the pool in which the calling thread makes tensors."""

    def __init__(self) -> None:
        self.of_device: dict[int | None, tuple[int, int]] = {}


pools = _Pools()


class Figure:
    """A quantity: what it is now, its greatest value, and sums of what came and went."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, value: int) -> None:
        """More, or less where it is negative."""
        self.current += value
        if value > 0:
            self.allocated += value
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= value

    def told(self) -> dict[str, int]:
        """As torch tells it."""
        return {name: getattr(self, name) for name in ("current", "peak", "allocated", "freed")}


class Memory:
    """That of a device, or of pinned memory of the host.

    Attributes:
        fraction: of the device's memory that may be used.
        figures: by pool ("all", "small_pool", "large_pool") those of count, bytes and requested bytes.
        num_ooms: how often there was too little.
    """

    def __init__(self, index: int | None):
        self.index, self.fraction, self.num_ooms = index, 1.0, 0
        self.figures = {pool: (Figure(), Figure(), Figure()) for pool in ("all", "small_pool", "large_pool")}
        self.traces: collections.deque[dict[str, Any]] = collections.deque()
        # By number: address, size, requested size, frames, pool.
        self._blocks: dict[int, tuple[int, int, int, list, tuple]] = {}
        self._lock = threading.RLock()  # a storage can die, and tell so, while another one is being counted
        self._number = 0

    @property
    def now(self) -> int:
        """Bytes in use."""
        return self.figures["all"][1].current

    def take(self, address: int, count: int) -> int:
        """A block of so many bytes is in use; the number by which `give_back` knows it.

        Raises:
            torch.OutOfMemoryError: the device has not so many.
        """
        size = -(-count // _BLOCK) * _BLOCK
        with self._lock:
            self._check_room(count, size)
            self._number += 1
            pool = pools.of_device.get(self.index, NO_POOL)
            self._blocks[self._number] = address, size, count, _frames(), pool
            self._count(1, size, count)
            self._trace(("alloc",), address, size)
            return self._number

    def give_back(self, number: int) -> None:
        """A block is in use no longer."""
        with self._lock:
            address, size, count, *_ = self._blocks.pop(number)
            self._count(-1, -size, -count)
            self._trace(("free_requested", "free_completed"), address, size, has_frames=history.is_freed)

    def blocks(self) -> list[tuple[int, int]]:
        """Those in use: address and bytes."""
        with self._lock:
            return [(address, count) for address, _, count, *_ in self._blocks.values()]

    def reset(self, *, is_peak: bool) -> None:
        """Peaks, or sums of what came and went, are counted from now on."""
        with self._lock:
            for figures in self.figures.values():
                for one in figures:
                    if is_peak:
                        one.peak = one.current
                    else:
                        one.allocated = one.freed = 0

    def segments(self) -> list[dict[str, Any]]:
        """As torch.cuda.memory_snapshot tells them."""
        with self._lock:
            blocks = sorted(self._blocks.values(), key=lambda block: block[0])
        return [{"device": self.index, "address": address, "total_size": size, "allocated_size": size,
                 "active_size": size, "requested_size": count, "stream": 0, "segment_pool_id": pool,
                 "segment_type": "small" if size <= _SMALL else "large", "is_expandable": False, "frames": frames,
                 "blocks": [{"address": address, "size": size, "requested_size": count, "state": "active_allocated",
                             "frames": frames}]} for address, size, count, frames, pool in blocks if size]

    def _count(self, blocks: int, size: int, count: int) -> None:
        if not size:
            return
        for pool in ("all", "small_pool" if abs(size) <= _SMALL else "large_pool"):
            for figure, value in zip(self.figures[pool], (blocks, size, count), strict=True):
                figure.add(value)

    def _check_room(self, count: int, size: int) -> None:
        if self.index is None:
            return
        total = devices.properties(self.index).total_memory
        allowed = int(total * self.fraction)
        if self.now + size <= allowed:
            return
        self.run_short(count)
        limit = "" if self.fraction == 1 else f"; {allowed / 2**30:.2f} GiB allowed"
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {count / 2**30:.2f} GiB. GPU {self.index} has a total capacity of "
            f"{total / 2**30:.2f} GiB, of which {self.now / 2**30:.2f} GiB are in use{limit}")

    def run_short(self, count: int) -> None:
        """Counts and tells that there were not so many bytes."""
        self.num_ooms += 1
        total = devices.properties(self.index).total_memory
        for observe in observers:
            observe(self.index, count, total, int(total * self.fraction) - self.now)

    def _trace(self, actions: tuple[str, ...], address: int, size: int, has_frames: bool = True) -> None:
        if history.is_all and size:
            frames = _frames() if has_frames else []
            self.traces.extend({"action": action, "addr": address, "size": size, "stream": 0, "pool_id": (0, 0),
                                "frames": frames} for action in actions)
            while len(self.traces) > history.max_entries:
                self.traces.popleft()


class _History:
    """What torch.cuda.memory._record_memory_history has asked for."""

    def __init__(self) -> None:
        self.has_frames = self.is_freed = self.is_all = False
        self.max_entries = sys.maxsize


def of(index: int | None) -> Memory:
    """That of a simulated device, or with None that of pinned memory."""
    found = _memories.get(index)
    return found if found is not None else _memories.setdefault(index, Memory(index))


def snapshot(pool: Any = None) -> dict[str, Any]:
    """torch.cuda.memory._snapshot; with a pool's two numbers, and whether there are traces, that of the pool."""
    memories = [of(index) for index in range(devices.count())]
    wanted = pool[:2] if isinstance(pool, tuple) and pool[:2] != NO_POOL else None
    return {"segments": [segment for memory in memories for segment in memory.segments()
                         if wanted in (None, segment["segment_pool_id"])],
            "device_traces": [list(memory.traces) for memory in memories], "external_annotations": [],
            "allocator_settings": {}}


def record_history(enabled: str | bool | None, context: str | None = None, stacks: str = "all",
                   max_entries: int = sys.maxsize, clear_history: bool = False, *options: Any) -> None:
    """torch.cuda.memory._record_memory_history.

    Raises:
        RuntimeError: `enabled` is none of None, "state", "all".
    """
    if enabled not in (None, False, True, "state", "all"):
        raise RuntimeError(f"_record_memory_history: expected enabled to be None, 'state' or 'all', got {enabled!r}")
    history.is_all, history.has_frames = enabled in (True, "all"), bool(enabled) and context is not None
    history.max_entries, history.is_freed = max_entries, context == "all"
    if clear_history:
        for memory in _memories.values():
            memory.traces.clear()


def _frames() -> list[dict[str, Any]]:
    """The program's calls, the innermost first."""
    if not history.has_frames:
        return []
    frame, told = sys._getframe(2), []
    while frame is not None:
        code = frame.f_code
        if "sim/torch_cuda" not in code.co_filename:
            told.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return told


history = _History()
observers: list[Any] = []
"""What a program has attached: called with device, bytes asked for, the device's bytes, and those that are left."""
_memories: dict[int | None, Memory] = {}
