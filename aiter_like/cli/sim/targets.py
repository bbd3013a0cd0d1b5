# SPDX-License-Identifier: MIT
"""Targets of `aiter-like sim profile`, `debug` and `trace`: a script, a public function, or a kernel of a code
object."""

import argparse
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiter_like.cli.sim import launch as sim_launch
from aiter_like.cli.sim.script import prepare_script, require_script


def add_command(actions: argparse._SubParsersAction, name: str, add_options: Callable[[argparse.ArgumentParser], None],
                run: Callable[[argparse.Namespace], int], **texts: str) -> None:
    """Adds a command on a target: its options, the target and what stands behind it; `texts` are the parser's."""
    parser = actions.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
    add_options(parser)
    parser.set_defaults(run=run)
    parser.add_argument("target", metavar="SCRIPT.py|FUNCTION|FILE.co")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGS",
                        help="the script's arguments; or name=value as in aiter-like explain; or the launch's options")


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a code object's launch."""
    sim_launch.add_options(parser.add_argument_group("a kernel of a code object, as in aiter-like sim run"))


def with_rest(args: argparse.Namespace, action: str,
              add_options: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    """For all targets but scripts, which have their own: options may stand behind the target, too."""
    if args.target.endswith(".py"):
        return args
    parser = argparse.ArgumentParser(prog=f"aiter-like sim {action} {args.target}", add_help=False,
                                     argument_default=argparse.SUPPRESS)
    add_options(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # Options before the target keep their values.
    parser.add_argument("rest", nargs="*")
    known = {name: value for name, value in vars(args).items() if name != "rest"}
    found = parser.parse_intermixed_args(args.rest, argparse.Namespace(**known))
    return argparse.Namespace(**{**known, "rest": [], **vars(found)})


def call_of(args: argparse.Namespace, action: str) -> Callable[[], Any]:
    """The function that makes the launches."""
    target = Path(args.target)
    given = [f"--{name}" for name in ("kernel", "grid", "block", "shared", "args") if getattr(args, name)]
    if not target.suffix == ".py" and (target.is_file() or target.suffix in (".co", ".hsaco")):
        return _launch_of(target, args, action)
    if given:
        raise ValueError(f"sim {action}: {given[0]} is for a code object, and {args.target} is none")
    if target.suffix == ".py":
        require_script(target)
        return lambda: _run_script(args.target, args.rest)
    import torch

    from aiter_like.cli.explain import arguments_of, filled, function_of

    function = function_of(args.target)
    values = filled(arguments_of(function, args.rest, torch.device("cpu")))

    def call() -> None:
        with torch.no_grad():
            function(**values)

    return call


def _launch_of(file: Path, args: argparse.Namespace, action: str) -> Callable[[], Any]:
    if args.rest:
        raise ValueError(f"sim {action}: a code object has no arguments but its options, got {args.rest[0]!r}")
    launches = sim_launch.read(file, args)

    def call() -> None:
        for launch in launches:
            launch.run(launch.spec.buffers)

    return call


def _run_script(script: str, arguments: list[str]) -> None:
    prepare_script(Path(script), arguments)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code:
            print(f"[sim] {script} ended with {error.code}", file=sys.stderr)
