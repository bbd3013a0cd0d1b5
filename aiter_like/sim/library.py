# SPDX-License-Identifier: MIT
"""The simulator's library: building and loading csrc/sim, its C interface, its settings and counters."""

import ctypes
import functools
import json
import sys
import threading
from collections.abc import Mapping
from typing import Any

from aiter_like import paths
from aiter_like.errors import BuildError, SimulatorError
from aiter_like.modules.build import load_or_build
from aiter_like.modules.recipe import ModuleSpec
from aiter_like.sim.settings import CHECKS, Settings, default_settings
from aiter_like.sim.state import current

_INVALID_IMAGE = 200  # hipErrorInvalidImage

# Host code runs once per call, not once per instruction. The run loop, scalar instructions and the loops over modifiers
# gain from -O3, the others do not.
_OWN_FLAGS = {"sim/hip": ("-O1",), "sim/load": ("-O1",), "sim/run": ("-O3",), "sim/isa/sop.cpp": ("-O3",),
              "sim/isa/valu.cpp": ("-O3",)}


def module_spec(arch: str = "") -> ModuleSpec:
    """The simulator as a module of the JIT, for an x86-64 level (default: that of this machine)."""
    sources = [name for name in _sources("sim") if not name.startswith(("sim/timing/", "sim/debug/", "sim/rtc/"))]
    return ModuleSpec(name="sim", kind="host", arch=arch, sources=tuple(sources), output="libamdhip64.so",
                      flags=("-O2", "-fvisibility=hidden"), link_flags=("-Wl,-soname,libamdhip64.so",),
                      precompiled="sim/precompiled.h", own_flags=_OWN_FLAGS)


def timing_spec(arch: str = "") -> ModuleSpec:
    """The observers of csrc/sim/timing, a library of its own: it is built when somebody counts for the first time."""
    return ModuleSpec(name="sim_timing", kind="host", arch=arch, output="libaiter_like_sim_timing.so",
                      sources=("sim/run/occupancy.cpp", *_sources("sim/timing")), flags=("-O2", "-fvisibility=hidden"))


def debug_spec(arch: str = "") -> ModuleSpec:
    """The debugger of csrc/sim/debug, a library of its own: it is built when somebody debugs for the first time."""
    return ModuleSpec(name="sim_debug", kind="host", arch=arch, output="libaiter_like_sim_debug.so",
                      sources=("sim/timing/access_shape.cpp", *_sources("sim/debug")),
                      flags=("-O2", "-fvisibility=hidden"))


def rtc_spec(arch: str = "") -> ModuleSpec:
    """hipRTC, a library of its own as ROCm's is: it is built when somebody asks for it."""
    return ModuleSpec(name="sim_rtc", kind="host", arch=arch, output="libhiprtc.so", sources=tuple(_sources("sim/rtc")),
                      flags=("-O1", "-fvisibility=hidden", "-Wno-c23-extensions"),
                      link_flags=("-Wl,-soname,libhiprtc.so",))


def _sources(folder: str) -> list[str]:
    root = paths.csrc()
    return sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*.cpp"))


def load() -> ctypes.CDLL:
    """The simulator's library, built when necessary, its symbols visible to the modules loaded after it.

    Raises:
        BuildError: it cannot be built, or the process has already loaded a real HIP runtime.
        ValueError: AITER_LIKE_SIM has an unknown setting.
    """
    with _lock:
        return _library()


def is_loaded() -> bool:
    """Whether this process has the library."""
    return _library.cache_info().currsize > 0


def configure(library: ctypes.CDLL, settings: Settings) -> None:
    """Gives the library the settings of the launches that follow."""
    library.aiter_like_sim_configure(sum(CHECKS[name] for name in settings.checks), settings.threads, settings.fuzz,
                                     settings.dry, settings.instruction_limit)
    library.aiter_like_sim_set_devices(settings.devices)
    library.aiter_like_sim_set_defer(settings.defer)


def print_through_python(library: ctypes.CDLL) -> None:
    """From now on what kernels print is shown on sys.stdout and sys.stderr, and kept by the open blocks."""
    library.aiter_like_sim_show_output(_shown)


