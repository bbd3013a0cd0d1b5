# SPDX-License-Identifier: MIT
"""One module from source to published library: look it up, else lock, compile with ninja in a private folder, publish.

Read by compile_ops.py, sim.py and commands.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiter_like import env, paths
from aiter_like.errors import BuildError
from aiter_like.modules import cache, partial, processes, progress, recipe, toolchain
from aiter_like.modules.recipe import ModuleSpec

__all__ = ["LOCK_TIMEOUT", "Built", "ModuleSpec", "built", "default_jobs", "ensure", "load_or_build"]

_log = logging.getLogger("aiter_like")

LOCK_TIMEOUT = 600.0  # seconds; several times the longest build here, the simulator's, on a busy machine
_INTERRUPTED = 130  # ninja's exit status after a signal
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
        root: directory to build into instead of the cache (`aiter-like build --output`); what the cache has is copied.
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
            place = Path(root).resolve() if root else cache.cache_root()
            entry, compiled = _find_or_compile(spec, place, rebuild, jobs, lock_timeout)
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
    """From the prebuilt directory, else from the wheel: same sources, project headers, macros, target and ABI, whatever
    compiler made it. A module for a lower level of the host's processor will do."""
    directory = env.get("AITER_LIKE_PREBUILT_DIR")
    if directory and not os.path.isdir(directory):
        raise BuildError(f"AITER_LIKE_PREBUILT_DIR={directory!r} is no directory", module=spec.name)
    for root in ([Path(directory).resolve()] if directory else []) + [paths.prebuilt()]:
        if (root / spec.folder).is_dir():
            for arch in recipe.runs_on(spec):
                request = _request(dataclasses.replace(spec, arch=arch).inputs())
                if entry := cache.find(root, spec.folder, request, None, spec.root):
                    return entry
    return None


def misfit(entry: cache.Entry | Path) -> str:
    """Why a prebuilt entry (cache.entries) serves no module of these sources; "" when it does."""
    if isinstance(entry, Path):
        return f"no readable {cache.META}"
    inputs = entry.meta["inputs"]
    root = paths.hsa() if inputs["kind"] == "asm" else paths.csrc()
    try:
        now = ModuleSpec(inputs["name"], tuple(inputs["sources"]), kind=inputs["kind"], arch=inputs["arch"],
                         root=root).inputs()
    except (BuildError, ValueError):
        return "a source is gone"
    if any(now[name] != inputs[name] for name in ("schema", "abi", "sources")):
        return "built of other sources or for another boundary to Python"
    if not cache.files_unchanged(entry.meta["headers"], root, project_only=True):
        return "built of other headers"
    return cache.damage(entry)


@functools.cache
def maker_of_prebuilt(directory: str, platform: str) -> str:
    """The compiler that made the newest module for "hip" or "cuda" in a prebuilt directory, such as "clang 22.1"; ""
    where none is."""
    found = [entry.meta for entry in cache.entries(Path(directory).resolve()) if isinstance(entry, cache.Entry)
             and recipe.platform_of(entry.meta["inputs"]["kind"]) == platform] if directory else []
    name, version = max(found, key=lambda meta: meta["time"])["toolchain"].split()[:2] if found else ("", "")
    return f"{name} {'.'.join(version.split('.')[:2])}" if found else ""


def _find_or_compile(spec: ModuleSpec, root: Path, rebuild: bool, jobs: int,
                     lock_timeout: float) -> tuple[cache.Entry, bool]:
    """The entry, and whether this call compiled it."""
    try:
        compiler = toolchain.find(spec.platform)
    except BuildError as error:
        raise BuildError(_not_prebuilt(spec) or str(error), module=spec.name) from None
    steps = recipe.steps(spec, compiler)
    build = {"compiler": compiler.identity, "commands": recipe.normalised(spec, steps)}

    def find(request: str) -> cache.Entry | None:
        return None if rebuild else cache.find(root, spec.folder, request, build, spec.root)

    for _ in range(_ATTEMPTS):
        request = _request(spec.inputs())
        if entry := find(request):
            return entry, False
        with _locked(spec, root, request, lock_timeout):
            if entry := find(request):  # another process built it while this one waited
                return entry, False
            if not rebuild and (entry := _copied(spec, root, request, build)):
                return entry, False
            _log.info("building %s for %s with %s", spec.name, spec.arch, compiler)
            parsed = _parsed_binding(spec, compiler, jobs, lock_timeout)
            if entry := _build_once(spec, steps, build, root, request, str(compiler), jobs, parsed):
                _log.info("built %s in %.1f s", spec.name, entry.meta["seconds"])
                return entry, True
        _log.warning("%s: a source changed during its build: building again", spec.name)
    raise BuildError(f"{spec.name}: its sources changed during each of {_ATTEMPTS} builds", module=spec.name)


