# SPDX-License-Identifier: MIT
"""Triton's code for sm_90 without a GPU, for tests of what the compiler made of a kernel."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget

from aiter_like.device import Target


class Hopper:
    """As much of Triton's driver as compiling for sm_90 takes, which needs no GPU."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiled_for_hopper(monkeypatch: pytest.MonkeyPatch, asks: ModuleType, *launches: ModuleType) -> Iterator[list]:
    """A list that grows by each kernel that is launched: compiled for sm_90, nothing runs.

    Args:
        asks: the Triton module that asks for the target.
        launches: those that call `launch`.
    """
    from triton.runtime import driver

    built = []

    def compile_only(kernel: Any, grid: tuple, *args: Any, options: dict, **constants: Any) -> None:
        if "OVERLAPS" in kernel.arg_names:  # as `launch` says on Hopper
            constants["OVERLAPS"] = True
        built.append(kernel.warmup(*args, grid=grid, enable_fp_fusion=True, **constants, **options))

    monkeypatch.setattr(asks, "target_of", lambda _: Target("cuda", "sm_90", 132, 32, False, 0))
    for module in launches:
        monkeypatch.setattr(module, "launch", compile_only)
        if hasattr(module, "starter"):  # of jit/triton_launch.py: nothing is launched again
            monkeypatch.setattr(module, "starter", lambda *_: None)
    before = driver._active
    driver.set_active(Hopper())
    try:
        yield built
    finally:
        driver.set_active(before)


def disassembled(kernel: Any, folder: Path) -> str:
    """The machine code of a compiled kernel."""
    (folder / "cubin").write_bytes(kernel.asm["cubin"])
    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([disassembler, "-sass", folder / "cubin"], capture_output=True, text=True, check=True).stdout
