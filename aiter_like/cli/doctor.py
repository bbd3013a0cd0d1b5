# SPDX-License-Identifier: MIT
"""`aiter-like doctor`: environment, compilers, devices, cache, tuned tables, engines, and what is wrong with them."""

import argparse
import getpass
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiter_like import __version__, env, paths
from aiter_like.errors import AiterLikeError, did_you_mean

_FOLDERS = ("AITER_LIKE_CACHE_DIR", "AITER_LIKE_PREBUILT_DIR", "AITER_LIKE_TUNED", "AITER_LIKE_RECORD")
_SUMMARY = "environment, compilers, devices, cache and tuned tables; what is wrong with them"


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `doctor`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    doctor = subparsers.add_parser("doctor", description=_SUMMARY)
    wanted = doctor.add_mutually_exclusive_group()
    wanted.add_argument("--engine", choices=("vllm", "sglang", "transformers"),
                        help="instead: whether this engine is served, and what is taken in it")
    wanted.add_argument("--json", action="store_true", help="the same as JSON, without paths and names of yours: for "
                        "reports that others read")
    doctor.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Prints the state of the installation, or of one engine's integration; 1 when something is broken rather than
    absent or out of date.
    """
    if args.engine is not None:
        from aiter_like.integrations import doctor

        lines, problems = doctor.report(args.engine)
        return _print_problems([*lines, ""], problems)
    problems: list[str] = []
    notes: list[str] = []
    parts = {name: collect(problems, notes) for name, (collect, _) in _PARTS.items()}
    if args.json:
        print(json.dumps(_private(parts | {"problems": problems, "notes": notes}, _own_names()), indent=1))
        return 1 if problems else 0
    for name, part in parts.items():
        print(name.replace("_", " "))
        for line in _PARTS[name][1](part):
            print(f"  {line}")
        print()
    return _print_problems([], problems, notes)


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


def _private(value: Any, own: Mapping[str, str]) -> Any:
    """Takes out of each text in `value` what could tell of its user: the patterns of `own`, each for what stands there
    instead, one after the other.
    """
    if isinstance(value, dict):
        return {_private(key, own): _private(each, own) for key, each in value.items()}
    if isinstance(value, list):
        return [_private(each, own) for each in value]
    for pattern, shown in own.items() if isinstance(value, str) else ():
        value = re.sub(pattern, shown, value)
    return value


def _own_names() -> dict[str, str]:
    """Lists the patterns of paths and of the names of the user and the machine, and what is shown for them."""
    from aiter_like.modules import cache

    given = {part for name in _FOLDERS for part in os.environ.get(name, "").split(os.pathsep)}
    known = given | {str(Path.home()), str(Path.cwd()), sys.prefix, str(paths.data_root()), str(cache.cache_root())}
    patterns = {rf"(?<![\w-]){re.escape(path)}(?!\w)": "<path>"  # these may have spaces
                for path in sorted(known - {"", os.sep}, key=len, reverse=True)}
    patterns[r"(<path>|(?<![\w.<])~?/)[^\s,;:'\"()]*"] = "<path>"
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run under numbers that have no name
        user = ""
    return patterns | {rf"(?<!\w){re.escape(name)}(?!\w)": "<name>" for name in (user, platform.node()) if name}


def _environment(problems: list[str], notes: list[str]) -> dict[str, Any]:
    """Variable → value, and whether it is set; of those that nobody reads, the name alone."""
    from aiter_like.integrations import takeover
    from aiter_like.sim.settings import parse_settings

    found = {}
    for name in env.VARIABLES:
        try:
            value: Any = env.get(name)
        except ValueError as error:
            value = os.environ[name]
            problems.append(str(error))
        found[name] = {"value": ",".join(map(str, value)) if isinstance(value, tuple) else str(value),
                       "is_set": name in os.environ}
    try:
        parse_settings(env.get("AITER_LIKE_SIM"))
    except ValueError as error:
        problems.append(str(error))
    problems += takeover.unknown_names()
    problems += [f"{name} is not a variable of aiter_like{did_you_mean(name, env.VARIABLES)}" for name in env.unknown()]
    return found


def _lines_of_environment(found: dict[str, Any]) -> Iterator[str]:
    for name, one in found.items():
        variable = env.VARIABLES[name]
        yield f"{name:24}{'=' if one['is_set'] else ' '} {one['value']:20}  {variable.help}; read {variable.read}"
    for name in env.unknown():
        yield f"{name:24}= {os.environ[name]:20}  UNKNOWN"


def _software(problems: list[str], notes: list[str]) -> dict[str, Any]:
    import torch

    from aiter_like.modules import cache, toolchain

    packages = {name: _version(name) for name in ("apache-tvm-ffi", "ninja", "filelock", "triton")}
    if importlib.util.find_spec("triton") is None:
        packages["triton"] = None
    elif packages["triton"] is None:
        packages["triton"] = "version unknown"
    problems += [f"{name} is not installed" for name in ("apache-tvm-ffi", "filelock") if packages[name] is None]
    notes += _unusable_folders()
    return {"aiter_like": __version__, "data": str(paths.data_root()), "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}", "torch": torch.__version__,
            "torch_hip": torch.version.hip, "torch_cuda": torch.version.cuda, "packages": packages,
            "compilers": {one.name: str(one.toolchain or one.reason) for one in toolchain.report()},
            "cache": str(cache.cache_root()), "prebuilt": _prebuilt(problems)}


def _lines_of_software(found: dict[str, Any]) -> Iterator[str]:
    yield f"aiter_like   {found['aiter_like']}, data in {found['data']}"
    yield f"torch        {found['torch']} (hip {found['torch_hip']}, cuda {found['torch_cuda']})"
    for name, version in found["packages"].items():
        yield f"{name:12} {version or ('absent (an extra)' if name == 'triton' else 'MISSING')}"
    for name, compiler in found["compilers"].items():
        yield f"{name:12} {compiler}"
    yield f"cache        {found['cache']}"
    if found["prebuilt"]:
        yield f"prebuilt     {found['prebuilt']}"


def _unusable_folders() -> Iterator[str]:
    """Notes on the folders that were asked for and cannot be had: processes go on without them."""
    from aiter_like.modules import cache

    try:
        cache.chosen_root()
    except (OSError, RuntimeError) as error:
        yield (f"no usable cache directory: {error}; each process builds its modules anew. Set AITER_LIKE_CACHE_DIR to "
               "one that only you can write")
    if folder := env.get("AITER_LIKE_RECORD"):
        above = (Path(folder).absolute(), *Path(folder).absolute().parents)
        there = next(path for path in above if os.path.exists(path))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            why = f"{there} is no directory" if not there.is_dir() else f"{there} cannot be written"
            yield f"AITER_LIKE_RECORD: no shapes are recorded in {folder}: {why}"


def _prebuilt(problems: list[str]) -> str:
    """Describes the modules in AITER_LIKE_PREBUILT_DIR that serve these sources; "" where there is none."""
    from aiter_like.modules import build, cache

    folder = env.get("AITER_LIKE_PREBUILT_DIR")
    if not folder:
        return ""
    if not Path(folder).is_dir():
        problems.append(f"AITER_LIKE_PREBUILT_DIR: {folder} is no directory")
        return ""
    faults = [build.misfit(entry) for entry in cache.entries(Path(folder).resolve())]
    others = sorted({fault for fault in faults if fault})
    if others:
        problems.append(f"AITER_LIKE_PREBUILT_DIR: {len(faults) - faults.count('')} modules in {folder} do not fit: "
                        f"{'; '.join(others)}")
    return f"{faults.count('')} of {len(faults)} modules in {folder} fit"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _targets() -> dict[str, Any]:
    """Name of a torch device → its Target."""
    import torch

    from aiter_like import device

    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return {name: device.target_of(torch.device(name)) for name in names}


def _devices(problems: list[str], notes: list[str]) -> dict[str, str]:
    import torch

    from aiter_like.modules import toolchain

    found, targets = {}, _targets()
    for name, target in targets.items():
        real = "the simulated MI300X" if target.simulated else ""
        if target.platform != "cpu":
            real = real or torch.cuda.get_device_name(target.index)
        found[name] = (f"{real}: {target.arch} ({target.platform}), {target.cu_num} CUs, wave {target.wave_size}"
                       if real else "torch reference only")
    for kind in sorted({target.platform for target in targets.values()} - {"cpu"}):
        try:
            toolchain.find(kind)
        except AiterLikeError as error:
            problems.append(f"kernels for {kind} cannot be built: {error}")
    return found


def _tuned_tables(problems: list[str], notes: list[str]) -> dict[str, Any]:
    """Operator → title of a layer of its table → rows, and how many are of devices here; stale ones go to `notes`."""
    from aiter_like.dispatch import OPS, table

    here = {(target.arch, target.cu_num) for target in _targets().values()}
    found, wrong = {}, dict.fromkeys(str(problem) for problem in table.strays(OPS))
    for op in OPS.values():
        if op.tune_key is not None:
            found[op.name] = {layer.title: {"rows": sum(map(len, layer.rows.values())), "here": sum(
                len(rows) for key, rows in layer.rows.items() if key[:2] in here)} for layer in op.table.layers}
            wrong |= dict.fromkeys(map(str, op.table.problems))
            notes += _stale(op, here)
    problems += wrong
    return found


def _lines_of_tables(found: dict[str, Any]) -> Iterator[str]:
    from aiter_like.sim import modelling

    for name, layers in found.items():
        told = (f"{title}: {count['rows']} rows, {count['here'] or 'none'} for devices here"
                for title, count in layers.items())
        yield f"{name:20} {'; '.join(told) or 'no file'}"
    if any("modelled" in title for layers in found.values() for title in layers):
        yield (f"The times of modelled rows come from the cycle model of the simulated MI300X, here version "
               f"{modelling.version()}; nothing of them is measured.")


def _stale(op: Any, here: Collection[tuple[str, int]]) -> list[str]:
    """Advises about the rows of an operator that timed something else than what would run now, on the devices `here`
    (architecture, compute units): no other row is asked for."""
    notes = []
    for kind, is_modelled, again in (("tuned", False, "measure again: aiter-like tune {} --shapes {}"),
                                     ("modelled", True, "model again: aiter-like tune {} --device sim --shapes {}")):
        rows = [row for row in op.table.rows() if row.is_modelled == is_modelled and row.key[:2] in here]
        reasons = {row.source: reason for row in rows if (reason := op.staleness(row)) is not None}
        if reasons:
            first, reason = next(iter(reasons.items()))
            notes.append(f"{op.name}: {len(reasons)} of {len(rows)} {kind} rows are stale and not used, the first: "
                         f"{first}: {reason}; {again.format(op.name, first.rpartition(':')[0])}")
    return notes


_PARTS: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[dict[str, Any]], Iterable[str]]]] = {
    "environment": (_environment, _lines_of_environment),
    "software": (_software, _lines_of_software),
    "devices": (_devices, lambda found: (f"{name:8} {text}" for name, text in found.items())),
    "tuned_tables": (_tuned_tables, _lines_of_tables)}
"""Part of the report → what collects it, adding to problems and notes; what makes lines of it."""
