# SPDX-License-Identifier: MIT
"""torch's types of old within sim.as_gpu(): torch.cuda.FloatTensor makes tensors on the GPU, and tells them from those
of torch.FloatTensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices, marks

_NAMES = ("BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor",
          "IntTensor", "LongTensor", "ShortTensor")
_ORIGINALS = {name: getattr(torch, name) for name in _NAMES}
_TORCHS = type(torch.FloatTensor)


class TensorType(type):
    """In place of `torch.tensortype`: torch.cuda.FloatTensor or torch.FloatTensor, which are classes.

    Attributes:
        dtype, is_cuda, layout: as torch's have them.
    """

    layout = torch.strided

    def __new__(cls, name: str, is_cuda: bool) -> TensorType:
        return super().__new__(cls, name, (), {"__module__": "torch.cuda" if is_cuda else "torch"})

    def __init__(cls, name: str, is_cuda: bool):
        super().__init__(name, (), {})
        cls._host, cls.is_cuda = _ORIGINALS[name], is_cuda
        cls.dtype = cls._host.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As torch.FloatTensor: of sizes without values, or of a sequence.

        Raises:
            TypeError: it is given a tensor of another type.
        """
        for one in args:
            if isinstance(one, torch.Tensor) and not isinstance(one, cls):
                raise TypeError(f"expected {cls.__module__}.{cls.__name__} (got {one.type()})")
        place = kwargs.pop("device", None)
        index = devices.number_of(place) if cls.is_cuda else None
        if not cls.is_cuda and place is not None and torch.device(place).type != "cpu":
            raise TypeError(f"legacy constructor expects device type: cpu but device type: {place} was passed")
        result = cls._host(*args, **kwargs)
        return result if index is None or marks.index_of(result) is not None else marks.put(result, index)

    def __instancecheck__(cls, value: Any) -> bool:
        with torch._C.DisableTorchFunction():
            return (isinstance(value, torch.Tensor) and value.dtype == cls.dtype and value.layout == cls.layout
                    and (marks.index_of(value) is not None) == cls.is_cuda)

    def __subclasscheck__(cls, kind: type) -> bool:
        return False

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"

    __str__ = __repr__


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    for name in _NAMES:
        yield torch, name, TensorType(name, False)
        yield torch.cuda, name, TensorType(name, True)
    yield torch, "set_default_tensor_type", _set_default


def meant(wanted: Any) -> tuple[torch.dtype, bool] | None:
    """The dtype, and whether it is a GPU's, of a type of old or of its name; None: `wanted` is none.

    Raises:
        ValueError: a name of none.
    """
    if isinstance(wanted, str):
        module, _, name = wanted.rpartition(".")
        if module not in ("torch", "torch.cuda") or name not in _NAMES:
            raise ValueError(f"invalid type: {wanted!r}")
        return _ORIGINALS[name].dtype, module == "torch.cuda"
    if isinstance(wanted, (TensorType, _TORCHS)):
        return wanted.dtype, wanted.is_cuda
    return None


def _set_default(t: Any) -> None:
    """torch.set_default_tensor_type: the default dtype, and on a GPU the default device."""
    found = meant(t)
    if found is None:
        raise TypeError(f"set_default_tensor_type: expected a type such as torch.cuda.FloatTensor, got {t!r}")
    torch.set_default_dtype(found[0])
    torch.set_default_device("cuda" if found[1] else None)
