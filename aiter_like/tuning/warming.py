# SPDX-License-Identifier: MIT
"""Has Triton compile the candidates of many shapes side by side, before they are tried one after the other.

Triton compiles a kernel at its first call and keeps the code on disk: so each candidate is called once, in worker
processes of this phase alone, of which one GPU takes several. What comes of the calls is looked at in the trials. Used
by tuner.py.
"""

import queue
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aiter_like.modules import build
from aiter_like.tuning import pool
from aiter_like.tuning.candidates import Trial
from aiter_like.tuning.outcome import Options, Result
from aiter_like.tuning.pool import Lost, Worker
from aiter_like.tuning.progress import Progress

PHASE = "kernels compiled"
TRIAL_SECONDS = 3.0  # a guess
_CHUNK = 3  # A request has so many trials, for which the arguments of a shape are made once.
_OVERHEAD_BYTES = 2 << 30  # A process takes them on the GPU, beside a shape's arguments.
_PART = 0.5  # Plans and kernels take so much of a budget at most: kernels that are left compile in their trials.
_FEWEST = 8  # So many candidates are worth the start of more processes.

Unit = tuple[Result, Sequence[Trial]]


class Run(Protocol):
    """The part of tuner.Run that this phase uses."""

    options: Options
    hello: Mapping[str, Any]
    progress: Progress
    harness: str

    def ask(self, worker: Worker, what: str, result: Result, trials: Sequence[Trial] = (),
            timeout: float | None = None, **more: Any) -> dict[str, Any]:
        """Asks a worker about a shape; raises Lost when it does not answer."""

    def is_over(self, part: float = 1.0) -> bool:
        """Whether no further candidate may be started, for `part` of the budget is spent."""


def warm(run: Run, results: Sequence[Result]) -> None:
    """Fills Triton's cache with the kernels of all trials of `results`; those that fail are met again in the trials."""
    units = _units(results)
    if not run.hello["is_measured"] or sum(len(trials) for _, trials in units) < _FEWEST:
        return
    count = _processes(run, units)
    run.progress.expect(PHASE, len(units), _CHUNK * TRIAL_SECONDS / count)
    run.progress.enter(PHASE)
    todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in units:
        todo.put(unit)
    gpus = run.options.gpus
    workers = [Worker(run.harness, gpus[index % len(gpus)]) for index in range(count)]
    with pool.threads(workers) as threads:
        list(threads.map(lambda worker: _serve(run, worker, todo), workers))


def _units(results: Sequence[Result]) -> list[Unit]:
    """Shape after shape: what the next one has in common with it is then compiled already."""
    units = []
    for result in results:
        trials = [trial for trial in result.plan.trials if trial.backend == "triton"] if result.plan else []
        units += [(result, trials[start:start + _CHUNK]) for start in range(0, len(trials), _CHUNK)]
    return units


def _processes(run: Run, units: Sequence[Unit]) -> int:
    """The number of compilers at a time, but no more than half of a GPU's memory holds."""
    gpus = len(run.options.gpus)
    each = max(result.plan.bytes for result, _ in units) + _OVERHEAD_BYTES
    room = max(int(run.hello["memory_bytes"] / 2 / each), 1) * gpus
    return min(max(build.default_jobs(), gpus), len(units), room)


def _serve(run: Run, worker: Worker, todo: queue.SimpleQueue[Unit]) -> None:
    """Has one process, that this thread starts and ends, call what is left."""
    try:
        while not run.is_over(_PART):
            try:
                result, trials = todo.get_nowait()
            except queue.Empty:
                return
            try:
                run.ask(worker, "warm", result, trials, timeout=len(trials) * run.options.timeout)
            except Lost:  # one of them ended the process: the others get another
                for trial in trials if len(trials) > 1 else ():
                    todo.put((result, [trial]))
            run.progress.step()
    finally:
        worker.close()
