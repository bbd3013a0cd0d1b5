# SPDX-License-Identifier: MIT
"""`aiter-like sim race DIR`: the command, its table and its page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from aiter_like.cli.outputs import put_section, require_writable
from aiter_like.cli.sim.race import clocks, outcome, rows
from aiter_like.cli.sim.race.outcome import Outcome
from aiter_like.cli.sim.race.rows import Row

_DESCRIPTION = """Times this package's own choice for a call beside other people's kernels for the same call: code
objects in DIR, whose arguments and grids are facts in configs/race/*.toml. Without a GPU both run on the simulated
MI300X, and the cycle model replays all that they execute, at one clock: the one that power leaves to ours, or --clock.
Nothing of that is measured. On an MI300X both are measured by events, with overwritten caches, medians.

Results are compared first, by the relative L2 difference; large rows compare at the smaller sizes of their "check". A
row whose results differ is an error and has no time. ratio is our speed over the other's: from 1 on we win. A ratio
within the error that the cycle model has for the row's class is a tie. With --bar a tie counts as 1, in a row and in a
family's geometric mean."""
_EPILOG = "DIR, by whose the rows are:\n" + "\n".join(f"  {text}" for text in rows.PEERS.values()) + """
Objects that DIR lacks are told by their paths, and ours are timed alone. Exit status: 1 where a row fails, or with
--bar one falls below it."""
_TITLE = "# Kernels on the cycle model"


def add_race(actions: argparse._SubParsersAction) -> None:
    """Adds `race`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    race = actions.add_parser("race", help="other people's code objects beside our kernels", description=_DESCRIPTION,
                              epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    race.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="where the code objects are; see below")
    race.add_argument("--only", action="append", default=[], metavar="TEXT",
                      help="rows with this in their name, large ones too ('': all); may be given again")
    race.add_argument("--list", action="store_true", help="name the rows and what each needs, and run nothing")
    race.add_argument("--bar", type=float, metavar="RATIO", help="exit status 1 if a row or a family is below it")
    race.add_argument("--clock", type=float, metavar="MHZ",
                      help="of the shader engines (default: what power leaves to ours)")
    race.add_argument("--budget", type=int, default=0, metavar="COUNT",
                      help="replay about so many wave instructions of a launch, for large rows (default: 0, all)")
    race.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    race.add_argument("--page", type=Path, metavar="FILE.md",
                      help="write our own times there as a section; without DIR nothing else runs")
    race.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    chosen = chosen_rows(rows.read(), args.only)
    if args.list:
        print("\n".join(_listed(chosen)))
        return 0
    for path, option in ((args.json, "--json"), (args.page, "--page")):
        require_writable(path, option)
    if args.clock is not None and not 100 <= args.clock <= 10000:
        raise ValueError(f"--clock must be from 100 to 10000, got {args.clock:g}")
    if args.budget < 0:
        raise ValueError(f"--budget must be 0 or more, got {args.budget}")
    folder = _folder(args)
    found = race(chosen, folder, clocks.here(args.clock, args.budget))
    print("\n".join(outcome.lines(found)))
    if args.json:
        args.json.write_text(json.dumps(outcome.figures(found), indent=1) + "\n")
    failed = [one for one in found if one.failed]
    if args.page and not failed:
        put_section(args.page, "race", "aiter-like sim race --page", section(found), _TITLE)
    below = outcome.below(found, args.bar) if args.bar is not None else []
    if below:
        print(f"below {args.bar:g}: {', '.join(below)}")
    return 1 if failed or below else 0


def _folder(args: argparse.Namespace) -> Path | None:
    """The folder of objects; None: ours alone."""
    if args.folder is not None:
        if not args.folder.is_dir():
            raise ValueError(f"{args.folder}: no folder")
        return args.folder
    folder = None if args.page else clocks.aiters_folder()
    if folder is None and not args.page:
        raise ValueError("DIR must be given where no package aiter is installed; aiter-like sim race --help says what "
                         "it holds")
    return folder


def chosen_rows(every: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """Rows with one of these texts in their names; without, all but the large ones."""
    chosen = [row for row in every if any(text in row.name for text in only) or not only and not row.is_large]
    if not chosen:
        raise ValueError(f"--only: no row has {' or '.join(only)} in its name; --list names them all")
    return chosen


def race(chosen: Sequence[Row], folder: Path | None, clock: clocks.Clock) -> list[Outcome]:
    """Runs the rows, one after the other."""
    from aiter_like.modules import progress

    found: list[Outcome] = []
    with progress.shown(lambda: f"racing: {len(found)}/{len(chosen)}, {chosen[len(found) - len(chosen)].name}"):
        for row in chosen:
            found.append(clocks.run(row, folder, clock))
    return found


def _listed(chosen: Sequence[Row]) -> list[str]:
    made = []
    for row in chosen:
        files = dict.fromkeys(rows.text(step["file"], row.sizes) for step in row.family.launches if "file" in step)
        made.append(f"{row.name}{' (large)' if row.is_large else ''}: {row.family.ours['call']} beside "
                    f"{', '.join(files)}")
    return made


def section(found: Sequence[Outcome]) -> list[str]:
    """Our own times, for the page that the repository keeps: other people's figures are for who has their objects."""
    from aiter_like.sim import modelling

    about = ("Modelled, none of it measured: our own side of `aiter-like sim race`, cycle model version "
             f"{modelling.version()}, at the", "clock that power leaves.")
    text = ["## Our side of the race", "",
            *(about if any(one.clock_mhz for one in found) else ("Measured: our own side of `aiter-like sim race`.",)),
            "Who brings other people's code objects gets their times beside these from the command.", "",
            "| call | us | at MHz | served by |", "|---|---|---|---|"]
    seen: dict[str, Outcome] = {}
    for one in found:
        seen.setdefault(one.row.name.rsplit(" ", 1)[0], one)
    for name, one in seen.items():
        clock = f"{one.clock_mhz:.0f}" if one.clock_mhz else "-"
        text.append(f"| {name} | {one.ours_us:.2f} | {clock} | {one.ours_by} |")
    return text
