# SPDX-License-Identifier: MIT
"""`aiter-like doctor`: environment, compilers, devices, cache, tuned tables, engines, and what is wrong with them."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
from collections.abc import Collection, Sequence
from typing import Any

from aiter_like import env
from aiter_like.errors import AiterLikeError, did_you_mean

_SUMMARY = "environment, compilers, devices, cache and tuned tables; what is wrong with them"


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `doctor`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    doctor = subparsers.add_parser("doctor", description=_SUMMARY)
    doctor.add_argument("--engine", choices=("vllm", "sglang", "transformers"),
                        help="instead: whether this engine is served, and what is taken in it")
    doctor.set_defaults(run=lambda args: _doctor() if args.engine is None else _doctor_engine(args.engine))


def _doctor() -> int:
    """Prints the state of the installation; 1 when something is broken rather than absent or out of date."""
    problems, notes = [*_print_environment(), *_print_software(), *_print_devices()], []
    problems += _print_tables(notes)
    return _print_problems([""], problems, notes)


def _doctor_engine(engine: str) -> int:
    """Prints the state of one engine's integration; 1 when something keeps it from being served."""
    from aiter_like.integrations import doctor

    lines, problems = doctor.report(engine)
    return _print_problems([*lines, ""], problems)


def _print_problems(lines: list[str], problems: list[str], notes: Sequence[str] = ()) -> int:
    """`notes`: what is not as it should be, and breaks nothing."""
    for line in [*lines, *(f"NOTE     {note}" for note in notes), *(f"PROBLEM  {problem}" for problem in problems)]:
        print(line)
    if not problems and not notes:
        print("no problems found")
    else:
        counts = [f"{len(problems)} problem(s)" if problems else "nothing is broken", f"{len(notes)} note(s)"]
        print("; ".join(counts if notes else counts[:1]))
    return 1 if problems else 0


def _print_environment() -> list[str]:
    print("environment")
    problems = []
    for name, variable in env.VARIABLES.items():
        try:
            value: Any = env.get(name)
        except ValueError as error:
            value = os.environ[name]
            problems.append(str(error))
        mark = "=" if name in os.environ else " "
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        print(f"  {name:24}{mark} {shown!s:20}  {variable.help}; read {variable.read}")
    from aiter_like.integrations import takeover

    problems += takeover.unknown_names()
    for name in env.unknown():
        print(f"  {name:24}= {os.environ[name]:20}  UNKNOWN")
        problems.append(f"{name} is not a variable of aiter_like{did_you_mean(name, env.VARIABLES)}")
    return problems


def _print_software() -> list[str]:
    import torch

    from aiter_like import __version__, paths
    from aiter_like.build import cache, toolchain

    print("\nsoftware")
    print(f"  aiter_like   {__version__}, data in {paths.data_root()}")
    print(f"  torch        {torch.__version__} (hip {torch.version.hip}, cuda {torch.version.cuda})")
    for package in ("apache-tvm-ffi", "ninja", "filelock"):
        print(f"  {package:12} {_version(package) or 'MISSING'}")
    found = importlib.util.find_spec("triton")
    print(f"  triton       {_version('triton') or 'version unknown' if found else 'absent (an extra)'}")
    for candidate in toolchain.report():
        print(f"  {candidate.name:12} {candidate.toolchain or candidate.reason}")
    print(f"  cache        {cache.cache_root()}")
    missing = [package for package in ("apache-tvm-ffi", "filelock") if _version(package) is None]
    return [f"{package} is not installed" for package in missing] + _print_prebuilt()


def _print_prebuilt() -> list[str]:
    """What AITER_LIKE_PREBUILT_DIR has that serves these sources."""
    from pathlib import Path

    from aiter_like.build import build, cache

    folder = env.get("AITER_LIKE_PREBUILT_DIR")
    if not folder:
        return []
    if not Path(folder).is_dir():
        return [f"AITER_LIKE_PREBUILT_DIR: {folder} is no directory"]
    faults = [build.misfit(entry) for entry in cache.entries(Path(folder).resolve())]
    print(f"  prebuilt     {faults.count('')} of {len(faults)} modules in {folder} fit")
    others = sorted({fault for fault in faults if fault})
    return [f"AITER_LIKE_PREBUILT_DIR: {len(faults) - faults.count('')} modules in {folder} do not fit: "
            f"{'; '.join(others)}"] if others else []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_devices() -> list[str]:
    import torch

    from aiter_like import device
    from aiter_like.build import toolchain

    print("\ndevices")
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    platforms = set()
    for name in names:
        target = device.target_of(torch.device(name))
        platforms.add(target.platform)
        if target.platform == "cpu":
            print(f"  {name:8} torch reference only")
            continue
        real = "the simulated MI300X" if target.simulated else torch.cuda.get_device_name(target.index)
        print(f"  {name:8} {real}: {target.arch} ({target.platform}), {target.cu_num} CUs, wave {target.wave_size}")
    problems = []
    for platform in sorted(platforms - {"cpu"}):
        try:
            toolchain.find(platform)
        except AiterLikeError as error:
            problems.append(f"kernels for {platform} cannot be built: {error}")
    return problems


def _print_tables(notes: list[str]) -> list[str]:
    """`notes` gets a line for each operator with stale rows."""
    import torch

    from aiter_like import device
    from aiter_like.dispatch import OPS, table
    from aiter_like.sim import modelling

    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    here = {(target.arch, target.cu_num) for target in map(device.target_of, map(torch.device, names))}

    print("\ntuned tables")
    has_modelled = False
    problems = dict.fromkeys(str(problem) for problem in table.strays(OPS))
    for op in OPS.values():
        if op.tune_key is None:
            continue
        layers = "; ".join(f"{layer.title}: {sum(map(len, layer.rows.values()))} rows" for layer in op.table.layers)
        print(f"  {op.name:20} {layers or 'no file'}")
        problems |= dict.fromkeys(map(str, op.table.problems))
        notes += _stale(op, here)
        has_modelled |= any(row.is_modelled for row in op.table.rows())
    if has_modelled:
        print(f"  The times of modelled rows come from the cycle model of the simulated MI300X, here version "
              f"{modelling.version()}; nothing of them is measured.")
    return list(problems)


def _stale(op: Any, here: Collection[tuple[str, int]]) -> list[str]:
    """What to do about the rows of an operator that timed something else than what would run now, on the devices `here`
    (architecture, compute units): no other row is asked for."""
    backends = {backend.name: backend for backend in op.backends}
    notes = []
    for kind, is_modelled, again in (("tuned", False, "measure again: aiter-like tune {} --shapes {}"),
                                     ("modelled", True, "model again: aiter-like tune {} --device sim --shapes {}")):
        rows = [row for row in op.table.rows() if row.is_modelled == is_modelled and row.key[:2] in here]
        reasons = {row.source: reason for row in rows
                   if (reason := backends[row.backend].staleness(row)) is not None}
        if reasons:
            first, reason = next(iter(reasons.items()))
            notes.append(f"{op.name}: {len(reasons)} of {len(rows)} {kind} rows are stale and not used, the first: "
                         f"{first}: {reason}; {again.format(op.name, first.rpartition(':')[0])}")
    return notes
