# SPDX-License-Identifier: MIT
"""Finds the data folders: beside the package in a checkout, inside it (`_data`) in an installed wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import platformdirs


@cache
def data_root() -> Path:
    """Folder that holds csrc/, hsa/, configs/ and tuned_csv/. Never written to."""
    package = Path(__file__).resolve().parent
    installed = package / "_data"
    return installed if installed.is_dir() else package.parent


def csrc() -> Path:
    """C++ and HIP sources."""
    return data_root() / "csrc"


def hsa() -> Path:
    """Hand-written assembly."""
    return data_root() / "hsa"


def configs() -> Path:
    """Numbers chosen by hand, each with its source."""
    return data_root() / "configs"


def shim() -> Path:
    """The folder of a package `aiter` (integrations/aiter/shim.py)."""
    return Path(__file__).resolve().parent / "integrations" / "aiter" / "shim_path"


def prebuilt() -> Path:
    """Modules that a wheel brings built (hatch_build.py); a checkout has none."""
    return Path(__file__).resolve().parent / "_data" / "prebuilt"


def user_tuned() -> Path:
    """The user's own tuned tables, which a tuner writes where the package is installed and not a checkout."""
    return platformdirs.user_data_path("aiter_like", appauthor=False) / "tuned"


def tuned_csv() -> Path:
    """Packaged tuned tables."""
    return data_root() / "tuned_csv"


def mapped_libraries(name: str) -> list[str]:
    """Paths of the shared libraries of this process whose file names begin with `name`, sorted."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        return sorted({line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if f"/{name}" in line})
