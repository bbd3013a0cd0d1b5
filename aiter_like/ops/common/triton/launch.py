# SPDX-License-Identifier: MIT
"""Shared by launchers of Triton kernels: the launch, a kernel's first statement, configurations. Read by the families
beside it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aiter_like import paths
from aiter_like.errors import UnsupportedError
from aiter_like.jit.triton_launch import Launch
from aiter_like.traced import Number, Traced, known

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a version before it
    gdc_launch_dependents = gdc_wait = None

__all__ = ["Launch", "await_stream", "config", "launch", "power_of_2", "real", "scratch"]


@triton.jit
def await_stream(OVERLAPS: tl.constexpr):
    """Begins a kernel that `launch` may start while the stream's previous one ends; csrc/include/aiter_like/gpu.h."""
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()


def launch(kernel: triton.JITFunction, grid: tuple[int, ...], *args: Any, options: Mapping[str, Any],
           **constants: Any) -> Launch:
    """A launch of `kernel`, which a launcher returns; jit/triton_launch.py says what of."""
    return Launch(kernel, grid, args, options, constants)


def scratch(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """Memory of the launches alone, on the device of `like`; a launcher asks nowhere else for some."""
    if type(like) is not Traced:
        return torch.empty(shape, dtype=dtype, device=like.device)
    real = torch.empty([*map(known, shape)], dtype=dtype, device=like.device)
    return Traced.memory(like.trace, real, shape)


def real(value: float) -> float:
    """A number that a kernel gets in floating point, whatever the caller wrote; `float` would make a traced one exact.
    """
    return value * 1.0 if type(value) is Number else float(value)


def power_of_2(number: int) -> int:
    """The least power of two that is not below a positive number, in one step that a trace shows."""
    return 1 << (number - 1).bit_length()


@cache
def config(op: str, arch: str, variant: str) -> dict[str, int]:
    """Table `variant` of `configs/triton/<op>.toml`: the one for `arch`, else the default one.

    Raises:
        UnsupportedError: neither is there.
    """
    tables = tomllib.loads((paths.configs() / "triton" / f"{op}.toml").read_text())
    for name in (arch, "default"):
        if variant in tables.get(name, {}):
            return tables[name][variant]
    raise UnsupportedError(f"{op}: configs/triton/{op}.toml has no configuration {variant!r} for {arch} or default", op)
