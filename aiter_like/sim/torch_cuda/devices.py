# SPDX-License-Identifier: MIT
"""The simulated devices by torch's names for them: "cuda", "cuda:1", 1."""

import ctypes
import functools
import uuid
from types import SimpleNamespace
from typing import Any

import torch

from aiter_like.sim import library

_NUMBERS = {"multi_processor_count": 63, "warp_size": 87, "L2_cache_size": 19, "major": 23, "minor": 61,
            "clock_rate": 5, "memory_clock_rate": 60, "memory_bus_width": 59, "regs_per_multiprocessor": 72,
            "max_threads_per_multi_processor": 57, "max_threads_per_block": 56, "shared_memory_per_block": 74,
            "shared_memory_per_block_optin": 74, "shared_memory_per_multiprocessor": 74, "pci_bus_id": 67,
            "pci_device_id": 68, "pci_domain_id": 69, "is_integrated": 16, "is_multi_gpu_board": 20}
"""torch's names for facts of a device → hipDeviceAttribute_t."""


def count() -> int:
    """The number of devices: the setting `devices` of the simulator."""
    return _number("hipGetDeviceCount")


def current() -> int:
    """The calling thread's device."""
    return _number("hipGetDevice")


def set_current(device: Any) -> None:
    """Makes a device the calling thread's.

    Raises:
        RuntimeError: there is no such device.
    """
    library.load().hipSetDevice(number_of(device))


def exchange(device: int) -> int:
    """Makes a device the calling thread's, unless its number is below 0; the one before."""
    before = current()
    if device >= 0:
        set_current(device)
    return before


def told(index: int | None) -> str:
    """A device as torch's messages call it; None is the host's."""
    return "cpu" if index is None else str(of_index(index))


def number_of(device: Any) -> int:
    """The number of a device, None being the current one, as what torch does not know as a device is to it.

    Raises:
        ValueError: it is another device's.
        RuntimeError: there is no such device.
    """
    number = None if device is None else index_of(device)
    if number is None and not isinstance(device, (str, torch.device)):
        return current()
    if number is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return number


def index_of(device: Any) -> int | None:
    """The number of a GPU that torch would understand; None: it is another device's.

    Raises:
        RuntimeError: there is no such device.
    """
    if type(getattr(device, "idx", None)) is int:  # torch.cuda.device, torch.accelerator.device_index
        device = device.idx
    if type(device) is not int:
        place = torch.device(device) if isinstance(device, str) else getattr(device, "device", device)
        if not isinstance(place, torch.device) or place.type != "cuda":
            return None
        device = current() if place.index is None else place.index
    if not 0 <= device < count():
        raise RuntimeError(f"sim.as_gpu: there is no device cuda:{device}: {count()} are simulated; the setting "
                           "devices=N (AITER_LIKE_SIM) has more")
    return device


def of_index(index: int) -> torch.device:
    """The device with a number."""
    return torch.device("cuda", index)


class Properties(SimpleNamespace):
    """torch.cuda.get_device_properties' answer."""

    def __repr__(self) -> str:
        return (f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
                f"gcnArchName='{self.gcnArchName}', total_memory={self.total_memory >> 20}MB, "
                f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
                f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
                f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)")


@functools.cache
def properties(index: int) -> Properties:
    """The answer of torch.cuda.get_device_properties, as the simulator's HIP library tells it."""
    facts = {name: _attribute(which, index) for name, which in _NUMBERS.items()}
    name = ctypes.create_string_buffer(256)
    library.load().hipDeviceGetName(name, 256, index)
    total = ctypes.c_size_t()
    library.load().hipDeviceTotalMem(ctypes.byref(total), index)
    return Properties(name=name.value.decode(), gcnArchName="gfx942:sramecc+:xnack-", total_memory=total.value,
                      uuid=_uuid(index), **facts)


def _uuid(index: int) -> uuid.UUID:
    raw = ctypes.create_string_buffer(16)
    library.load().hipDeviceGetUuid(raw, index)
    return uuid.UUID(bytes=raw.raw)


@functools.cache
def hip_version() -> str:
    """torch.version.hip: that of the simulator's HIP library."""
    number = _number("hipRuntimeGetVersion")
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _attribute(which: int, index: int) -> int:
    value = ctypes.c_int()
    library.load().hipDeviceGetAttribute(ctypes.byref(value), which, index)
    return value.value


def _number(function: str) -> int:
    value = ctypes.c_int()
    getattr(library.load(), function)(ctypes.byref(value))
    return value.value
