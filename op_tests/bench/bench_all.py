# SPDX-License-Identifier: MIT
"""Every operator's bench(), one after the other, into one markdown file; or, with --held-out, what nobody tuned for.

`python op_tests/bench/bench_all.py --peers`. First all of them run at once with `--warm`, which builds and checks the
kernels; then each alone, timed. A run that was cut short goes on where it ended: what an operator printed is kept
beside the file.

`python op_tests/bench/bench_all.py --peers --held-out SEED --json FILE` draws shapes by the seed (held_out.py) and does
the same family by family; `measured_page.py FILE` makes MEASURED.md and its plot of that.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import measured
import run

_COLUMNS = "| shape | by | µs | TB/s | of copy | error/limit | |\n|---|---|---|---|---|---|---|"


def main() -> None:
    args = _parser().parse_args()
    run.need_gpu()
    if args.held_out is not None:
        measured.run(args.held_out, args.shapes, args.json, ["--peers"] if args.peers else [], args.limit, args.only,
                     args.commit)
        return
    scripts = [path for name, path in run.scripts().items()
               if not args.only or any(part in name for part in args.only)]
    folder = args.output.with_suffix(".rows")
    folder.mkdir(parents=True, exist_ok=True)
    if args.again:
        for script in scripts:
            (folder / f"{script.stem}.done").unlink(missing_ok=True)
    todo = [script for script in scripts if not (folder / f"{script.stem}.done").exists()]
    deadline = time.monotonic() + args.budget if args.budget else float("inf")
    with ThreadPoolExecutor(max_workers=args.jobs) as pool:
        for script, (seconds, failure) in zip(todo, pool.map(
                lambda script: _run(script, ["--warm"], folder / f"{script.stem}.warm", args.limit), todo)):
            print(f"warm {script.stem}: {seconds:.0f} s{failure}", flush=True)
    left = []
    for script in todo:
        if time.monotonic() > deadline:
            left.append(script.stem)
            continue
        seconds, failure = _timed(script, folder, args.limit, args.peers)
        print(f"{script.stem}: {seconds:.0f} s{failure}", flush=True)
        args.output.write_text(_markdown(scripts, folder), encoding="utf-8")
    args.output.write_text(_markdown(scripts, folder), encoding="utf-8")
    print(f"{args.output}" + (f"; the same command goes on with {', '.join(left)}" if left else ""))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("bench.md"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="scripts whose name holds one of these")
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="of one script (%(default)s)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start no script after that time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="that warm up at once")
    parser.add_argument("--peers", action="store_true", help="also what other libraries have, where they import")
    parser.add_argument("--held-out", type=int, metavar="SEED", help="draw the shapes instead, all families")
    parser.add_argument("--shapes", type=int, default=6, metavar="N", help="of each operator (%(default)s)")
    parser.add_argument("--json", type=Path, default=Path("measured.json"), metavar="FILE",
                        help="of --held-out (%(default)s); families that it has are left out")
    parser.add_argument("--commit", default="", help="that --json's file names (of this checkout)")
    parser.add_argument("--again", action="store_true", help="forget what an earlier run measured")
    return parser


def _timed(script: Path, folder: Path, limit: float, has_peers: bool) -> tuple[float, str]:
    """Runs one script alone; its rows and its output stay in `folder`."""
    rows = folder / f"{script.stem}.jsonl"
    rows.unlink(missing_ok=True)
    options = [*(("--peers",) if has_peers else ()), "--rows", str(rows.absolute())]
    seconds, failure = _run(script, options, folder / f"{script.stem}.txt", limit)
    (folder / f"{script.stem}.done").write_text(failure, encoding="utf-8")
    return seconds, failure


def _command(script: Path) -> list[str]:
    return [sys.executable, run.__file__, script.stem.removeprefix("test_")]


def _run(script: Path, options: list[str], output: Path, limit: float) -> tuple[float, str]:
    """(seconds, what went wrong or nothing) of a script's bench; what it prints goes to `output`."""
    start = time.monotonic()
    with output.open("w", encoding="utf-8") as file:
        try:
            code = subprocess.run([*_command(script), *options], stdout=file, stderr=subprocess.STDOUT, timeout=limit,
                                  check=False).returncode
        except subprocess.TimeoutExpired:
            return time.monotonic() - start, f", stopped after the limit of {limit:.0f} s"
    last = output.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    return time.monotonic() - start, f", exit code {code}: {last}" if code else ""


def _markdown(scripts: list[Path], folder: Path) -> str:
    """A section per script that ran: its tables, or what it printed where it has none of benching.py's."""
    parts = ["# Benchmarks", "", "Medians; checked before timed; caches are cold. \"flushed\": call by call, where a "
             "short kernel's time is the host's; all else as a graph, over several sets of tensors where small.", ""]
    for script in scripts:
        done, rows = folder / f"{script.stem}.done", folder / f"{script.stem}.jsonl"
        if not done.exists():
            continue
        parts.append(f"## {script.stem.removeprefix('test_')}{done.read_text(encoding='utf-8')}")
        printed = (folder / f"{script.stem}.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        if not rows.exists():
            parts += ["```", *printed, "```", ""]
            continue
        parts += [f"{line}  " for line in printed if line.startswith(("beside ", "without ")) or " copy " in line]
        title = None
        for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()):
            if row["title"] != title:
                title = row["title"]
                parts += ["", f"### {title}", _COLUMNS]
            numbers = (f"{row['us']:.2f} | {row['tbps']:.2f} | {row['share']:.1%} | {row['error']:.2f} | {row['how']}"
                       if "us" in row else f"| | | | {row['reason'].replace('|', '/')}")
            parts.append(f"| {row['shape']} | {row['by']} | {numbers} |")
        parts.append("")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
