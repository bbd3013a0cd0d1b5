# SPDX-License-Identifier: MIT
"""Fake tensors (torch.export, FakeTensorMode) within sim.as_gpu(): torch, which here has no GPU's kernels, ends the
process when one of a GPU meets autograd. They are of the host, with the mark of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from aiter_like.sim.torch_cuda import devices, marks

_CPU = torch.device("cpu")
_PLACE = 2  # The device is the argument with this number.


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch's fake tensors: holder, name, what it means now."""
    yield FakeTensor, "__new__", _making(FakeTensor.__new__)


def _making(original: Callable) -> Callable:
    def __new__(cls: type, *args: Any, **kwargs: Any) -> FakeTensor:
        index = None
        if len(args) > _PLACE:
            index = devices.index_of(args[_PLACE])
            if index is not None:
                args = (*args[:_PLACE], _CPU, *args[_PLACE + 1:])
        for name in ("device", "fake_device", "_fake_device"):
            named = devices.index_of(kwargs[name]) if kwargs.get(name) is not None else None
            if named is not None:
                index, kwargs = named, kwargs | {name: _CPU}
        made = original(cls, *args, **kwargs)
        return made if index is None else marks.put(made, index)

    return __new__
