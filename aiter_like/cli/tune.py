# SPDX-License-Identifier: MIT
"""`aiter-like tune`: times the candidates of an operator, measured or modelled, and writes its tuned rows; `bench`: a
table of backends.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import env
from aiter_like.errors import TuningError

if TYPE_CHECKING:
    from aiter_like.dispatch import Op
    from aiter_like.tuning.outcome import Outcome

_EPILOG = """shapes, any number of these sources:
  --shapes FILE.csv       a header with the operator's key fields and a row per shape; tuned tables will do
  --shape rows=1,hidden=4096,dtype=bf16,has_residual=0
  --recorded [DIR]        what programs recorded under AITER_LIKE_RECORD=DIR
  --model NAME --tp N     a model of configs/models/ on one of N GPUs, for the --tokens of a forward pass
  --hot-list              at most 40 shapes of Llama 3, Qwen3, DeepSeek-V3 and Wan2.1 (configs/hot_list.toml)

Every candidate is checked against the reference, in float64 where it can, before it may win, and runs in a process of
its own device, so that a crash or a hang costs that candidate. A run that was cut short goes on where it ended.
--device sim needs no GPU: times are modelled, by the cycle model of the simulated MI300X, and never measured. Rows go
to the folder modelled/ beside the measured ones, which always go before them."""


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds tune and bench; each parser sets `run`, a function of the parsed arguments."""
    tune = subparsers.add_parser("tune", description="Time the candidates of an operator and write tuned rows.",
                                 formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_EPILOG)
    tune.add_argument("op", nargs="?", help="an operator or public function, e.g. rms_norm")
    _add_sources(tune)
    tune.add_argument("--device", choices=("gpu", "sim"), default="gpu")
    tune.add_argument("--gpus", type=_numbers, metavar="0,1,…", help="which GPUs (default: all)")
    tune.add_argument("--output", type=Path, metavar="DIR",
                      help="directory of the table, or of modelled/ (default: tuned_csv/ of a checkout, else the "
                           "user's own)")
    tune.add_argument("--journal", type=Path, metavar="FILE", help="what to go on from (default: in the cache)")
    tune.add_argument("--report", type=Path, metavar="DIR", help="where to write OP.ARCH.md and .html (default: cache)")
    tune.add_argument("--budget", type=float, metavar="SECONDS", help="start no candidate after that time")
    tune.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of one candidate (%(default)s)")
    tune.add_argument("--backend", action="append", default=[], metavar="NAME",
                      help="try the candidates of this one alone, and the present choice; may be given again")
    tune.add_argument("--min-improvement", type=float, metavar="PCT",
                      help="what replaces the present choice must be so much faster (default: 3; with --device sim "
                           "what the model can tell apart, and no less)")
    tune.add_argument("--retune", action="store_true", help="also shapes that have a row")
    tune.add_argument("--compare", action="store_true",
                      help="time the present rows against the operator's own choice, and write nothing")
    tune.add_argument("--import-aiter", type=Path, nargs="+", metavar="FILE",
                      help="AITER's tuned tables: write what maps as OP.shapes.csv to --output (default: here)")
    tune.add_argument("--quiet", action="store_true", help="no progress line")
    tune.set_defaults(run=_tune)

    bench = subparsers.add_parser("bench", description="Every backend of an operator on a shape: checked, then timed "
                                                       "against each other with cold caches; or modelled.")
    bench.add_argument("op", help="an operator or public function, e.g. rms_norm")
    _add_sources(bench)
    bench.add_argument("--device", choices=("gpu", "sim"), default="gpu")
    bench.add_argument("--gpu", type=int, default=0, metavar="N", help="which GPU (default: 0)")
    bench.add_argument("--peers", action="store_true", help="also the reference under torch.compile")
    bench.add_argument("--quiet", action="store_true", help="no progress line")
    bench.set_defaults(run=_bench)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", type=Path, action="append", default=[], metavar="FILE.csv")
    parser.add_argument("--shape", action="append", default=[], metavar="KEY=VALUE,…")
    parser.add_argument("--recorded", nargs="?", type=Path, const=Path(), metavar="DIR")
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help="an unknown name lists them")
    parser.add_argument("--hot-list", action="store_true", help="at most 40 shapes of models that matter first")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="GPUs that share a layer (default: 1)")
    parser.add_argument("--tokens", type=_numbers, metavar="1,64,…", help="default: powers of two up to 16384")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))  # argparse turns the ValueError into its message


def _keys(args: argparse.Namespace, op: Op) -> tuple[list[dict[str, Any]], dict[tuple, dict[str, str]]]:
    """The shapes of all sources, and the hints that shape files give."""
    from aiter_like.tuning import hot_list, models, shapes

    keys = [shapes.parse(text, op.name, op.tune_fields) for text in args.shape]
    hinted = [pair for path in args.shapes for pair in shapes.read_hinted(path, op.name, op.tune_fields)]
    keys += [key for key, _ in hinted]
    if args.recorded is not None:
        folder = args.recorded if args.recorded != Path() else Path(env.get("AITER_LIKE_RECORD") or os.curdir)
        keys += shapes.recorded(folder, op.name, op.tune_fields)
    for name in args.model:
        keys += models.keys(op, models.load(name), args.tp, args.tokens or models.TOKENS)
    if args.hot_list:
        keys += hot_list.keys(op)
    if not keys:
        raise ValueError(f"no shapes: --shapes, --shape, --recorded, --model or --hot-list; the key of {op.name} is "
                         f"{', '.join(op.tune_fields)}")
    return keys, {tuple(key.values()): hint for key, hint in hinted if hint}


