# SPDX-License-Identifier: MIT
"""`aiter-like aiter-tests`: runs a folder of programs in the manner of AITER's op_tests, and counts what they check."""

from __future__ import annotations

import argparse
import fnmatch
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_SUMMARY = "run a folder of AITER's own tests through the shim, and count file by file what they check"

_EPILOG = """A check is a test of pytest in a file that imports pytest, and in a script a call of checkAllclose,
torch.testing.assert_close, torch.allclose or torch.equal. A file counts only if at least one ran.
  passed, failed  checks
  errors          parts that raised anything but a failed check
  skipped         by the file itself; other arch: because it asks for an architecture that this machine's is not
  unserved        stopped at a name that is not there, or raises
Exit status: 0 where no check failed and every file came to its end or to what is missing, else 1."""

_HEAD = f"{'file':44} {'passed':>7} {'failed':>7} {'errors':>7} {'skipped':>7} {'other arch':>10} {'unserved':>8}  " \
        f"{'ended':12}  first missing, or first problem"


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `aiter-tests`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    tests = subparsers.add_parser("aiter-tests", description=f"{_SUMMARY}.", epilog=_EPILOG,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    tests.add_argument("folder", type=Path, metavar="DIR", help="its files test_*.py run, each in a process of its own")
    tests.add_argument("--only", action="append", default=[], metavar="PATTERN",
                       help="files whose name matches, e.g. 'test_rmsnorm*'; may be given again")
    tests.add_argument("--limit", type=float, default=600.0, metavar="SECONDS",
                       help="time of each file (default: %(default)g)")
    tests.add_argument("--jobs", type=int, default=1, metavar="N", help="files at a time (default: %(default)s)")
    tests.add_argument("--arguments", action="append", default=[], metavar="FILE=ARGUMENTS",
                       help="command line of one file, e.g. 'test_rmsnorm2d.py=-m 4 -n 1024'; may be given again")
    tests.add_argument("--device", choices=("auto", "gpu", "sim"), default="auto",
                       help="sim: what a file calls cuda is the CPU with the simulated MI300X (default: the GPU, and "
                            "sim where there is none)")
    tests.add_argument("--memory", type=float, metavar="GIB",
                       help="what a file may allocate on the CPU (default: half of the machine's with sim, else all)")
    tests.add_argument("--logs", type=Path, metavar="DIR", help="keep what each file prints there")
    tests.add_argument("--output", type=Path, metavar="FILE.json", help="the results, written anew after each file")
    tests.add_argument("--note", default="", metavar="TEXT", help="of the results: what was run, and where it is from")
    tests.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    tests.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from aiter_like.integrations.aiter.tests import runs

    files = _files(args)
    settings, about = _settings(args, files)
    results: list[runs.Result] = []
    progress = _Progress(len(files))
    if not args.json:
        print(_HEAD)
    for result in runs.run_files([file.resolve() for file in files], settings, progress.show):
        progress.clear()
        results = sorted([*results, result], key=lambda one: one.file)
        if not args.json:
            print(_row(result), flush=True)
        if args.output:
            runs.write(args.output, about, results)
    if args.json:
        print(json.dumps({**about, "files": [asdict(result) for result in results]}, indent=1))
    else:
        print(_sum(results))
    return 0 if all(result.is_well for result in results) else 1


def _files(args: argparse.Namespace) -> list[Path]:
    """The files that run."""
    if not args.folder.is_dir():
        raise ValueError(f"{args.folder} is no folder")
    files = sorted(file for file in args.folder.glob("test_*.py")
                   if not args.only or any(fnmatch.fnmatch(file.name, pattern) for pattern in args.only))
    if not files:
        raise ValueError(f"no file {' or '.join(args.only) or 'test_*.py'} in {args.folder}")
    for path in filter(None, (args.output and args.output.parent, args.logs)):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        if not os.access(path, os.W_OK):
            raise ValueError(f"{path} cannot be written")
    return files


def _settings(args: argparse.Namespace, files: Sequence[Path]) -> tuple[object, dict[str, object]]:
    """The settings of the run, and what its results say of it."""
    import torch

    from aiter_like import device
    from aiter_like.integrations.aiter.tests.runs import Settings
    from aiter_like.integrations.aiter.uses import Uses

    if args.limit <= 0 or args.jobs < 1 or (args.memory is not None and args.memory <= 0):
        raise ValueError("--limit, --jobs and --memory must be above 0")
    arguments = {}
    for text in args.arguments:
        name, equals, line = text.partition("=")
        if not equals or name not in {file.name for file in files}:
            raise ValueError(f"--arguments must be FILE=ARGUMENTS with a file that runs, got {text!r}")
        arguments[name] = shlex.split(line)
    if args.device == "gpu" and not torch.cuda.is_available():
        raise ValueError("--device gpu: there is no GPU")
    is_sim = args.device == "sim" or not torch.cuda.is_available()
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = int(args.memory * 2**30) if args.memory else whole // 2 if is_sim else 0
    place = device.simulated_target().arch if is_sim else device.default_target().arch
    about = {"note": args.note, "names": Uses.of_all(files).counts,
             "device": "simulated MI300X" if is_sim else torch.cuda.get_device_name(), "arch": place,
             "limit_s": args.limit, "torch": torch.__version__, "arguments": arguments}
    logs = args.logs.resolve() if args.logs else None
    return Settings(args.limit, is_sim, memory, arguments, logs, args.jobs), about


def _row(result: object) -> str:
    counts = result.counts
    first = f"missing: {result.missing}" if result.missing else result.problem
    return (f"{result.file:44} {counts['passed']:7} {counts['failed']:7} {counts['errors']:7} {counts['skipped']:7} "
            f"{counts['other_arch']:10} {counts['unserved']:8}  {result.ended or 'itself':12}  {first[:160]}")


def _sum(results: Sequence[object]) -> str:
    total = {kind: sum(result.counts[kind] for result in results) for kind in results[0].counts}
    counted = sum(result.is_counted for result in results)
    return (f"{counted} of {len(results)} files count: {total['passed']} checks passed, {total['failed']} failed; "
            f"{total['errors']} errors, {total['skipped']} skipped, {total['other_arch']} for another architecture, "
            f"{total['unserved']} unserved")


class _Progress:
    """A line on stderr that says what runs: rewritten on a terminal, elsewhere one for each file that starts."""

    def __init__(self, total: int):
        self._total, self._is_terminal = total, sys.stderr.isatty()
        self._started: list[str] = []

    def show(self, running: Sequence[tuple[str, float, dict[str, int]]]) -> None:
        """The files that run: name, seconds, counts so far."""
        new = [name for name, _, _ in running if name not in self._started]
        self._started += new
        if self._is_terminal:
            files = ", ".join(f"{name} {seconds:.0f} s" for name, seconds, _ in running)
            passed, failed = (sum(counts[kind] for _, _, counts in running) for kind in ("passed", "failed"))
            print(f"\r\033[K[{len(self._started)}/{self._total}] {files}: {passed} passed, {failed} failed", end="",
                  file=sys.stderr, flush=True)
        for name in () if self._is_terminal else new:
            print(f"[{self._started.index(name) + 1}/{self._total}] {name}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """The table's next line comes."""
        if self._is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
