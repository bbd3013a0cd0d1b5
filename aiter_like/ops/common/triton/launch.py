# SPDX-License-Identifier: MIT
"""What launchers of Triton kernels share: the launch, a kernel's first statement, configurations. Read by the families
beside it.
"""

from __future__ import annotations

import tomllib
from functools import cache

import triton
import triton.language as tl

from aiter_like import paths
from aiter_like.errors import UnsupportedError
from aiter_like.jit.triton_launch import Launch, launch

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a version before it
    gdc_launch_dependents = gdc_wait = None

__all__ = ["Launch", "await_stream", "config", "launch"]


@triton.jit
def await_stream(OVERLAPS: tl.constexpr):
    """Begins a kernel that `launch` may start while the stream's previous one ends; csrc/include/aiter_like/gpu.h."""
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()


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
