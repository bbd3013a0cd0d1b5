# SPDX-License-Identifier: MIT
"""What a call costs the host when its size was never seen, beside one whose size was, for each operator.

`python op_tests/bench/bench_host.py --fresh`. The calls are the tuner's (`Tuning.case`) at the key of the operator's
own first case that has one; of that key one size varies: what an engine changes from step to step. Before any time is
taken, calls of other sizes have loaded every module: what is timed is a call of a known kind and an unknown size.
Without a GPU it is this thread's processor time, which other load hardly moves.
"""

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from aiter_like.dispatch import OPS, Op, find_op
from aiter_like.testing import host_time_us

VARYING = ("rows", "tokens", "m", "seqlen_k", "pairs", "elements", "parts", "patches", "samples")
"""Names of key fields that change from step to step; an operator's first in this order varies, the others stay."""

_LARGEST = 2000
_WARM, _BLOCK = 24, 20


class Unvaried(Exception):
    """The operator has no call here whose size can vary."""


def sizes(count: int, seed: int) -> list[int]:
    """Distinct ones, as many in each octave up to _LARGEST as it has."""
    numbers, found = random.Random(seed), {}
    while len(found) < count:
        found[max(round(_LARGEST**numbers.random()), 1) if len(found) < count // 2
              else numbers.randint(1, _LARGEST)] = None
    return list(found)


def varied(op: Op, on: torch.device) -> tuple[str, Callable[[int], tuple]]:
    """The field that varies, and the arguments of a call for a value of it.

    Raises:
        Unvaried: with the reason.
    """
    if op.tuning is None or op.cases is None:
        raise Unvaried("cannot be tuned, so that no call of a given size can be made")
    field = next((name for name in VARYING if name in op.tune_fields), None)
    if field is None:
        raise Unvaried(f"none of its sizes varies: {', '.join(op.tune_fields)}")
    for call in op.cases(on).values():
        key = op.tune_key(*call)
        unit = key["slots"] if field == "pairs" and "slots" in key else 1  # Tokens have all their pairs.
        try:
            op.tuning.case(key | {field: key[field] + unit}, on, 0)
        except (ValueError, TypeError, KeyError, RuntimeError):  # a case that the tuner cannot make
            continue
        return field, lambda size, key=key, unit=unit: op.tuning.case(key | {field: size * unit}, on, 0)
    raise Unvaried("no case of its own has a key of which the tuner makes a call")


def measure(op: Op, on: torch.device, count: int, seed: int = 0) -> dict[str, Any]:
    """Times of one operator in µs: `new`, `new_p90`, `repeated`, and the field that varied."""
    field, make = varied(op, on)
    drawn = sizes(_WARM + count, seed)
    is_gpu = on.type == "cuda"
    synchronize, now = (torch.cuda.synchronize, time.perf_counter_ns) if is_gpu else (lambda: None, time.thread_time_ns)
    for size in drawn[:_WARM]:
        op.run(*make(size))
    times, kept = [], []
    for begin in range(_WARM, len(drawn), _BLOCK):
        calls = [make(size) for size in drawn[begin:begin + _BLOCK]]
        synchronize()
        gc.disable()
        for args in calls:
            start = now()
            op.run(*args)
            times.append((now() - start) / 1e3)
        gc.enable()
        synchronize()
        kept.append(calls[0])
    repeated = [_repeated(op, args) for args in kept]
    return {"op": op.name, "varies": field, "new": round(statistics.median(times), 1),
            "new_p90": round(statistics.quantiles(times, n=10)[-1], 1),
            "repeated": round(statistics.median(repeated), 1), "count": len(times)}


def _repeated(op: Op, args: tuple) -> float:
    for _ in range(3):
        op.run(*args)
    return host_time_us(lambda: op.run(*args), calls=20, repeats=5)


def rows(on: torch.device, count: int, only: list[str]) -> Iterator[dict[str, Any]]:
    """Of each operator, or of those in `only`: its times, or why it has none."""
    for op in map(find_op, only) if only else OPS.values():
        try:
            yield measure(op, on, count)
        except Unvaried as reason:
            yield {"op": op.name, "why_not": str(reason)}


def bench(on: torch.device, count: int, only: list[str], output: Path | None) -> None:
    """Prints a line per operator as it comes; writes all of them to `output`."""
    found = []
    print(f"{'operator':<36} {'varies':<9} {'new':>8} {'p90':>8} {'repeated':>9} {'ratio':>6}   µs of host time")
    for row in rows(on, count, only):
        found.append(row)
        if "why_not" in row:
            print(f"{row['op']:<36} {row['why_not']}", flush=True)
        else:
            print(f"{row['op']:<36} {row['varies']:<9} {row['new']:8.1f} {row['new_p90']:8.1f} {row['repeated']:9.1f} "
                  f"{row['new'] / row['repeated']:6.1f}", flush=True)
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
