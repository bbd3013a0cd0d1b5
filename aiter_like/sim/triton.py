# SPDX-License-Identifier: MIT
"""Triton on the simulated MI300X: its own AMD driver and launcher, on CPU tensors, without torch.cuda.

Read through seam.py by jit/triton_launch.py. Triton's interpreter is never used: its bf16 dot product
is wrong, and it tests nothing that a GPU executes.
"""

import contextlib
import ctypes
import functools
import inspect
import os
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from triton import knobs, testing
from triton.backends.amd.driver import HIPDriver, HIPLauncher, HIPUtils
from triton.compiler import compiler
from triton.runtime import driver as _drivers
from triton.runtime.jit import JITFunction

from aiter_like.errors import SimulatorError
from aiter_like.sim import reports, session, torch_cuda, triton_host
from aiter_like.sim.torch_cuda import marks, pointers, times

_RANGE_START = 11  # hipPointer_attribute: it is there for memory that the simulator's library knows


class SimulatorDriver(HIPDriver):
    """Triton's AMD driver on the simulator's libamdhip64.so."""

    def __init__(self):
        library = session.load()
        super(HIPDriver, self).__init__()  # HIPDriver's own compiles a C extension
        # The base class stores torch.cuda's functions in the instance.
        self.get_current_device = functools.partial(_current_device, library)
        self.set_current_device = functools.partial(_set_device, library)
        self.get_current_stream = lambda device: 0
        self.get_device_capability = lambda device=None: (9, 4)
        self.launcher_cls, self.utils = SimulatorLauncher, _Utils(_host_utils(library))

    @staticmethod
    def is_active() -> bool:
        """Never chosen by Triton itself: `enable_triton` sets it."""
        return False

    def get_active_torch_device(self) -> torch.device:
        """The device on which kernels find their tensors."""
        return torch.device("cuda", int(self.get_current_device())) if torch_cuda.is_on() else torch.device("cpu")

    def get_device_interface(self) -> Any:
        """The module that `triton.testing.do_bench` asks for events."""
        return torch.cuda if torch_cuda.is_on() else times.HostTime

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Nothing to clear: there is no cache between a simulated kernel and its memory."""
        return torch.empty(0, dtype=torch.int)

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: int | None) -> torch.Tensor:
        """Zeroed memory for a kernel's profile."""
        return torch.zeros(size, dtype=torch.int8)


class SimulatorLauncher(HIPLauncher):
    """Triton's launcher, with the tensors known to the bounds checker and failures as SimulatorError."""

    def __init__(self, src: Any, metadata: Any):
        super().__init__(src, metadata)
        # A kernel of a file of TTIR or TTGIR has no Python function.
        self._name, self._num_params = metadata.name, len(src.fn.arg_names if hasattr(src, "fn") else src.signature)
        # This package's operators look at their arguments before they launch.
        self._is_own = hasattr(src, "fn") and src.fn.__module__.startswith("aiter_like.")

    def __call__(self, *args: Any) -> None:
        if torch_cuda.is_on() and not self._is_own and self._num_params:
            _refuse_host_tensors(_flat(args[-self._num_params:]))
        if session.checking():
            arguments = tuple(_flat(args[-self._num_params:])) if self._num_params else ()
            session.checked_call(self._name, lambda *_: self._call_checked(args, arguments), arguments, None)
        else:
            self._call(args)

    def _call_checked(self, args: tuple, arguments: tuple) -> None:
        ranges = pointers.reached(arguments) if torch_cuda.is_on() else []
        with session.ranges_known([(base, size, f"{self._name}: {what}", session.UNKNOWN)
                                   for base, size, what in ranges]):
            self._call(args)

    def _call(self, args: tuple) -> None:
        try:
            super().__call__(*args)
        except (RuntimeError, SystemError) as error:
            # Triton runs its exit hooks in spite of the failure, which makes a SystemError of it.
            cause = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(cause, RuntimeError):
                raise
            raise _simulator_error(self._name, cause) from error


def _host_utils(library: ctypes.CDLL) -> Any:
    """Ours, which needs no C compiler; Triton's own where this Triton is older than the interface of ours."""
    if triton_host.is_usable():
        return triton_host.HostUtils(library)
    with knobs.amd.scope():  # the knob writes an environment variable, which the scope takes back
        knobs.amd.libhip_path = library._name
        return HIPUtils()


