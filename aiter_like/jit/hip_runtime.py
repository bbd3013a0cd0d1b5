# SPDX-License-Identifier: MIT
"""The HIP runtime that modules are linked against when they are loaded, and that launches code objects: the simulator's
or the hardware's."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from aiter_like import paths
from aiter_like.device import Target
from aiter_like.errors import BuildError
from aiter_like.modules.cache import META


def load_hip_runtime(simulated: bool) -> ctypes.CDLL:
    """Makes the HIP entry points visible to modules, which name no runtime themselves; the runtime's library.

    Raises:
        BuildError: the process has no HIP runtime, or already resolves to the other one of simulator and hardware.
    """
    if simulated:
        from aiter_like.sim import seam

        library = seam.load()
    else:
        real = [path for path in paths.mapped_libraries("libamdhip64.so")
                if not os.path.exists(f"{os.path.dirname(path)}/{META}")]  # not ours
        if not real:
            raise BuildError("torch has loaded no HIP runtime (libamdhip64.so) in this process")
        library = ctypes.CDLL(real[0], mode=ctypes.RTLD_GLOBAL)
    own, seen = (ctypes.cast(scope.hipLaunchKernel, ctypes.c_void_p).value for scope in (library, ctypes.CDLL(None)))
    if own != seen:
        raise BuildError("this process already has another HIP runtime: use either the simulated MI300X or the "
                         "hardware in one process")
    return library


class ModuleRuntime:
    """The calls of the process's HIP runtime that a module launch needs, simulated or real: for code objects that are
    no tvm-ffi modules.

    Raises:
        BuildError: the process has none, or the other one of simulator and hardware.
    """

    def __init__(self, target: Target):
        self._library = library = load_hip_runtime(target.simulated)
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        self._target = target
        self._load = _declared(library, "hipModuleLoadData", pointer, ctypes.c_char_p)
        self._find = _declared(library, "hipModuleGetFunction", pointer, pointer, ctypes.c_char_p)
        self._launch = _declared(library, "hipModuleLaunchKernel", pointer, *[u32] * 7, pointer, pointer, pointer)
        self._message = _declared(library, "hipGetErrorString", ctypes.c_int)
        self._message.restype = ctypes.c_char_p
        self._clear = _declared(library, "hipGetLastError")

    def function(self, image: bytes, symbol: str) -> ctypes.c_void_p:
        """Loads a code object, for the life of the process, and finds a kernel in it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with self._device():
            self._check(self._load(ctypes.byref(module), image))
            self._check(self._find(ctypes.byref(function), module, symbol.encode()))
        return function

    def launch(self, function: ctypes.c_void_p, grid: Sequence[int], block: Sequence[int], kernargs: bytes,
               shared_bytes: int = 0) -> None:
        """Launches on the device's current stream.

        Raises:
            ValueError: a number has more than 32 bits, which the runtime's launch would cut off.
            RuntimeError: the runtime refuses; its message.
        """
        if max(*grid, *block) >> 32:
            raise ValueError(f"a launch must have a grid and block of at most 32 bits each, got {grid} and {block}")
        size = ctypes.c_size_t(len(kernargs))
        extra = (ctypes.c_void_p * 5)(1, ctypes.cast(kernargs, ctypes.c_void_p), 2, ctypes.addressof(size), 3)
        stream = 0 if self._target.simulated else torch.cuda.current_stream(self._target.index).cuda_stream
        with self._device():
            self._check(self._launch(function, *grid, *block, shared_bytes, stream, None, extra))

    def versions(self) -> dict[str, int]:
        """hipRuntimeGetVersion's and hipDriverGetVersion's numbers."""
        found = {}
        for name in ("hipRuntimeGetVersion", "hipDriverGetVersion"):
            number = ctypes.c_int()
            self._check(_declared(self._library, name, ctypes.c_void_p)(ctypes.byref(number)))
            found[name] = number.value
        return found

    def _device(self) -> Any:
        """The target as current device: a module belongs to the device on which it was loaded."""
        return nullcontext() if self._target.simulated else torch.cuda.device(self._target.index)

    def _check(self, error: int) -> None:
        if error:
            message = self._message(error).decode(errors="replace")
            self._clear()  # it is told here, and not to the next caller
            raise RuntimeError(message)


def _declared(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    function = library[name]  # an object of our own: other users of the library declare theirs
    function.argtypes = arguments
    return function
