# SPDX-License-Identifier: MIT
"""What the gates of kernels share; as in op_tests, large tests run a part of their cases at each commit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import rotation

from aiter_like.build import toolchain

_FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A case is a build, of up to ten seconds, by one of two compilers."""
    own = [item for item in items if item.path.is_relative_to(_FOLDER)]
    for item in rotation.items_left_out(own, rotation.turn_of(_FOLDER)):
        item.add_marker("exhaustive")


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
