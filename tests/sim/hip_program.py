# SPDX-License-Identifier: MIT
"""Compiles HIP programs for tests: to a library with host stubs, or to a bare code object. Read by tests/sim/test_*.py."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

from aiter_like import paths, sim
from aiter_like.jit import toolchain

PRELUDE = '#include "aiter_like/gpu.h"\nusing namespace aiter_like;\n'


@functools.cache
def library(source: str) -> ctypes.CDLL:
    """`source`, host and device side, loaded beside the simulator."""
    sim.load()
    return ctypes.CDLL(str(_compile(source, ("-fPIC", "-shared", "-no-hip-rt"), "program.so")))


@functools.cache
def code_object(source: str, *flags: str) -> bytes:
    """The device side of `source`: a bare ELF unless `flags` ask for something else."""
    flags = flags or ("--no-gpu-bundle-output",)
    return _compile(source, ("--offload-device-only", "-c", *flags), "program.hsaco").read_bytes()


def _compile(source: str, flags: tuple[str, ...], output: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="aiter-like-test-"))
    (folder / "program.hip").write_text(PRELUDE + source)
    compiler = toolchain.find("hip").path
    command = [compiler, "-x", "hip", "--offload-arch=gfx942", "-std=c++17", "-O2", "-nogpuinc", "-nogpulib",
               f"-I{paths.csrc() / 'include'}", *flags, "-o", str(folder / output), str(folder / "program.hip")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return folder / output
