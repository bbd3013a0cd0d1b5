# SPDX-License-Identifier: MIT
"""`aiter-like sim validate`: the cycle model beside what is publicly measured on an MI300X."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiter_like.cli import sim_kernels
from aiter_like.cli.outputs import put_section, require_writable

if TYPE_CHECKING:
    from aiter_like.sim.validation.run import Outcome

_DESCRIPTION = """Runs small kernels, each a public microbenchmark of the MI300X rebuilt, on the cycle model, and prints
the published figure, the modelled one and the error. The model's parameters were fitted to these figures
(csrc/sim/timing/parameters.h has each one's source); whole kernels are not among them, so that this is no validation on
whole kernels. That is --kernels DIR: other people's kernels with published times, from code objects in a folder outside
the project."""
_AIM = 0.05
_TITLE = "# The cycle model beside public measurements"
_SECTIONS = {False: ("microbenchmarks", "aiter-like sim validate --page"),
             True: ("kernels", "aiter-like sim validate --kernels DIR --page")}


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
    validate.add_argument("--clock", type=float, metavar="MHZ", help="of the shader engines (default: 2100)")
    validate.add_argument("--mca", action="store_true", help="also straight lines of instructions beside llvm-mca")
    validate.add_argument("--page", type=Path, metavar="FILE.md", help="write the table there, too, as a section")
    validate.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    validate.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.rows:
        from aiter_like.sim.validation.published import published

        print("\n".join(row.name for row in published()))
        return 0
    for path, option in ((args.page, "--page"), (args.json, "--json")):
        if path:
            require_writable(path, option)
    return _run_kernels(args) if args.kernels else _run_cases(args)


def _run_cases(args: argparse.Namespace) -> int:
    from aiter_like.build import progress
    from aiter_like.sim import modelling
    from aiter_like.sim.validation import run
    from aiter_like.sim.validation.cases import cases

    chosen = _chosen(cases(), args)
    found: list[Outcome] = []
    with progress.shown(lambda: f"modelling: {len(found)}/{len(chosen)}"):
        found.extend(run.outcomes(chosen, args.clock or modelling.PEAK_MHZ))
    print("\n".join(lines(found)))
    if args.mca:
        print("\n".join(["", *_beside_mca()]))
    if args.page:
        put_section(args.page, *_SECTIONS[False], section(found), _TITLE)
    if args.json:
        args.json.write_text(json.dumps([{"name": one.case.name, "source": one.case.source, "unit": one.case.unit,
                                          "published": one.case.published, "modelled": one.modelled,
                                          "error": one.error} for one in found], indent=1) + "\n")
    return 0


def _run_kernels(args: argparse.Namespace) -> int:
    from aiter_like.build import progress
    from aiter_like.sim.validation.published import Modelled, published

    if args.mca or args.clock:
        raise ValueError("--kernels: --mca is for microbenchmarks, and --clock, too: a kernel's clocks are that of its "
                         "class and 2100 MHz")
    chosen = _chosen(published(), args)
    found: list[Modelled] = []
    with progress.shown(lambda: f"modelling: {len(found)}/{len(chosen)}, {chosen[len(found) - len(chosen)].name}"):
        found.extend(sim_kernels.modelled(args.kernels, chosen))
    print("\n".join(sim_kernels.lines(found)))
    if args.page:
        put_section(args.page, *_SECTIONS[True], sim_kernels.section(found), _TITLE)
    if args.json:
        args.json.write_text(sim_kernels.figures(found))
    return 1 if any(one.failed for one in found) else 0


def _chosen(named: Sequence, args: argparse.Namespace) -> list:
    chosen = [one for one in named if not args.only or any(text in one.name for text in args.only)]
    if not chosen:
        raise ValueError(f"--only: no case has {' or '.join(args.only)} in its name")
    return chosen


def _beside_mca() -> list[str]:
    from aiter_like.sim.validation import mca, run

    if not mca.tool():
        return ["llvm-mca is not installed (Debian: llvm-22)"]
    rows = [f"{'straight line':32} {'llvm-mca':>10} {'modelled':>10}"]
    for one, why in zip(run.outcomes(mca.slopes()), mca.BODIES.values(), strict=True):
        verdict = "agree" if abs(one.error) <= _AIM else why or "DISAGREE"
        rows.append(f"{one.case.name:32} {one.case.published:10.1f} {one.modelled:10.1f} clk   {verdict}")
    return rows


def lines(found: Sequence[Outcome]) -> list[str]:
    """The table, and the sums below it."""
    rows = [f"{'case':48} {'source':16} {'published':>10} {'modelled':>10}       {'error':>7}"]
    rows += [f"{one.case.name:48} {one.case.source:16} {one.case.published:10.2f} {one.modelled:10.2f} "
             f"{one.case.unit:5} {one.error:+7.1%}" for one in found]
    return [*rows, "", _sums(found)]


def _sums(found: Sequence[Outcome]) -> str:
    errors = [abs(one.error) for one in found]
    within = sum(error <= _AIM for error in errors)
    return f"{within} of {len(errors)} within {_AIM:.0%}; mean absolute error {sum(errors) / len(errors):.1%}. " \
           "Fitted to these: no validation on whole kernels."


def section(found: Sequence[Outcome]) -> list[str]:
    """The same, for the page that the repository keeps."""
    from aiter_like.sim import modelling
    from aiter_like.sim.validation.cases import UNEXPLAINED

    rows = [f"| {one.case.name} | {one.case.source} | {one.case.published:g} {one.case.unit} | {one.modelled:.2f} | "
            f"{one.error:+.1%} |" for one in found]
    missed = [one for one in found if abs(one.error) > _AIM]
    reasons = []
    for one in missed:
        known = [why for name, why in UNEXPLAINED.items() if one.case.name.startswith(name)]
        reasons.append(f"- {one.case.name}: {known[0] if known else 'no explanation'}.")
    return [f"Model version {modelling.version()}, at {modelling.PEAK_MHZ:.0f} MHz. What stands under \"modelled\" is "
            "not measured. The model's", "parameters were fitted to these figures; `parameters.h` has the source of "
            "each.", "", "| case | source | published | modelled | error |", "|---|---|---|---|---|", *rows, "",
            _sums(found), "", "What is off by more than 5 %:", *reasons]
