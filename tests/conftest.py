# SPDX-License-Identifier: MIT
"""Fixtures that several test files share."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import children
import pytest
import rotation
import torch
from jit_project import Compiler, Project, fake_compiler, forget, make_hip_project
from toys import HARDWARE

from aiter_like import device, dispatch, paths, sim
from aiter_like.dispatch import self_check, table
from aiter_like.jit import JitFunction
from aiter_like.modules import cache

CACHES = {"AITER_LIKE_CACHE_DIR": str(cache.cache_root()), "TRITON_CACHE_DIR": str(Path.home() / ".triton" / "cache")}


def pytest_addoption(parser):
    parser.addoption("--engine-python", action="append", default=[], metavar="ENGINE=PATH",
                     help="for tests marked `engine`: a Python that has the engine and this package (repeatable); "
                          "default: .engines/ENGINE, built on first use")


def pytest_configure():
    """A shell starts background jobs, so perhaps the tests, with SIGINT ignored, and children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items):
    """In files marked `rotating` all tests run a part of their cases, as the large ones of op_tests do."""
    folder = Path(__file__).resolve().parent
    rotating = [item for item in items if item.path.is_relative_to(folder) and item.get_closest_marker("rotating")]
    for item in rotation.items_left_out(rotating, large=1):
        item.add_marker("exhaustive")


@pytest.fixture
def simulated():
    """Calls on CPU tensors run on the simulated MI300X; afterwards nothing is remembered of what was chosen there."""
    device.use_simulator(True)
    dispatch.reset()
    yield
    dispatch.reset()
    device.reset()


@pytest.fixture
def gpu():
    """torch's "cuda" is the simulated MI300X; the test gets its device."""
    with sim.as_gpu() as device:
        yield device


@pytest.fixture
def simulated_triton():
    """Triton compiles for the simulated MI300X and runs on it."""
    pytest.importorskip("triton")
    sim.enable_triton()
    yield
    sim.disable_triton()


@pytest.fixture
def caches(pytester, monkeypatch):
    """The programs of `pytester`, which moves HOME, are forks and find what has been built, the simulator too."""
    monkeypatch.setattr(pytester, "popen", children.of_pytester)
    for name, folder in CACHES.items():
        monkeypatch.setenv(name, os.environ.get(name, folder))


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A hip target that runs plain Python functions; no packaged rows; operators of other tests are out of sight."""
    monkeypatch.setattr(dispatch.OPS, "declared", {})
    monkeypatch.setattr(dispatch.OPS, "index", {})
    monkeypatch.setattr(device, "_targets", {torch.device("cpu"): HARDWARE})
    monkeypatch.setattr(self_check, "applies", lambda backend, target: False)
    monkeypatch.setattr(table.paths, "tuned_csv", lambda: tmp_path / "packaged")
    for name in ("AITER_LIKE_DISABLE", "AITER_LIKE_BACKENDS", "AITER_LIKE_TUNED", "AITER_LIKE_RECORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def jit_folders(tmp_path, monkeypatch):
    """A cache of the test's own, and no memory of compilers."""
    for name in ("AITER_LIKE_TOOLCHAIN", "AITER_LIKE_PREBUILT_DIR", "AITER_LIKE_JOBS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AITER_LIKE_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield
    forget()


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Compiler:
    """The fake compiler, chosen through AITER_LIKE_TOOLCHAIN."""
    compiler = fake_compiler(tmp_path / "bin")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))
    return compiler


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path / "csrc")


@pytest.fixture
def hip_project(tmp_path, monkeypatch) -> Path:
    """A csrc/ with this package's headers and op/scale.hip, in place of the real one; its kernels are not run."""
    root = make_hip_project(tmp_path / "csrc")
    monkeypatch.setattr(paths, "csrc", lambda: root)
    module = sys.modules[JitFunction.__module__]  # jit.compile_ops names the decorator
    monkeypatch.setattr(module, "load_hip_runtime", lambda simulated: None)
    monkeypatch.setattr(module, "_registry", {})
    return root