def _not_prebuilt(spec: ModuleSpec) -> str:
    """Returns the message for a machine without a compiler that has a prebuilt directory: it names the missing module
    and the command that builds it. Without such a directory it is "".
    """
    directory = env.get("AITER_LIKE_PREBUILT_DIR")
    if not directory:
        return ""
    if spec.kind == "host":
        command = f"aiter-like build {spec.name} --output {directory}"
    else:
        name = os.path.splitext(spec.sources[0])[0]
        command = (f"aiter-like build {name} --recorded DIR --output {directory}, where DIR has the shapes of a run "
                   "with AITER_LIKE_RECORD=DIR")
    has_other = os.path.isdir(os.path.join(directory, spec.folder))
    what = f"{spec.name} in it is of other sources" if has_other else f"{spec.name} is not in it"
    return (f"AITER_LIKE_PREBUILT_DIR={directory}: {what}, and it cannot be built here (aiter-like doctor). Where "
            f"there is a compiler: {command}")


def _copied(spec: ModuleSpec, root: Path, request: str, build: dict) -> cache.Entry | None:
    """Copies a module from the cache into another directory that wants it, and returns the copy; None where the cache
    has none. The caller holds the module's lock.
    """
    found = None if root == cache.cache_root() else cache.find(cache.cache_root(), spec.folder, request, build,
                                                               spec.root)
    if found is None:
        return None
    with cache.scratch_directory(root / spec.folder, request, lambda left: None) as scratch:
        shutil.copytree(found.directory, scratch, dirs_exist_ok=True)
        return cache.publish(scratch, root / spec.folder, found.key, found.meta)


def _parsed_binding(spec: ModuleSpec, compiler: toolchain.Toolchain, jobs: int,
                    lock_timeout: float) -> cache.Entry | None:
    """The file that the steps read as recipe.BINDING_PCH, from the cache wherever the module goes; None where they read
    none."""
    binding = recipe.binding(spec, compiler)
    return _find_or_compile(binding, cache.cache_root(), False, jobs, lock_timeout)[0] if binding else None


@contextlib.contextmanager
def _locked(spec: ModuleSpec, root: Path, request: str, timeout: float) -> Iterator[None]:
    """Holds the lock of the request; the wait for another process that holds it is no silent one."""
    def holder() -> dict | None:
        return cache.read_json(root / spec.folder / f"{request}.holder")

    with contextlib.ExitStack() as lock:
        with progress.shown(progress.of_wait(spec.title, holder)):
            lock.enter_context(cache.locked(root / spec.folder, request, timeout))
        yield


def _build_once(spec: ModuleSpec, steps: list[recipe.Step], build: dict, root: Path, request: str, compiler: str,
                jobs: int, parsed: cache.Entry | None) -> cache.Entry | None:
    """Compiles and publishes; None when a file changed meanwhile, so that nobody knows what was compiled.

    The headers in `parsed` are the module's, too: its own steps do not name them.
    """
    module_dir = root / spec.folder
    before = cache.contents(spec.root)
    state = {"build": build, "project": before}
    with cache.scratch_directory(module_dir, request, lambda left: partial.take(left, state, spec.root)) as scratch:
        if parsed and not os.path.lexists(scratch / recipe.BINDING_PCH):
            os.symlink(parsed.path, scratch / recipe.BINDING_PCH)
        try:
            seconds = _compile(spec, steps, scratch, root / "logs" / f"{spec.folder}.log", jobs)
        except KeyboardInterrupt:
            partial.keep(scratch, steps, state, spec.root)
            raise
        read = _files_read(steps, scratch, spec)
        if parsed:
            read.update(os.path.join(spec.root, name) for name in (*parsed.meta["inputs"]["sources"],
                                                                   *(header[0] for header in parsed.meta["headers"])))
        headers = cache.record_files(read, spec.root)
        inputs = spec.inputs()
        if _request(inputs) != request or _differs(headers, before):
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
        KeyboardInterrupt: Ctrl-C, which reaches ninja, too; all that it started has ended.
    """
    (scratch / "build.ninja").write_bytes(os.fsencode(recipe.ninja_file(steps)))
    jobs = jobs or default_jobs()
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN_FLAGS}
    start = time.perf_counter()
    with (progress.shown(progress.of_build(spec.title, scratch, [step.output for step in steps])),
          processes.child([toolchain.find_ninja(), "-j", str(jobs)], cwd=scratch, env=environment | {"LC_ALL": "C"},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as ninja):
        output = ninja.communicate()[0].decode(errors="replace")
    seconds = time.perf_counter() - start
    (scratch / "build.log").write_text(output, encoding="utf-8")
    if ninja.returncode == 0:
        return seconds
    if ninja.returncode == _INTERRUPTED:
        raise KeyboardInterrupt
    command, message = _failure(output, steps)
    raise BuildError(f"{spec.name}: the build for {spec.arch} failed", module=spec.name, command=command,
                     output=message, log_path=cache.write_log(log_path, output))


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
            names = recipe.parse_depfile(os.fsdecode((scratch / step.depfile).read_bytes()))
            found.update(os.path.join(scratch, name) for name in names)
    own = {str(spec.root / source) for source in spec.sources}
    return {path for path in found if path not in own and not path.startswith(f"{scratch}{os.sep}")}


def _differs(headers: list[list], before: dict[str, str]) -> bool:
    """Whether a project header is not what it was before the build: the compiler may have read the one or the other."""
    return any(not os.path.isabs(name) and before.get(name) != digest for name, _, _, digest in headers)
