# SPDX-License-Identifier: MIT
"""DLPack within sim.as_gpu(): capsules of tensors on the GPU say so, and only torch reads them here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.dlpack
from torch.utils.dlpack import DLDeviceType

from aiter_like.sim.torch_cuda import devices, marks

_DEVICE_AT = {b"dltensor": 8, b"dltensor_versioned": 40}
"""Where the device stands in DLManagedTensor and in DLManagedTensorVersioned: behind `data` of their DLTensor."""
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    for holder in (torch, torch.utils.dlpack):
        yield holder, "to_dlpack", _exporting(holder.to_dlpack)
        yield holder, "from_dlpack", _importing(holder.from_dlpack)


def device(func: Callable, args: tuple, kwargs: dict) -> tuple:
    """Tensor.__dlpack_device__."""
    index = marks.index_of(args[0])
    return func(*args, **kwargs) if index is None else (DLDeviceType.kDLROCM, index)


def capsule(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Tensor.__dlpack__; a stream has nothing to wait for.

    Raises:
        BufferError: the memory is wanted on another device.
    """
    index = marks.index_of(args[0])
    if index is None:
        return func(*args, **kwargs)
    wanted = kwargs.get("dl_device")
    if wanted is not None and tuple(map(int, wanted)) != (int(DLDeviceType.kDLROCM), index):
        raise BufferError(f"Tensor.__dlpack__: a tensor on cuda:{index} has no memory on device {tuple(wanted)}")
    kwargs = {name: value for name, value in kwargs.items() if name not in ("stream", "dl_device")}
    return _tell(func(args[0], **kwargs), int(DLDeviceType.kDLROCM), index)


def _exporting(original: Callable) -> Callable:
    def to_dlpack(tensor: torch.Tensor) -> Any:
        index, made = marks.index_of(tensor), original(tensor)
        return made if index is None else _tell(made, int(DLDeviceType.kDLROCM), index)

    return to_dlpack


def _importing(original: Callable) -> Callable:
    """A function whose result has the memory of what it is given, as another storage."""
    def from_dlpack(ext_tensor: Any, **options: Any) -> torch.Tensor:
        if "capsule" not in type(ext_tensor).__name__.lower():
            if int(ext_tensor.__dlpack_device__()[0]) != DLDeviceType.kDLROCM:
                return original(ext_tensor, **options)
            ext_tensor = ext_tensor.__dlpack__()
        kind, index = _place(ext_tensor)[:2]
        if kind != DLDeviceType.kDLROCM:
            return original(ext_tensor, **options)
        result = marks.put(original(_tell(ext_tensor, int(DLDeviceType.kDLCPU), 0)), devices.index_of(index))
        if options.get("device") is not None:
            result = result.to(options["device"])
        return result.clone() if options.get("copy") else result

    return from_dlpack


def _place(made: Any) -> ctypes.Array:
    """The kind and the number of a capsule's device, to read and to write."""
    name = _name_of(made)
    if name not in _DEVICE_AT:
        raise ValueError(f"from_dlpack: expected a capsule that nobody has read yet, got {name!r}")
    return (ctypes.c_int32 * 2).from_address(_pointer_of(made, name) + _DEVICE_AT[name])


def _tell(made: Any, kind: int, index: int) -> Any:
    _place(made)[:] = (kind, index)
    return made
