# SPDX-License-Identifier: MIT
"""The commands `names`, AITER's names as a page, and `shim`, the directory of a package `aiter` made of them."""

import argparse
import importlib.machinery
import sys
from pathlib import Path

from aiter_like import paths


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds names and shim; each parser sets `run`, a function of the parsed arguments."""
    names = subparsers.add_parser("names", description="Which backends serve each name of AITER's, as Markdown.")
    names.add_argument("--write", action="store_true", help="into the pages of this checkout, instead of the terminal")
    names.add_argument("--against", type=Path, metavar="DIR",
                       help="a checkout of AITER: instead of the page, which signatures differ from those of its "
                            "sources, and which of its names the table does not know; exit status 1 where any differs")
    names.add_argument("--calls", type=Path, metavar="PATH",
                       help="a wheel, or a package's folder: instead of the page, every call of AITER's functions in "
                            "its sources, as a list; on stderr those that our signatures do not take, and the names "
                            "that the shim has not")
    names.add_argument("--output", type=Path, metavar="FILE", help="with --calls: the list into this file")
    names.set_defaults(run=_names)

    shim = subparsers.add_parser(
        "shim", description="The directory to put first on PYTHONPATH where AMD's aiter is not installed, before the "
        "engine starts: AITER_LIKE=1 PYTHONPATH=$(aiter-like shim) vllm serve …")
    shim.set_defaults(run=lambda args: _shim())


def _names(args: argparse.Namespace) -> int:
    import aiter_like  # noqa: F401 (declares the operators)
    from aiter_like.integrations.aiter import table as aiter_table

    if args.against:
        return _against(args.against)
    if args.calls:
        return _calls(args.calls, args.output)
    for page, text in aiter_table.pages().items():
        if args.write:
            path = aiter_table.FOLDER / page
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)
        else:
            print(text)
    return 0


def _against(root: Path) -> int:
    from aiter_like.integrations.aiter.sources import compare

    found = compare(root)
    for line in found.different:
        print(f"differs: {line}")
    for name in found.gone:
        print(f"not in AITER: {name}")
    for path in found.paths:
        print(f"also there: {path}")
    for module, names in found.unknown.items():
        print(f"unknown: {module}: {' '.join(names)}")
    print(f"{found.compared} signatures compared, {len(found.different)} differ; {len(found.gone)} names are not in "
          f"AITER, {sum(map(len, found.unknown.values()))} of AITER's not in the table")
    return 1 if found.different else 0


def _calls(path: Path, output: Path | None) -> int:
    from aiter_like.integrations.aiter import calls as aiter_calls

    found = aiter_calls.written(aiter_calls.sources(path))
    text = aiter_calls.text_of("Written by `aiter-like names --calls`: calls and names of AITER's, and first places.",
                               found)
    if output:
        output.write_text(text)
    else:
        print(text, end="")
    for line, reason in aiter_calls.unfit(found):
        print(f"does not fit: {line}  # {found[line]}: {reason}", file=sys.stderr)
    for name in aiter_calls.absent(found):
        print(f"absent: {name}", file=sys.stderr)
    return 0


def _shim() -> int:
    found = importlib.machinery.PathFinder.find_spec("aiter")
    if found is not None and found.origin and not found.origin.startswith(str(paths.shim())):
        print(f"aiter-like: an aiter is installed ({found.origin}); the shim would hide it. AITER_LIKE=1 alone "
              "replaces what is served in it.", file=sys.stderr)
    print(paths.shim())
    return 0
