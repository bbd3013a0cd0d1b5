# SPDX-License-Identifier: MIT
"""The command `names`: the table of AITER's names as a page."""

from __future__ import annotations

import argparse


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds names; its parser sets `run`, a function of the parsed arguments."""
    names = subparsers.add_parser("names", description="Which backends serve each name of AITER's, as Markdown.")
    names.add_argument("--write", action="store_true", help="into AITER.md of this checkout, instead of the terminal")
    names.set_defaults(run=_names)


def _names(args: argparse.Namespace) -> int:
    import aiter_like  # noqa: F401 (declares the operators)
    from aiter_like.integrations import aiter_table

    if args.write:
        aiter_table.FILE.write_text(aiter_table.markdown())
        print(aiter_table.FILE)
    else:
        print(aiter_table.markdown(), end="")
    return 0
