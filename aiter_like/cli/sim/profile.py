# SPDX-License-Identifier: MIT
"""`aiter-like sim profile`: where the modelled cycles of a script's, an operator's or a code object's kernels go."""

import argparse
import json
from pathlib import Path

from aiter_like.cli.outputs import require_writable
from aiter_like.cli.sim import targets
from aiter_like.cli.sim.script import GPU_HELP, gpu_block

_DESCRIPTION = """Runs a Python script, calls a public function on random numbers, or launches a kernel of a code
object, on the simulated MI300X with the cycle model on, and prints for each kernel what it is bound by, how busy the
units are, what its waves wait for and which lines cost most. Everything about time is modelled, not measured. Of large
grids only workgroups that the model needs run, so that what the kernels leave in memory is wrong, unless --whole is
given."""
_EPILOG = """  aiter-like sim profile --page rms.html rms_norm input=bf16[8192,4096] weight=bf16[4096] epsilon=1e-6
  aiter-like sim profile --page out.html script.py --its-arguments
  aiter-like sim profile FILE.co --kernel NAME --grid 4 --block 256 --args SPEC.json
  aiter-like sim profile --compare before.json --page changes.html rms_norm input=bf16[8192,4096] …"""


def add_profile(actions: argparse._SubParsersAction) -> None:
    """Adds `profile`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    targets.add_command(actions, "profile", _add_options, _run, description=_DESCRIPTION, epilog=_EPILOG,
                        help="where the modelled cycles of kernels go")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page", type=Path, metavar="FILE.html", help="write one self-contained page there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the profiles there")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the longest kernel's timeline there, as a "
                                                                   "Chrome trace (Perfetto opens it)")
    parser.add_argument("--thread-trace", type=Path, metavar="DIR", help="write a folder ui_output_… of each launch "
                                                                         "there, for rocprof-compute-viewer")
    parser.add_argument("--compare", type=Path, metavar="BEFORE.json",
                        help="set the longest kernel beside that of profiles written before, also on the page")
    parser.add_argument("--gpu", action="store_true", help=GPU_HELP)
    parser.add_argument("--whole", action="store_true", help="run every workgroup, with right results")
    parser.add_argument("--clock", type=float, metavar="MHZ", help="of the shader engines (default: 2100)")
    targets.add_launch_options(parser)


def _run(args: argparse.Namespace) -> int:
    from aiter_like import device
    from aiter_like.modules import progress
    from aiter_like.sim import modelling, profiling

    args = targets.with_rest(args, "profile", _add_options)
    for path, option in ((args.page, "--page"), (args.json, "--json"), (args.trace, "--trace"),
                         (args.thread_trace and args.thread_trace / "ui_output", "--thread-trace")):
        require_writable(path, option)
    before = _read(args.compare) if args.compare else None
    call = targets.call_of(args, "profile")
    device.use_simulator(True)
    found: list[dict] = []
    with progress.shown(lambda: f"running {args.target} on the simulated MI300X and its cycle model"), \
            gpu_block(args.gpu), \
            profiling.profiled(found, not args.whole, args.clock or modelling.PEAK_MHZ, _needs):
        call()
    if not found:
        print("[sim] no kernel was launched on the simulated MI300X")
        return 1
    _write(sorted(found, key=lambda profile: -profile["modelled_clk"]), before, args)
    return 0


def _write(found: list[dict], before: list[dict] | None, args: argparse.Namespace) -> None:
    """Writes the files that the options name, then prints profiles and what changed."""
    from aiter_like.sim.profiling import chrome_trace, comparison, page, summary, thread_trace

    compared = comparison.of(*comparison.pair(before, found)) if before else None
    written: list[Path] = []
    if args.json:
        args.json.write_text(json.dumps(found) + "\n")
    if args.trace:
        args.trace.write_text(json.dumps(chrome_trace.of(found[0])) + "\n")
    if args.thread_trace:
        written += [thread_trace.write(profile, args.thread_trace, number) for number, profile in enumerate(found, 1)]
    if args.page:
        args.page.write_text(page.page(found, compared))
        written.append(args.page)
    rows = [*summary.texts(found), *(comparison.text(compared) if compared else ()),
            *(f"{path}: written" for path in written)]
    print("\n".join(rows))


def _needs(operator: str, values: tuple) -> tuple[int, int] | None:
    """(bytes, flops) that a call needs at least, where the operator declares its traffic."""
    from aiter_like.dispatch import OPS

    op = OPS.declared.get(operator)
    return op.tuning.needs(values) if op and op.tuning else None


def _read(path: Path) -> list[dict]:
    """Profiles that `--json` wrote."""
    from aiter_like.sim import profiling

    try:
        found = json.loads(path.read_text())
        if found and all(one["schema"] == profiling.SCHEMA and one["instructions"] for one in found):
            return found
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"--compare: {path}: {error}") from error
    raise ValueError(f"--compare: {path} holds no profiles of this version: write them with --json")
