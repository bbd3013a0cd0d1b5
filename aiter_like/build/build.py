# SPDX-License-Identifier: MIT
"""One module from source to published library: look it up, else lock, compile with ninja in a private folder, publish.

Read by compile_ops.py, sim.py and commands.py.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiter_like import env
from aiter_like.build import cache, recipe, toolchain
from aiter_like.build.recipe import ModuleSpec
from aiter_like.errors import BuildError

__all__ = ["LOCK_TIMEOUT", "Built", "ModuleSpec", "built", "default_jobs", "ensure", "load_or_build"]

_log = logging.getLogger("aiter_like")

LOCK_TIMEOUT = 600.0  # seconds; several times the longest build here (the simulator, 90 s on 2 cores)
_ATTEMPTS = 3  # builds in a row during which somebody may save a source file

# These change what a compiler does behind the command line that is in the key.
_HIDDEN_FLAGS = ("CCC_OVERRIDE_OPTIONS", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "HIPCC_COMPILE_FLAGS_APPEND",
                 "HIPCC_LINK_FLAGS_APPEND", "LIBRARY_PATH", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")


@dataclass(frozen=True)
class Built:
    """How this process got a module: `seconds` spent, `compiled` here or found, the entry on disk."""

    spec: ModuleSpec
    entry: cache.Entry
    seconds: float
    compiled: bool


built: list[Built] = []  # every module that this process asked for, in order; the demo and benchmarks read it


def load_or_build(spec: ModuleSpec, **options: Any) -> Path:
    """Path of the built library of `spec`; the options and errors are those of `ensure`."""
    return ensure(spec, **options).path


def ensure(spec: ModuleSpec, *, root: Path | None = None, rebuild: bool = False, jobs: int = 0,
           lock_timeout: float = LOCK_TIMEOUT) -> cache.Entry:
    """The intact cache entry of `spec`, built if there is none.

    Args:
        spec: the module.
        root: directory to build into instead of the cache (`aiter-like build --output`).
        rebuild: compile although there is an intact entry.
        jobs: parallel compiler runs; 0 = AITER_LIKE_JOBS, else one per core.
        lock_timeout: seconds to wait for another process that builds the same module.
    Raises:
        BuildError: no compiler, the compilation failed, the lock was not freed in time, or the disk refused.
    """
    start = time.perf_counter()
    try:
        entry = None if root or rebuild else _prebuilt(spec)
        compiled = False
        if entry is None:
            entry, compiled = _find_or_compile(spec, root or cache.cache_root(), rebuild, jobs, lock_timeout)
    except OSError as error:
        raise BuildError(f"{spec.name}: {error}", module=spec.name) from error
    built.append(Built(spec, entry, time.perf_counter() - start, compiled))
    return entry


def default_jobs() -> int:
    """Parallel compiler runs: AITER_LIKE_JOBS, else one per core that this process may use."""
    return env.get("AITER_LIKE_JOBS") or len(os.sched_getaffinity(0))


def _request(inputs: dict[str, Any]) -> str:
    return cache.sha256(cache.canonical(inputs))[:cache.REQUEST_DIGITS]


def _prebuilt(spec: ModuleSpec) -> cache.Entry | None:
    """From the prebuilt directory: same sources, project headers, macros, target and ABI, whatever compiler made it."""
    directory = env.get("AITER_LIKE_PREBUILT_DIR")
    if not directory:
        return None
    if not os.path.isdir(directory):
        raise BuildError(f"AITER_LIKE_PREBUILT_DIR={directory!r} is no directory", module=spec.name)
    return cache.find(Path(directory), spec.folder, _request(spec.inputs()), None, spec.root)


def _find_or_compile(spec: ModuleSpec, root: Path, rebuild: bool, jobs: int,
                     lock_timeout: float) -> tuple[cache.Entry, bool]:
    """The entry, and whether this call compiled it."""
    compiler = toolchain.find(spec.platform)
    steps = recipe.steps(spec, compiler)
    build = {"compiler": compiler.identity, "commands": recipe.normalised(spec, steps)}

    def find(request: str) -> cache.Entry | None:
        return None if rebuild else cache.find(root, spec.folder, request, build, spec.root)

    for _ in range(_ATTEMPTS):
        request = _request(spec.inputs())
        if entry := find(request):
            return entry, False
        with cache.locked(root / spec.folder, request, lock_timeout):
            if entry := find(request):  # another process built it while this one waited
                return entry, False
            _log.info("building %s for %s with %s", spec.name, spec.arch, compiler)
            if entry := _build_once(spec, steps, build, root, request, str(compiler), jobs):
                _log.info("built %s in %.1f s", spec.name, entry.meta["seconds"])
                return entry, True
        _log.warning("%s: a source changed during its build: building again", spec.name)
    raise BuildError(f"{spec.name}: its sources changed during each of {_ATTEMPTS} builds", module=spec.name)


def _build_once(spec: ModuleSpec, steps: list[recipe.Step], build: dict, root: Path, request: str, compiler: str,
                jobs: int) -> cache.Entry | None:
    """Compiles and publishes; None when a file changed meanwhile, so that nobody knows what was compiled."""
    module_dir = root / spec.folder
    started_ns = time.time_ns()
    with cache.scratch_directory(module_dir, request) as scratch:
        seconds = _compile(spec, steps, scratch, root / "logs" / f"{spec.folder}.log", jobs)
        headers = cache.record_files(_files_read(steps, scratch, spec), spec.root)
        inputs = spec.inputs()
        if _request(inputs) != request or _saved_since(started_ns, headers):
            return None
        meta = {"module": spec.name, "inputs": inputs, "build": build, "headers": headers,
                "output": {"name": spec.output, "sha256": cache.sha256_of(scratch / spec.output)},
                "toolchain": compiler, "seconds": round(seconds, 3), "host": socket.gethostname(),
                "time": cache.timestamp()}
        contents = [[name, digest] for name, _, _, digest in headers]
        second_half = cache.sha256(cache.canonical([build, contents]))[:cache.REQUEST_DIGITS]
        return cache.publish(scratch, module_dir, request + second_half, meta)


def _compile(spec: ModuleSpec, steps: list[recipe.Step], scratch: Path, log_path: Path, jobs: int) -> float:
    """Runs ninja; returns the seconds it took.

    Raises:
        BuildError: a command failed. Its output stays in `log_path`.
    """
    (scratch / "build.ninja").write_text(recipe.ninja_file(steps))
    jobs = jobs or default_jobs()
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN_FLAGS}
    start = time.perf_counter()
    run = subprocess.run([toolchain.find_ninja(), "-j", str(jobs)], cwd=scratch, env=environment | {"LC_ALL": "C"},
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    seconds = time.perf_counter() - start
    output = run.stdout.decode(errors="replace")
    (scratch / "build.log").write_text(output)
    if run.returncode == 0:
        return seconds
    log_path.parent.mkdir(exist_ok=True)
    log_path.write_text(output)
    command, message = _failure(output, steps)
    raise BuildError(f"{spec.name}: the build for {spec.arch} failed", module=spec.name, command=command,
                     output=message, log_path=log_path)


def _failure(output: str, steps: list[recipe.Step]) -> tuple[str, str]:
    """The command that failed and what it printed, out of ninja's output."""
    match = re.search(r"^FAILED: (?:\[code=-?\d+\] )?(\S+).*\n", output, re.MULTILINE)
    if match is None:
        return "ninja", output
    command = next((shlex.join(step.command) for step in steps if step.output == match[1]), "")
    printed = output[match.end():].partition("\n")[2]  # ninja repeats the command on the next line
    return command, printed.replace("ninja: build stopped: subcommand failed.", "").rstrip()


def _files_read(steps: list[recipe.Step], scratch: Path, spec: ModuleSpec) -> set[str]:
    """Every header that any pass read: absolute paths, without the sources and the build's own files."""
    found: set[str] = set()
    for step in steps:
        if step.depfile:
            names = recipe.parse_depfile((scratch / step.depfile).read_text())
            found.update(os.path.join(scratch, name) for name in names)
    own = {str(spec.root / source) for source in spec.sources}
    return {path for path in found if path not in own and not path.startswith(f"{scratch}{os.sep}")}


def _saved_since(start_ns: int, headers: list[list]) -> bool:
    """Whether a project header was saved after `start_ns`: the compiler may have read it before, or half."""
    return any(not os.path.isabs(name) and mtime_ns > start_ns for name, _, mtime_ns, _ in headers)
