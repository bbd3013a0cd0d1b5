# SPDX-License-Identifier: MIT
"""`aiter-like sim`: `run` launches kernels of any gfx942 code object on the simulated MI300X. The other actions have a
module each: sim/check.py, sim/compare.py, sim/compile.py, sim/coverage.py, sim/debug.py, sim/profile.py,
sim/race/, sim/script.py, sim/trace.py, sim/validate.py.

What the kernels get is described in a file: sim/spec.py, sim/steps.py; sim/init.py writes one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiter_like import sim
from aiter_like.cli.outputs import require_writable
from aiter_like.cli.sim import check as sim_check
from aiter_like.cli.sim import compare, coverage, debug, described, profile, script, trace, validate
from aiter_like.cli.sim import compile as sim_compile
from aiter_like.cli.sim import init as sim_init
from aiter_like.cli.sim import launch as sim_launch
from aiter_like.cli.sim import spec as sim_spec
from aiter_like.cli.sim.race import command as race
from aiter_like.cli.sim.spec import Buffer
from aiter_like.errors import SimulatorError
from aiter_like.sim import counting, modelling, names
from aiter_like.sim import reports as sim_reports
from aiter_like.sim.settings import default_settings

if TYPE_CHECKING:
    from torch import Tensor

_DEFAULT = ",".join(sim.DEFAULT_CHECKS)
_NO_FILE = Path("-")


class _Parser(argparse.ArgumentParser):
    """A bare `--check` or `--counts` takes no value: not the FILE.co that may follow it."""

    def parse_known_args(self, args: Sequence[str] | None = None,
                         namespace: argparse.Namespace | None = None) -> tuple[argparse.Namespace, list[str]]:
        """Like the base class's."""
        if args is not None and self.prog.endswith(" compile"):
            args, options = sim_compile.split_options(args)
            namespace = argparse.Namespace() if namespace is None else namespace
            namespace.clang_options = options
        if args is not None and "--check" in self._option_string_actions:
            bare = {"--check": f"--check={_DEFAULT}", "--counts": f"--counts={_NO_FILE}"}
            args = [bare.get(word, word) for word in args]
        return super().parse_known_args(args, namespace)


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `sim`; each of its parsers sets `run`: of the parsed arguments, returns the exit status."""
    actions = subparsers.add_parser("sim", help="the simulated MI300X").add_subparsers(
        dest="action", required=True, parser_class=_Parser)
    run = actions.add_parser("run", help="launch kernels of a code object", epilog=sim_spec.DESCRIPTION,
                             formatter_class=argparse.RawDescriptionHelpFormatter,
                             description=f"Launches kernels of a {sim_spec.ARCH} code object, from any compiler, "
                                         "on the simulated MI300X.\nPrints their counters, and what the checkers "
                                         "report.")
    run.add_argument("file", type=Path, metavar="FILE.co", help="ELF code object or uncompressed offload bundle")
    sim_launch.add_options(run, "see below")
    run.add_argument("--init", action="store_true", help="write SPEC.json for the kernel, or for all, from what the "
                                                         "code object says (default: beside FILE.co), and run nothing")
    run.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where outputs go (default: here)")
    run.add_argument("--check", nargs="?", type=sim_check.checks_of, dest="checks", metavar="NAME,…",
                     help="with the checkers that are on by default everywhere, all but global_race; --check=all has "
                          "global_race, too, --check=strict makes errors of notes; exit status 1 if there is an error")
    run.add_argument("--checks", type=sim_check.checks_of, metavar="NAME,…",
                     help=f"with these of {', '.join(sim.CHECKS)}, all")
    run.add_argument("--model", action="store_true",
                     help="print the cycles that the cycle model gives the launch; they are modelled, not measured")
    run.add_argument("--counts", nargs="?", type=Path, const=_NO_FILE, metavar="FILE.json",
                     help="count lanes, segments, bank conflicts, … per instruction; FILE.json gets all of it, after "
                          "an equals sign")
    sim_check.add_seeds(run, "each on fresh buffers; outputs are those of the first")
    run.set_defaults(run=_run, judge=lambda args: described.require_kind(args.file, "code object"))
    script.add_script(actions)
    sim_compile.add_compile(actions)
    compare.add_compare(actions)
    sim_check.add_check(actions)
    coverage.add_coverage(actions)
    validate.add_validate(actions)
    race.add_race(actions)
    profile.add_profile(actions)
    debug.add_debug(actions)
    trace.add_trace(actions)


def _run(args: argparse.Namespace) -> int:
    if args.init:
        return sim_init.write(args)
    seeds = sim_check.seeds_of(args)
    launches_to_make = sim_launch.read(args.file, args)
    spec = launches_to_make[0].spec
    files = {name: args.output / f"{name}.npy" for name, buffer in spec.buffers.items() if buffer.is_output}
    for path in files.values():
        require_writable(path, "--output")
        sim_spec.numpy_for("--output")
    if args.counts not in (None, _NO_FILE):
        require_writable(args.counts, "--counts")
    sim.load()
    sim.reset_counters()
    sim.take_reports()  # like the counts: of this run alone, whatever ran before in this process
    checks = default_settings().checks if args.checks is None else args.checks
    found, outputs, launches, cycles = [], {}, [], []
    for seed in seeds:
        buffers = _copies(spec.buffers) if len(seeds) > 1 else spec.buffers
        with sim.enabled(checks, fuzz=seed, on_report="collect", counters=args.counts is not None,
                         model="whole" if args.model else None) as session:
            for launch in launches_to_make:
                _launch(launch, buffers, session)
        found += [{**report, "seed": seed} for report in session.reports]
        launches += session.launches if args.counts else []
        cycles += session.modelled if args.model else []
        results = {name: buffers[name].data for name in files}
        outputs = outputs or results
        for name in (name for name in files if not _same(outputs[name], results[name])):
            print(f"{name}: seed {seed} gives other values than seed {seeds[0]}")
    found = sim_reports.merged(found)
    for text in sim_reports.listing(found):
        print(text)
    _print_counters(sim.counters())
    _print_counts(args.counts, launches, len(launches_to_make))
    for modelled in cycles[:len(launches_to_make)]:
        print("\n".join(f"  {line}" for line in modelling.summary(modelled)))
    if checks:
        shown = ", ".join(dict.fromkeys(names.short(launch.kernel.name) for launch in launches_to_make))
        print(sim_check.summary(shown, found, seeds, checks))
    for name, path in files.items():
        _save(path, outputs[name])
    return 1 if sim_reports.errors(found) else 0


def _launch(launch: sim_launch.KernelLaunch, buffers: Mapping[str, Buffer], session: sim.Session) -> None:
    """One launch. What the checkers said before one that fails is printed: its error tells only the last."""
    try:
        launch.run(buffers)
    except SimulatorError:
        for text in sim_reports.listing(one for one in session.reports if one["check"] != "launch"):
            print(text)
        raise


def _copies(buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    return {name: replace(buffer, data=buffer.data.clone()) for name, buffer in buffers.items()}


def _same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit: NaN, too."""
    import torch

    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _print_counters(counters: Mapping[str, Mapping]) -> None:
    for name, counts in counters.items():
        launches = f"{counts['launches']} launches, " if counts["launches"] > 1 else ""
        print(f"{names.short(name)}: {launches}{counts['workgroups']} workgroups, {counts['waves']} waves, "
              f"{counts['wave_instructions']} wave instructions")
        for title, key in (("by class", "by_class"), ("memory accesses", "accesses")):
            if counts[key]:
                print(f"  {title}: {', '.join(f'{kind} {count}' for kind, count in counts[key].items())}")


def _print_counts(file: Path | None, launches: Sequence[dict], first: int) -> None:
    for launch in launches[:first]:  # The first seed's counts are shown, as its outputs are.
        print("\n".join(f"  {line}" for line in counting.summary(launch)))
    if file not in (None, _NO_FILE):
        file.write_text(json.dumps(launches) + "\n")


def _save(path: Path, data: Tensor) -> None:
    import torch

    from aiter_like import dtypes

    numpy = sim_spec.numpy_for("--output")

    # NumPy has no such types: their bits.
    bits = {torch.bfloat16: torch.uint16, torch.float8_e4m3fnuz: torch.uint8, torch.float8_e4m3fn: torch.uint8}
    try:
        numpy.save(path, (data.view(bits[data.dtype]) if data.dtype in bits else data).numpy())
    except OSError as error:  # the disk may be full by now
        raise ValueError(f"--output: cannot write {path}: {error.strerror or error}") from error
    print(f"{path}: {dtypes.name(data.dtype) if data.dtype in dtypes.NAMES else data.dtype} {list(data.shape)}")
