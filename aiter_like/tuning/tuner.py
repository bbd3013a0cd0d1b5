# SPDX-License-Identifier: MIT
"""The tuner: for each shape tries every candidate in worker processes, and writes the row of the best one.

Four phases: plan (which candidates there are), build (their modules, in parallel, without a GPU), try (each candidate
is judged, then timed against the present choice), final (the best few against each other). A row is written as soon as
its shape is done.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like.build import processes
from aiter_like.dispatch import table
from aiter_like.dispatch.table import Row
from aiter_like.errors import BuildError, TuningError
from aiter_like.tuning import journal, writer
from aiter_like.tuning.candidates import Plan, Trial
from aiter_like.tuning.pool import Lost, Worker
from aiter_like.tuning.progress import Progress

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

HARNESSES = {"gpu": "aiter_like.tuning.harness:gpu", "sim": "aiter_like.tuning.harness:sim"}
_PLAN_SECONDS = 300.0
_FINALISTS = 3
_NO_TIME = "no time left"
# Guesses for the progress line until there is something to go by: seconds of one step, and trials of one shape.
_START_SECONDS, _PLAN_STEP_SECONDS, _BUILD_SECONDS, _TRIAL_SECONDS, _TRIALS = 8.0, 0.5, 8.0, 1.0, 12


@dataclass(frozen=True)
class Options:
    """How to tune.

    Attributes:
        device: "gpu", or "sim": every candidate is checked on the simulated MI300X and counted, and nothing is written,
            since counts are no time.
        gpus: numbers of the GPUs to use, a worker process each.
        output: directory of the table; default: tuned_csv/ of a checkout, else the user's own directory.
        journal: file that a run which is cut short goes on from; default: one in the cache directory.
        budget: seconds after which no further candidate is started.
        min_improvement: per cent by which a candidate must beat the present choice to replace it.
        timeout: seconds that one candidate may take, its compilation by Triton included.
        rounds: of timing in the first comparison; the final has twice as many.
        retune: also shapes that have a row already.
        compare: time the present rows against the operator's own choice, and write nothing.
        hints: key → what to try first (candidates.Plan.hinted); it decides only what a budget leaves out.
        harness: "module:function" of (index) → Harness instead of the device's (tests plant candidates and a clock).
        progress: show a line with the time left.
    """

    device: str = "gpu"
    gpus: Sequence[int] = (0,)
    output: Path | None = None
    journal: Path | None = None
    budget: float | None = None
    min_improvement: float = 3.0
    timeout: float = 120.0
    rounds: int = 7
    retune: bool = False
    compare: bool = False
    hints: Mapping[tuple, Mapping[str, str]] = field(default_factory=dict)
    harness: str = ""
    progress: bool = True


@dataclass
class Result:
    """What came of one shape.

    Attributes:
        results: for each trial of `plan`, in order: status ok, wrong, failed, refused, crashed, hung or skipped, with
            detail, value, base, ratio, err as they apply.
        best: index of the choice; None where nothing passed.
        value, before: of the choice and of the present choice, in the device's unit, from the final.
        note: why there is no choice, or what to know about it.
        row: what was written.
    """

    key: dict[str, Any]
    plan: Plan | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None
    value: float = 0.0
    before: float = 0.0
    note: str = ""
    row: Row | None = None


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        device: what the worker says about its device (arch, cu_num, name, unit, is_time).
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


def tune(op: Any, shapes: Iterable[Mapping[str, Any]], options: Options | None = None) -> Outcome:
    """Tunes an operator for `shapes`.

    Args:
        op: an operator's name, its public function, or the Op.
        shapes: tune keys, without arch and cu_num.
        options: see Options.

    Raises:
        TuningError: the operator declares no tuning case, the table has a bad row or cannot be written, or no worker
            starts.
        ValueError: a shape has other fields than the operator's key.
    """
    from aiter_like.dispatch import find_op

    found = find_op(op)
    if found.tuning is None:
        raise TuningError(f"{found.name} declares nothing to be tuned by (dispatch/tuning.py)")
    values = dict.fromkeys(table.normalised(found.name, found.tune_fields, shape) for shape in shapes)
    keys = [dict(zip(found.tune_fields, value)) for value in sorted(values)]
    return _Run(found, options or Options()).run(keys)


class _Run:
    """One run of the tuner."""

    def __init__(self, op: Op, options: Options):
        self.op, self.options = op, options
        self.start = time.monotonic()
        harness = options.harness or HARNESSES[options.device]
        self.workers = [Worker(harness, index) for index in options.gpus]
        self.idle: queue.Queue[Worker] = queue.Queue()
        self.progress = Progress(op.name, options.progress)
        self.unbuilt: dict[str, str] = {}  # module name → why it does not build
        self.lock = threading.Lock()
        self.is_stopped = False
        self.folder = options.output or writer.default_folder()
        self.table = self.folder / f"{op.name}.csv"

    def run(self, keys: list[dict[str, Any]]) -> Outcome:
        """All phases."""
        try:
            self._expect(len(keys))
            with self._threads() as threads:
                for worker in self.workers:
                    self.idle.put(worker)
                self.hello = threads.submit(self._with_worker, Worker.start).result()
                rows, skipped = self._known_rows(keys)
                keys = [key for key in keys if key not in skipped]
                log = journal.Journal(self.options.journal or self._journal_path())
                self._expect(len(keys))
                self.progress.enter("shapes planned")
                results = list(threads.map(self._plan, keys))
                self._build(results)
                self.progress.all_shapes = len(keys)
                self.progress.expect("trials", sum(len(result.plan.trials) for result in results if result.plan))
                self.progress.enter("trials")
                ceilings = threads.submit(self._ceilings).result()
                list(threads.map(lambda result: self._shape(result, log), results))
        finally:
            for worker in self.workers:
                worker.close()
            self.progress.end()
        is_complete = all(result.note != _NO_TIME for result in results)
        log.close(is_complete)
        return Outcome(self.op.name, self.hello, ceilings, results, skipped, is_complete,
                       self.table if self._may_write() else None)

    @contextlib.contextmanager
    def _threads(self) -> Iterator[ThreadPoolExecutor]:
        """A thread for each worker; these live as long as the workers that they start. Ctrl-C ends the workers first,
        since the threads wait for them.
        """
        with processes.threads(len(self.workers)) as threads:
            try:
                yield threads
            except BaseException:
                self.is_stopped = True
                for worker in self.workers:
                    worker.stop()
                raise

    def _expect(self, shapes: int) -> None:
        """Tells what is to come, as far as it is known, and that the workers start where nothing has begun."""
        count = len(self.workers)
        self.progress.expect("workers started", 1, _START_SECONDS)
        self.progress.expect("shapes planned", shapes, _PLAN_STEP_SECONDS / count)
        self.progress.expect("modules built", shapes, _BUILD_SECONDS)
        self.progress.expect("trials", _TRIALS * shapes, _TRIAL_SECONDS / count)
        if not hasattr(self, "hello"):
            self.progress.enter("workers started")

    def _may_write(self) -> bool:
        return bool(self.hello["is_time"]) and not self.options.compare

    def _known_rows(self, keys: list[dict[str, Any]]) -> tuple[dict[tuple, list[Row]], list[dict[str, Any]]]:
        """The table's rows, and the keys that need no tuning."""
        if not self._may_write():
            return {}, []
        writer.prepare(self.folder)
        rows = writer.existing(self.table, self.op)
        backends = {backend.name: backend for backend in self.op.backends}
        skipped = [] if self.options.retune else [
            key for key in keys
            if any(backends[row.backend].staleness(row) is None for row in rows.get(self._row_key(key), ()))]
        return rows, skipped

    def _row_key(self, key: Mapping[str, Any]) -> tuple:
        return (self.hello["arch"], self.hello["cu_num"], *key.values())

    def _journal_path(self) -> Path:
        from aiter_like.build.cache import cache_root

        place = journal.identity(str(self.folder.resolve()), self.hello["name"])
        return cache_root() / "tuning" / f"{self.op.name}.{self.hello['arch']}.{place}.jsonl"

    def _is_over(self) -> bool:
        budget = self.options.budget
        return self.is_stopped or (budget is not None and time.monotonic() - self.start > budget)

    def _with_worker(self, work: Callable[[Worker], Any]) -> Any:
        worker = self.idle.get()
        try:
            return work(worker)
        finally:
            self.idle.put(worker)

    def _ask(self, worker: Worker, what: str, result: Result, trials: Sequence[Trial] = (), **more: Any
             ) -> dict[str, Any]:
        request = {"do": what, "op": self.op.name, "key": result.key, "trials": [asdict(trial) for trial in trials],
                   **more}
        return worker.ask(request, _PLAN_SECONDS if what == "plan" else self.options.timeout)

    # ---- phases

    def _plan(self, key: dict[str, Any]) -> Result:
        result = Result(key)
        try:
            reply = self._with_worker(lambda worker: self._ask(worker, "plan", result))
        except Lost as error:
            reply = {"error": str(error)}
        if "error" in reply:
            result.note = reply["error"]
        else:
            result.plan = Plan.of(reply).hinted(self.options.hints.get(tuple(key.values()), {}))
        self.progress.step()
        return result

    def _build(self, results: Sequence[Result]) -> None:
        """All modules of all trials, several at a time."""
        from aiter_like.build import build
        from aiter_like.build.recipe import ModuleSpec

        modules = {trial.module["name"]: trial.module for result in results if result.plan
                   for trial in result.plan.trials if trial.module is not None}
        self.progress.expect("modules built", len(modules), _BUILD_SECONDS / build.default_jobs())
        if modules:
            self.progress.enter("modules built")

        def ensure(module: Mapping[str, Any]) -> None:
            if self._is_over():
                return
            try:
                build.ensure(ModuleSpec(**{**module, "root": Path(module["root"]), "sources": tuple(module["sources"]),
                                           "flags": tuple(module["flags"])}))
            except BuildError as error:
                self.unbuilt[module["name"]] = str(error).partition("\n")[0]
            self.progress.step()

        with processes.threads(build.default_jobs()) as threads:
            list(threads.map(ensure, modules.values()))

    def _ceilings(self) -> tuple[float, float] | None:
        if not self.hello["is_time"]:
            return None
        try:
            reply = self._with_worker(lambda worker: worker.ask({"do": "ceilings"}, self.options.timeout))
        except Lost:
            return None
        return tuple(reply["ceilings"]) if reply.get("ceilings") else None

    def _shape(self, result: Result, log: journal.Journal) -> None:
        """Tries, final, row of one shape."""
        if result.plan is not None:
            self._with_worker(lambda worker: self._shape_on(worker, result, log))
        self.progress.shape_done()

    def _shape_on(self, worker: Worker, result: Result, log: journal.Journal) -> None:
        trials = result.plan.trials
        wanted = range(len(trials)) if not self.options.compare else sorted({0, result.plan.default})
        base = None  # index of what the others are timed against: the present choice, else the first that passes
        for index, trial in enumerate(trials):
            if self._is_over():
                result.note = _NO_TIME
                result.results.append({"status": "skipped", "detail": _NO_TIME})
                continue
            if index not in wanted:
                result.results.append({"status": "skipped", "detail": "not compared"})
                continue
            pair = [trials[base], trial] if base is not None else [trial]
            result.results.append(self._trial(worker, result, pair, log))
            self.progress.step()
            if base is None and result.results[-1]["status"] == "ok":
                base = index
        passed = [index for index, found in enumerate(result.results) if found["status"] == "ok"]
        if not passed:
            result.note = result.note or "no candidate passed"
            return
        self._decide(worker, result, passed, base)

    def _trial(self, worker: Worker, result: Result, pair: list[Trial], log: journal.Journal) -> dict[str, Any]:
        """One candidate: from the journal, or in the worker."""
        trial = pair[-1]
        name = journal.identity(self.op.name, result.key, [_plain(one) for one in pair], self.hello["name"])
        if name in log.results:
            return log.results[name]
        if trial.module is not None and trial.module["name"] in self.unbuilt:
            return {"status": "refused", "detail": self.unbuilt[trial.module["name"]]}
        if log.is_lethal(name):
            return {"status": "crashed", "detail": "earlier runs ended while it ran; delete the journal to try again: "
                                                   f"{log.path}"}
        log.start(name, f"{trial.title} {result.key}")
        try:
            found = self._ask(worker, "try", result, pair, count=self.options.rounds)
        except Lost as error:
            if self.is_stopped:
                log.stop(name)
                raise
            status, _, detail = str(error).partition(": ")
            found = {"status": status, "detail": detail}
        if "error" in found:
            found = {"status": "failed", "detail": found["error"]}
        log.finish(name, found)
        return found

    def _decide(self, worker: Worker, result: Result, passed: list[int], base: int) -> None:
        """The final among the best, and the row."""
        finalists = sorted(passed, key=lambda index: result.results[index]["ratio"])[:_FINALISTS]
        finalists = [base, *(index for index in finalists if index != base)]
        if self.options.compare and result.plan.default in passed and result.plan.default not in finalists:
            finalists.append(result.plan.default)
        values = [result.results[base]["value"]]
        if len(finalists) > 1:
            try:
                reply = self._ask(worker, "final", result, [result.plan.trials[index] for index in finalists],
                                  count=2 * self.options.rounds)
            except Lost as error:
                reply = {"error": str(error)}
            if "error" in reply:
                result.note = f"the final failed: {reply['error']}"
                return
            values = reply["values"]
        result.before = values[0]
        order = sorted(range(len(finalists)), key=lambda place: values[place])
        place = order[0] if values[0] >= values[order[0]] * (1 + self.options.min_improvement / 100) else 0
        result.best, result.value = finalists[place], values[place]
        if base:
            result.note = f"the present choice, {result.plan.trials[0].title}, is {result.results[0]['status']}"
        if self._may_write():
            result.row = self._row(result)
            with self.lock:
                writer.update(self.table, self.op, [result.row])

    def _row(self, result: Result) -> Row:
        trial = result.plan.trials[result.best]
        return Row(self._row_key(result.key), trial.backend, trial.kernel, dict(trial.params), result.value,
                   result.results[result.best]["err"], trial.toolchain, trial.revision,
                   f"measured:{self.hello['name']}", "")


def _plain(trial: Trial) -> list[Any]:
    return [trial.backend, trial.kernel, dict(trial.params), trial.revision, trial.toolchain]
