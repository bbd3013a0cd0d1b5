# SPDX-License-Identifier: MIT
"""The hot list on the cycle model: each shape that has no modelled row, by the operator's own choice and by every other
backend as it comes. Where none takes less by what the model can tell apart, the shape has no row for that reason.

`python op_tests/bench/bench_hot_list.py [OPERATOR …] [--tokens 1,64] --json FILE [--page]`. Every time is modelled.
What FILE has is left out, so that a run may be cut short; --page puts its sums into HOT_LIST.md, where operators of
which FILE has nothing keep theirs, beside the rows of today. Tuning, which tries an operator's parameters as well, is
`aiter-like tune OPERATOR --hot-list --device sim`; `--json FILE --page` alone then counts the rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import modelled_page
import torch

import aiter_like  # noqa: F401  (declares the operators)
from aiter_like import device, paths, sim
from aiter_like.dispatch import OPS, Op
from aiter_like.errors import SimulatorError, TuningError, UnsupportedError
from aiter_like.sim import modelling
from aiter_like.tuning import hot_list

_LEAST_OF_TRITON = 5.0  # us: rows of it that save less are not kept, since its launches take the host longer
_LARGEST_BYTES, _LARGEST_FLOPS = 2e9, 4e11  # of a call that a processor makes random numbers for and replays at once
_LARGEST_WHOLE_FLOPS = 1e10  # … of which all workgroups run


def text(key: Mapping[str, Any]) -> str:
    """A key as `aiter-like tune --shape` takes it."""
    return ",".join(f"{name}={value}" for name, value in key.items())


def with_rows(op: Op) -> set[str]:
    """The keys, as text, that have a modelled row."""
    path = paths.tuned_csv() / "modelled" / f"{op.name}.csv"
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {text({name: row[name] for name in op.tune_fields}) for row in csv.DictReader(file)}


def operators() -> Iterator[tuple[Op, list[dict[str, Any]]]]:
    """Those that have shapes in the hot list."""
    for _, op in sorted(OPS.items()):
        try:
            yield op, hot_list.keys(op)
        except TuningError:
            continue


def _us(op: Op, call: Any, backend: str | None, model: str) -> list[float]:
    """The modelled times of a call's launches."""
    with torch.no_grad(), sim.enabled(checks=False, model=model) as session:
        op(call, backend=backend)
    return [launch["modelled_us"] for launch in session.modelled]


def _times(op: Op, call: Any, backend: str | None) -> list[float]:
    """As _us. Of several launches all workgroups run, unless they are large products: what one leaves may decide what
    the next does, or where it reads.
    """
    try:
        times = _us(op, call, backend, "sample")
    except SimulatorError:
        times = []
    is_whole = len(times) != 1 and op.tuning.needs(call)[1] < _LARGEST_WHOLE_FLOPS
    return _us(op, call, backend, "whole") if is_whole else times


def modelled(op: Op, key: Mapping[str, Any]) -> dict[str, float]:
    """Backend → us; "own" is the operator's choice. Without those that do not serve the call, or launch nothing."""
    call, found = op.tuning.case(key, torch.device("cpu"), 0), {}
    _times(op, call, None)  # a kernel's check before its first use is no part of its time
    for backend in ("own", *(backend.name for backend in op.backends if backend.name != "torch")):
        try:
            times = _times(op, call, None if backend == "own" else backend)
        except UnsupportedError:
            continue
        if times:
            found[backend] = round(sum(times), 2)
    return found


def _is_small(op: Op, key: Mapping[str, Any], tokens: set[int]) -> bool:
    """Whether a call of the key is of some of the tokens, and is soon modelled; decided without making it."""
    if tokens and not tokens & {value for value in key.values() if isinstance(value, int)}:
        return False
    with torch.device("meta"):
        try:
            moved, flops = op.tuning.needs(op.tuning.case(key, torch.device("meta"), 0))
        except (RuntimeError, NotImplementedError):  # the numbers of the case are looked at
            return True
    return moved <= _LARGEST_BYTES and flops <= _LARGEST_FLOPS


def gain(of: Mapping[str, float], error: float) -> float:
    """By how much the best other backend would take less, where that is more than the model's error and, of Triton,
    more than what its launches take the host longer; else 0.
    """
    others = {name: us for name, us in of.items() if name != "own"}
    worth = [of["own"] / us - 1 for name, us in others.items() if name != "triton" or of["own"] - us > _LEAST_OF_TRITON]
    best = max(worth, default=0.0)
    return best if best > error else 0.0


def lines(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """The table of HOT_LIST.md: how many shapes operators have, with a modelled row or without, and why."""
    yield "| operator | shapes | with a row | compared | own choice is the best | another backend gains |"
    yield "|---|---|---|---|---|---|"
    kept = modelled_page.rows("hot list")
    for op, keys in operators():
        rows = with_rows(op)
        error = modelling.class_error(modelling.class_of(op.home, op.name))
        gains = [gain(of, error) for key in keys if "own" in (of := found.get(f"{op.name} {text(key)}", {}))]
        has, missing = sum(text(key) in rows for key in keys), [one for one in gains if one]
        worst = f"{len(missing)}, up to {max(missing):.0%}" if missing else ""
        compared = [len(gains), len(gains) - len(missing), worst] if gains else kept.get(op.name, [""] * 6)[3:]
        yield f"| {op.name} | {len(keys)} | {has or ''} | {' | '.join(map(str, compared))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--tokens", default="", help="only keys with one of these numbers, separated by commas")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--page", action="store_true", help="write the table of HOT_LIST.md")
    args = parser.parse_args()
    device.use_simulator(True)
    found = json.loads(args.json.read_text()) if args.json.exists() else {}
    tokens = {int(count) for count in args.tokens.split(",") if count}
    for op, keys in operators() if args.operators or not args.page else ():
        rows = with_rows(op)
        for key in keys if not args.operators or op.name in args.operators else ():
            name = f"{op.name} {text(key)}"
            if name in found or text(key) in rows or not _is_small(op, key, tokens):
                continue
            start = time.monotonic()
            found[name] = modelled(op, key)
            print(f"{name}: {found[name]} modelled us ({time.monotonic() - start:.0f} s here)", flush=True)
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.page:
        modelled_page.put("hot list", lines(found))


if __name__ == "__main__":
    main()
