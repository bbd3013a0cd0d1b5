# SPDX-License-Identifier: MIT
"""`aiter` where AMD's is absent: a package on PYTHONPATH (`aiter-like shim` prints where), filled from the table.

Its modules are made when they are imported, each with the names that the table gives it; the rest is an error that
says so. Without AITER_LIKE=1 its import fails, so that an engine sees what it sees on a machine without aiter.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from aiter_like import dtypes, env, paths
from aiter_like.integrations import takeover
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter.names import Name

PATH = paths.shim()
"""The folder that belongs on PYTHONPATH."""

TORCH_OPS = "torch.ops.aiter"
_DTYPES = "aiter.utility.dtypes"


def is_shim(module: ModuleType) -> bool:
    """Whether a module named `aiter` is this one."""
    return Path(getattr(module, "__file__", None) or ".").is_relative_to(PATH)


def fill(name: str) -> None:
    """Called by the package itself while it is imported: its names, its modules, and those of torch.ops.aiter.

    Raises:
        ImportError: the switch AITER_LIKE is off.
    """
    if not env.get("AITER_LIKE"):
        raise ImportError("this aiter is aiter_like's shim, which serves engines only where AITER_LIKE=1", name=name)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
    module = sys.modules[name]
    module.__version__ = f"0+aiter_like.{importlib.import_module('aiter_like').__version__}"
    _fill(module)
    for attribute, row in _rows().get(TORCH_OPS, {}).items():
        if not hasattr(torch.ops.aiter, attribute):
            setattr(torch.ops.aiter, attribute, _served(row) if isinstance(row, Name) else row)


def modules() -> frozenset[str]:
    """Every module of the shim, packages included."""
    return _tree()


def has(module: str, name: str) -> bool:
    """Whether a module of the shim has a name, as `hasattr` says of it where the shim is imported."""
    return f"{module}.{name}" in _tree() or name in _rows().get(module, {}) or (
        module == _DTYPES and hasattr(dtypes, name)) or (name.startswith("__") and name.endswith("__"))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules below `aiter`."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _tree() and fullname != "aiter":
            return importlib.machinery.ModuleSpec(fullname, self, origin=str(PATH / "aiter"), is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leaves the making to Python."""

    def exec_module(self, module: ModuleType) -> None:
        _fill(module)


@functools.cache
def _rows() -> dict[str, dict[str, Any]]:
    """Module → its attributes, as rows of the table or objects that hold dotted names."""
    holders: dict[str, list[Name]] = {}
    for row in aiter_names.table():
        for path in row.modules:
            holders.setdefault(path, []).append(row)
    return {path: aiter_names.namespace(rows, _served) for path, rows in holders.items()}


@functools.cache
def _tree() -> frozenset[str]:
    paths = {_DTYPES, *_rows()} - {TORCH_OPS}
    return frozenset(path.rsplit(".", up)[0] for path in paths for up in range(path.count(".") + 1))


def _fill(module: ModuleType) -> None:
    """The table's names, now, because callers ask by hasattr and signature; anything else when it is asked for."""
    for attribute, row in _rows().get(module.__name__, {}).items():
        setattr(module, attribute, _served(row) if isinstance(row, Name) else row)

    def missing(name: str) -> Any:
        path = f"{module.__name__}.{name}"
        if path in _tree():
            return importlib.import_module(path)
        if module.__name__ == _DTYPES:
            return getattr(dtypes, name)
        raise AttributeError(f"{path}: the aiter shim of aiter_like has no such name; AITER.md of "
                             "aiter_like.integrations lists those it has")

    module.__getattr__ = missing


def _served(row: Name) -> Any:
    """The object that serves a row; a function's calls are counted, also where an installed aiter would keep its
    own."""
    if row.server is None or not isinstance(row.value, FunctionType):
        return row.value
    return takeover.take(f"{row.modules[0]}.{row.name}", row.value, None, announce=False)
