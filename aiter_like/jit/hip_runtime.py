# SPDX-License-Identifier: MIT
"""The HIP runtime that modules are linked against when they are loaded: the simulator's or the hardware's."""

from __future__ import annotations

import ctypes
import os

from aiter_like import paths
from aiter_like.build.cache import META
from aiter_like.errors import BuildError


def load_hip_runtime(simulated: bool) -> ctypes.CDLL:
    """Makes the HIP entry points visible to modules, which name no runtime themselves; the runtime's library.

    Raises:
        BuildError: the process has no HIP runtime, or already resolves to the other one of simulator and hardware.
    """
    if simulated:
        from aiter_like import sim

        library = sim.load()
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
