# SPDX-License-Identifier: MIT
"""`aiter-like sim debug`: a debugger over the simulated MI300X, for scripts and for kernels of code objects."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import sim
from aiter_like.cli.sim import check, targets
from aiter_like.cli.sim.described import read_file
from aiter_like.errors import AiterLikeError

if TYPE_CHECKING:
    from aiter_like.cli.sim.debug_shell import Shell

_DESCRIPTION = """Runs a Python script, a public function or a kernel of a code object on the simulated MI300X under a
debugger. It stops at source lines (of Triton kernels: their Python lines), instructions, conditions of lanes, accesses
to a place and reports of checkers; it steps by instruction and line, wave by wave, and shows variables by their names,
registers, LDS and memory. Launches run on one thread in a fixed order: a session repeats. `help` lists the commands."""
_EPILOG = """HIP: compile with -g, and -O0 or -O1 to keep more variables. Triton: lines are always there; variables
with LLVM_EXTRACT_DI_LOCAL_VARIABLES=1 and a new TRITON_CACHE_DIR, unless Triton's compiler fails then: 3.9 does with
some functions that it inlines, such as tl.max (UnicodeDecodeError). Names of variables need pyelftools.

  aiter-like sim debug script.py --its-arguments
  aiter-like sim debug FILE.co --kernel NAME --grid 4 --block 256 --args SPEC.json
  aiter-like sim debug -c 'break sum.py:12 wave 1 if $v0 == 70' -c run -c 'info locals' script.py"""
_MOST_BYTES = 1 << 20


def add_debug(actions: argparse._SubParsersAction) -> None:
    """Adds `debug`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    targets.add_command(actions, "debug", _add_options, _run, description=_DESCRIPTION, epilog=_EPILOG,
                        help="stop, step and look into kernels")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--command", action="append", default=[], metavar="COMMAND",
                        help="carry it out first; may be given several times")
    parser.add_argument("-x", "--commands", type=Path, metavar="FILE", help="carry out its lines first, before those")
    parser.add_argument("--checks", type=check.checks_of, metavar="NAME,…",
                        help="with these checkers, whose errors stop: " + check.CHECKS_HELP)
    targets.add_launch_options(parser)


def _run(args: argparse.Namespace) -> int:
    from aiter_like import device
    from aiter_like.cli.sim.debug_shell import Shell

    args = targets.with_rest(args, "debug", _add_options)
    call = targets.call_of(args, "debug")
    device.use_simulator(True)
    lines = read_file(args.commands, _MOST_BYTES).decode().splitlines() if args.commands else []
    shell = Shell([*(line for line in lines if line.strip() and not line.startswith("#")), *args.command])
    shell.control.attach(reports=bool(args.checks), signals=True)
    status = 0
    try:
        while True:
            shell.cmdloop()
            if shell.has_quit:
                return status
            shell.wants_run = False
            status = _execute(call, shell, args.checks or False)
            if shell.has_quit:
                return status
    finally:
        shell.control.detach()


def _execute(call: Callable[[], Any], shell: Shell, checks: tuple[str, ...] | bool) -> int:
    """One run of the program; what it raises is shown, unless the user has quit."""
    from aiter_like.sim.debugging.stops import Caught

    with sim.enabled(checks=checks, on_report="collect"), Caught() as caught:
        call()
    error = caught.error
    if shell.control.error is not None:
        raise shell.control.error
    if shell.has_quit:
        return 0
    if error is not None:
        lines = traceback.format_exception(error)
        print(error if isinstance(error, AiterLikeError) else "".join(lines).rstrip())
        print("the program has failed")
        return 1
    missing = [one.describe() for one in shell.control.breakpoints.values() if not one.placed]
    print("\n".join(["the program has ended", *missing]))
    return 0
