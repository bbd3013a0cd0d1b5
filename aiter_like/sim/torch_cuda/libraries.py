# SPDX-License-Identifier: MIT
"""Operators that programs add to torch.library within sim.as_gpu(): kernels for "CUDA" serve tensors on the GPU, those
for "CPU" tensors of the host, and the mode is on in both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aiter_like.sim.torch_cuda import gradients, marks, overrides

_OWN = ("aten", "aiter_like", "prims", "prim")
"""Namespaces whose operators stay as they are."""
_SAME = {"AutogradCUDA": "AutogradCPU", "AutocastCUDA": "AutocastCPU"}
_NO_ONES = "IPU"
"""A key of a device for which no program has kernels: torch calls by it those for any device."""
_kernels: dict[str, dict[str, Callable]] = {}


def replacements(mode: TorchFunctionMode) -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    yield torch.library.Library, "impl", _adding(mode, torch.library.Library.impl)


def _adding(mode: TorchFunctionMode, original: Callable) -> Callable:
    """Library.impl."""
    def impl(self: Any, op_name: Any, fn: Callable, dispatch_key: str = "", **options: Any) -> None:
        key = dispatch_key or self.dispatch_key
        is_given = self.ns == "aten" and key in overrides.KEYS and fn is not torch.library.fallthrough_kernel
        if is_given and overrides.is_there(self, op_name):
            return overrides.add(self, op_name, fn, key, original=original, is_on=lambda: mode.is_on,
                                 switched_on=lambda: gradients.switched_on(mode), **options)
        key = _SAME.get(key, key)
        is_plain = self.ns in _OWN or key == "Meta" or fn is torch.library.fallthrough_kernel
        if is_plain or options.get("with_keyset"):
            return original(self, op_name, fn, key, **options)
        kernel = _within(mode, fn)
        if key not in ("CPU", "CUDA"):
            return original(self, op_name, kernel, key, **options)
        name = self._resolve_op_name(op_name, "impl")
        name = name if "::" in name else f"{self.ns}::{name}"
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            kernels = _kernels[name] = {}
            original(self, op_name, _choosing(mode, name, kernels), "CPU", **options)
        elif name not in _kernels:
            return original(self, op_name, fn, key, **options)
        _kernels[name][key] = kernel
        return None

    return impl


def _within(mode: TorchFunctionMode, fn: Callable) -> Callable:
    """A kernel in which the mode is on, as long as it is at all."""
    @functools.wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with gradients.switched_on(mode):
            return fn(*args, **kwargs)

    return kernel


def _choosing(mode: TorchFunctionMode, name: str, kernels: dict[str, Callable]) -> Callable:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        is_on_gpu = any(marks.index_of(one) is not None for one in (*marks.tensors(args), *marks.tensors(kwargs)))
        key = "CUDA" if is_on_gpu else "CPU"
        if not mode.is_on and key not in kernels:
            key = next(iter(kernels))
        if key not in kernels:
            found = overrides.kernel_of(name, _NO_ONES)
            if found is not None:
                return found.call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
            raise NotImplementedError(f"Could not run '{name}' with arguments from the '{key}' backend: it has a "
                                      f"kernel for {', '.join(kernels)}")
        return kernels[key](*args, **kwargs)

    return kernel
