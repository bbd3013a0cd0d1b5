# SPDX-License-Identifier: MIT
"""What torch.cuda.memory_stats tells: every key that it has with a GPU, and the figures of marked storages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from aiter_like.sim.torch_cuda.marks import Memory

_COUNTS = ("allocation", "segment", "active", "inactive_split")
_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
_HELD = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_PARTS = ("all", "small_pool", "large_pool")
_EVENTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
           "max_split_size")


def nested(memory: Memory) -> dict[str, Any]:
    """As torch.cuda.memory_stats_as_nested_dict: there are no segments that could be split, and nothing is retried."""
    def figures(name: str, part: str) -> dict[str, int]:
        is_held = name in _HELD and part != "small_pool"
        values = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
        return values | {"current": memory.now, "peak": memory.peak, "allocated": memory.taken,
                         "freed": memory.taken - memory.now} if is_held else values

    stats: dict[str, Any] = {name: {part: figures(name, part) for part in _PARTS} for name in (*_COUNTS, *_BYTES)}
    stats |= {name: figures(name, "all") for name in ("oversize_allocations", "oversize_segments")}
    return stats | dict.fromkeys(_EVENTS, 0)


def of(memory: Memory) -> OrderedDict[str, int]:
    """As torch.cuda.memory_stats: the same with dotted keys, sorted."""
    flat: dict[str, int] = {}

    def add(prefix: str, value: Any) -> None:
        if not isinstance(value, dict):
            flat[prefix] = value
            return
        for name, part in value.items():
            add(f"{prefix}.{name}" if prefix else name, part)

    add("", nested(memory))
    return OrderedDict(sorted(flat.items()))