def inspect(code_object: bytes) -> dict[str, dict]:
    """Kernel → registers, LDS, scratch and spills of a code object.

    Args:
        code_object: ELF file or offload bundle for gfx942.
    Raises:
        TypeError: it is no bytes.
        SimulatorError: it does not load; the message says what is wrong with it.
    """
    if not isinstance(code_object, bytes):
        raise TypeError(f"sim.inspect: code_object must be the bytes of a file, got {type(code_object).__name__}")
    return json_of(load().aiter_like_sim_inspect(code_object, len(code_object)))


def disassemble(code_object: bytes) -> list[tuple[int, str, str]]:
    """Every decoded instruction of a code object: its offset in the code, its text, and why it would not run ("" = it
    would). Each function ends with one that stands for running past its end.

    Raises:
        SimulatorError: the code object does not load; the message says what is wrong with it.
    """
    found = json_of(load().aiter_like_sim_disassemble(code_object, len(code_object)))
    return [tuple(instruction) for instruction in found]


def source_lines(code_object: bytes) -> list[tuple[int, str]]:
    """The instructions of a code object that have a source line: offset in the code as `disassemble` has it, and
    "file:line".

    Raises:
        SimulatorError: the code object does not load; the message says what is wrong with it.
    """
    found = json_of(load().aiter_like_sim_lines(code_object, len(code_object)))
    return [(at, source) for at, source, _ in found]


def counters() -> dict[str, dict]:
    """Kernel → launches, workgroups, waves, wave_instructions, by_class, and memory `accesses` by mnemonic, of whole
    waves; since the last reset."""
    return json_of(load().aiter_like_sim_counters())


def reset_counters() -> None:
    """Forgets all counts."""
    load().aiter_like_sim_reset_counters()


def json_of(address: int | None) -> Any:
    """The value of a JSON text that the library made, which is freed. None: the call failed.

    Raises:
        SimulatorError: it failed.
    """
    library = load()
    if address is None:
        raise SimulatorError(error_text(_INVALID_IMAGE))
    try:
        return json.loads(_decoded(ctypes.string_at(address)))
    finally:
        library.aiter_like_sim_free(address)


def error_text(code: int) -> str:
    """The simulator's text for a HIP error code; for a code object that does not load it is one line.

    It may quote the names in a damaged code object, which are any bytes.
    """
    text = _decoded(load().hipGetErrorString(code))
    return "".join(c if c.isprintable() or code != _INVALID_IMAGE else ascii(c)[1:-1] for c in text)


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


_lock = threading.RLock()


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
def _shown(is_error: int, address: int, count: int) -> int:
    try:
        text = _decoded(ctypes.string_at(address, count))
        for output in current.kept("output"):
            output.add(text)
        stream = sys.stderr if is_error else sys.stdout
        stream.write(text)
        stream.flush()
    except KeyboardInterrupt:
        # A callback's exceptions end in it. Interrupts wait for Python code to run, which here is the callback: the
        # library raises this one again when the launch has ended.
        return 1
    return 0


@functools.cache
def _library() -> ctypes.CDLL:
    if foreign := paths.mapped_libraries("libamdhip64.so"):
        raise BuildError(f"this process has loaded the HIP runtime {foreign[0]}: the simulated MI300X needs a process "
                         "without it", module="sim")
    settings = default_settings()
    library = _loaded(module_spec(), ctypes.RTLD_GLOBAL)
    _declare(library)
    print_through_python(library)
    configure(library, settings)
    return library


@functools.cache
def load_timing() -> ctypes.CDLL:
    """The library of `timing_spec`, which observes the launches of `load()`'s.

    Raises:
        BuildError: one of them cannot be built or loaded.
    """
    load()
    library = _loaded(timing_spec(), ctypes.DEFAULT_MODE)
    pointer = ctypes.c_void_p
    _set_signatures(library, {
        "aiter_like_sim_count": (None, ctypes.c_int, ctypes.c_uint32, ctypes.c_int),
        "aiter_like_sim_take_counts": (pointer,),
        "aiter_like_sim_model": (None, ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.c_uint32,
                                 ctypes.c_uint64),
        "aiter_like_sim_take_modelled": (pointer,),
        "aiter_like_sim_model_parameters": (pointer,),
        "aiter_like_sim_model_roofs": (pointer, ctypes.c_double),
    })
    return library


