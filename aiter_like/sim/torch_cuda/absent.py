# SPDX-License-Identifier: MIT
"""Names of torch that are not simulated within sim.as_gpu(): a call of any of them is an error that says so. Where
torch has something for the host as well, it refuses a GPU and its tensors alone.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.utils.dlpack
from torch._subclasses.fake_tensor import FakeTensor

from aiter_like.errors import UnsupportedError
from aiter_like.sim.torch_cuda import marks

_ON_HOST = ((torch.nested, "nested_tensor"), (torch.nested, "as_nested_tensor"), (torch.jit, "load"),
            (torch, "to_dlpack"), (torch.utils.dlpack, "to_dlpack"), (FakeTensor, "__new__"),
            (torch.Tensor, "_make_wrapper_subclass"), (torch.Tensor, "_dtensor__new__"))
"""Functions that make tensors in C++, where marks are not seen, or memory that other libraries read."""


class AbsentError(UnsupportedError, AttributeError):
    """A name is not there: hasattr() answers False."""


class Partial:
    """In place of a class of torch.cuda: attributes that it has and this one has not refuse."""

    def __getattr__(self, name: str) -> NoReturn:
        refuse(f"torch.cuda.{type(self).__name__}.{name}")


def refuse(name: str) -> NoReturn:
    """Raises AbsentError."""
    raise AbsentError(f"sim.as_gpu: {name} is not simulated; csrc/sim/GPU.md says what of torch is", op=name)


def refusing(name: str, original: Any) -> Any:
    """A stand-in that refuses when it is called: a class where a class was."""
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        refuse(name)

    if inspect.isclass(original):
        return type(original.__name__, (), {"__new__": call, "__doc__": f"{name}, which refuses."})
    call.__name__ = name
    return call


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    yield torch._C, "__getattr__", lambda name: refuse(f"torch._C.{name}")
    distributed = sys.modules.get("torch.distributed.tensor._api")
    for holder, name in (*_ON_HOST, *([(distributed.DTensor, "__new__")] if distributed else ())):
        made = _on_host(f"{holder.__name__}.{name}", getattr(holder, name))
        yield holder, name, staticmethod(made) if holder is torch.Tensor else made
    yield torch.amp.autocast_mode.autocast, "__init__", _autocast(torch.amp.autocast_mode.autocast.__init__)
    yield torch, "set_autocast_enabled", _set_autocast(torch.set_autocast_enabled)


def _on_host(name: str, original: Callable) -> Callable:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        named = (one for one in (*args, *kwargs.values()) if isinstance(one, (str, torch.device)))
        if marks.first_place(args, kwargs) is not None or any(str(one).split(":")[0] == "cuda" for one in named):
            refuse(f"{name} on a GPU")
        return original(*args, **kwargs)

    return call


def _autocast(original: Callable) -> Callable:
    """torch.autocast's `__init__`: a block without autocasting, which models have around float32, is one."""
    def made(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
             cache_enabled: bool | None = None) -> None:
        is_gpu = device_type == "cuda"
        if is_gpu and enabled:
            refuse("torch.autocast of a GPU")
        original(self, "cpu" if is_gpu else device_type, dtype, enabled, cache_enabled)

    return made


def _set_autocast(original: Callable) -> Callable:
    def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
        if "cpu" not in (*args, *kwargs.values()):  # without a device it is a GPU's
            refuse("torch.set_autocast_enabled of a GPU")
        original(*args, **kwargs)

    return set_autocast_enabled
