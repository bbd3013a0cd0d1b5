# SPDX-License-Identifier: MIT
"""The HIP runtime by ctypes: memory, modules, launches, errors as exceptions. Read by tests/sim/*.py."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from aiter_like import sim

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class HipError(RuntimeError):
    """A HIP call failed; the message is the runtime's."""


@functools.cache
def runtime() -> Runtime:
    """The simulator's HIP runtime of this process."""
    return Runtime(sim.load())


class Runtime:
    """Calls of one HIP runtime library."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        library.hipGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Calls `name`; raises HipError with the runtime's text when it does not return 0."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = self._library.hipGetErrorString(ctypes.c_int(code)) or b"no message"
            self._library.hipGetLastError()  # told here: the next launch's check must not find it
            raise HipError(f"{name}: error {code}: {text.decode(errors='replace')}")

    @contextlib.contextmanager
    def memory(self) -> Iterator[Memory]:
        """Device memory that lives as long as the block."""
        memory = Memory(self)
        try:
            yield memory
        finally:
            memory.release()

    @contextlib.contextmanager
    def module(self, code_object: bytes) -> Iterator[Module]:
        """A code object, loaded as long as the block lasts."""
        handle = ctypes.c_void_p()
        self.call("hipModuleLoadData", ctypes.byref(handle), ctypes.c_char_p(code_object))
        try:
            yield Module(self, handle)
        finally:
            self.call("hipModuleUnload", handle)

    def launch(self, function: ctypes.c_void_p, groups: int, lanes: int, shared_bytes: int,
               arguments: Sequence[int]) -> None:
        """Launches `groups` workgroups of `lanes` work-items with 64-bit arguments, and waits."""
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = [ctypes.c_uint(size) for size in (groups, 1, 1, lanes, 1, 1, shared_bytes)]
        self.call("hipModuleLaunchKernel", function, *sizes, None, pointers, None)
        self.call("hipDeviceSynchronize")


class Memory:
    """Allocations of one launch."""

    def __init__(self, hip: Runtime):
        self._hip, self._pointers = hip, []

    def upload(self, data: np.ndarray) -> int:
        """A device copy of `data`; gives its address."""
        if not data.flags.c_contiguous:
            raise ValueError("device buffers are copied from contiguous arrays")
        pointer = ctypes.c_void_p()
        self._hip.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(max(data.nbytes, 1)))
        self._pointers.append(pointer)
        self._hip.call("hipMemcpy", pointer, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes),
                       ctypes.c_int(_HOST_TO_DEVICE))
        return pointer.value

    def download(self, pointer: int, data: np.ndarray) -> None:
        """Copies the device's bytes at `pointer` into `data`."""
        self._hip.call("hipMemcpy", ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(pointer),
                       ctypes.c_size_t(data.nbytes), ctypes.c_int(_DEVICE_TO_HOST))

    def release(self) -> None:
        """Frees everything."""
        for pointer in self._pointers:
            self._hip.call("hipFree", pointer)
        self._pointers.clear()


class Module:
    """A loaded code object."""

    def __init__(self, hip: Runtime, handle: ctypes.c_void_p):
        self._hip, self._handle = hip, handle

    def function(self, name: str) -> ctypes.c_void_p:
        """The kernel `name`."""
        function = ctypes.c_void_p()
        self._hip.call("hipModuleGetFunction", ctypes.byref(function), self._handle, ctypes.c_char_p(name.encode()))
        return function
