# SPDX-License-Identifier: MIT
"""Programs that name the device "cuda", on a machine without one: their tensors are the CPU's, where the simulated
MI300X serves them. For a process that runs such a program and nothing else.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aiter_like import device

_CPU, _GENERATOR = torch.device("cpu"), torch.Generator
_MEMORY_BYTES = 192 << 30  # of an MI300X
_NOTHING = ("synchronize", "empty_cache", "manual_seed", "manual_seed_all", "set_device", "reset_peak_memory_stats")


@contextlib.contextmanager
def instead_of_cuda(programs: Path):
    """Within the block, what the files below `programs` call a GPU is the CPU with the simulated MI300X."""
    target = device.simulated_target()
    device.use_simulator(True)
    properties = SimpleNamespace(name="simulated MI300X", gcnArchName=target.arch, warp_size=target.wave_size,
                                 multi_processor_count=target.cu_num, total_memory=_MEMORY_BYTES, major=9, minor=4,
                                 L2_cache_size=4 << 20)
    answers: dict[str, Callable] = {name: _nothing() for name in _NOTHING}
    answers |= {"is_available": _for_programs(programs, torch.cuda.is_available, True),
                "device_count": _for_programs(programs, torch.cuda.device_count, 1),
                "current_device": lambda: 0,
                "Event": _Event,
                "get_device_name": lambda device=None: properties.name,
                "get_device_properties": lambda device=None: properties,
                "get_device_capability": lambda device=None: (properties.major, properties.minor),
                "mem_get_info": lambda device=None: (_MEMORY_BYTES, _MEMORY_BYTES),
                "get_rng_state": lambda device=None: torch.get_rng_state(),
                "set_rng_state": lambda state, device=None: torch.set_rng_state(state)}
    before = {name: getattr(torch.cuda, name) for name in answers}
    set_default_device = torch.set_default_device
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.set_default_device = lambda place: set_default_device(_on_cpu(place))
    torch.Generator = _Generator
    try:
        with _OnCpu():
            yield
    finally:
        torch.set_default_device, torch.Generator = set_default_device, _GENERATOR
        for name, function in before.items():
            setattr(torch.cuda, name, function)


class _GeneratorKind(type):
    """Of generators are all that torch made."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _GENERATOR)


class _Generator(metaclass=_GeneratorKind):
    """`torch.Generator`; that of a GPU is the CPU's."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return _GENERATOR(_on_cpu(device))


class _Event:
    """A moment on the host's clock: nothing runs beside the program."""

    def __init__(self, **options: Any):
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:
        """Now."""
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        """It is past."""

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds until another."""
        return (end._seconds - self._seconds) * 1e3


class _OnCpu(TorchFunctionMode):
    """Turns the devices among the arguments of torch's functions."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = kwargs | {"device": _on_cpu(kwargs["device"])}
        if func is torch.Tensor.to:
            args = tuple(map(_on_cpu, args))
        return func(*args, **kwargs)


def _on_cpu(place: Any) -> Any:
    """A device that is CUDA's, or a GPU's number, becomes the CPU; anything else stays."""
    if isinstance(place, torch.device):
        return _CPU if place.type == "cuda" else place
    if isinstance(place, str):
        return "cpu" if place.split(":")[0] == "cuda" else place
    return _CPU if type(place) is int else place  # a GPU's number; no other number is an argument of `to`


def _nothing() -> Callable:
    """A function of its own each time: torch.compile tells torch's functions apart by their objects."""
    return lambda *args, **kwargs: None


def _for_programs(programs: Path, function: Callable, answer: Any) -> Callable:
    """`answer` where a file below `programs` asks; the libraries that it uses hear the truth."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        caller = Path(sys._getframe(1).f_code.co_filename)
        return answer if caller.is_relative_to(programs) else function(*args, **kwargs)

    return asked
