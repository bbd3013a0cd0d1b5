# SPDX-License-Identifier: MIT
"""Sessions: simulator settings for a with block, and what the checkers and counters say in it; checked calls, launches.

Read through seam.py by dispatch, by the Triton launcher and by tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aiter_like.errors import SimulatorError
from aiter_like.sim import counting, modelling, reports
from aiter_like.sim.library import configure, load
from aiter_like.sim.library import counters as library_counters
from aiter_like.sim.settings import DEFAULT_CHECKS, complete, default_settings, parse_checks
from aiter_like.sim.state import Block, Output, current

if TYPE_CHECKING:
    import torch

UNKNOWN = 2  # aiter_like_sim_register takes such memory for writable unless it is known already.


@dataclass
class Session:
    """An open session, which `enabled` yields.

    Attributes:
        reports: the checkers' records so far, each a dict (see csrc/sim/report.h).
        on_report: "raise" or "collect".
    """

    on_report: str
    reports: list[dict] = field(default_factory=list)
    _launches: list[dict] | None = None
    _modelled: list[dict] | None = None
    _before: dict[str, dict] = field(default_factory=dict)
    _after: dict[str, dict] | None = None
    _output: Output = field(default_factory=Output)

    @property
    def output(self) -> str:
        """The text that the session's kernels and their asserts have printed so far, launch by launch, workgroups in
        the order of the grid. The last line says how many characters are missing past 16 Mi.
        """
        return str(self._output)

    @property
    def launches(self) -> list[dict]:
        """Each launch of the session so far with its counts per instruction and source line, its registers and its
        occupancy, oldest first; csrc/sim/MODEL.md, "Counters", has the keys.

        Raises:
            ValueError: the session does not count: `enabled(counters=True)` does.
        """
        if self._launches is None:
            raise ValueError("Session.launches: this session does not count; open it with sim.enabled(counters=True)")
        if self._after is None:
            counting.take()
        return self._launches

    @property
    def modelled(self) -> list[dict]:
        """Each launch of the session so far as the cycle model sees it, oldest first; csrc/sim/MODEL.md, "The cycle
        model", has the keys.

        Raises:
            ValueError: the session has no model: `enabled(model="whole")` does.
        """
        if self._modelled is None:
            raise ValueError("Session.modelled: this session has no cycle model; open it with "
                             'sim.enabled(model="whole")')
        if self._after is None:
            modelling.take()
        return self._modelled

    @property
    def counters(self) -> dict[str, dict]:
        """Kernel → counts of the session, so far or as it ended; same shape as `counters()`."""
        after = library_counters() if self._after is None else self._after
        return {name: _minus(now, self._before.get(name, {})) for name, now in after.items()
                if now != self._before.get(name)}


def checking() -> bool:
    """Whether calls must say which memory is whose: a checker is on, or the counters or the cycle model, which place
    tensors as a GPU would.
    """
    if current.recorder:
        return True
    checks = default_settings().checks
    for block in current.blocks:  # Each operator's call asks, so that it is no more than this.
        if block.counts is not None or block.cycles is not None:
            return True
        if block.settings:
            checks = block.settings.checks
    return bool(checks)


@contextlib.contextmanager
def enabled(checks: bool | str | Sequence[str] = True, fuzz: int | None = None, threads: int | None = None,
            dry: bool | None = None, instruction_limit: int | None = None, devices: int | None = None,
            defer: bool | None = None, on_report: str = "raise", counters: bool = False,
            model: str | None = None, clock_mhz: float = modelling.PEAK_MHZ, timeline: int = 0) -> Iterator[Session]:
    """Simulator settings for the duration of a with block.

    Args:
        checks: True = DEFAULT_CHECKS, False = none, or the names of those of CHECKS to switch on: "wait" (registers
            and LDS used before a wait), "lds_race", "uninit" (undefined values that matter), "bounds", "waitstate"
            (instructions too close together), "sanity" (misaligned atomics, barriers that some waves miss, lanes that
            store different values to one place, MFMA with inactive lanes), and, only when named, "global_race"
            (workgroups that conflict in global memory; runs on one thread). "strict", alone or with others: what LLVM
            or a manual demands, though it works on the hardware, is an error and no note. As a text: names with
            commas between them, or "all".
        fuzz, threads, dry, instruction_limit, devices, defer: as in `Settings`; None = unchanged.
        on_report: "raise" = SimulatorError at the operator whose launch was reported, unless all reports are notes;
            "collect" = only keep it.
        counters: fill the session's `launches`; its launches take some times as long.
        model: fill the session's `modelled`. "whole": launches run as ever, on one thread. "sample": only workgroups
            that the model needs run, seconds in place of hours for large launches, and the results are wrong.
        clock_mhz: at which modelled cycles become time.
        timeline: how many instructions of one CU the model lists with their times.
    Yields:
        The session with `reports`, `counters`, `launches` and `modelled`.
    Raises:
        ValueError: an unknown check, on_report or model, no clock, or the model is on already.
        RuntimeError: another thread is in such a block: there is one simulated device, with one set of settings.
        SimulatorError: at the block's end, for reports of launches that went past every operator.
    """
    if on_report not in ("raise", "collect"):
        raise ValueError(f"on_report must be 'raise' or 'collect', got {on_report!r}")
    if model not in (None, "whole", "sample"):
        raise ValueError(f"model must be 'whole', 'sample' or None, got {model!r}")
    library = load()
    with current.claimed():
        names = DEFAULT_CHECKS if checks is True else parse_checks(checks) if isinstance(checks, str) else checks or ()
        changes = {"fuzz": fuzz, "threads": threads, "dry": dry, "instruction_limit": instruction_limit,
                   "devices": devices, "defer": defer}
        given = {name: value for name, value in changes.items() if value is not None}
        settings = replace(current.settings, checks=complete(names), **given)
        session = Session(on_report, _before=library_counters(), _launches=[] if counters else None,
                          _modelled=[] if model else None)
        try:
            with current.opened(Block(settings, on_report, session.reports, output=session._output), reports.set_aside):
                configure(library, settings)
                with contextlib.ExitStack() as observers:
                    if counters:
                        observers.enter_context(counting.counted(session._launches))
                    if model:
                        observers.enter_context(modelling.modelled(session._modelled, model == "sample", clock_mhz,
                                                                   timeline))
                    yield session
                _collect("a kernel launch")
        finally:
            session._after = library_counters()
            configure(library, current.settings)


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
    if current.recorder:
        return current.recorder(functools.partial(_checked_call, name, fn, args, writes), args)
    return _checked_call(name, fn, args, writes)


def _checked_call(name: str, fn: Callable, args: tuple, writes: Sequence[int] | None) -> Any:
    if not current.kept("reports"):
        reports.set_aside()  # Launches that went past every operator left reports that are none of this call's.
    with _registered(name, args, writes), contextlib.ExitStack() as watched:
        for watch in current.watches:
            watched.enter_context(watch(name, args))
        try:
            result = fn(*args)
        except RuntimeError as error:
            raise reports.as_simulator_error(name, error) from error
    _collect(name)
    return result


@contextlib.contextmanager
def calls_watched(watch: Callable[[str, tuple], contextlib.AbstractContextManager]) -> Iterator[None]:
    """Each checked call of the block runs within a `watch(name, args)`, calls within calls too."""
    current.watches.append(watch)
    try:
        yield
    finally:
        current.watches.remove(watch)


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
        ValueError: a number has more than 32 bits, which HIP's launch would cut off.
        SimulatorError: the code object does not load, or the launch failed.
    """
    for name, sizes in (("grid", grid), ("block", block), ("shared_bytes", (shared_bytes,))):
        if len(sizes) != (1 if name == "shared_bytes" else 3) or not all(0 <= size < 2**32 for size in sizes):
            wanted = "a number" if name == "shared_bytes" else "three numbers"
            raise ValueError(f"sim.launch: {name} must be {wanted} from 0 to {2**32 - 1}, got {sizes}")
    library = load()
    buffer = ctypes.create_string_buffer(kernargs, max(len(kernargs), 1))
    size = ctypes.c_size_t(len(kernargs))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    function = _function(code_object, kernel)
    reports.raise_error(library.hipModuleLaunchKernel(function, *grid, *block, shared_bytes, None, None, extra))


