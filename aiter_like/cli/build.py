# SPDX-License-Identifier: MIT
"""`aiter-like build` and `aiter-like cache`: prebuilding for containers, care of the cache. Read by cli.py."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import env
from aiter_like.dispatch import OPS
from aiter_like.errors import BuildError, did_you_mean
from aiter_like.modules import build, cache, processes, progress
from aiter_like.modules.recipe import ModuleSpec

if TYPE_CHECKING:
    from aiter_like.device import Target
    from aiter_like.dispatch import Op

_DESCRIPTION = """Builds modules ahead of their first use; needs a compiler, no GPU. With --model or --recorded, those
that calls of these shapes load, with the tiles that tuned rows and heuristics choose for them; operators that declare
no shapes give the modules of their cases."""


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `build` and `cache`; each parser sets `run`: of the parsed arguments, returns the exit status."""
    parser = subparsers.add_parser("build", help="build modules ahead of their first use; needs a compiler, no GPU",
                                   description=_DESCRIPTION)
    parser.add_argument("names", nargs="*",
                        help="modules, e.g. norm/rms_norm, rms_norm or sim (default: all but the simulator)")
    parser.add_argument("--all", action="store_true", help="every module but sim, also when names are given")
    calls = parser.add_mutually_exclusive_group()
    calls.add_argument("--model", metavar="NAME", help="what serving a model of configs/models takes, e.g. llama-3-8b")
    calls.add_argument("--recorded", type=Path, metavar="DIR", help="what shapes recorded by AITER_LIKE_RECORD take")
    parser.add_argument("--tp", type=int, default=1, help="of --model: GPUs that share it (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the names of the modules and build nothing")
    parser.add_argument("--arch", default=env.get("AITER_LIKE_ARCH") or "gfx942",
                        help="gfx942 or sm_90 (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="directory for AITER_LIKE_PREBUILT_DIR, instead of the cache")
    parser.add_argument("-j", "--jobs", type=int, default=0,
                        help="parallel compiler runs (default: AITER_LIKE_JOBS, else one per core)")
    parser.add_argument("--rebuild", action="store_true", help="build although an intact module is there")
    parser.add_argument("--lock-timeout", type=float, default=build.LOCK_TIMEOUT, metavar="SECONDS",
                        help="wait this long for another process that builds the same module (default: %(default)g)")
    parser.set_defaults(run=_build)

    actions = subparsers.add_parser("cache", help="list, verify or prune built modules").add_subparsers(
        dest="action", required=True)
    actions.add_parser("list", help="one line per module").set_defaults(run=_list)
    actions.add_parser("verify", help="compare each library with its recorded SHA-256").set_defaults(run=_verify)
    prune = actions.add_parser("prune", help="remove unused modules and what killed builds left")
    prune.add_argument("--days", type=float, default=30, help="not used for so many days (default: %(default)g)")
    prune.add_argument("--all", action="store_true", help="remove every module")
    prune.set_defaults(run=_prune)


_Outcome = tuple[ModuleSpec, float, BuildError | None]  # the seconds it took, and what failed


def build_all(specs: Iterable[ModuleSpec], jobs: int, **options) -> Generator[_Outcome]:
    """Builds modules in parallel, with the options of build.ensure; yields an outcome as each one ends. When it is
    closed or interrupted, the builds under way end.
    """
    jobs = jobs or build.default_jobs()

    def one(spec: ModuleSpec) -> _Outcome:
        start = time.perf_counter()
        error = None
        try:
            build.ensure(spec, jobs=jobs, **options)
        except BuildError as failure:
            error = failure
        return spec, time.perf_counter() - start, error

    with processes.threads(jobs) as pool:
        for future in as_completed([pool.submit(one, spec) for spec in specs]):
            yield future.result()


def _build(args: argparse.Namespace) -> int:
    if args.jobs < 0:
        raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
    if not re.fullmatch(r"gfx[0-9a-f]+|sm_\d+[a-z]?", args.arch):
        raise ValueError(f"--arch must be like gfx942 or sm_90, got {args.arch!r}")
    specs = selected([] if args.all else args.names, args.arch, _keys(args))
    if args.list:
        print("\n".join(spec.name for spec in specs))
        return 0
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
    failures = []
    width = max((len(spec.name) for spec in specs), default=0)
    digits = len(str(len(specs)))
    start = time.perf_counter()
    done = build_all(specs, args.jobs, root=args.output, rebuild=args.rebuild, lock_timeout=args.lock_timeout)
    # The lines tell how far many modules are; one alone shows its own steps.
    with contextlib.closing(done), progress.left_to_caller() if len(specs) > 1 else contextlib.nullcontext():
        for count, (spec, seconds, error) in enumerate(done, 1):
            print(f"{count:{digits}} of {len(specs)}  {spec.name:{width}}  {spec.arch}  {seconds:6.1f} s  "
                  f"{'FAILED' if error else 'ok'}", flush=True)
            if error:
                failures.append(error)
    for error in failures:
        print(f"\n{error}")
    print(f"{len(specs) - len(failures)} of {len(specs)} modules in {time.perf_counter() - start:.1f} s")
    return 1 if failures else 0


def _keys(args: argparse.Namespace) -> Callable[[Op], list[dict[str, Any]] | None] | None:
    """The calls of an operator by --model or --recorded."""
    from aiter_like.tuning import models, modules

    if args.model is not None:
        return modules.of_model(models.load(args.model), args.tp)
    return modules.of_recorded(args.recorded, OPS.values()) if args.recorded is not None else None


def selected(names: list[str], arch: str, keys: Callable[[Op], list[dict[str, Any]] | None] | None = None
             ) -> list[ModuleSpec]:
    """The modules that the names mean; all but the simulator for no names.

    Args:
        keys: of an operator: the tune keys of calls whose modules are wanted, or None: those of its cases. With these
            the simulator's names are added to what the calls take.
    """
    from aiter_like import device
    from aiter_like.jit.compile_ops import registered

    operators = list(OPS.values())  # their modules declare every function
    by_name: dict[str, list[Any]] = {}
    with device.planning_for(arch) as target:
        for function in registered():
            # An assembly function names the one architecture that it is written for.
            if target.platform not in function.platforms or getattr(function, "arch", arch) != arch:
                continue
            for name in {function.module, function.module.rpartition(".")[0], function.function_name}:
                by_name.setdefault(name, []).append(function)
        simulator = _of_simulator() if target.platform == "hip" else {}
        known = {*by_name, *simulator}
        if unknown := [name for name in names if name not in known]:
            like = did_you_mean(unknown[0], known)
            raise ValueError(f"no module {', '.join(unknown)}{like}; there are: {', '.join(sorted(known))}")
        wanted = [name for name in names if name in by_name] if keys is not None else names
        functions = dict.fromkeys(function for name in wanted or by_name for function in by_name.get(name, ()))
        specs = [*_specs(functions, operators, target, keys)]
    specs += [simulator[name]() for name in names if name in simulator]
    return sorted({(spec.name, spec.arch): spec for spec in specs}.values(), key=lambda spec: spec.name)


def _of_simulator() -> dict[str, Callable[[], ModuleSpec]]:
    """The simulator's libraries by name: itself, what counts and models, the debugger, and hipRTC."""
    from aiter_like.sim import library

    return {"sim": library.module_spec, "sim_timing": library.timing_spec, "sim_debug": library.debug_spec,
            "sim_rtc": library.rtc_spec}


def _specs(functions: Collection[Any], operators: Iterable[Op], target: Target,
           keys: Callable[[Op], list[dict[str, Any]] | None] | None) -> Iterator[ModuleSpec]:
    """The modules of functions: those of calls with the keys of their operator; without keys, the instances that a
    function declares, and those that its operator's cases take.
    """
    from aiter_like.tuning import modules

    left, operators, done = set(functions), [*operators], 0
    with progress.shown(lambda: f"choosing modules: {done} of {len(operators)} operators"):
        for op in operators:
            own = {backend.function for backend in op.backends if backend.is_jit and backend.function in functions}
            found = keys(op) if keys is not None and own else None
            if found is not None:
                left -= own
                yield from (spec for backend, spec in modules.of_keys(op, found, target) if backend.function in own)
            else:
                yield from _of_cases(op, own, target)
            done += 1
    for function in left:
        yield from (function.instance_spec(instance, target.platform, target.arch)
                    for instance in function.instances())


def _of_cases(op: Op, functions: Collection[Any], target: Target) -> Iterator[ModuleSpec]:
    from aiter_like.dispatch import without_memory
    from aiter_like.jit.compile_ops import JitFunction

    backends = [backend for backend in op.backends
                if backend.function in functions and isinstance(backend.function, JitFunction)]
    if not backends or op.cases is None:
        return
    with without_memory.quiet():
        calls = without_memory.made(op.cases)
    for backend, call in itertools.product(backends, calls.values()):
        if backend.refusal is None or backend.refusal(target, *call) is None:
            yield backend.function.spec(target, call)


def _list(args: argparse.Namespace) -> int:
    root = cache.cache_root()
    print(root)
    for entry in cache.entries(root):
        if isinstance(entry, Path):
            print(f"{entry.parent.name}  {entry.name[:12]}  damaged: no readable {cache.META}")
            continue
        meta, size = entry.meta, sum(file.stat().st_size for file in entry.directory.iterdir())
        print(f"{meta['module']}  {meta['inputs']['arch']}  {entry.key[:12]}  {size / 1024:.0f} KiB  "
              f"built {meta['time']} in {meta['seconds']:.1f} s by {meta['toolchain']}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    faults = count = 0
    for entry in cache.entries(cache.cache_root()):
        count += 1
        fault = f"no readable {cache.META}" if isinstance(entry, Path) else cache.damage(entry)
        if fault:
            faults += 1
            print(f"{entry if isinstance(entry, Path) else entry.directory}: {fault}")
    print(f"{count - faults} of {count} modules intact; damaged ones are built again at their next use")
    return 1 if faults else 0


def _prune(args: argparse.Namespace) -> int:
    if args.days < 0:
        raise ValueError(f"--days must be at least 0, got {args.days:g}; --all removes every module")
    removed, freed = cache.prune(cache.cache_root(), 0 if args.all else args.days)
    print(f"removed {removed} directories, {freed / 2**20:.1f} MiB")
    return 0
