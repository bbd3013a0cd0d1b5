# SPDX-License-Identifier: MIT
"""The arguments of `aiter-like demo`. What it does is in demo.py, which needs torch and is imported when it runs."""

import argparse
from pathlib import Path


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `demo`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    parser = subparsers.add_parser("demo", help="attention of a real transformer, checked against stock")
    parser.add_argument("--device", choices=("auto", "sim", "gpu"), default="auto",
                        help="the simulated MI300X or the GPU (default: the GPU where there is one)")
    parser.add_argument("--json", type=Path, default=Path("demo.json"),
                        help="machine-readable result (default: %(default)s)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from aiter_like.cli import demo

    return demo.run(args)
