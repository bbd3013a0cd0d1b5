# SPDX-License-Identifier: MIT
"""What torch.cuda.memory_stats tells: every key that it has with a GPU, and the figures of marked storages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from aiter_like.sim.torch_cuda.memory import Memory

_FIGURES = {"allocation": 0, "segment": 0, "active": 0, "allocated_bytes": 1, "reserved_bytes": 1, "active_bytes": 1,
            "requested_bytes": 2}
"""torch's names → which of a pool's figures they are."""
_NOTHING = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
_EMPTY = ("inactive_split", "inactive_split_bytes")
_EVENTS = ("num_alloc_retries", "num_sync_all_streams", "max_split_size")
_TIMES = ("total", "max", "min", "count", "avg")


def nested(memory: Memory) -> dict[str, Any]:
    """As torch.cuda.memory_stats_as_nested_dict: there are no segments that could be split, and nothing is retried."""
    stats: dict[str, Any] = {name: {pool: figures[which].told() for pool, figures in memory.figures.items()}
                             for name, which in _FIGURES.items()}
    stats |= {name: {pool: dict(_NOTHING) for pool in memory.figures} for name in _EMPTY}
    stats |= {name: dict(_NOTHING) for name in ("oversize_allocations", "oversize_segments")}
    segments = memory.figures["all"][0]
    return stats | dict.fromkeys(_EVENTS, 0) | {"num_ooms": memory.num_ooms, "num_device_alloc": segments.allocated,
                                                "num_device_free": segments.freed}


def nested_of_host(memory: Memory) -> dict[str, Any]:
    """As torch.cuda.host_memory_stats_as_nested_dict: no time is told."""
    count, size, _ = memory.figures["all"]
    stats: dict[str, Any] = {"allocations": count.told(), "active_requests": count.told(),
                             "allocated_bytes": size.told(), "active_bytes": size.told(),
                             "num_host_alloc": count.allocated, "num_host_free": count.freed}
    return stats | {name: dict.fromkeys(_TIMES, 0) for name in ("host_alloc_time", "host_free_time")}


def flat(stats: dict[str, Any]) -> OrderedDict[str, int]:
    """The same with dotted keys, sorted."""
    found: dict[str, int] = {}

    def add(prefix: str, value: Any) -> None:
        if not isinstance(value, dict):
            found[prefix] = value
            return
        for name, part in value.items():
            add(f"{prefix}.{name}" if prefix else name, part)

    add("", stats)
    return OrderedDict(sorted(found.items()))
