# SPDX-License-Identifier: MIT
"""Programs written for a GPU, on a machine without one: within `as_gpu()` torch's "cuda" is the simulated MI300X."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device

from aiter_like import device
from aiter_like.sim import settings
from aiter_like.sim.torch_cuda import devices, files, generators, gradients, libraries, names, refusals, times
from aiter_like.sim.torch_cuda.mode import Mode, with_default_device

_lock = threading.Lock()
_is_on = False
_ABSENT = object()


@contextlib.contextmanager
def as_gpu() -> Iterator[torch.device]:
    """The part of `sim.as_gpu` that is torch's."""
    global _is_on
    is_inner = any(isinstance(one, Mode) for one in _get_current_function_mode_stack())
    if not is_inner and not _lock.acquire(blocking=False):
        raise RuntimeError("sim.as_gpu: another thread is in such a block, and torch has one set of names; threads "
                           "that are started within a block are in it")
    try:
        with contextlib.nullcontext() if is_inner else _entered():
            _is_on = True
            yield torch.device("cuda", devices.current())
    finally:
        if not is_inner:
            _is_on = False
            _lock.release()


def is_on() -> bool:
    """Whether a block is open."""
    return _is_on


@contextlib.contextmanager
def _entered() -> Iterator[None]:
    if torch.cuda.is_available():
        raise RuntimeError(f"sim.as_gpu: torch sees a GPU here ({torch.cuda.get_device_name()}), and would mix it with "
                           "the simulated one: hide it (CUDA_VISIBLE_DEVICES= or HIP_VISIBLE_DEVICES=)")
    if settings.default_settings().defer:
        raise RuntimeError("sim.as_gpu: the setting `defer` is not for it: torch's own functions run on the host and "
                           "would not wait for what a stream defers")
    default_device, mode = _device.CURRENT_DEVICE, Mode()
    with contextlib.ExitStack() as stack:
        stack.enter_context(device.simulated_gpus(devices.count()))
        for holder, name, value in [*names.replacements(), *libraries.replacements(mode),
                                    (threading.Thread, "start", _starting(mode)),
                                    (_device.DeviceContext, "__torch_function__", with_default_device),
                                    (torch.autograd.graph.saved_tensors_hooks, "__init__", gradients.saving(mode)),
                                    (torch.autograd.Function, "apply", gradients.applying()),
                                    (torch.autograd.function.BackwardCFunction, "apply",
                                     gradients.applying_backwards()),
                                    (torch.autograd, "_engine_run_backward",
                                     gradients.engine(mode, torch.autograd._engine_run_backward))]:
            stack.enter_context(_replaced(holder, name, value))
        stack.enter_context(files.placed())
        times.forget_told()
        generators.follow_host()
        stack.callback(refusals.set_sync_mode, 0)
        stack.callback(_set_default_device, default_device)
        stack.enter_context(mode)
        try:
            yield
        finally:
            mode.is_on = False  # for threads that go on


def _set_default_device(before: torch.device | None) -> None:
    if before != _device.CURRENT_DEVICE:
        torch.set_default_device(before)


def _starting(mode: Mode) -> Any:
    """Thread.start: what the thread runs is in the mode too, which torch keeps for each thread."""
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        run = thread.run

        def run_in_mode() -> None:
            with mode:
                run()

        thread.run = run_in_mode
        original(thread)

    return start


@contextlib.contextmanager
def _replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    names = vars(holder)  # They have the class method itself, which getattr() binds.
    before = names[name] if name in names else getattr(holder, name, _ABSENT)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, before)
