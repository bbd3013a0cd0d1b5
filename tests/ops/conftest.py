# SPDX-License-Identifier: MIT
"""What the gates of kernels share."""

import os
import shutil
from typing import Any

import pytest

from aiter_like import device as devices
from aiter_like.dispatch import reset
from aiter_like.modules import toolchain
from aiter_like.ops.gemm import few_rows, tiles
from aiter_like.ops.moe import moe_gemm_ck


@pytest.fixture
def compiled_by(monkeypatch, tmp_path):
    """Builds the given stubs' kernels anew by a compiler; one that comes without a bundler takes that of the newest."""

    def choose(compiler: str, *stubs: Any) -> None:
        found = toolchain._identify(shutil.which(compiler) or compiler, *toolchain._search()).toolchain
        assert found is not None, f"{compiler} is needed for the gates of kernels: see .ci/setup.sh"
        bundler = tmp_path / "clang-offload-bundler"
        bundler.write_text(f"#!/bin/sh\nset -- $(printf '%s\\n' \"$@\" | sed 's/-linux,/-linux-gnu,/')\n"
                           f'exec {shutil.which("clang-offload-bundler-22")} "$@"\n')
        bundler.chmod(0o755)
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{tmp_path}")
        find = toolchain.find
        monkeypatch.setattr(toolchain, "find", lambda platform: found if platform == "hip" else find(platform))
        for stub in stubs:
            monkeypatch.setattr(stub, "_bound", {})

    return choose


@pytest.fixture
def tile_of(monkeypatch):
    """Makes the operators of products take a tile, on the simulated device."""
    devices.use_simulator(True)

    def choose(tile: str) -> None:
        monkeypatch.setattr(moe_gemm_ck, "cheapest", lambda call: tile)
        for choice in ((tiles, "cheapest"), (few_rows, "chosen")):
            monkeypatch.setattr(*choice, lambda *sizes, **given: (tile, 1))
        reset()

    yield choose
    monkeypatch.undo()
    reset()
    devices.reset()