class _Utils:
    """Triton's "utils" of a driver, except that modules stay loaded: many kernel objects may share one."""

    def __init__(self, utils: Any):
        self._utils = utils
        self._loaded: dict[tuple[str, bytes, int], tuple] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._utils, name)

    def load_binary(self, name: str, code_object: bytes, shared_bytes: int, device: int) -> tuple:
        """(module, function, registers, spills, largest block)."""
        key = (name, code_object, int(device))
        if key not in self._loaded:
            try:
                module, *loaded = self._utils.load_binary(name, code_object, shared_bytes, device)
            except RuntimeError as error:
                raise _simulator_error(name, error) from error
            self._loaded[key] = (_Module(module), *loaded)
        return self._loaded[key]


class _Module(int):
    """The handle of a module that the simulator has loaded, which no driver unloads."""


class _Device(int):
    """A simulated device's number, distinct as a key: Triton caches kernels by device number, whatever the driver."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Device) and int(self) == int(other)

    def __hash__(self) -> int:
        return hash((_Device, int(self)))


@functools.cache
def simulator_driver() -> SimulatorDriver:
    """The one driver of this process.

    Raises:
        BuildError: the simulator cannot be built or loaded.
    """
    driver = SimulatorDriver()
    _tell_copies_apart()
    _keep_modules()
    return driver


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Triton uses the simulator in the block, and what it used before afterwards."""
    with _lock:  # one driver per process: launches of other threads wait, and so do their compilations
        before = _drivers._active  # not `.active`, which fails where Triton finds no GPU
        _drivers.set_active(simulator_driver())
        try:
            yield
        finally:
            _drivers.set_active(before)


def enable_triton() -> None:
    """Triton compiles kernels for gfx942 and runs them on the simulator, on CPU tensors, until `disable_triton`.

    Raises:
        BuildError: the simulator cannot be built or loaded.
    """
    _hold("enable")


