# SPDX-License-Identifier: MIT
"""trace_observer.cpp, built: an observer in a library of its own, which tells of launches, instructions, accesses."""

import contextlib
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aiter_like import paths, sim
from aiter_like.modules import toolchain


@functools.cache
def library() -> ctypes.CDLL:
    """trace_observer.cpp, compiled against the simulator's headers."""
    source = Path(__file__).with_name("trace_observer.cpp")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "trace.so")
        command = [toolchain.find("host").host_compiler, "-std=c++20", "-O1", "-Wall", "-Werror", "-fPIC", "-shared",
                   f"-I{paths.csrc() / 'sim'}", "-o", str(output), str(source)]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(output))
    loaded.trace_text.restype = ctypes.c_char_p
    return loaded


@contextlib.contextmanager
def recorded_launches() -> Iterator[list[str]]:
    """Fills the list that it yields when the block ends: a line per launch, as trace_observer.cpp writes it."""
    trace, simulator, lines = library(), sim.load(), []
    trace.trace_begin(ctypes.c_uint32(1), ctypes.c_uint64(0))
    trace.trace_ranges(simulator.aiter_like_sim_ranges)
    simulator.aiter_like_sim_observe(trace.record_launch, 1)
    try:
        yield lines
    finally:
        simulator.aiter_like_sim_observe(trace.record_launch, 0)
    lines += trace.trace_text().decode().splitlines()
