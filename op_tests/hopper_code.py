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
def compiled_for_hopper(monkeypatch: pytest.MonkeyPatch, *asks: ModuleType) -> Iterator[list]:
    """A list that grows by each kernel of which a launcher returns a launch: compiled for sm_90, nothing runs.

    Args:
        asks: the Triton modules that ask for the target.
    """
    from triton.runtime import driver

    from aiter_like.jit.triton_launch import Launch

    built, made = [], Launch.__init__

    def compile_too(self: Launch, kernel: Any, grid: tuple, arguments: tuple, options: dict, constants: dict) -> None:
        made(self, kernel, grid, arguments, options, constants)
        early = {"OVERLAPS": True} if "OVERLAPS" in kernel.arg_names else {}
        built.append(kernel.warmup(*arguments, grid=grid, enable_fp_fusion=True, **options,
                                   **{**constants, **early}))

    for module in asks:
        monkeypatch.setattr(module, "target_of", lambda _: Target("cuda", "sm_90", 132, 32, False, 0), raising=False)
    monkeypatch.setattr(Launch, "__init__", compile_too)
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
