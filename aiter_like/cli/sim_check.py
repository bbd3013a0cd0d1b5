# SPDX-License-Identifier: MIT
"""`aiter-like sim check SCRIPT`: a Python script as it is, on the simulated MI300X, with its checkers on.

Read by sim_commands.py; the pytest plugin shows reports in the same form.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from aiter_like import device, sim
from aiter_like.sim import reports

_DESCRIPTION = """Runs a Python script as __main__: kernels that it launches on CPU tensors, of this package or of
Triton, run on the simulated MI300X with its checkers on. What they say goes to stderr, once per check, kernel and
instruction. Exit status: 1 when anything was reported, else the script's own."""


def add_check(actions: argparse._SubParsersAction) -> None:
    """Adds `check`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    check = actions.add_parser("check", help="run a Python script with the checkers on", description=_DESCRIPTION)
    check.add_argument("--checks", type=checks_of, default=tuple(sim.CHECKS), metavar="NAME,…",
                       help=f"of {', '.join(sim.CHECKS)} (default: all)")
    check.add_argument("--fuzz", type=int, default=0, metavar="SEED",
                       help="draw schedules, late loads and undefined values by this seed (default: program order)")
    check.add_argument("--seeds", type=int, default=1, metavar="N",
                       help="run N times, with SEED, SEED + 1, …, each in a process of its own")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the reports there, and only count them here")
    check.add_argument("script", type=Path, metavar="SCRIPT")
    check.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's arguments")
    check.set_defaults(run=_run)


def checks_of(text: str) -> tuple[str, ...]:
    """ "wait,bounds" as a tuple.

    Raises:
        argparse.ArgumentTypeError: one of them is no check.
    """
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in sim.CHECKS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(sim.CHECKS)}")
    return names


def _run(args: argparse.Namespace) -> int:
    if not args.script.is_file():
        raise ValueError(f"{args.script}: no such file")
    if args.seeds < 1 or args.fuzz < 0:
        raise ValueError("--seeds must be at least 1, --fuzz at least 0")
    found, status = _run_children(args) if args.seeds > 1 else _run_here(args)
    found = reports.merged(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    for report in [] if args.json else found:
        seed = f" (seed {report['seed']})" if report["seed"] else ""
        print(reports.text_of(report) + seed, file=sys.stderr)
    total = sum(report["count"] for report in found)
    seeds = f"seeds {args.fuzz} to {args.fuzz + args.seeds - 1}" if args.seeds > 1 else f"seed {args.fuzz}"
    print(f"[sim] {args.script}: {len(found)} distinct report(s), {total} in all; {seeds}, "
          f"checks {','.join(args.checks)}", file=sys.stderr)
    return 1 if found else status


def _run_here(args: argparse.Namespace) -> tuple[list[dict], int]:
    """The reports of one run, and the status that the script alone would have had. The process ends after it."""
    device.use_simulator(True)
    if importlib.util.find_spec("triton"):
        sim.enable_triton()
    sys.argv = [str(args.script), *args.args]
    sys.path.insert(0, str(args.script.resolve().parent))
    with sim.enabled(checks=args.checks, fuzz=args.fuzz, on_report="collect") as session, _Shown() as shown:
        runpy.run_path(str(args.script), run_name="__main__")
    sys.stdout.flush()  # before what is said about it
    return [{**report, "seed": args.fuzz} for report in session.reports], shown.status


def _run_children(args: argparse.Namespace) -> tuple[list[dict], int]:
    """All seeds' reports, and the first status that is not 0."""
    found, failed = [], 0
    for seed in range(args.fuzz, args.fuzz + args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "reports.json")
            command = [sys.executable, "-m", "aiter_like", "sim", "check", "--checks", ",".join(args.checks),
                       "--fuzz", str(seed), "--json", str(file), str(args.script), *args.args]
            status = subprocess.run(command, check=False).returncode
            found += json.loads(file.read_text()) if file.exists() else []
            failed = failed or (status if status >= 0 else 128 - status)  # killed by a signal: as shells say it
    return found, failed


class _Shown:
    """A block whose end is that of a script: an exception is shown, an exit has a status."""

    status = 0

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            self.status = error.code if isinstance(error.code, int) else int(error.code is not None)
            return True
        if not isinstance(error, Exception):
            return False
        while traceback and traceback.tb_frame.f_globals.get("__name__") != "__main__":
            traceback = traceback.tb_next  # without this file and runpy
        sys.excepthook(kind, error.with_traceback(traceback), traceback)
        self.status = 1
        return True
