# SPDX-License-Identifier: MIT
"""torch.cuda.cudart() within sim.as_gpu(): the functions of HIP that torch has there."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import torch

from aiter_like.sim import session
from aiter_like.sim.torch_cuda import devices, marks, memory


class cudaError(enum.IntEnum):
    """HIP's results."""

    success = 0
    invalidValue = 1
    hostMemoryAlreadyRegistered = 712
    hostMemoryNotRegistered = 713


class Runtime:
    """torch.cuda.cudart()'s answer; addresses are numbers."""

    cudaError = cudaError

    @staticmethod
    def cudaProfilerStart() -> cudaError:
        """No profiler listens."""
        return cudaError.success

    @staticmethod
    def cudaProfilerStop() -> cudaError:
        """No profiler listens."""
        return cudaError.success

    @staticmethod
    def cudaHostRegister(address: int, size: int, flags: int) -> cudaError:
        """Memory of the host is pinned, and its tensors are."""
        if any(address < end and start < address + size for start, end in marks.registered):
            return cudaError.hostMemoryAlreadyRegistered
        marks.registered.append((address, address + size))
        return cudaError.success

    @staticmethod
    def cudaHostUnregister(address: int) -> cudaError:
        """It is no longer."""
        found = [one for one in marks.registered if one[0] == address]
        for one in found:
            marks.registered.remove(one)
        return cudaError.success if found else cudaError.hostMemoryNotRegistered

    @staticmethod
    def cudaStreamCreate(address: int) -> cudaError:
        """Makes a stream, whose handle is written to an address."""
        session.load().hipStreamCreate(ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p)))
        return cudaError.success

    @staticmethod
    def cudaStreamDestroy(stream: int) -> cudaError:
        """Ends a stream."""
        session.load().hipStreamDestroy(ctypes.c_void_p(stream))
        return cudaError.success

    @staticmethod
    def cudaMemGetInfo(device: int) -> tuple[int, int]:
        """Free and all bytes of a device."""
        total = devices.properties(devices.number_of(device)).total_memory
        return total - memory.of(devices.number_of(device)).now, total


def check_error(res: Any) -> None:
    """torch.cuda.check_error.

    Raises:
        torch.cuda.CudaError: a result is none of success.
    """
    if int(res) != cudaError.success:
        raise CudaError(int(res))


class CudaError(torch.cuda.CudaError):
    """torch.cuda.CudaError, with HIP's text of a result."""

    def __init__(self, code: int):
        RuntimeError.__init__(self, f"{session.load().hipGetErrorString(int(code)).decode()} ({int(code)})")
