# SPDX-License-Identifier: MIT
"""HIP programs of the tests: compiled to a library with host stubs, or to a bare code object."""

import contextlib
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aiter_like import paths, sim
from aiter_like.modules import toolchain

PRELUDE = '#include "aiter_like/gpu.h"\nusing namespace aiter_like;\n'


@functools.cache
def library(source: str) -> ctypes.CDLL:
    """`source`, host and device side, loaded beside the simulator."""
    sim.load()
    with _compiled(source, ("-fPIC", "-shared", "-no-hip-rt")) as path:
        return ctypes.CDLL(str(path))


@functools.cache
def code_object(source: str, *flags: str, compiler: str = "") -> bytes:
    """The device side of `source`: a bare ELF unless `flags` ask for something else; by the clang that is found, or by
    another `compiler`.
    """
    flags = flags or ("--no-gpu-bundle-output",)
    with _compiled(source, ("--offload-device-only", "-c", *flags), compiler) as path:
        return path.read_bytes()


@contextlib.contextmanager
def _compiled(source: str, flags: tuple[str, ...], compiler: str = "") -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        program, output = Path(folder, "program.hip"), Path(folder, "program.out")
        program.write_text(PRELUDE + source)
        command = [compiler or toolchain.find("hip").host_compiler, "-x", "hip", "--offload-arch=gfx942", "-std=c++17",
                   "-O2", "-nogpuinc", "-nogpulib", f"-I{paths.csrc() / 'include'}", *flags, "-o", str(output),
                   str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        yield output