def _import(files: list[Path], folder: Path) -> int:
    """Writes the shape files, prints the coverage; 1 when nothing was kept or a row is bad."""
    from aiter_like.dispatch import OPS
    from aiter_like.tuning import aiter_tables

    imported = [aiter_tables.read(path, OPS) for path in files]
    print("\n".join(aiter_tables.coverage(imported)))
    texts = aiter_tables.shape_files(imported, OPS)
    for name, text in texts.items():
        path = folder / f"{name}.shapes.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TuningError(f"{path}:0: cannot be written: {error.strerror}") from error
        print(f"shapes: {path}; measure them with: aiter-like tune {name} --shapes {path}")
    return 0 if texts and not any(found.problems for found in imported) else 1


def _tune(args: argparse.Namespace) -> int:
    import aiter_like  # noqa: F401  (declares the operators)
    from aiter_like.dispatch import find_op
    from aiter_like.modules.cache import cache_root
    from aiter_like.tuning import report, writer
    from aiter_like.tuning.tuner import Options, tune

    if args.import_aiter:
        return _import(args.import_aiter, args.output or Path())
    if args.op is None:
        raise ValueError("which operator? for example: aiter-like tune rms_norm --model llama-3-8b")
    op = find_op(args.op)
    keys, hints = _keys(args, op)
    options = Options(device=args.device, gpus=args.gpus or _all_gpus(args.device), output=args.output,
                      journal=args.journal, budget=args.budget, min_improvement=args.min_improvement,
                      timeout=args.timeout, retune=args.retune, compare=args.compare, hints=hints,
                      backends=tuple(args.backend), progress=not args.quiet)
    pages = args.report or cache_root() / "tuning"
    writer.prepare(pages, "the report", "--report")
    outcome = tune(op, keys, options)
    _print(outcome)
    for path in report.write(outcome, pages):
        print(f"report: {path}")
    return 0 if outcome.is_complete and all(result.best is not None for result in outcome.results) else 1


def _all_gpus(device: str) -> tuple[int, ...]:
    import torch

    if device == "sim":
        return (0,)
    if not torch.cuda.is_available():
        raise ValueError("torch sees no GPU; --device sim checks the candidates on the simulated MI300X")
    return tuple(range(torch.cuda.device_count()))


def _bench(args: argparse.Namespace) -> int:
    """Prints the table; 1 when a backend gave a wrong result."""
    import aiter_like  # noqa: F401  (declares the operators)
    from aiter_like.dispatch import find_op
    from aiter_like.tuning import bench, harness

    op = find_op(args.op)
    if op.tuning is None:
        raise ValueError(f"{op.name} declares nothing to be timed by (dispatch/tuning.py)")
    if not (args.shape or args.shapes or args.model or args.hot_list or args.recorded is not None):
        args.model, args.tokens = ["llama-3-8b"], args.tokens or ((1, 128) if args.device == "sim" else (1, 64, 4096))
    keys, _ = _keys(args, op)
    _all_gpus(args.device)
    if args.peers and args.device == "sim":
        raise ValueError("--peers needs a GPU: what torch compiles for the CPU is not modelled")
    progress = bench.progress_of(op, len(keys), args.peers, not args.quiet)
    try:
        place = getattr(harness, args.device)(args.gpu)
        ceilings = place.ceilings(place.target) if place.ceilings else None
        progress.clear()
        print(f"{op.name} on {place.name}; {place.clock.unit}"
              + (f"; copy {ceilings[0] / 1e12:.2f} TB/s" if ceilings else ""))
        is_right = True
        for key in keys:
            found = bench.lines(op, key, place, args.peers, progress.step)
            progress.clear()
            print("\n".join(bench.text(found, place.clock.unit, ceilings[0] if ceilings else None)), flush=True)
            progress.shape_done()
            is_right &= not any(line.is_wrong for line in found)
    finally:
        progress.end()
    return 0 if is_right else 1


def _print(outcome: Outcome) -> None:
    """A line per shape: key, choice, time, against what it was, and what failed."""
    device = outcome.device
    print(f"{outcome.op} on {device['name']} ({device['arch']}, {device['cu_num']} CUs), {device['unit']}")
    for result in outcome.results:
        key = " ".join(f"{name}={value}" for name, value in result.key.items())
        if result.best is None:
            print(f"  {key}: no choice: {result.note}")
        else:
            gain = (result.before / result.value - 1) * 100
            print(f"  {key}: {result.plan.trials[result.best].title}: {result.value:.2f}, was {result.before:.2f} "
                  f"({gain:+.1f} %)" + (f"; {result.note}" if result.note else ""))
        for trial, found in zip(result.plan.trials if result.plan else (), result.results):
            if found["status"] in ("wrong", "failed", "crashed", "hung"):
                print(f"    {found['status'].upper()} {trial.title}: {found['detail']}")
    if outcome.skipped:
        print(f"  {len(outcome.skipped)} shapes have a row already (--retune tunes them again)")
    if not outcome.is_complete:
        print("  the budget is spent: the same command goes on where this run ended")
    if outcome.table is not None:
        what = "rows" if device["is_measured"] else "modelled rows, which come after every measured one"
        print(f"{what}: {outcome.table if outcome.table.is_file() else 'none, the choices of before stand'}")
