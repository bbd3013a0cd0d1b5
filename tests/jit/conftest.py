# SPDX-License-Identifier: MIT
"""Fixtures of the JIT's tests; what they are made of is in jit_project.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jit_project import Compiler, Project, fake_compiler, forget, make_hip_project

from aiter_like import paths
from aiter_like.jit import JitFunction


@pytest.fixture(autouse=True)
def jit_folders(tmp_path, monkeypatch):
    """Each test has its own cache, and no memory of compilers."""
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
