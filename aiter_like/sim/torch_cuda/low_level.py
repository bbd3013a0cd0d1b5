# SPDX-License-Identifier: MIT
"""Functions of torch._C that torch's Python code and other programs ask of a GPU build, within sim.as_gpu(). Those that
stand in no table here are not there, as in a build without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from aiter_like.sim import rocm
from aiter_like.sim.torch_cuda import devices, graphs, marks, memory, refusals, statistics, streams

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz,
           torch.float8_e5m2, torch.float8_e5m2fnuz)
_DTYPES = frozenset((*_FLOATS, torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8,
                     torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64))
_COMPILER_NAMES = {"nvrtcGetCUBINSize": "hiprtcGetCodeSize", "nvrtcGetCUBIN": "hiprtcGetCode"} | {
    f"nvrtc{name}": f"hiprtc{name}" for name in ("GetErrorString", "CreateProgram", "DestroyProgram", "CompileProgram",
                                                 "GetProgramLogSize", "GetProgramLog", "AddNameExpression",
                                                 "GetLoweredName")}
_RCCL = 2 << 32 | 22 << 16 | 3
"""The version of ROCm's library of collectives, as torch tells NCCL's."""


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch._C and of what torch says of its build: holder, name, what it means now."""
    for name, answer in (_cuda() | _memory() | _accelerator()).items():
        yield torch._C, name, answer
    yield torch._C, "_cuda_CUDAAllocator_AllocatorState", type("_AllocatorState", (), {})  # Inductor imports it.
    yield torch._C, "_set_cached_tensors_enabled", lambda enabled: None
    yield torch.backends.cuda, "is_built", lambda: True
    yield torch.cuda, "_is_compiled", lambda: True
    yield torch.cuda, "_initialized", True
    yield torch.cuda, "_sleep", sleep
    yield torch.cuda._utils, "_get_hiprtc_library", _runtime_compiler
    yield torch.cuda, "_set_stream_by_id", _set_stream


def sleep(cycles: int) -> None:
    """torch.cuda._sleep: as long as so many cycles take at the device's clock."""
    time.sleep(max(cycles, 0) / (1e3 * devices.properties(devices.current()).clock_rate))


def _runtime_compiler() -> Any:
    """The library that compiles kernels while a program runs, with the names that torch calls it by."""
    library = rocm.load_rtc()
    for name, own in _COMPILER_NAMES.items():
        setattr(library, name, getattr(library, own))
    return library


def capability(device: Any = None) -> dict[str, Any]:
    """torch.accelerator.get_device_capability: the types that tensors of the device can have."""
    devices.number_of(device)
    return {"supported_dtypes": set(_DTYPES)}


def _cuda() -> dict[str, Callable]:
    return {
        "_cuda_init": lambda: None, "_cuda_getDeviceCount": devices.count, "_cuda_getDevice": devices.current,
        "_cuda_setDevice": devices.set_current, "_cuda_exchangeDevice": devices.exchange,
        "_cuda_maybeExchangeDevice": devices.exchange, "_cuda_synchronize": graphs.synchronize,
        "_cuda_isCurrentStreamCapturing": graphs.is_capturing, "_cuda_sleep": sleep, "_cuda_setStream": _set_stream,
        "_cuda_getCurrentStream": lambda index: _named(streams.current_stream(index)),
        "_cuda_getDefaultStream": lambda index: _named(streams.default_stream(index)),
        "_cuda_getCurrentRawStream": lambda index: streams.current_stream(index).cuda_stream,
        "_cuda_emptyCache": lambda: None, "_host_emptyCache": lambda: None, "_cuda_ipc_collect": lambda: None,
        "_nccl_version": lambda: _RCCL, "_nccl_version_suffix": lambda: b"",
        "_cuda_clearCublasWorkspaces": lambda: None, "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_getArchFlags": lambda: "gfx942", "_cuda_set_sync_debug_mode": refusals.set_sync_mode,
        "_cuda_get_sync_debug_mode": lambda: refusals.sync_mode[0],
    }


def _memory() -> dict[str, Callable]:
    def set_fraction(fraction: float, index: int) -> None:
        memory.of(index).fraction = fraction

    return {
        "_cuda_setMemoryFraction": set_fraction, "_cuda_getMemoryFraction": lambda index: memory.of(index).fraction,
        "_cuda_memorySnapshot": memory.snapshot, "_cuda_record_memory_history": memory.record_history,
        "_cuda_record_memory_history_legacy": memory.record_history,
        "_cuda_attach_out_of_memory_observer": memory.observers.append,
        "_cuda_resetPeakMemoryStats": lambda index: memory.of(index).reset(is_peak=True),
        "_cuda_resetAccumulatedMemoryStats": lambda index: memory.of(index).reset(is_peak=False),
        "_cuda_memoryStats": lambda index: statistics.nested(memory.of(index)),
        "_cuda_cudaCachingAllocator_raw_alloc": _allocate, "_cuda_cudaCachingAllocator_raw_delete": _delete,
    }


def _allocate(size: int, stream: int = 0) -> int:
    held = torch.UntypedStorage(size)
    marks.put_storage(held, devices.current())
    _allocated[held.data_ptr()] = held
    return held.data_ptr()


def _delete(address: int) -> None:
    if _allocated.pop(address, None) is None:
        raise RuntimeError(f"torch.cuda.caching_allocator_delete: invalid device pointer: {address:#x}")


def _accelerator() -> dict[str, Callable]:
    return {
        "_accelerator_getAccelerator": lambda: torch.device("cuda"), "_accelerator_getDeviceIndex": devices.current,
        "_accelerator_setDeviceIndex": lambda index: devices.exchange(index) and None,
        "_accelerator_exchangeDevice": lambda index: devices.exchange(devices.number_of(index)),
        "_accelerator_maybeExchangeDevice": devices.exchange,
        "_accelerator_getStream": streams.current_stream, "_accelerator_setStream": streams.set_stream,
        "_accelerator_synchronizeDevice": streams.synchronize, "_accelerator_emptyCache": lambda: None,
        "_accelerator_emptyHostCache": lambda: None, "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceCapability": capability, "_get_accelerator": lambda check=False: torch.device("cuda"),
    }


def _named(stream: streams.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _set_stream(stream_id: int, device_index: int, device_type: int = 1) -> None:
    streams.set_stream(streams.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


_allocated: dict[int, torch.UntypedStorage] = {}
