# SPDX-License-Identifier: MIT
"""The tuner's options and results. Used by tuner.py, trials.py and report.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiter_like.dispatch.table import Row
from aiter_like.tuning.candidates import Plan


@dataclass(frozen=True)
class Options:
    """How to tune.

    Attributes:
        device: "gpu", or "sim": candidates are checked on the simulated MI300X, and rows have modelled times.
        gpus: numbers of the GPUs to use, a worker process each.
        output: directory of the table, of modelled rows in its folder modelled/; default: tuned_csv/ of a checkout,
            else the user's own directory.
        journal: file that a run which is cut short goes on from; default: one in the cache directory.
        budget: seconds after which no further candidate is started.
        min_improvement: per cent by which a candidate must beat the present choice, of modelled times the operator's
            own choice, to replace it; default: what the device's clock can tell apart (clock.Clock.least_gain).
        timeout: seconds that one candidate may take, its compilation by Triton included.
        rounds: of timing in the first comparison; the final has twice as many.
        retune: also shapes that have a row already.
        compare: time the present rows against the operator's own choice, and write nothing.
        hints: key → what to try first (candidates.Plan.hinted); it decides only what a budget leaves out.
        backends: names of those whose candidates are tried, beside the present choice and the operator's own; empty:
            all.
        harness: "module:function" of (index) → Harness instead of the device's (tests plant candidates and a clock).
        progress: show a line with the time left.
    """

    device: str = "gpu"
    gpus: Sequence[int] = (0,)
    output: Path | None = None
    journal: Path | None = None
    budget: float | None = None
    min_improvement: float | None = None
    timeout: float = 120.0
    rounds: int = 7
    retune: bool = False
    compare: bool = False
    hints: Mapping[tuple, Mapping[str, str]] = field(default_factory=dict)
    backends: Sequence[str] = ()
    harness: str = ""
    progress: bool = True


@dataclass
class Result:
    """The result for one shape.

    Attributes:
        results: for each trial of `plan`, in order: status ok, wrong, failed, refused, crashed, hung or skipped, with
            detail, value, base, ratio, err as they apply.
        finals: index of a finalist → its value, or the error; of modelled ones with launches and text.
        best: index of the choice; None where nothing passed.
        value, before: of the choice and of the present choice, in the device's unit, from the final.
        note: why there is no choice, or what to know about it.
        row: what was written.
    """

    key: dict[str, Any]
    plan: Plan | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    finals: dict[int, dict[str, Any]] = field(default_factory=dict)
    best: int | None = None
    value: float = 0.0
    before: float = 0.0
    note: str = ""
    row: Row | None = None


@dataclass
class Outcome:
    """The results of a run.

    Attributes:
        device: what the worker says about its device (arch, cu_num, name, and of its clock what
            clock.Clock has).
        ceilings: measured (bytes/s, flop/s), or None.
        skipped: shapes that have a row already.
        is_complete: every shape was done within the budget.
        table: the file of the rows; None where nothing may be written.
    """

    op: str
    device: dict[str, Any]
    ceilings: tuple[float, float] | None
    results: list[Result]
    skipped: list[dict[str, Any]]
    is_complete: bool
    table: Path | None
