# SPDX-License-Identifier: MIT
"""`aiter-like build` and `aiter-like cache`: prebuilding for containers, care of the cache. Read by cli.py."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import env
from aiter_like.build import build, cache, processes, progress
from aiter_like.build.recipe import ModuleSpec
from aiter_like.dispatch import OPS
from aiter_like.errors import BuildError, did_you_mean

if TYPE_CHECKING:
    from aiter_like.device import Target
    from aiter_like.dispatch import Op

_BAR_WIDTH = 24  # characters


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `build` and `cache`; each parser sets `run`: of the parsed arguments, returns the exit status."""
    parser = subparsers.add_parser("build", help="build modules ahead of their first use; needs a compiler, no GPU")
    parser.add_argument("names", nargs="*", help="modules, e.g. norm/rms_norm, rms_norm or sim (default: all)")
    parser.add_argument("--all", action="store_true", help="every module, also when names are given")
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
    specs = selected([] if args.all else args.names, args.arch)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
    failures = []
    width = max(len(spec.name) for spec in specs)
    start = time.perf_counter()
    done = build_all(specs, args.jobs, root=args.output, rebuild=args.rebuild, lock_timeout=args.lock_timeout)
    # The lines and the bar tell how far many modules are; one alone shows its own steps.
    with contextlib.closing(done), progress.left_to_caller() if len(specs) > 1 else contextlib.nullcontext():
        _progress(0, len(specs))
        for count, (spec, seconds, error) in enumerate(done, 1):
            _say(f"{spec.name:{width}}  {spec.arch}  {seconds:6.1f} s  {'FAILED' if error else 'ok'}")
            _progress(count, len(specs))
            if error:
                failures.append(error)
    for error in failures:
        _say(f"\n{error}")
    _say(f"{len(specs) - len(failures)} of {len(specs)} modules in {time.perf_counter() - start:.1f} s")
    return 1 if failures else 0


def selected(names: list[str], arch: str) -> list[ModuleSpec]:
    """The modules that the names mean; all of them for no names.

    Raises:
        ValueError: a name means nothing; the message lists what there is.
    """
    from aiter_like import device, sim
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
        known = {*by_name, *(("sim",) if target.platform == "hip" else ())}
        if unknown := [name for name in names if name not in known]:
            like = did_you_mean(unknown[0], known)
            raise ValueError(f"no module {', '.join(unknown)}{like}; there are: {', '.join(sorted(known))}")
        chosen = names or known
        functions = dict.fromkeys(function for name in chosen for function in by_name.get(name, ()))
        specs = [spec for function in functions for spec in _specs(function, operators, target)]
    specs += [sim.module_spec()] if "sim" in chosen else []
    return sorted({(spec.name, spec.arch): spec for spec in specs}.values(), key=lambda spec: spec.name)


def _specs(function: Any, operators: Iterable[Op], target: Target) -> Iterator[ModuleSpec]:
    """The modules of a function: the instances that it declares, and those that its operator's cases take."""
    import torch

    from aiter_like.jit.compile_ops import JitFunction

    for instance in function.instances():
        yield function.instance_spec(instance, target.platform, target.arch)
    for op in operators:
        for backend in op.backends:
            if backend.function is function and isinstance(function, JitFunction) and op.cases is not None:
                for call in op.cases(torch.device("cpu")).values():
                    if backend.refusal is None or backend.refusal(target, *call) is None:
                        yield function.spec(target, call)


def _list(args: argparse.Namespace) -> int:
    root = cache.cache_root()
    _say(f"{root}")
    for entry in cache.entries(root):
        if isinstance(entry, Path):
            _say(f"{entry.parent.name}  {entry.name[:12]}  damaged: no readable {cache.META}")
            continue
        meta, size = entry.meta, sum(file.stat().st_size for file in entry.directory.iterdir())
        _say(f"{meta['module']}  {meta['inputs']['arch']}  {entry.key[:12]}  {size / 1024:.0f} KiB  "
             f"built {meta['time']} in {meta['seconds']:.1f} s by {meta['toolchain']}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    faults = count = 0
    for entry in cache.entries(cache.cache_root()):
        count += 1
        fault = f"no readable {cache.META}" if isinstance(entry, Path) else cache.damage(entry)
        if fault:
            faults += 1
            _say(f"{entry if isinstance(entry, Path) else entry.directory}: {fault}")
    _say(f"{count - faults} of {count} modules intact; damaged ones are built again at their next use")
    return 1 if faults else 0


def _prune(args: argparse.Namespace) -> int:
    removed, freed = cache.prune(cache.cache_root(), 0 if args.all else args.days)
    _say(f"removed {removed} directories, {freed / 2**20:.1f} MiB")
    return 0


def _say(line: str) -> None:
    clear = "\r\033[K" if sys.stderr.isatty() else ""  # the progress bar's line
    sys.stderr.write(clear)
    sys.stderr.flush()
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and total > 1:
        filled = _BAR_WIDTH * done // total
        sys.stderr.write(f"\r[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done}/{total}")
        sys.stderr.write("\n" if done == total else "")
        sys.stderr.flush()
