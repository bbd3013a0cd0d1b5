# SPDX-License-Identifier: MIT
"""Kernels on the cycle model of the simulated MI300X: modelled time, share of what bounds them, instructions.

`python op_tests/bench/bench_modelled.py [NAME …] [--groups gemm,moe] [--list] [--json FILE [--resume]]`. Every time is
modelled, none is measured: an earlier --json FILE, given as --before, is set beside it. --json is written after each
case, and --resume leaves out those that it has; --page puts all of that file, beside --before, into MODELLED_CASES.md.
Cases are in modelled_rows.py and so on, a file for each group. The published rates are those of gpu-stream on an
MI300X (hibagus/SC25_AMD_CDNA3_Artifact), for the nearest mix of reads and writes; the peak of matrix operations is
that of the clock.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modelled_attention
import modelled_decode
import modelled_gemm
import modelled_moe
import modelled_page
import modelled_rows
import torch
from modelled_case import Case

from aiter_like import device, sim
from aiter_like.sim import modelling, profiling

_TBPS = {1.0: 4.14, 2 / 3: 3.88, 0.5: 3.97, 0.0: 4.59}  # share of reads → read, triad, scale, init
_GROUPS = {"attention": modelled_attention.cases, "gemm": modelled_gemm.cases, "decode": modelled_decode.cases,
           "moe": modelled_moe.cases}
_COLUMNS = (("us", "modelled us", "8.2f"), ("rate", "of published", "8.0%"), ("matrix", "of MFMA peak", "6.0%"),
            ("vector", "VALU busy", "6.0%"), ("waves", "waves", "7d"), ("valu", "VALU/wave", "7.1f"),
            ("all", "all/wave", "7.1f"), ("ds", "LDS/wave", "6.1f"), ("launches", "launches", "2d"))


def _rows(tokens: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    for rows in map(int, tokens.split(",")):
        for name, case in modelled_rows.cases(rows):
            yield f"{name} × {rows}", functools.partial(lambda case: case, case)


def measured(case: Case, clock_mhz: float) -> dict[str, Any]:
    """The figures of one call's launches, times added; counts are per wave of the launch that takes longest."""
    cycles: list[dict] = []
    with torch.no_grad(), sim.enabled(checks=False, on_report="collect", counters=True) as session, modelling.modelled(
            cycles, not case.is_whole, clock_mhz, profiling.TIMELINE, 0 if case.is_mixed else modelling.BUDGET):
        case.call()
    found = list(profiling.profiles(session.launches, cycles))
    longest = max(found, key=lambda one: one["modelled_us"])
    us, total = sum(one["modelled_us"] for one in found), case.read + case.written
    share = case.read / total
    published = _TBPS[min(_TBPS, key=lambda mix: abs(mix - share))]
    peak = next(roof["per_second"] for roof in modelling.roofs(clock_mhz) if roof["name"] == case.matrix)
    counts = longest["counts"]
    waves = max(counts["by_class"].get("end", 0), 1)
    kinds = counts["by_class"]
    of_kernels: dict[str, float] = {}
    for one in found:
        of_kernels[one["kernel"]] = of_kernels.get(one["kernel"], 0) + one["modelled_us"]
    return {"us": us, "clock_mhz": clock_mhz, "rate": total / us / 1e6 / published,
            "matrix": case.flops / us * 1e6 / peak, "vector": longest["busy"]["vector"], "waves": waves,
            "valu": (kinds.get("valu", 0) + kinds.get("trans", 0)) / waves, "all": counts["executed"] / waves,
            "ds": kinds.get("ds", 0) / waves, "launches": len(found), "bound": longest["bound"],
            "kernels": of_kernels}


def _line(one: dict[str, Any], before: dict[str, Any] | None) -> str:
    """A case's figures; those that do not exist are left blank, as the rate of MFMA where there is none."""
    shown = (format(one[column], form) if column != "matrix" or one[column] else "" for column, _, form in _COLUMNS)
    old = f"  before {before['us']:.2f} us" if before else ""
    return " ".join(f"{figure:>12}" for figure in shown) + f"  {one['bound']}{old}"


def _chosen(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The cases that the arguments name."""
    for group in args.groups.split(","):
        if group not in ("rows", *_GROUPS):
            raise SystemExit(f"bench_modelled: --groups must be of rows, {', '.join(_GROUPS)}, got {group!r}")
        for name, make in _rows(args.rows) if group == "rows" else _GROUPS[group]():
            if not args.names or any(part in name for part in args.names):
                yield name, make


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--groups", default="rows,gemm,decode,moe", help="which of these, separated by commas")
    parser.add_argument("--rows", default="8192,64", help="tokens of a call of the group rows, separated by commas")
    parser.add_argument("--clock", type=float, default=modelling.PEAK_MHZ, help="MHz of the shader engines")
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    parser.add_argument("--json", type=Path, help="write the figures there, after each case")
    parser.add_argument("--resume", action="store_true", help="leave out cases that --json's file has")
    parser.add_argument("--before", type=Path, help="figures that --json wrote, to set beside these")
    parser.add_argument("--page", action="store_true", help="write MODELLED_CASES.md of --json's file and --before's")
    return parser


def main() -> None:
    args = _parser().parse_args()
    device.use_simulator(True)
    if args.list:
        print("\n".join(name for name, _ in _chosen(args)))
        return
    before = json.loads(args.before.read_text()) if args.before else {}
    keeps = args.json and args.json.exists() and (args.resume or args.json == args.before)
    found = json.loads(args.json.read_text()) if keeps else {}
    print(f"version {modelling.version()} of the cycle model at {args.clock:g} MHz: modelled, not measured")
    print(f"{'':52}" + " ".join(f"{title:>12}" for _, title, _ in _COLUMNS))
    for name, make in _chosen(args):
        if args.resume and name in found:
            continue
        print(f"{name:52}", end="", flush=True)
        start = time.monotonic()
        found[name] = one = measured(make(), args.clock)
        print(f"{_line(one, before.get(name))}  ({time.monotonic() - start:.0f} s here)", flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.page:
        modelled_page.write(found, before)


if __name__ == "__main__":
    main()
