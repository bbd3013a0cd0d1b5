# SPDX-License-Identifier: MIT
"""Every kernel source compiles in each instance that its operator declares or that one of its cases takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import rotation

from aiter_like.build import build, toolchain
from aiter_like.cli.build import selected
from aiter_like.dispatch import OPS
from aiter_like.errors import BuildError
from aiter_like.jit.compile_ops import JitFunction, registered

ARCHS = {"gfx942": "hip", "sm_90": "cuda"}
assert list(OPS)  # each one that is read declares its functions
FUNCTIONS = [(function.function_name, arch) for function in registered() if isinstance(function, JitFunction)
             for arch, platform in ARCHS.items() if platform in function.platforms]


def compile_all(name: str, arch: str) -> None:
    try:
        toolchain.find(ARCHS[arch])
    except BuildError:
        if arch == "gfx942":
            raise
        pytest.skip("no nvcc here")
    specs = selected([name], arch)
    assert specs
    for spec in specs:
        build.ensure(spec)


def test_one_function_of_each_commit():
    compile_all(*FUNCTIONS[rotation.turn_of(Path(__file__).parent) % len(FUNCTIONS)])


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name, arch", FUNCTIONS)
def test_all(name, arch):
    compile_all(name, arch)
