# SPDX-License-Identifier: MIT
"""`aiter-like sim trace`: which lane of a workgroup touches what, as a page of pictures."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from aiter_like.cli.outputs import require_writable
from aiter_like.cli.sim import targets
from aiter_like.sim import names
from aiter_like.sim.profiling import sources

_DESCRIPTION = """Runs a Python script, calls a public function on random numbers, or launches a kernel of a code
object, on the simulated MI300X, and draws the memory accesses of one workgroup: for each memory instruction the cells
of memory and the banks of LDS that its lanes touch, where lanes meet at a bank, and who wrote what is read."""
_EPILOG = """  aiter-like sim trace --page trace.html script.py --its-arguments
  aiter-like sim trace --page trace.html rms_norm input=bf16[4,256] weight=bf16[256] epsilon=1e-6
  aiter-like sim trace --page trace.html FILE.co --kernel NAME --grid 4 --block 256 --args SPEC.json"""


def add_trace(actions: argparse._SubParsersAction) -> None:
    """Adds `trace`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    targets.add_command(actions, "trace", _add_options, _run, description=_DESCRIPTION, epilog=_EPILOG,
                        help="which lane touches what, as pictures")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page", type=Path, metavar="FILE.html", help="write the pictures there, as one page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accesses there")
    parser.add_argument("--workgroup", type=int, default=0, metavar="N", help="its place in the grid (default: 0)")
    parser.add_argument("--executions", type=int, default=1, metavar="N",
                        help="of a memory instruction by a wave, the first N are shown (default: 1)")
    targets.add_launch_options(parser)


def _run(args: argparse.Namespace) -> int:
    from aiter_like import device
    from aiter_like.sim import tracing
    from aiter_like.sim.tracing import page

    args = targets.with_rest(args, "trace", _add_options)
    for path, option in ((args.page, "--page"), (args.json, "--json")):
        require_writable(path, option)
    call = targets.call_of(args, "trace")
    device.use_simulator(True)
    found: list[dict] = []
    with tracing.traced(found, args.workgroup, args.executions):
        call()
    if not found:
        print(f"[sim] no kernel was launched on the simulated MI300X with a workgroup {args.workgroup}")
        return 1
    if args.json:
        args.json.write_text(json.dumps(found) + "\n")
    if args.page:
        args.page.write_text(page.page(found))
    print("\n".join([*_summary(found), *(f"{path}: written" for path in (args.json, args.page) if path)]))
    return 0


def _summary(found: Sequence[dict]) -> list[str]:
    """Each launch, and its memory instructions, all waves and executions of each together."""
    lines = []
    for launch in found:
        lines.append(f"{names.short(launch['kernel'])}: workgroup {launch['group']}, {launch['accesses']} accesses")
        by_instruction: dict[tuple, list[dict]] = {}
        for one in launch["recorded"]:
            key = (one["pc"], one["text"], sources.where(one), one["space"], one["access"], one["bytes"])
            by_instruction.setdefault(key, []).append(one)
        for (_, text, place, space, access, size), all_of_it in by_instruction.items():
            told = {"global": "{segments_128} segments of 128 B, ", "LDS": "{clk} clk, {conflict_clk} of them lost in "
                                                                         "conflicts, "}.get(space, "")
            sums = {name: sum(one[name] for one in all_of_it) for name in ("segments_128", "clk", "conflict_clk")}
            count, waves = len(all_of_it), len({one["wave"] for one in all_of_it})
            lines.append(f"  {access} {space}, {count} times by {waves} wave{'s' * (waves != 1)}, {size} bytes of a "
                         f"lane, {told.format(**sums)}{text}  ({place})")
    return lines