def disable_triton() -> None:
    """Triton uses what it used before `enable_triton`."""
    _release("enable")


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Triton uses the simulator in the block, on every thread; afterwards what it used before, unless the block has
    called `enable_triton`."""
    block = object()
    _hold(block)
    try:
        yield
    finally:
        _release(block)


@contextlib.contextmanager
def short_benchmarks() -> Iterator[None]:
    """Within the block Triton's benchmarks call what they time once to warm up and once more: a launch takes the
    simulator as long each time, and the cycle model gives it the same time.
    """
    def do_bench(fn: Callable[[], Any], *_: Any, grad_to_none: Iterable[torch.Tensor] | None = None,
                 quantiles: Sequence[float] | None = None, return_mode: str = "mean", **options: Any) -> Any:
        fn()
        for tensor in grad_to_none or ():
            tensor.grad = None
        start, end = times.Event(enable_timing=True), times.Event(enable_timing=True)
        start.record()
        fn()
        end.record()
        return testing._summarize_statistics([start.elapsed_time(end)], quantiles, return_mode)

    before = {name: getattr(testing, name) for name in ("do_bench", "do_bench_cudagraph")}
    for name in before:
        setattr(testing, name, do_bench)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(testing, name, function)


_lock = threading.RLock()
_before: list[Any] = []  # the driver that the simulator's replaced: None = Triton had not chosen one
_holders: set[object] = set()  # why it was replaced


def _hold(holder: object) -> None:
    if not isinstance(_drivers._active, SimulatorDriver):
        _before.append(_drivers._active)
        _drivers.set_active(simulator_driver())
    _holders.add(holder)


def _release(holder: object) -> None:
    _holders.discard(holder)
    if _before and not _holders:
        _drivers.set_active(_before.pop())


def _tell_copies_apart() -> None:
    """Has Triton's cache tell apart kernels that only differ in their files, where it compiles for the simulator.

    Its own keys have a kernel's text and line: of copies, the one that was compiled first would stand in every report.
    """
    original = getattr(compiler, "get_cache_key", None)
    if original is None:
        return  # a version that makes its keys elsewhere

    def get_cache_key(src: Any, *args: Any, **kwargs: Any) -> str:
        key = original(src, *args, **kwargs)
        if not isinstance(_drivers._active, SimulatorDriver) or not hasattr(src, "fn"):
            return key
        functions: dict[int, JITFunction] = {}
        for value in (src.fn, *src.constants.values()):
            _reach(value, functions)
        return f"{key}-{sorted({function.fn.__code__.co_filename for function in functions.values()})}"

    compiler.get_cache_key = get_cache_key


def _keep_modules() -> None:
    """A kernel object that the simulator serves tells Triton's hooks of its end, and asks no driver to unload a module.

    Triton asks the driver that is active when the object dies: it may be another one, or none.
    """
    original = getattr(compiler.CompiledKernel, "__del__", None)
    if original is None:
        return  # a version that never unloads

    def finish(kernel: compiler.CompiledKernel) -> None:
        if not isinstance(getattr(kernel, "module", None), _Module):
            original(kernel)
            return
        hook, here = getattr(knobs.runtime, "kernel_unload_hook", None), os.getpid()
        if hook is not None and getattr(kernel, "_module_pid", here) == here:  # forked children tell nobody
            hook(kernel.module, kernel.function, kernel.name, kernel.metadata_group, kernel.hash)
        kernel.module = None

    compiler.CompiledKernel.__del__ = finish


def _reach(value: Any, found: dict[int, JITFunction]) -> None:
    """Adds a Triton function and those that it may call, by the names in its code, to `found`."""
    if not isinstance(value, JITFunction) or id(value) in found:
        return
    found[id(value)] = value
    codes = [value.fn.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    names = {name for code in codes for name in (*code.co_names, *code.co_freevars)}
    variables = inspect.getclosurevars(value.fn)
    scope = {**value.fn.__globals__, **variables.nonlocals}
    values = [scope[name] for name in names if name in scope]
    modules = [other for other in values if isinstance(other, types.ModuleType)]
    for other in [*values, *(getattr(module, name, None) for module in modules for name in names)]:
        _reach(other, found)


def _current_device(library: ctypes.CDLL) -> int:
    """The number; within sim.as_gpu(), where no GPU is, it is that of torch.cuda, by which programs look kernels up."""
    number = ctypes.c_int()
    library.hipGetDevice(ctypes.byref(number))
    return number.value if torch_cuda.is_on() else _Device(number.value)


def _set_device(library: ctypes.CDLL, device: int) -> None:
    if library.hipSetDevice(int(device)):
        library.hipGetLastError()
        raise SimulatorError(f"there is no simulated device {int(device)}: see `devices` of aiter_like.sim.Settings")


def _simulator_error(name: str, error: RuntimeError) -> RuntimeError:
    """The error of a HIP call as SimulatorError; any other error as it is."""
    if not str(error).startswith("Triton Error [HIP]"):
        return error
    session.load().hipGetLastError()  # it is told here, and not to the next caller
    told = reports.as_simulator_error(name, error)
    return told if isinstance(told, SimulatorError) else SimulatorError(f"{name}: {error}")


def _refuse_host_tensors(arguments: Iterable[Any]) -> None:
    """Raises Triton's own ValueError for a tensor in memory that a GPU cannot reach: a program's mistake, which passes
    here unless it is looked for."""
    library, start = session.load(), ctypes.c_void_p()
    for number, tensor in enumerate(arguments):
        if not isinstance(tensor, torch.Tensor) or marks.index_of(tensor) is not None or marks.is_pinned(tensor):
            continue
        address = tensor.data_ptr()
        if address and library.hipPointerGetAttribute(ctypes.byref(start), _RANGE_START, ctypes.c_void_p(address)):
            library.hipGetLastError()
            raise ValueError(f"Pointer argument (at {number}) cannot be accessed from Triton (cpu tensor?)")


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """A kernel's arguments without tuples, and the tensors behind what else has an address: tensor descriptors, and
    classes of programs, whatever they call their tensor.
    """
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        elif isinstance(value, torch.Tensor) or not hasattr(value, "__dict__"):
            yield value
        elif hasattr(value, "data_ptr") or isinstance(getattr(value, "base", None), torch.Tensor):
            yield from (part for part in vars(value).values() if isinstance(part, torch.Tensor))
        else:
            yield value
