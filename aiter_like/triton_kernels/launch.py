# SPDX-License-Identifier: MIT
"""Runs a Triton kernel by Triton's own launcher, on a GPU or the simulated MI300X. Read by the families beside it."""

from __future__ import annotations

import tomllib
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import triton

from aiter_like import paths
from aiter_like.device import Target, target_of
from aiter_like.errors import UnsupportedError

_AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


def launch(kernel: triton.JITFunction, grid: tuple[int, ...], *args: Any, options: dict[str, int],
           **constants: Any) -> None:
    """Launch `kernel` over `grid` on the device of its first tensor argument.

    Args:
        kernel: the `@triton.jit` function.
        grid: up to three counts of programs.
        args: the kernel's run-time arguments, in order: tensors, None, int, float, bool.
        options: num_warps, num_stages and the AMD-only ones, which NVIDIA never sees.
        constants: the kernel's constexpr arguments.
    """
    options = {"enable_fp_fusion": True, **options}  # Triton's default, which a later version reverses
    target = target_of(next(arg.device for arg in args if isinstance(arg, torch.Tensor)))
    if target.platform != "hip":
        options = {name: value for name, value in options.items() if name not in _AMD_ONLY}
    with _driver(target):
        kernel[grid](*args, **constants, **options)


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


def _driver(target: Target) -> AbstractContextManager:
    """Triton's own driver for a GPU; the simulator's for the simulated one."""
    if not target.simulated:
        return nullcontext()
    from aiter_like import sim_triton

    return sim_triton.active()
