# SPDX-License-Identifier: MIT
"""The simulated MI300X in this process: building and loading csrc/sim, its settings, checkers' reports and counters.

Read by dispatch.py (checked calls), jit/compile_ops.py (before a module is loaded), the Triton launcher and tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from aiter_like import env, paths
from aiter_like.build.build import load_or_build
from aiter_like.build.recipe import ModuleSpec
from aiter_like.errors import BuildError, SimulatorError
from aiter_like.sim_settings import CHECKS, DEFAULT_CHECKS, Settings, parse_settings

_LAUNCH_FAILURE = 719  # hipErrorLaunchFailure
_UNKNOWN = 2  # of aiter_like_sim_register: writable unless the memory is known already


@dataclass
class Session:
    """What `enabled` yields.

    Attributes:
        reports: the checkers' records so far, each a dict (see csrc/sim/report.h).
        on_report: "raise" or "collect".
    """

    on_report: str
    reports: list[dict] = field(default_factory=list)
    _before: dict[str, dict] = field(default_factory=dict)
    _after: dict[str, dict] | None = None

    @property
    def counters(self) -> dict[str, dict]:
        """Kernel → counts of the session, so far or as it ended; same shape as `counters()`."""
        after = counters() if self._after is None else self._after
        return {name: _minus(now, self._before.get(name, {})) for name, now in after.items()
                if now != self._before.get(name)}


def module_spec() -> ModuleSpec:
    """The simulator as a module of the JIT."""
    root = paths.csrc()
    sources = sorted(str(path.relative_to(root)) for path in (root / "sim").rglob("*.cpp"))
    return ModuleSpec(name="sim", kind="host", sources=tuple(sources), output="libamdhip64.so",
                      flags=("-fvisibility=hidden",), link_flags=("-Wl,-soname,libamdhip64.so",))


def load() -> ctypes.CDLL:
    """The simulator's library, built when necessary, its symbols visible to the modules loaded after it.

    Raises:
        BuildError: it cannot be built, or the process has already loaded a real HIP runtime.
    """
    with _lock:
        return _library()


def checking() -> bool:
    """Whether any checker is on."""
    return _checking


@contextlib.contextmanager
def enabled(checks: bool | Sequence[str] = True, fuzz: int | None = None, threads: int | None = None,
            dry: bool | None = None, instruction_limit: int | None = None, devices: int | None = None,
            defer: bool | None = None, on_report: str = "raise") -> Iterator[Session]:
    """Simulator settings for the duration of a with block.

    Args:
        checks: True = DEFAULT_CHECKS, False = none, or the names of those of CHECKS to switch on: "wait" (registers
            and LDS used before a wait), "lds_race", "uninit" (undefined values that matter), "bounds", "waitstate"
            (instructions too close together), "sanity" (misaligned atomics, barriers that some waves miss, lanes that
            store different values to one place, MFMA with inactive lanes), and, only when named, "global_race"
            (workgroups that conflict in global memory; runs on one thread).
        fuzz, threads, dry, instruction_limit, devices, defer: as in `Settings`; None = unchanged.
        on_report: "raise" = SimulatorError at the operator whose launch was reported; "collect" = only keep it.
    Yields:
        The session with `reports` and `counters`.
    Raises:
        ValueError: an unknown check or on_report.
        SimulatorError: at the block's end, for reports of launches that went past every operator.
    """
    if on_report not in ("raise", "collect"):
        raise ValueError(f"on_report must be 'raise' or 'collect', got {on_report!r}")
    load()
    outer = _sessions[-1][0]
    names = DEFAULT_CHECKS if checks is True else tuple(checks or ())
    changes = {"fuzz": fuzz, "threads": threads, "dry": dry, "instruction_limit": instruction_limit,
               "devices": devices, "defer": defer}
    settings = replace(outer, checks=names, **{name: value for name, value in changes.items() if value is not None})
    _set_aside()
    session = Session(on_report, _before=counters())
    _sessions.append((settings, session))
    _apply()
    try:
        yield session
        _collect(session, "a kernel launch")
    finally:
        _keep(take_reports())  # the block may have failed
        session._after = counters()
        _sessions.pop()
        _apply()


def enable_triton() -> None:
    """Triton compiles kernels for gfx942 and runs them on the simulator, on CPU tensors, until `disable_triton`.

    Raises:
        ImportError: Triton is not installed.
        BuildError: the simulator cannot be built or loaded.
    """
    from aiter_like import sim_triton

    sim_triton.enable()


def disable_triton() -> None:
    """Triton uses what it used before `enable_triton`."""
    from aiter_like import sim_triton

    sim_triton.disable()


def checked_call(name: str, fn: Callable, args: tuple, writes: Sequence[int] | None) -> Any:
    """`fn(*args)` with every tensor argument known to the bounds checker, and its reports turned into an exception.

    Args:
        name: the operator, for messages.
        fn: the call that launches.
        args: its arguments.
        writes: positions of the arguments that the kernel may write; None = unknown: those that no caller has declared.
    Raises:
        SimulatorError: a checker reported something, or the launch failed; `reports` has the records.
    """
    with _registered(name, args, writes):
        try:
            result = fn(*args)
        except RuntimeError as error:
            raise as_simulator_error(name, error) from error
    _collect(_sessions[-1][1], name)
    return result


def as_simulator_error(name: str, error: RuntimeError) -> RuntimeError:
    """The error of a failed launch as SimulatorError with its reports; any other error as it is."""
    reports = [] if isinstance(error, SimulatorError) else take_reports()
    _keep(reports)
    return SimulatorError(f"{name}: {error}", reports) if reports else error


def launch(code_object: bytes, kernel: str, grid: Sequence[int], block: Sequence[int], shared_bytes: int,
           kernargs: bytes) -> None:
    """Runs a kernel of a code object, e.g. of one that Triton compiled; it is loaded once and kept.

    Args:
        code_object: ELF file or offload bundle for gfx942.
        kernel: its name.
        grid, block: workgroups, and work-items per workgroup: three numbers each.
        shared_bytes: dynamic LDS.
        kernargs: the argument segment, explicit arguments at their offsets.
    Raises:
        SimulatorError: the code object does not load, or the launch failed.
    """
    library = load()
    buffer = ctypes.create_string_buffer(kernargs, max(len(kernargs), 1))
    size = ctypes.c_size_t(len(kernargs))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    function = _function(code_object, kernel)
    _check(library.hipModuleLaunchKernel(function, *grid, *block, shared_bytes, None, None, extra))


def inspect(code_object: bytes) -> dict[str, dict]:
    """Kernel → registers, LDS, scratch and spills of a code object.

    Raises:
        SimulatorError: it does not load.
    """
    return _json(load().aiter_like_sim_inspect(code_object, len(code_object)))


def counters() -> dict[str, dict]:
    """Kernel → launches, workgroups, waves, wave_instructions, by_class, and memory `accesses` by mnemonic, of whole
    waves; since the last reset."""
    return _json(load().aiter_like_sim_counters())


def reset_counters() -> None:
    """Forgets all counts."""
    load().aiter_like_sim_reset_counters()


def take_reports() -> list[dict]:
    """The reports that nobody has taken yet, oldest first; the simulator forgets them."""
    return _json(load().aiter_like_sim_take_reports())


_lock = threading.RLock()
_sessions: list[tuple[Settings, Session]] = [(Settings(), Session("raise"))]  # innermost last; the first is the default
_checking = False


@functools.cache
def _library() -> ctypes.CDLL:
    if foreign := _other_runtime():
        raise BuildError(f"this process has loaded the HIP runtime {foreign}: the simulated MI300X needs a process "
                         "without it", module="sim")
    _sessions[0] = (parse_settings(env.get("AITER_LIKE_SIM")), _sessions[0][1])
    path = load_or_build(module_spec())
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BuildError(f"sim: cannot load {path}: {error}", module="sim") from error
    _declare(library)
    _apply(library)
    if _checking:
        atexit.register(_list_rest)
    return library


def _other_runtime() -> str:
    """Path of a HIP runtime that is already in the process, "" for none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libamdhip64.so" in path:
            return path
    return ""


