# SPDX-License-Identifier: MIT
"""Kernels that print and assert, and their launches: read by test_printf.py and test_printf_order.py."""

import struct
from pathlib import Path

import torch
from hip_program import code_object

from aiter_like import paths, sim

_HEADER = f"""
#include "{Path(paths.csrc(), "sim/include/hip/detail/printf.h")}"
#include <cassert>
#include <cstdio>
__device__ inline int lane() {{ return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }}
__device__ inline int group() {{ return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }}
"""


def compiled(source: str, *flags: str) -> bytes:
    """The code object of `source`, which may print, with lines numbered from the first of `source`."""
    return code_object(_HEADER + '#line 1 "talk.hip"\n' + source, "--no-gpu-bundle-output", "-gline-tables-only",
                       *flags)


def launch(code: bytes, *values: torch.Tensor | int | float, kernel: str = "talk", grid: int = 1,
           block: int = 64) -> None:
    """Launches a kernel on tensors, whole numbers of 32 bits, and doubles."""
    kernargs, tensors = b"", tuple(value for value in values if isinstance(value, torch.Tensor))
    for value in values:
        kind = "i" if isinstance(value, int) else "d" if isinstance(value, float) else "Q"
        kernargs += b"\0" * (-len(kernargs) % struct.calcsize(kind))
        kernargs += struct.pack(kind, value.data_ptr() if isinstance(value, torch.Tensor) else value)
    sim.checked_call(kernel, lambda *_: sim.launch(code, kernel, (grid, 1, 1), (block, 1, 1), 0, kernargs), tensors,
                     range(len(tensors)))


def bytes_of(text: str) -> torch.Tensor:
    """The text as a C string on the device."""
    return torch.tensor([*text.encode(), 0], dtype=torch.uint8)
