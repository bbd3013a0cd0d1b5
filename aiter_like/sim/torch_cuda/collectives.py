# SPDX-License-Identifier: MIT
"""torch.distributed within sim.as_gpu(): what a program asks of NCCL is done by gloo, in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch.distributed: holder, name, what it means now."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for name in ("init_process_group", "new_group"):
        made = _making(getattr(distributed_c10d, name), name == "init_process_group")
        yield torch.distributed, name, made
        yield distributed_c10d, name, made
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


def _told(original: Callable) -> Callable:
    def get_backend(group: Any = None) -> str:
        found = original(group)
        return "nccl" if found == "gloo" and _is_nccl[0] else found

    return get_backend


_is_nccl = [False]
