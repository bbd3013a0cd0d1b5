# SPDX-License-Identifier: MIT
"""torch.utils.cpp_extension within sim.as_gpu(): it finds the simulator's folder where a build for ROCm looks for
ROCm's, and results of functions that it compiles are where their arguments are.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiter_like.errors import UnsupportedError
from aiter_like.sim import rocm
from aiter_like.sim.torch_cuda import marks

_OF_GPU = (".cu", ".hip")
_MODULE = "torch.utils.cpp_extension"


class _Folder(os.PathLike):
    """The simulator's folder, which is made when it is asked for."""

    def __fspath__(self) -> str:
        return str(rocm.folder())

    __str__ = __fspath__


class _Finder:
    """Changes the module as soon as a program imports it: that takes too long for programs that do not."""

    def __init__(self, change: Callable[[types.ModuleType], None]):
        self._change = change

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Python's own, for this module."""
        if name != _MODULE:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = found.loader.exec_module

        def changed(module: types.ModuleType) -> None:
            execute(module)
            self._change(module)

        found.loader.exec_module = changed
        return found


@contextlib.contextmanager
def found() -> Iterator[None]:
    """A block in which that is so."""
    before: dict[str, Any] = {}

    def change(module: types.ModuleType) -> None:
        for name, value in _names(module).items():
            before[name] = getattr(module, name)
            setattr(module, name, value)

    finder = _Finder(change)
    if _MODULE in sys.modules:
        change(sys.modules[_MODULE])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, value in before.items():
            setattr(sys.modules[_MODULE], name, value)


def _names(module: types.ModuleType) -> dict[str, Any]:
    return {"ROCM_HOME": _Folder(), "HIP_HOME": None, "IS_HIP_EXTENSION": True, "load": _following(module.load),
            "load_inline": _following(module.load_inline)}


def _following(original: Callable) -> Callable:
    """load or load_inline: the module's functions give tensors where they are given them."""
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        sources = kwargs.get("sources", args[1] if len(args) > 1 else ())
        is_inline = original.__name__ == "load_inline"
        of_gpu = kwargs.get("cuda_sources", args[2] if len(args) > 2 else None) if is_inline else [
            one for one in ([sources] if isinstance(sources, str) else sources) if str(one).endswith(_OF_GPU)]
        if of_gpu:
            raise UnsupportedError(f"sim.as_gpu: torch.utils.cpp_extension.{original.__name__} compiles no kernels on "
                                   "the simulated MI300X: torch's headers need libraries of ROCm for them; "
                                   "torch.cuda._compile_kernel and `aiter-like sim compile` compile kernels",
                                   op="torch.utils.cpp_extension")
        module = original(*args, **kwargs)
        for name, value in vars(module).items() if isinstance(module, types.ModuleType) else ():
            if isinstance(value, types.BuiltinFunctionType):
                setattr(module, name, _within(value))
        return module

    return load


def _within(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        marks.follow(results, [*marks.tensors(args), *marks.tensors(kwargs)])
        return results

    return call
