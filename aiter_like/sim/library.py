# SPDX-License-Identifier: MIT
"""The simulator's library: building and loading csrc/sim, its C interface, its settings and counters."""

from __future__ import annotations

import ctypes
import functools
import json
import threading
from typing import Any

from aiter_like import env, paths
from aiter_like.build.build import load_or_build
from aiter_like.build.recipe import ModuleSpec
from aiter_like.errors import BuildError, SimulatorError
from aiter_like.sim.settings import CHECKS, Settings, parse_settings


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
        ValueError: AITER_LIKE_SIM has an unknown setting.
    """
    with _lock:
        return _library()


@functools.cache
def default_settings() -> Settings:
    """Those of AITER_LIKE_SIM, read once.

    Raises:
        ValueError: it has an unknown setting.
    """
    return parse_settings(env.get("AITER_LIKE_SIM"))


def configure(library: ctypes.CDLL, settings: Settings) -> None:
    """Gives the library the settings of the launches that follow."""
    library.aiter_like_sim_configure(sum(CHECKS[name] for name in settings.checks), settings.threads, settings.fuzz,
                                     settings.dry, settings.instruction_limit)
    library.aiter_like_sim_set_devices(settings.devices)
    library.aiter_like_sim_set_defer(settings.defer)


def inspect(code_object: bytes) -> dict[str, dict]:
    """Kernel → registers, LDS, scratch and spills of a code object.

    Raises:
        SimulatorError: it does not load.
    """
    return json_of(load().aiter_like_sim_inspect(code_object, len(code_object)))


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
        raise SimulatorError(library.hipGetErrorString(200).decode())  # hipErrorInvalidImage
    try:
        # A damaged code object's kernel may be named by any bytes.
        return json.loads(ctypes.string_at(address).decode(errors="replace"))
    finally:
        library.aiter_like_sim_free(address)


_lock = threading.RLock()


@functools.cache
def _library() -> ctypes.CDLL:
    if foreign := paths.mapped_libraries("libamdhip64.so"):
        raise BuildError(f"this process has loaded the HIP runtime {foreign[0]}: the simulated MI300X needs a process "
                         "without it", module="sim")
    settings = default_settings()
    path = load_or_build(module_spec())
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BuildError(f"sim: cannot load {path}: {error}", module="sim") from error
    _declare(library)
    configure(library, settings)
    return library


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
