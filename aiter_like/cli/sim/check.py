# SPDX-License-Identifier: MIT
"""`aiter-like sim check SCRIPT`: a Python script as it is, on the simulated MI300X, with its checkers on.

Its options for checks and seeds are those of `aiter-like sim run`, too; the pytest plugin shows reports in the same
form.
"""

import argparse
import json
import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aiter_like import sim
from aiter_like.cli.outputs import require_writable
from aiter_like.cli.sim.script import GPU_HELP, Shown, gpu_block, prepare_script, require_script
from aiter_like.modules import processes
from aiter_like.sim import reports
from aiter_like.sim.settings import default_settings

CHECKS_HELP = (f"of {', '.join(sim.CHECKS)}, all (default: all but global_race, which is slow, and strict, which makes "
               "errors of notes)")
_DESCRIPTION = """Runs a Python script as __main__: kernels that it launches on CPU tensors, of this package or of
Triton, run on the simulated MI300X with its checkers on. What they say goes to stderr, once per check, kernel and
cause. Exit status: 1 when anything but notes was reported, else the script's own."""


def add_check(actions: argparse._SubParsersAction) -> None:
    """Adds `check`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    check = actions.add_parser("check", help="run a Python script with the checkers on", description=_DESCRIPTION)
    check.add_argument("--checks", type=checks_of, default=sim.DEFAULT_CHECKS, metavar="NAME,…", help=CHECKS_HELP)
    add_seeds(check, "each in a process of its own")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the reports there, and only count them here")
    check.add_argument("--gpu", action="store_true", help=GPU_HELP)
    check.add_argument("script", type=Path, metavar="SCRIPT")
    check.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's arguments")
    check.set_defaults(run=_run)


def add_seeds(parser: argparse.ArgumentParser, how: str) -> None:
    """Adds `--fuzz` and `--seeds`; `how` says where the runs of several seeds take place."""
    parser.add_argument("--fuzz", type=int, metavar="SEED",
                        help="draw schedules, late loads and undefined values by this seed (default: that of "
                             "AITER_LIKE_SIM, else program order)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help=f"run N times, with SEED, SEED + 1, …, {how}")


def seeds_of(args: argparse.Namespace) -> range:
    """The seeds that `--fuzz` and `--seeds` ask for."""
    first = default_settings().fuzz if args.fuzz is None else args.fuzz
    if args.seeds < 1 or first < 0 or first + args.seeds > 2**64:
        raise ValueError(f"--seeds must be at least 1, --fuzz at least 0, their sum at most 2**64, got {args.seeds} "
                         f"and {first}")
    return range(first, first + args.seeds)


def checks_of(text: str) -> tuple[str, ...]:
    """ "wait,bounds" as a tuple, "all" as all of them."""
    try:
        return sim.parse_checks(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def summary(what: object, found: Sequence[dict], seeds: range, checks: Sequence[str]) -> str:
    """The line at the end: how many reports, of what, with which seeds and checks."""
    total, notes = sum(report["count"] for report in found), len(found) - len(reports.errors(found))
    told = f" ({notes} of them notes)" if notes else ""
    tried = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"[sim] {what}: {len(found)} distinct report(s){told}, {total} in all; {tried}, checks {','.join(checks)}"


def _run(args: argparse.Namespace) -> int:
    require_script(args.script)
    seeds = seeds_of(args)
    require_writable(args.json, "--json")
    found, status = _run_children(args, seeds) if len(seeds) > 1 else _run_here(args, seeds[0])
    found = reports.merged(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    for text in [] if args.json else reports.listing(found):
        print(text, file=sys.stderr)
    print(summary(args.script, found, seeds, args.checks), file=sys.stderr)
    return 1 if reports.errors(found) else status


def _run_here(args: argparse.Namespace, seed: int) -> tuple[list[dict], int]:
    """The reports of one run, and the status that the script alone would have had. The process ends after it."""
    prepare_script(args.script, args.args)
    with gpu_block(args.gpu), sim.enabled(checks=args.checks, fuzz=seed, on_report="collect") as session, \
            Shown() as shown:
        runpy.run_path(str(args.script), run_name="__main__")
    sys.stdout.flush()  # before what is said about it
    return [{**report, "seed": seed} for report in session.reports], shown.status


def _run_children(args: argparse.Namespace, seeds: range) -> tuple[list[dict], int]:
    """All seeds' reports, and the first status that is not 0."""
    found, failed = [], 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "reports.json")
            command = [sys.executable, "-m", "aiter_like", "sim", "check", "--checks", ",".join(args.checks),
                       "--fuzz", str(seed), "--json", str(file), *["--gpu"] * args.gpu, str(args.script), *args.args]
            with processes.child(command) as child:
                status = child.wait()
            found += json.loads(file.read_text()) if file.exists() else []
            failed = failed or (status if status >= 0 else 128 - status)  # killed by a signal: as shells say it
    return found, failed
