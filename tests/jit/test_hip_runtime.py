# SPDX-License-Identifier: MIT
"""Which HIP runtime a module gets, in processes of their own: what is loaded for a whole process stays."""

import subprocess
import sys
from pathlib import Path

import pytest
from jit_project import real_clang

_PROGRAM = """
import ctypes, sys, types
import aiter_like
from aiter_like.errors import BuildError
from aiter_like.jit import JitFunction
load = sys.modules[JitFunction.__module__]._load_hip_runtime
real, simulated = sys.argv[1:3]

def simulator():
    return ctypes.CDLL(simulated, mode=ctypes.RTLD_GLOBAL)

aiter_like.sim = sys.modules["aiter_like.sim"] = types.SimpleNamespace(load=simulator)

def visible():
    return ctypes.CDLL(None).hipLaunchKernel()
"""


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory) -> list[Path]:
    """Two libraries of the runtime's name; their hipLaunchKernel returns 1 in the first, the real one, and 2 in the second."""
    libraries = []
    for number, name in enumerate(("real", "a simulated one"), 1):  # the second sorts before the first
        library = tmp_path_factory.mktemp(name) / "libamdhip64.so"
        source = library.with_suffix(".cpp")
        source.write_text(f'extern "C" int hipLaunchKernel() {{ return {number}; }}')
        subprocess.run([real_clang(), "-shared", "-fPIC", "-o", library, source], check=True)
        libraries.append(library)
    libraries[1].with_name("meta.json").write_text("{}")  # beside each library that the JIT built
    return libraries


def _run(runtimes: list[Path], code: str) -> str:
    run = subprocess.run([sys.executable, "-c", _PROGRAM + code, *runtimes], capture_output=True, text=True,
                         check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_simulator(runtimes):
    assert _run(runtimes, "load(simulated=True); print(visible())") == "2"


def test_hardware_takes_the_runtime_that_torch_loaded(runtimes):
    """torch's own library is private to it (RTLD_LOCAL) until a module needs it."""
    assert _run(runtimes, "ctypes.CDLL(real); load(simulated=False); print(visible())") == "1"


@pytest.mark.parametrize("code, message", [
    ("load(simulated=False)", "torch has loaded no HIP runtime"),
    ("load(simulated=True); load(simulated=False)", "torch has loaded no HIP runtime"),
    ("ctypes.CDLL(real); load(simulated=False); load(simulated=True)", "already has another HIP runtime"),
    ("load(simulated=True); ctypes.CDLL(real); load(simulated=False)", "already has another HIP runtime"),
])
def test_refusals(runtimes, code, message):
    assert message in _run(runtimes, f"try: {code}\nexcept BuildError as error: print(error)")
