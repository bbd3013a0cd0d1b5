# SPDX-License-Identifier: MIT
"""The command line, `aiter-like`. It configures logging and imports the module of the command that was asked for.

A user's mistake is a ValueError or an AiterLikeError in all of this folder: one line that names its place, which `main`
prints.
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence

from aiter_like import __version__, log
from aiter_like.cli.parser import Parser
from aiter_like.errors import AiterLikeError

# Command → the module whose add_commands defines it and what it needs; imported when the command is asked for.
_COMMANDS = {
    "demo": ("aiter_like.cli.demo_command", "attention of a real transformer, checked against stock"),
    "doctor": ("aiter_like.cli.doctor",
               "environment, compilers, devices, cache and tuned tables; what is wrong with them"),
    "build": ("aiter_like.cli.build", "build modules ahead of their first use"),
    "cache": ("aiter_like.cli.build", "list, verify or prune built modules"),
    "sim": ("aiter_like.cli.sim.commands",
            "the simulated MI300X: launch any gfx942 code object, check a script's kernels"),
    "tune": ("aiter_like.cli.tune", "measure the candidates of an operator and write its tuned rows"),
    "bench": ("aiter_like.cli.tune", "time every backend of an operator on a shape, checked first"),
    "explain": ("aiter_like.cli.explain", "which backend and kernel would serve a call, and why not the others"),
    "names": ("aiter_like.cli.integrations", "AITER's names, and which backends serve each of them"),
    "shim": ("aiter_like.cli.integrations", "where a package `aiter` lies, for engines without AMD's"),
    "aiter-tests": ("aiter_like.cli.aiter_tests",
                    "run a folder of AITER's own tests through the shim, and count what they check"),
    "new-op": ("aiter_like.cli.authors", "write the four files of a new operator"),
    "generate": ("aiter_like.cli.authors", "write the texts that follow from the operators' declarations"),
    "verify": ("aiter_like.cli.verify", "run the self-check of every kernel on this device and write a report"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status: 0 when all is well, 1 when something failed, 2 for wrong usage, 130 after
    Ctrl-C."""
    argv = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in argv if not word.startswith("-")), None)
    parser = Parser(prog="aiter-like", description="GPU operators for AMD MI300X, real or simulated.")
    parser.add_argument("--version", action="version", version=f"aiter-like {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command")
    try:
        if command in _COMMANDS:
            importlib.import_module(_COMMANDS[command][0]).add_commands(subparsers)
        else:  # help or a mistake: names and summaries are enough
            for name, (_, summary) in _COMMANDS.items():
                subparsers.add_parser(name, help=summary)
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            getattr(args, "judge", lambda _: None)(args)  # a file of another kind is the better answer
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        if args.command is None:
            parser.error(f"a command must be given; there are: {', '.join(_COMMANDS)}")
        log.configure("warning")
        return args.run(args)
    except KeyboardInterrupt:
        print(f"aiter-like {command}: interrupted", file=sys.stderr)
        return 130  # the status that shells give: 128 + SIGINT
    except (AiterLikeError, ValueError, TypeError) as error:
        if logging.getLogger("aiter_like").isEnabledFor(logging.DEBUG):
            raise
        print(f"aiter-like {command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `aiter-like doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None or logging.getLogger("aiter_like").isEnabledFor(logging.DEBUG):
            raise
        print(f"aiter-like {command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
