# SPDX-License-Identifier: MIT
"""`aiter-like sim validate`: the cycle model beside what is publicly measured on an MI300X."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiter_like.cli.outputs import put_section, require_writable
from aiter_like.cli.sim import kernels as sim_kernels
from aiter_like.cli.sim.hardware import commands

if TYPE_CHECKING:
    from aiter_like.sim.validation.case import Case
    from aiter_like.sim.validation.run import Outcome

_DESCRIPTION = """Runs small kernels, each a public microbenchmark of the MI300X rebuilt, on the cycle model, and prints
the published figure, the modelled one and the error. The model's parameters were fitted to these figures
(csrc/sim/timing/parameters.h has each one's source); whole kernels are not among them, so that this is no validation on
whole kernels. That is --kernels DIR: other people's kernels with published times, from code objects in a folder outside
the project."""
_TITLE = "# The cycle model beside public measurements"


def add_validate(actions: argparse._SubParsersAction) -> None:
    """Adds `validate`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    validate = actions.add_parser("validate", help="the cycle model beside public measurements",
                                  description=_DESCRIPTION, epilog=sim_kernels.DESCRIPTION,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    validate.add_argument("--only", action="append", default=[], metavar="TEXT",
                          help="cases or rows with this in their name; may be given again")
    validate.add_argument("--kernels", type=Path, metavar="DIR", help="instead: whole kernels with published times, "
                                                                      "from code objects in DIR; see below")
    validate.add_argument("--rows", action="store_true", help="list the rows that --kernels knows, and run nothing")
    commands.add_options(validate)
    validate.add_argument("--clock", type=float, metavar="MHZ", help="of the shader engines (default: 2100)")
    validate.add_argument("--mca", action="store_true", help="also straight lines of instructions beside llvm-mca")
    validate.add_argument("--page", type=Path, metavar="FILE.md",
                          help="write the tables there, too, as sections; a folder: into its page of each")
    validate.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    validate.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if (other := commands.asked_for(args)) is not None:
        return other(args)
    if args.rows:
        from aiter_like.sim.validation.whole_kernels import published

        print("\n".join(row.name for row in published()))
        return 0
    if args.page:
        for path in {_of(args.page, "kernels"), _of(args.page, "microbenchmarks"), _of(args.page, "one side alone")}:
            require_writable(path, "--page")
    require_writable(args.json, "--json")
    return _run_kernels(args) if args.kernels else _run_cases(args)


def _run_cases(args: argparse.Namespace) -> int:
    from aiter_like.modules import progress
    from aiter_like.sim import modelling
    from aiter_like.sim.validation import page, run

    chosen = chosen_cases(args.only)
    found: list[Outcome] = []
    with progress.shown(lambda: f"modelling: {len(found)}/{len(chosen)}"):
        found.extend(run.outcomes(chosen, args.clock or modelling.PEAK_MHZ))
    print("\n".join(lines(found)))
    if args.mca:
        print("\n".join(["", *_beside_mca()]))
    if args.page:
        _put(args.page, "microbenchmarks", page.section(found))
        _put(args.page, "one side alone", page.one_side(found))
    if args.json:
        args.json.write_text(json.dumps([{"name": one.case.name, "source": one.case.source, "unit": one.case.unit,
                                          "published": one.case.published, "modelled": one.modelled,
                                          "error": one.error} for one in found], indent=1) + "\n")
    return 0


def _of(place: Path, name: str) -> Path:
    """The page of a section: in a folder a page of its own."""
    from aiter_like.sim.validation.page import FILES

    return place / FILES[name] if place.is_dir() else place


def _put(place: Path, name: str, lines: Sequence[str]) -> None:
    command = "aiter-like sim validate --kernels DIR --page" if name == "kernels" else "aiter-like sim validate --page"
    put_section(_of(place, name), name, command, lines, _TITLE)


def chosen_cases(only: Sequence[str]) -> list[Case]:
    """The cases with one of these texts in their names; all without."""
    from aiter_like.sim.validation.unpublished import all_cases

    return _named(all_cases(), only)


def _run_kernels(args: argparse.Namespace) -> int:
    from aiter_like.modules import progress
    from aiter_like.sim.validation.whole_kernels import Modelled, published

    if args.mca or args.clock:
        raise ValueError("--kernels: --mca is for microbenchmarks, and --clock, too: a kernel's clocks are that of its "
                         "class and 2100 MHz")
    chosen = _named(published(), args.only)
    found: list[Modelled] = []
    with progress.shown(lambda: f"modelling: {len(found)}/{len(chosen)}, {chosen[len(found) - len(chosen)].name}"):
        found.extend(sim_kernels.modelled(args.kernels, chosen))
    print("\n".join(sim_kernels.lines(found)))
    if args.page:
        _put(args.page, "kernels", sim_kernels.section(found))
    if args.json:
        args.json.write_text(sim_kernels.figures(found))
    return 1 if any(one.failed for one in found) else 0


def _named(every: Sequence, only: Sequence[str]) -> list:
    chosen = [one for one in every if not only or any(text in one.name for text in only)]
    if not chosen:
        raise ValueError(f"--only: no case has {' or '.join(only)} in its name")
    return chosen


def _beside_mca() -> list[str]:
    from aiter_like.sim.validation import mca, run
    from aiter_like.sim.validation.page import AIM

    if not mca.tool():
        return ["llvm-mca is not installed (Debian: llvm-22)"]
    rows = [f"{'straight line':32} {'llvm-mca':>10} {'modelled':>10}"]
    for one, why in zip(run.outcomes(mca.slopes()), mca.BODIES.values(), strict=True):
        verdict = "agree" if abs(one.error) <= AIM else why or "DISAGREE"
        rows.append(f"{one.case.name:32} {one.case.published:10.1f} {one.modelled:10.1f} clk   {verdict}")
    return rows


def lines(found: Sequence[Outcome]) -> list[str]:
    """The table, the sums below it, and what nobody has published."""
    from aiter_like.sim.validation import page

    beside, alone = ([one for one in found if (one.error is None) == is_alone] for is_alone in (False, True))
    width = max(len(one.case.name) for one in found)
    rows = []
    if beside:
        rows = [f"{'case':{width}}  {'source':16} {'published':>10} {'modelled':>10}              {'error':>7}"]
        rows += [f"{one.case.name:{width}}  {one.case.source[:16]:16} {one.case.published:10.2f} {one.modelled:10.2f} "
                 f"{one.case.unit:12} {one.error:+7.1%}" for one in beside]
        rows += ["", page.sums(beside)]
    if alone:
        rows += [*[""] * bool(beside), f"{'not published':{width}}  {'modelled':>10}"]
        rows += [f"{one.case.name:{width}}  {one.modelled:10.2f} {one.case.unit}" for one in alone]
    return rows
