# SPDX-License-Identifier: MIT
"""The tuner: for each shape tries every candidate in worker processes, and writes the row of the best one.

Four phases: plan (which candidates there are), build (their modules, in parallel, without a GPU; then what Triton
compiles, in parallel too: warming.py), try (each candidate is judged, then timed against the present choice), and final
(the best few against each other); trials.py has the last two.
A row is written as soon as its shape is done. On the simulated device the clock is a model (sim_clock.py), and rows go
to tables of their own.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like.dispatch import table
from aiter_like.dispatch.table import Row
from aiter_like.errors import BuildError, TuningError
from aiter_like.modules import processes
from aiter_like.sim import modelling
from aiter_like.tuning import journal, pool, warming, writer
from aiter_like.tuning.candidates import Plan, Trial
from aiter_like.tuning.outcome import Options, Outcome, Result
from aiter_like.tuning.pool import Lost, Worker
from aiter_like.tuning.progress import Progress
from aiter_like.tuning.trials import NO_TIME, Trials

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

HARNESSES = {"gpu": "aiter_like.tuning.harness:gpu", "sim": "aiter_like.tuning.harness:sim"}
_PLAN_SECONDS = 300.0
# Guesses for the progress line until there is something to go by: seconds of one step, and trials of one shape.
_START_SECONDS, _PLAN_STEP_SECONDS, _BUILD_SECONDS, _TRIAL_SECONDS, _TRIALS = 8.0, 0.5, 8.0, 1.0, 12


def tune(op: Any, shapes: Iterable[Mapping[str, Any]], options: Options | None = None) -> Outcome:
    """Tunes an operator for `shapes`.

    Args:
        op: an operator's name, its public function, or the Op.
        shapes: tune keys, without arch and cu_num.
        options: see Options.

    Raises:
        TuningError: the operator declares no tuning case, the table has a bad row or cannot be written, or no worker
            starts.
        ValueError: a shape has other fields than the operator's key, the operator has no backend of a name that is
            given, or modelled times are to tell more apart than they can.
    """
    from aiter_like.dispatch import find_op

    found = find_op(op)
    if found.tuning is None:
        raise TuningError(f"{found.name} declares nothing to be tuned by (dispatch/tuning.py)")
    options = options or Options()
    known = [backend.name for backend in found.backends]
    if unknown := [name for name in options.backends if name not in known]:
        raise ValueError(f"{found.name} has no backend {unknown[0]!r}; there are: {', '.join(known)}")
    least = 100 * modelling.class_error(modelling.class_of(found.home, found.name))
    if options.device == "sim" and options.min_improvement is not None and options.min_improvement < least:
        raise ValueError(f"min_improvement must be at least {least:.1f} per cent for modelled times, which cannot tell "
                         f"less apart (csrc/sim/timing/VALIDATION.md), got {options.min_improvement:g}")
    values = dict.fromkeys(table.normalised(found.name, found.tune_fields, shape) for shape in shapes)
    keys = [dict(zip(found.tune_fields, value)) for value in sorted(values)]
    return Run(found, options).run(keys)


class Run:
    """One run of the tuner."""

    def __init__(self, op: Op, options: Options):
        self.op, self.options = op, options
        self.start = time.monotonic()
        self.harness = options.harness or HARNESSES[options.device]
        self.workers = [Worker(self.harness, index) for index in options.gpus]
        self.idle: queue.Queue[Worker] = queue.Queue()
        self.progress = Progress(op.name, options.progress)
        self.unbuilt: dict[str, str] = {}  # module name → why it does not build
        self.lock = threading.Lock()
        self.is_stopped = False
        self.folder = options.output or writer.default_folder()

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
                warming.warm(self, results)
                self.progress.all_shapes = len(keys)
                self.progress.expect("trials", sum(len(result.plan.trials) for result in results if result.plan))
                self.progress.enter("trials")
                ceilings = threads.submit(self._ceilings).result()
                list(threads.map(lambda result: self._shape(result, log), results))
        finally:
            for worker in self.workers:
                worker.close()
            self.progress.end()
        is_complete = all(result.note != NO_TIME for result in results)
        log.close(is_complete)
        return Outcome(self.op.name, self.hello, ceilings, results, skipped, is_complete,
                       self.table if self.may_write() else None)

    @contextlib.contextmanager
    def _threads(self) -> Iterator[ThreadPoolExecutor]:
        """A thread for each worker; these live as long as the workers that they start."""
        with pool.threads(self.workers) as threads:
            try:
                yield threads
            except BaseException:
                self.is_stopped = True
                raise

    def _expect(self, shapes: int) -> None:
        """Tells what is to come, as far as it is known, and that the workers start where nothing has begun."""
        count = len(self.workers)
        self.progress.expect("workers started", 1, _START_SECONDS)
        self.progress.expect("shapes planned", shapes, _PLAN_STEP_SECONDS / count)
        self.progress.expect("modules built", shapes, _BUILD_SECONDS)
        self.progress.expect(warming.PHASE, 0, warming.TRIAL_SECONDS)
        self.progress.expect("trials", _TRIALS * shapes, _TRIAL_SECONDS / count)
        if not hasattr(self, "hello"):
            self.progress.enter("workers started")

    @property
    def table(self) -> Path:
        """The file of the rows."""
        return (self.folder / f"{self.op.name}.csv" if self.hello["is_measured"] else
                table.modelled_file(self.folder, self.op.name))

    @property
    def least_gain(self) -> float:
        """Per cent by which a choice must be better to count."""
        given = self.options.min_improvement
        least = self.hello["least_gain"]
        if isinstance(least, dict):
            least = least[modelling.class_of(self.op.home, self.op.name)]
        return least if given is None else given

    def may_write(self) -> bool:
        """Whether rows are written."""
        return not self.options.compare

    def write(self, key: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Puts the rows of a shape into the table, in place of those that it has; none may be left."""
        if self.may_write():
            with self.lock:
                writer.update(self.table, self.op, rows, [self.row_key(key)])

    def _known_rows(self, keys: list[dict[str, Any]]) -> tuple[dict[tuple, list[Row]], list[dict[str, Any]]]:
        """The table's rows, and the keys that need no tuning."""
        if not self.may_write():
            return {}, []
        writer.prepare(self.table.parent)
        rows = writer.existing(self.table, self.op)
        skipped = [] if self.options.retune else [
            key for key in keys
            if any(self.op.staleness(row) is None for row in rows.get(self.row_key(key), ()))]
        return rows, skipped

    def row_key(self, key: Mapping[str, Any]) -> tuple:
        """The key of a shape's rows in the table."""
        return (self.hello["arch"], self.hello["cu_num"], *key.values())

    def _journal_path(self) -> Path:
        from aiter_like.modules.cache import cache_root

        place = journal.identity(str(self.folder.resolve()), self.hello["name"])
        return cache_root() / "tuning" / f"{self.op.name}.{self.hello['arch']}.{place}.jsonl"

    def is_over(self, part: float = 1.0) -> bool:
        """Whether no further candidate may be started, for `part` of the budget is spent."""
        budget = self.options.budget
        return self.is_stopped or (budget is not None and time.monotonic() - self.start > part * budget)

    def _with_worker(self, work: Callable[[Worker], Any]) -> Any:
        worker = self.idle.get()
        try:
            return work(worker)
        finally:
            self.idle.put(worker)

    def ask(self, worker: Worker, what: str, result: Result, trials: Sequence[Trial] = (),
            timeout: float | None = None, **more: Any) -> dict[str, Any]:
        """Asks a worker about a shape.

        Raises:
            Lost: it does not.
        """
        request = {"do": what, "op": self.op.name, "key": result.key, "trials": [asdict(trial) for trial in trials],
                   **more}
        return worker.ask(request, self.options.timeout if timeout is None else timeout)

    # ---- phases

    def _plan(self, key: dict[str, Any]) -> Result:
        result = Result(key)
        try:
            reply = self._with_worker(lambda worker: self.ask(worker, "plan", result, timeout=_PLAN_SECONDS))
        except Lost as error:
            reply = {"error": str(error)}
        if "error" in reply:
            result.note = reply["error"]
        else:
            plan = Plan.of(reply).hinted(self.options.hints.get(tuple(key.values()), {}))
            result.plan = plan.of_backends(self.options.backends) if self.options.backends else plan
        self.progress.step()
        return result

    def _build(self, results: Sequence[Result]) -> None:
        """All modules of all trials, several at a time."""
        from aiter_like.modules import build
        from aiter_like.modules.recipe import ModuleSpec

        modules = {trial.module["name"]: trial.module for result in results if result.plan
                   for trial in result.plan.trials if trial.module is not None}
        self.progress.expect("modules built", len(modules), _BUILD_SECONDS / build.default_jobs())
        if modules:
            self.progress.enter("modules built")

        def ensure(module: Mapping[str, Any]) -> None:
            if self.is_over():
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
        if not self.hello["is_measured"]:
            return None
        try:
            reply = self._with_worker(lambda worker: worker.ask({"do": "ceilings"}, self.options.timeout))
        except Lost:
            return None
        return tuple(reply["ceilings"]) if reply.get("ceilings") else None

    def _shape(self, result: Result, log: journal.Journal) -> None:
        """Tries, final, row of one shape."""
        if result.plan is not None:
            self._with_worker(lambda worker: Trials(self, worker, result, log).all())
        self.progress.shape_done()
