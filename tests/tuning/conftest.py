# SPDX-License-Identifier: MIT
"""The planted operator, which several tests of the tuner share."""

import os
from pathlib import Path

import planted
import pytest

from aiter_like import dispatch, paths

HERE = Path(__file__).parent


@pytest.fixture
def toy(machine, monkeypatch, tmp_path):
    """The planted operator, here and in workers; a cache of its own."""
    monkeypatch.setitem(dispatch.OPS.declared, planted.NAME, planted.op())
    monkeypatch.setattr(paths, "user_tuned", lambda: tmp_path / "user")
    monkeypatch.setenv("AITER_LIKE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent.parent)]))
    planted.op().reset()
    yield
    planted.op().reset()
