# SPDX-License-Identifier: MIT
"""torch.distributed within sim.as_gpu(): what a program asks of NCCL is done by gloo, in the host's memory."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed

from aiter_like.sim.torch_cuda import devices


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch.distributed: holder, name, what it means now."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for name in ("init_process_group", "new_group"):
        made = _making(getattr(distributed_c10d, name), name == "init_process_group")
        yield torch.distributed, name, made
        yield distributed_c10d, name, made
    for holder in (torch.distributed, distributed_c10d):
        yield holder, "barrier", _barrier(distributed_c10d.barrier)
    yield torch.distributed, "_coalescing_manager", _together(distributed_c10d._CoalescingManager)
    yield distributed_c10d, "_coalescing_manager", _together(distributed_c10d._CoalescingManager)
    yield torch.distributed, "get_backend", _told(torch.distributed.get_backend)
    for holder in (torch.distributed, distributed_c10d):
        yield holder, "is_nccl_available", lambda: True


def _making(original: Callable, is_default: bool) -> Callable:
    """A function that makes a group: its backend is gloo where NCCL is asked for, or the one for a GPU."""
    def make(*args: Any, **kwargs: Any) -> Any:
        place = 0 if is_default else 2
        asked = args[place] if len(args) > place else kwargs.get("backend")
        if is_default:
            _is_nccl[0] = asked is None or "nccl" in str(asked).lower()
        if asked is not None and "nccl" in str(asked).lower() or asked is None and is_default:
            kwargs = {name: value for name, value in kwargs.items()
                      if name not in ("backend", "device_id", "pg_options")} | {"backend": "gloo"}
            args = (*args[:place],) if len(args) <= place else (*args[:place], "gloo", *args[place + 1:])
            if len(args) > place:
                del kwargs["backend"]
        return original(*args, **kwargs)

    return make


def _barrier(original: Callable) -> Callable:
    """barrier: it is a wait of the host, whatever GPUs it names."""
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, **options: Any) -> Any:
        if device_ids is not None:
            if not isinstance(device_ids, list):
                raise TypeError("Invalid function argument: device_ids type should be List[int]")
            for one in device_ids:
                devices.index_of(one)
        return original(group, async_op, **options)

    return barrier


def _together(original: Callable) -> Callable:
    """A block whose collectives may run together; gloo runs them one by one."""
    @contextlib.contextmanager
    def manager(group: Any = None, device: Any = None, async_ops: bool | None = False) -> Iterator[Any]:
        yield original()

    return manager


def _told(original: Callable) -> Callable:
    def get_backend(group: Any = None) -> str:
        found = original(group)
        return "nccl" if found == "gloo" and _is_nccl[0] else found

    return get_backend


_is_nccl = [False]
