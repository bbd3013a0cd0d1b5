# SPDX-License-Identifier: MIT
"""The table of `aiter-like bench`: every backend of an operator on a shape, checked, then timed against each other."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from aiter_like.dispatch.selection import Request, select
from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.tuning import judge
from aiter_like.tuning.clock import Contender
from aiter_like.tuning.harness import Harness
from aiter_like.tuning.progress import Progress

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

ROUNDS = 11
_STEP_SECONDS = 2.0  # a guess for the progress line: to build, check or time one backend


@dataclass
class Line:
    """One contender on one shape.

    Attributes:
        name: a backend; "torch.compile" is the reference compiled.
        kernel: with its parameters.
        is_chosen: what a call without `backend=` takes.
        value: in the clock's unit; None where it did not run.
        rates: (bytes, flops) that the shape needs, per second; None where nothing is measured.
        reason: why it did not run, or why it is wrong.
        is_wrong: it ran, and not as the reference says.
    """

    key: Mapping[str, Any]
    name: str
    kernel: str = ""
    is_chosen: bool = False
    value: float | None = None
    rates: tuple[float, float] | None = None
    error: float | None = None
    reason: str = ""
    is_wrong: bool = False


def steps(op: Op, with_peers: bool) -> int:
    """How many steps `lines` takes for a shape: to make the case, to check each backend, to time them together."""
    return len(op.backends) + with_peers + 2


def progress_of(op: Op, shapes: int, with_peers: bool, enabled: bool) -> Progress:
    """The progress line of a table, begun."""
    line = Progress(op.name, enabled)
    line.all_shapes = shapes
    line.expect("checks and timings", steps(op, with_peers) * shapes, _STEP_SECONDS)
    line.enter("checks and timings")
    return line


def lines(op: Op, key: Mapping[str, Any], harness: Harness, with_peers: bool = False,
          step: Callable[[], None] = lambda: None) -> list[Line]:
    """The lines of one shape: backends in the operator's order, then peers. Calls `step` as often as `steps` says.

    Raises:
        ValueError: `key` is none of the operator's.
        RuntimeError: the reference does not run.
    """
    made = judge.case(op, key, harness.device)
    needs = op.tuning.needs(made.args)
    sets = [op.tuning.case(key, harness.device, seed) for seed in range(harness.clock.sets(needs[0]))]
    step()
    chosen = next(iter(select(op, Request(harness.target, made.args)).candidates), None)
    found, functions = [], []
    for line, function in _contenders(op, key, harness, made.args, with_peers):
        line.is_chosen = chosen is not None and line.name == chosen.backend.name
        if function is not None:
            try:
                line.error, fault = judge.check(made, harness.guarded(op, function))
                line.reason = fault or ""
            except (RuntimeError, ValueError, TypeError) as error:
                line.reason = f"failed: {str(error).partition(chr(10))[0]}"
            line.is_wrong = bool(line.reason)
        if function is not None and not line.reason:
            functions.append((line, function))
        found.append(line)
        step()
    contenders = [Contender([functools.partial(harness.placed(op, function), *args) for args in sets],
                            functools.partial(_called_fresh, made, harness.placed(op, function)), needs[0])
                  for _, function in functions]
    with torch.no_grad():
        rounds = harness.clock.finals(contenders, ROUNDS) if contenders else []
    for (line, _), values, more in zip(functions, rounds, harness.clock.found or itertools.repeat({})):
        line.value = statistics.median(values)
        if math.isinf(line.value):
            line.value, line.reason = None, more["reason"]
        elif harness.clock.is_measured:
            line.rates = (needs[0] / line.value * 1e6, needs[1] / line.value * 1e6)
    step()
    return found


def _called_fresh(made: judge.Case, function: Callable) -> None:
    function(*made.fresh())


def _contenders(op: Op, key: Mapping[str, Any], harness: Harness, args: tuple, with_peers: bool
                ) -> Iterator[tuple[Line, Callable | None]]:
    """A line for each backend and peer, and the function to time where there is one."""
    for backend in op.backends:
        line = Line(key, backend.name)
        selection = select(op, Request(harness.target, args, backend.name, "bench"))
        if not selection.candidates:
            line.reason = selection.refused[backend.name]
            yield line, None
            continue
        candidate = selection.candidates[0]
        params = (f"{name}={value}" for name, value in candidate.params.items())
        line.kernel = " ".join([candidate.kernel, *params])
        try:
            yield line, backend.bind(harness.target, args, candidate)
        except (BuildError, UnsupportedError) as error:
            line.reason = str(error).partition("\n")[0]
            yield line, None
    if with_peers:
        yield Line(key, "torch.compile", op.reference.__name__), torch.compile(op.reference, dynamic=False)


def text(found: list[Line], unit: str, copy_rate: float | None) -> list[str]:
    """The lines for a terminal; `*` marks what a call takes."""
    rows = ["  ".join(f"{name}={value}" for name, value in found[0].key.items())]
    for line in found:
        name = f"  {'*' if line.is_chosen else ' '} {line.name:13}"
        if line.value is None:
            rows.append(f"{name} {'-':>10} {line.reason}")
            continue
        numbers = f"{line.value:10.2f} {unit}"
        if line.rates is not None:
            numbers += f" {line.rates[0] / 1e12:6.2f} TB/s"
            numbers += f" {line.rates[0] / copy_rate * 100:4.0f} % of copy" if copy_rate else ""
            numbers += f" {line.rates[1] / 1e12:7.1f} TFLOP/s" if line.rates[1] else ""
        rows.append(f"{name} {numbers}  rel. L2 error {line.error:.2g}  {line.kernel}")
    return rows
