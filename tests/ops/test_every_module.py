# SPDX-License-Identifier: MIT
"""Every kernel source compiles in each instance that its operator declares or that one of its cases takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import rotation

from aiter_like.cli.build import selected
from aiter_like.dispatch import OPS
from aiter_like.errors import BuildError
from aiter_like.jit.compile_ops import JitFunction, registered
from aiter_like.modules import build, toolchain

ARCHS = {"gfx942": "hip", "sm_90": "cuda"}
assert list(OPS)  # each one that is read declares its functions
FUNCTIONS = [(function.function_name, arch) for function in registered() if isinstance(function, JitFunction)
             for arch, platform in ARCHS.items() if platform in function.platforms]


def compile_all(name: str, arch: str, part: int = 0, parts_of: int | None = None) -> None:
    """Each instance, or `parts_of` of them: the part with this number, counted on past the last one."""
    try:
        toolchain.find(ARCHS[arch])
    except BuildError:
        if arch == "gfx942":
            raise
        pytest.skip("no nvcc here")
    specs = selected([name], arch)
    assert specs
    count = len(specs) if parts_of is None else min(parts_of, len(specs))
    for index in range(count):
        build.ensure(specs[(part * count + index) % len(specs)])


def test_one_function_of_each_commit():
    """Others at the next commit: a function has up to 60 instances, of which one takes up to 10 seconds."""
    turn = rotation.turn_of(Path(__file__).parent)
    compile_all(*FUNCTIONS[turn % len(FUNCTIONS)], part=turn // len(FUNCTIONS), parts_of=6)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name, arch", FUNCTIONS)
def test_all(name, arch):
    compile_all(name, arch)
