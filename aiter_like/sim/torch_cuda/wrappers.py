# SPDX-License-Identifier: MIT
"""Tensors of classes that wrap others, within sim.as_gpu(): those of torch.Tensor._make_wrapper_subclass, and DTensor.
They are of the host, with the mark of the GPU, and the mode is on in what torch calls of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aiter_like.sim.torch_cuda import devices, gradients, marks

_CALLED = "__torch_dispatch__"


def replacements(mode: TorchFunctionMode, changed: dict[type, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now.

    Args:
        changed: gets the classes whose `__torch_dispatch__` is another one from now on, and the one that it was.
    """
    yield torch.Tensor, "_make_wrapper_subclass", _making(mode, torch.Tensor._make_wrapper_subclass, changed)
    if hasattr(torch.Tensor, "_dtensor__new__"):
        made = _distributed(torch.Tensor._dtensor__new__)
        yield torch.Tensor, "_dtensor__new__", staticmethod(made)
        module = sys.modules.get("torch.distributed.tensor._api")
        if module is not None:
            yield module.DTensor, "__new__", made


def restore(changed: dict[type, Any]) -> None:
    """The classes have their own again."""
    for kind, before in changed.items():
        setattr(kind, _CALLED, before)


def _making(mode: TorchFunctionMode, original: Callable, changed: dict[type, Any]) -> Any:
    def make(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        index = None if device is None or not mode.is_on else devices.index_of(device)
        if index is None:
            return original(cls, *args, **kwargs, **({} if device is None else {"device": device}))
        if _CALLED in vars(cls) and cls not in changed:
            changed[cls] = vars(cls)[_CALLED]
            setattr(cls, _CALLED, _within(mode, cls))
        return marks.put(original(cls, *args, device="cpu", **kwargs), index)

    return staticmethod(make)


def _within(mode: TorchFunctionMode, kind: type) -> classmethod:
    """A class's `__torch_dispatch__`, in which the mode is on."""
    original = vars(kind)[_CALLED].__func__

    @functools.wraps(original)
    def dispatch(cls: type, *args: Any, **kwargs: Any) -> Any:
        with gradients.switched_on(mode):
            return original(cls, *args, **kwargs)

    return classmethod(dispatch)


def _distributed(original: Callable) -> Callable:
    """DTensor's `__new__`: it is where its local tensor is."""
    def __new__(cls: type, local_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = original(cls, local_tensor, *args, **kwargs)
        index = marks.index_of(local_tensor)
        return made if index is None else marks.put(made, index)

    return __new__
