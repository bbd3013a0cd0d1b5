# SPDX-License-Identifier: MIT
"""Runs a Triton kernel by Triton's own launcher, on a GPU or the simulated MI300X. Launchers have it by way of
ops/common/triton/launch.py; as all that stands outside of ops/, it does not count in a kernel's revision.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import triton
from triton.compiler import CompiledKernel

from aiter_like.device import Target, target_of
from aiter_like.jit import repeat

try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # a version before it
    gdc_wait = None

_AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


def launch(kernel: triton.JITFunction, grid: tuple[int, ...], *args: Any, options: dict[str, int],
           **constants: Any) -> CompiledKernel:
    """Launch `kernel` over `grid` on the device of its first tensor argument; the kernel that was compiled for them.

    Where it has a constexpr argument OVERLAPS, which it hands to await_stream, Hopper may start it early.

    Args:
        kernel: the `@triton.jit` function.
        grid: up to three counts of programs.
        args: the kernel's run-time arguments, in order: tensors, None, int, float, bool.
        options: num_warps, num_stages and the AMD-only ones, which NVIDIA never sees.
        constants: the kernel's constexpr arguments.
    """
    options = {"enable_fp_fusion": True, **options}  # Triton's default, which a later version reverses
    target = target_of(next(arg.device for arg in args if isinstance(arg, torch.Tensor)))
    if target.platform != "hip":
        options = {name: value for name, value in options.items() if name not in _AMD_ONLY}
    if "OVERLAPS" in kernel.arg_names:
        constants["OVERLAPS"] = overlaps(target)
        if constants["OVERLAPS"]:
            options["launch_pdl"] = True
    with driver_of(target):
        compiled = kernel[grid](*args, **constants, **options)
    if repeat.is_recording():
        repeat.tell(starter(compiled, grid, target), (*args, *_ordered(kernel, len(args), constants)))
    return compiled


def starter(compiled: CompiledKernel, grid: tuple[int, ...], target: Target) -> Callable[..., None]:
    """What launches a compiled kernel over `grid`: a function of all arguments of the kernel, in order."""
    places = (*grid, 1, 1)[:3]
    if not target.simulated:
        return compiled[places]

    def start(*args: Any) -> None:
        with driver_of(target):
            compiled[places](*args)  # asks anew which simulated device is the current one

    return start


class Launch:
    """One launch of a kernel, repeated with other tensors of the same metadata.

    Triton looks at each argument of each launch, 50 µs for the forty of attention. Of tensors that look alike only the
    address, and on AMD the size of the memory behind it, can make another kernel: only those are looked at here.

    Attributes:
        kernel, options, constants: as for `launch`.
        grid: three counts of programs.
        others: the run-time arguments behind the tensors.
    """

    def __init__(self, kernel: triton.JITFunction, grid: tuple[int, ...], others: tuple, *, options: dict[str, int],
                 **constants: Any):
        self.kernel, self.grid, self.others, self.options, self.constants = kernel, grid, others, options, constants
        self._ordered = [constants[name] for name in kernel.arg_names if name in constants]
        self._starters: dict[tuple, Callable[..., None]] = {}

    def __call__(self, *tensors: Any) -> None:
        """Launches with `tensors`, any of them None or a descriptor, as the first arguments."""
        target = target_of(tensors[0].device)
        key = tuple([_traits(x, target.platform) for x in tensors])
        start = self._starters.get(key)
        if start is None:
            compiled = launch(self.kernel, self.grid, *tensors, *self.others, options=self.options, **self.constants)
            self._starters[key] = starter(compiled, self.grid, target)
        else:
            arguments = (*tensors, *self.others, *self._ordered)
            start(*arguments)
            repeat.tell(start, arguments)


@cache
def overlaps(target: Target) -> bool:
    """Whether a kernel that begins with await_stream may start before the previous one has ended: since Hopper."""
    is_known = gdc_wait is not None
    return is_known and target.platform == "cuda" and int(target.arch.removeprefix("sm_").rstrip("af")) >= 90


def driver_of(target: Target) -> AbstractContextManager:
    """Triton's own driver for a GPU; the simulator's for the simulated one."""
    if not target.simulated:
        return nullcontext()
    from aiter_like.sim import triton as simulated

    return simulated.active()


def _ordered(kernel: triton.JITFunction, given: int, constants: dict[str, Any]) -> list[Any]:
    """The arguments behind the first `given` ones; those that nobody names have their defaults."""
    parameters = inspect.signature(kernel.fn).parameters
    return [constants.get(name, parameters[name].default) for name in kernel.arg_names[given:]]


def _traits(argument: Any, platform: str) -> Any:
    """What Triton specialises on, beyond a tensor's metadata; of a descriptor nothing."""
    if not isinstance(argument, torch.Tensor):
        return argument is None
    is_aligned = argument.data_ptr() % 16 == 0
    return is_aligned if platform == "cuda" else (is_aligned, argument.untyped_storage().nbytes() < 2**31)