@functools.lru_cache(maxsize=1024)
def _module(code_object: bytes) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    reports.raise_error(load().hipModuleLoadData(ctypes.byref(handle), code_object))
    return handle


@functools.lru_cache(maxsize=4096)
def _function(code_object: bytes, kernel: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    reports.raise_error(load().hipModuleGetFunction(ctypes.byref(handle), _module(code_object), kernel.encode()))
    return handle


@contextlib.contextmanager
def _registered(name: str, args: tuple, writes: Sequence[int] | None) -> Iterator[None]:
    """The tensors among `args`, also those in its tuples and lists, as ranges of device memory."""
    from torch import Tensor

    tensors = [(index, part) for index, arg in enumerate(args)
               for part in (arg if isinstance(arg, (tuple, list)) else (arg,)) if isinstance(part, Tensor)]
    with ranges_known([(tensor.data_ptr(), _extent(tensor), f"{name} argument {index} {tuple(tensor.shape)}",
                        UNKNOWN if writes is None else index in writes) for index, tensor in tensors]):
        yield


@contextlib.contextmanager
def ranges_known(ranges: Sequence[tuple[int, int, str, int]]) -> Iterator[None]:
    """Memory that is the device's in the block: address, bytes, name, and 0 or 1 for whether kernels may write it, or
    UNKNOWN where it is not for the caller to say."""
    count = len(ranges)
    bases = (ctypes.c_uint64 * count)(*[base for base, *_ in ranges])
    sizes = (ctypes.c_uint64 * count)(*[size for _, size, *_ in ranges])
    names = (ctypes.c_char_p * count)(*[name.encode() for *_, name, _ in ranges])
    writable = (ctypes.c_uint8 * count)(*[flag for *_, flag in ranges])
    library = load()
    merged = library.aiter_like_sim_register(count, bases, sizes, names, writable)
    try:
        yield
    finally:
        library.aiter_like_sim_unregister(merged, bases)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to past the last element; to the end of its memory for an expanded tensor, whose steps of 0
    programs take away so as to walk that dimension themselves.
    """
    if tensor.numel() == 0:
        return 0
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _collect(name: str) -> None:
    """Takes what the checkers said; raises errors unless the innermost block collects."""
    found = reports.take()
    errors = reports.errors(found)
    if not current.kept("reports"):
        current.unclaimed.extend(report for report in found if report["severity"] == "note")
    if errors and ["raise", *current.kept("on_report")][-1] == "raise":
        lines = [f"{name}: {len(errors)} report(s) of the simulator's checkers"]
        lines += [f"  {text}" for text in reports.listing(errors)]
        raise SimulatorError("\n".join(lines), errors)


def _minus(now: dict, before: dict) -> dict:
    return {key: _minus(value, before.get(key, {})) if isinstance(value, dict) else value - before.get(key, 0)
            for key, value in now.items()}
