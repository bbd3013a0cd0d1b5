# SPDX-License-Identifier: MIT
"""Operators that programs add to torch.library within sim.as_gpu(): kernels for "CUDA" serve tensors on the GPU, those
for "CPU" tensors of the host, and the mode is on in both.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aiter_like.sim.torch_cuda import absent, gradients, marks

_OWN = ("aten", "aiter_like", "prims", "prim")
"""Namespaces whose operators stay as they are."""
_SAME = {"AutogradCUDA": "AutogradCPU", "AutocastCUDA": "AutocastCPU"}
_kernels: dict[str, dict[str, Callable]] = {}


def replacements(mode: TorchFunctionMode) -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    yield torch.library.Library, "impl", _adding(mode, torch.library.Library.impl)


def _adding(mode: TorchFunctionMode, original: Callable) -> Callable:
    """Library.impl."""
    def impl(self: Any, op_name: Any, fn: Callable, dispatch_key: str = "", **options: Any) -> None:
        key = dispatch_key or self.dispatch_key
        is_torchs = getattr(fn, "__module__", "").startswith("torch.")
        if self.ns == "aten" and key in ("CUDA", "AutogradCUDA") and not is_torchs:
            absent.refuse(f"a kernel of torch's own operator {op_name} for a GPU")
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
        key = "CPU" if marks.first_place(args, kwargs) is None else "CUDA"
        if not mode.is_on and key not in kernels:
            key = next(iter(kernels))
        if key not in kernels:
            found = _kernel_for_any(name)
            if found is not None:
                return found.call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
            raise NotImplementedError(f"Could not run '{name}' with arguments from the '{key}' backend: it has a "
                                      f"kernel for {', '.join(kernels)}")
        return kernels[key](*args, **kwargs)

    return kernel


def _kernel_for_any(name: str) -> Any:
    """An operator's kernel for any device, or None: torch calls it for a kind of device that nobody has kernels for."""
    try:
        return torch.library.get_kernel(name, "IPU")
    except RuntimeError as error:
        if "no kernel" not in str(error):
            raise
        return None
