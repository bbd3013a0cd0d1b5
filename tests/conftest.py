# SPDX-License-Identifier: MIT
"""Fixtures that several test files share."""

from __future__ import annotations

import pytest
import torch
from toys import HARDWARE

from aiter_like import device, dispatch
from aiter_like.dispatch import self_check, table


def pytest_addoption(parser):
    parser.addoption("--engine-python", action="append", default=[], metavar="ENGINE=PATH",
                     help="for tests marked `engine`: a Python that has the engine and this package (repeatable); "
                          "default: .engines/ENGINE, built on first use")


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
