# SPDX-License-Identifier: MIT
"""`aiter-like sim profile`: where the modelled cycles of a script's or an operator's kernels go."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiter_like.cli.outputs import require_writable
from aiter_like.cli.sim_check import prepare_script

_DESCRIPTION = """Runs a Python script, or calls a public function on random numbers, on the simulated MI300X with the
cycle model on, and prints for each kernel what it is bound by, how busy the units are, what its waves wait for and
which lines cost most. Everything about time is modelled, not measured. Of large grids only workgroups that the model
needs run, so that what the kernels leave in memory is wrong, unless --whole is given."""
_EPILOG = """  aiter-like sim profile --page rms.html rms_norm input=bf16[8192,4096] weight=bf16[4096] epsilon=1e-6
  aiter-like sim profile --page out.html script.py --its-arguments
  aiter-like sim profile --compare before.json rms_norm input=bf16[8192,4096] weight=bf16[4096] epsilon=1e-6"""


def add_profile(actions: argparse._SubParsersAction) -> None:
    """Adds `profile`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    profile = actions.add_parser("profile", help="where the modelled cycles of kernels go", description=_DESCRIPTION,
                                 epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    profile.add_argument("--page", type=Path, metavar="FILE.html", help="write one self-contained page there")
    profile.add_argument("--json", type=Path, metavar="FILE", help="write the profiles there")
    profile.add_argument("--trace", type=Path, metavar="FILE", help="write the longest kernel's timeline there, as a "
                                                                     "Chrome trace (Perfetto opens it)")
    profile.add_argument("--compare", type=Path, metavar="BEFORE.json", help="set the longest kernel beside that of "
                                                                              "profiles written before")
    profile.add_argument("--whole", action="store_true", help="run every workgroup, with right results")
    profile.add_argument("--clock", type=float, metavar="MHZ", help="of the shader engines (default: 2100)")
    profile.add_argument("target", metavar="SCRIPT.py|FUNCTION")
    profile.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's arguments, or name=value "
                                                                                 "as in aiter-like explain")
    profile.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from aiter_like import device, sim
    from aiter_like.sim import modelling, profiling

    for path, option in ((args.page, "--page"), (args.json, "--json"), (args.trace, "--trace")):
        if path:
            require_writable(path, option)
    before = _read(args.compare) if args.compare else None
    call = _call_of(args)
    device.use_simulator(True)
    found: list[dict] = []
    with sim.enabled(checks=False), profiling.profiled(found, not args.whole, args.clock or modelling.PEAK_MHZ):
        call()
    _write(found, args)
    if not found:
        print("[sim] no kernel was launched on the simulated MI300X")
        return 1
    if before:
        longest = [max(one, key=lambda profile: profile["modelled_clk"]) for one in (before, found)]
        print("\n".join(profiling.comparison(*longest)))
    return 0


def _write(found: list[dict], args: argparse.Namespace) -> None:
    """Prints profiles, the longest first, and writes the files that `--page`, `--json` and `--trace` name."""
    from aiter_like.sim import profiling

    found.sort(key=lambda profile: -profile["modelled_clk"])
    for profile in found:
        first, *rest = profiling.summary(profile)
        print("\n".join([first, *(f"  {line}" for line in rest)]))
    if args.page:
        args.page.write_text(profiling.page(found))
        print(f"{args.page}: written")
    if args.json:
        args.json.write_text(json.dumps(found) + "\n")
    if args.trace and found:
        args.trace.write_text(json.dumps(profiling.chrome_trace(found[0])) + "\n")


def _call_of(args: argparse.Namespace) -> Callable[[], Any]:
    """What makes the launches.

    Raises:
        ValueError: the target is neither a script nor a public function, or an argument of it is wrong.
    """
    if args.target.endswith(".py"):
        if not Path(args.target).is_file():
            raise ValueError(f"{args.target}: no such file")
        return lambda: _run_script(args)
    import torch

    from aiter_like.cli.explain import arguments_of, filled, function_of

    function = function_of(args.target)
    values = filled(arguments_of(args.args, torch.device("cpu")))

    def call() -> None:
        with torch.no_grad():
            function(**values)

    return call


def _run_script(args: argparse.Namespace) -> None:
    prepare_script(Path(args.target), args.args)
    try:
        runpy.run_path(args.target, run_name="__main__")
    except SystemExit as error:
        if error.code:
            print(f"[sim] {args.target} ended with {error.code}", file=sys.stderr)


def _read(path: Path) -> list[dict]:
    """Profiles that `--json` wrote.

    Raises:
        ValueError: the file is none of these.
    """
    from aiter_like.sim import profiling

    try:
        found = json.loads(path.read_text())
        if found and all(one["schema"] == profiling.SCHEMA and one["instructions"] for one in found):
            return found
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"--compare: {path}: {error}") from error
    raise ValueError(f"--compare: {path} holds no profiles of this version: write them with --json")