def _declare(library: ctypes.CDLL) -> None:
    pointer, u32, u64, text = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p
    signatures = {
        "aiter_like_sim_configure": (None, u32, u32, u64, ctypes.c_int, u64),
        "aiter_like_sim_set_devices": (None, u32),
        "aiter_like_sim_set_defer": (None, ctypes.c_int),
        "aiter_like_sim_register": (u64, u64, pointer, pointer, pointer, pointer),
        "aiter_like_sim_unregister": (None, u64, pointer),
        "aiter_like_sim_take_reports": (pointer,),
        "aiter_like_sim_counters": (pointer,),
        "aiter_like_sim_reset_counters": (None,),
        "aiter_like_sim_inspect": (pointer, text, u64),
        "aiter_like_sim_disassemble": (pointer, text, u64),
        "aiter_like_sim_lines": (pointer, text, u64),
        "aiter_like_sim_free": (None, pointer),
        "hipGetErrorString": (text, ctypes.c_int),
        "hipModuleLoadData": (ctypes.c_int, pointer, text),
        "hipModuleGetFunction": (ctypes.c_int, pointer, pointer, text),
        "hipModuleLaunchKernel": (ctypes.c_int, pointer, *[u32] * 7, pointer, pointer, pointer),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _apply(library: ctypes.CDLL | None = None) -> None:
    """Gives the innermost session's settings to the library."""
    global _checking
    settings = _sessions[-1][0]
    _checking = bool(settings.checks)
    bits = sum(CHECKS[name] for name in settings.checks)
    library = library or load()
    library.aiter_like_sim_configure(bits, settings.threads, settings.fuzz, settings.dry,
                                     settings.instruction_limit)
    library.aiter_like_sim_set_devices(settings.devices)
    library.aiter_like_sim_set_defer(settings.defer)


def _json(address: int | None) -> Any:
    """The value of a JSON text that the library made, which is freed. None: the call failed."""
    library = load()
    if address is None:
        raise SimulatorError(library.hipGetErrorString(200).decode())  # hipErrorInvalidImage
    try:
        # A damaged code object's kernel may be named by any bytes.
        return json.loads(ctypes.string_at(address).decode(errors="replace"))
    finally:
        library.aiter_like_sim_free(address)


def _check(error: int) -> None:
    if error:
        message = load().hipGetErrorString(error).decode(errors="replace")
        load().hipGetLastError()  # it is told here, and not to the next caller
        reports = take_reports() if error == _LAUNCH_FAILURE else []
        _keep(reports)
        raise SimulatorError(message, reports)


@functools.lru_cache(maxsize=1024)
def _module(code_object: bytes) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(load().hipModuleLoadData(ctypes.byref(handle), code_object))
    return handle


@functools.lru_cache(maxsize=4096)
def _function(code_object: bytes, kernel: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(load().hipModuleGetFunction(ctypes.byref(handle), _module(code_object), kernel.encode()))
    return handle


@contextlib.contextmanager
def _registered(name: str, args: tuple, writes: Sequence[int] | None) -> Iterator[None]:
    """The tensors among `args`, also those in its tuples and lists, as ranges of device memory."""
    tensors = [(index, part) for index, arg in enumerate(args)
               for part in (arg if isinstance(arg, (tuple, list)) else (arg,)) if isinstance(part, torch.Tensor)]
    count = len(tensors)
    bases = (ctypes.c_uint64 * count)(*[tensor.data_ptr() for _, tensor in tensors])
    sizes = (ctypes.c_uint64 * count)(*[_extent(tensor) for _, tensor in tensors])
    labels = [f"{name} argument {index} {tuple(tensor.shape)}".encode() for index, tensor in tensors]
    names = (ctypes.c_char_p * count)(*labels)
    writable = (ctypes.c_uint8 * count)(*[_UNKNOWN if writes is None else index in writes for index, _ in tensors])
    library = load()
    merged = library.aiter_like_sim_register(count, bases, sizes, names, writable)
    try:
        yield
    finally:
        library.aiter_like_sim_unregister(merged, bases)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to past the last element."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _keep(reports: list[dict]) -> None:
    for _, session in _sessions[1:]:
        session.reports.extend(reports)


def _set_aside() -> None:
    """Reports of launches before a block: of the sessions around it, or listed when the process ends."""
    reports = take_reports()
    _keep(reports)
    if len(_sessions) == 1:
        _sessions[0][1].reports.extend(reports)


def _list_rest() -> None:
    """When AITER_LIKE_SIM has switched checks on: what was said about launches that went past every operator."""
    for report in [*_sessions[0][1].reports, *take_reports()]:
        sys.stderr.write(report["summary"] + "\n")


def _collect(session: Session, name: str) -> None:
    """Takes what the checkers said; raises it unless the session collects."""
    reports = take_reports()
    _keep(reports)
    if reports and session.on_report == "raise":
        lines = [f"{name}: {len(reports)} report(s) of the simulator's checkers"]
        lines += [f"  {report['summary']}" for report in reports]
        raise SimulatorError("\n".join(lines), reports)


def _minus(now: dict, before: dict) -> dict:
    return {key: _minus(value, before.get(key, {})) if isinstance(value, dict) else value - before.get(key, 0)
            for key, value in now.items()}