@functools.cache
def load_debug() -> ctypes.CDLL:
    """The library of `debug_spec`, which stops the launches of `load()`'s.

    Raises:
        BuildError: one of them cannot be built or loaded.
    """
    load()
    library = _loaded(debug_spec(), ctypes.DEFAULT_MODE)
    pointer, u32, u64, i32 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32
    _set_signatures(library, {
        "aiter_like_sim_debug_attach": (None, pointer, i32, i32, i32),
        "aiter_like_sim_debug_interrupt": (None,),
        "aiter_like_sim_debug_launch": (pointer,),
        "aiter_like_sim_debug_code": (pointer,),
        "aiter_like_sim_debug_dwarf": (pointer, ctypes.c_char_p, pointer),
        "aiter_like_sim_debug_lines": (None, pointer, pointer),
        "aiter_like_sim_debug_clear": (None,),
        "aiter_like_sim_debug_break": (None, u32, u64, u64, u32, i32, pointer, u32),
        "aiter_like_sim_debug_watch": (None, pointer),
        "aiter_like_sim_debug_go": (None, u32, u64, u32, u32, u32, u32),
        "aiter_like_sim_debug_stop": (pointer,),
        "aiter_like_sim_debug_groups": (pointer,),
        "aiter_like_sim_debug_rows": (i32, u64, u32, u32, u32, pointer, i32),
        "aiter_like_sim_debug_scalars": (i32, u64, u32, u32, u32, pointer, i32),
        "aiter_like_sim_debug_lds": (i32, u64, u64, u64, pointer, i32),
        "aiter_like_sim_debug_scratch": (i32, u64, u32, u32, u64, u64, pointer, i32),
        "aiter_like_sim_trace_begin": (None, u64, u32, u32, u32),
        "aiter_like_sim_trace_end": (pointer,),
        "aiter_like_sim_trace_phases": (pointer, u32, i32),
        "aiter_like_sim_debug_memory": (u64, u64, u64, pointer, i32),
    })
    return library


def _loaded(spec: ModuleSpec, mode: int) -> ctypes.CDLL:
    path = load_or_build(spec)
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        raise BuildError(f"{spec.name}: cannot load {path}: {error}", module=spec.name) from error


def _declare(library: ctypes.CDLL) -> None:
    pointer, u32, u64, text = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p
    _set_signatures(library, {
        "aiter_like_sim_configure": (None, u32, u32, u64, ctypes.c_int, u64),
        "aiter_like_sim_set_devices": (None, u32),
        "aiter_like_sim_set_defer": (None, ctypes.c_int),
        "aiter_like_sim_register": (u64, u64, pointer, pointer, pointer, pointer),
        "aiter_like_sim_unregister": (None, u64, pointer),
        "aiter_like_sim_show_output": (None, pointer),
        "aiter_like_sim_take_reports": (pointer,),
        "aiter_like_sim_counters": (pointer,),
        "aiter_like_sim_reset_counters": (None,),
        "aiter_like_sim_inspect": (pointer, text, u64),
        "aiter_like_sim_disassemble": (pointer, text, u64),
        "aiter_like_sim_lines": (pointer, text, u64),
        "aiter_like_sim_tables": (pointer,),
        "aiter_like_sim_free": (None, pointer),
        "hipGetErrorString": (text, ctypes.c_int),
        "hipModuleLoadData": (ctypes.c_int, pointer, text),
        "hipModuleGetFunction": (ctypes.c_int, pointer, pointer, text),
        "hipModuleLaunchKernel": (ctypes.c_int, pointer, *[u32] * 7, pointer, pointer, pointer),
    })


def _set_signatures(library: ctypes.CDLL, signatures: Mapping[str, tuple]) -> None:
    """Sets the types of functions: name → the type of the result, then those of the arguments."""
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
