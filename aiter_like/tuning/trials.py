# SPDX-License-Identifier: MIT
"""Tunes one shape: tries every candidate, lets the best few meet, and chooses. Used by tuner.py."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiter_like.dispatch.table import Row
from aiter_like.tuning import journal
from aiter_like.tuning.candidates import Trial
from aiter_like.tuning.outcome import Options, Result
from aiter_like.tuning.pool import Lost, Worker
from aiter_like.tuning.progress import Progress

NO_TIME = "no time left"
_LEAST_SECONDS = 10.0  # one step gets so long, however late it is
_LATE = "the time for one shape is spent"
FINALISTS = 3
_FOR_TRIALS = 0.5  # trials may take this part of a shape's time; the finals have what is left


class Run(Protocol):
    """The part of tuner.Run that the trials of one shape use.

    Attributes:
        hello: what the worker says about its device.
        unbuilt: module name → why it does not build.
        is_stopped: somebody interrupts the run.
        least_gain: per cent by which a choice must be better to count.
    """

    op: Any
    options: Options
    hello: Mapping[str, Any]
    unbuilt: Mapping[str, str]
    progress: Progress
    is_stopped: bool
    least_gain: float

    def ask(self, worker: Worker, what: str, result: Result, trials: Sequence[Trial] = (),
            timeout: float | None = None, **more: Any) -> dict[str, Any]:
        """Asks a worker about a shape; raises Lost when it does not answer."""

    def is_over(self) -> bool:
        """Whether no further candidate may be started."""

    def row_key(self, key: Mapping[str, Any]) -> tuple:
        """The key of a shape's rows in the table."""

    def may_write(self) -> bool:
        """Whether rows are written."""

    def write(self, key: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Puts the rows of a shape into the table, in place of those that it has; none may be left."""


class Trials:
    """The trials of one shape on one worker."""

    def __init__(self, run: Run, worker: Worker, result: Result, log: journal.Journal):
        self.run, self.worker, self.result, self.log = run, worker, result, log
        self.plan, self.device, self.options = result.plan, run.hello, run.options
        self.start = time.monotonic()
        # The others are compared with this one: the present choice, else the first that passes.
        self.base: int | None = None

    def all(self) -> None:
        """Fills `result`: what came of each candidate, and the choice."""
        wanted = range(len(self.plan.trials)) if not self.options.compare else {0, self.plan.default}
        for index, trial in enumerate(self.plan.trials):
            if self.run.is_over():
                self.result.note = NO_TIME
                self.result.results.append({"status": "skipped", "detail": NO_TIME})
            elif trial.backend == "torch" and not self.device["is_measured"]:
                self.result.results.append({"status": "refused", "detail": "runs nothing on the device to be modelled"})
            elif index not in wanted:
                self.result.results.append({"status": "skipped", "detail": "not compared"})
            elif index and self._seconds_left(_FOR_TRIALS) <= 0:
                self.result.results.append({"status": "skipped", "detail": _LATE})
            else:
                self.result.results.append(self._try(trial))
                self.run.progress.step()
                if self.base is None and self.result.results[-1]["status"] == "ok":
                    self.base = index
        if self.base is None:
            self._say("no candidate passed")
            return
        if not self.device["is_measured"]:
            first = self.result.results[self.base]
            for found in self._passed().values():
                found["base"], found["ratio"] = first["value"], found["value"] / first["value"]
        self._decide() if self.device["is_measured"] else self._decide_modelled()

    def _say(self, note: str) -> None:
        """That the time for the run is spent says more than anything else."""
        self.result.note = self.result.note or note

    def _passed(self) -> dict[int, dict[str, Any]]:
        return {index: found for index, found in enumerate(self.result.results) if found["status"] == "ok"}

    def _seconds_left(self, share: float = 1.0) -> float:
        """Seconds left of a part of the time that a shape may take; where that is not limited, a trial's time limit
        from now."""
        seconds = self.device["shape_seconds"]
        return self.options.timeout if seconds is None else self.start + share * seconds - time.monotonic()

    def _try(self, trial: Trial) -> dict[str, Any]:
        """One candidate: from the journal, or in the worker."""
        is_alone = self.base is None or not self.device["is_measured"]  # a model says the same at any time
        pair = [trial] if is_alone else [self.plan.trials[self.base], trial]
        name = journal.identity(self.run.op.name, self.result.key, [_plain(one) for one in pair], self.device["name"],
                                self.device["origin"])
        if name in self.log.results:
            return self.log.results[name]
        if trial.module is not None and trial.module["name"] in self.run.unbuilt:
            return {"status": "refused", "detail": self.run.unbuilt[trial.module["name"]]}
        if self.log.is_lethal(name):
            return {"status": "crashed", "detail": "earlier runs ended while it ran; delete the journal to try again: "
                                                   f"{self.log.path}"}
        self.log.start(name, f"{trial.title} {self.result.key}")
        try:
            found = self.run.ask(self.worker, "try", self.result, pair, count=self.options.rounds,
                                 timeout=min(self.options.timeout, max(self._seconds_left(), _LEAST_SECONDS)))
        except Lost as error:
            if self.run.is_stopped:
                self.log.stop(name)
                raise
            status, _, detail = str(error).partition(": ")
            found = {"status": status, "detail": detail}
        if "error" in found:
            found = {"status": "failed", "detail": found["error"]}
        self.log.finish(name, found)
        return found

    def _ranked(self) -> Iterator[int]:
        """Those that passed, the best first; of several that are the same machine code in the same launches, one."""
        passed, seen = self._passed(), []
        for index in sorted(passed, key=lambda index: passed[index]["ratio"]):
            same = passed[index].get("found", {}).get("same")
            if same is None or same not in seen:
                seen.append(same)
                yield index

    # ---- measured: all finalists at once, against each other

    def _decide(self) -> None:
        passed, result = self._passed(), self.result
        finalists = [index for index, _ in zip(self._ranked(), range(FINALISTS))]
        finalists = [self.base, *(index for index in finalists if index != self.base)]
        if self.options.compare and self.plan.default in passed and self.plan.default not in finalists:
            finalists.append(self.plan.default)
        values = [passed[self.base]["value"]]
        if len(finalists) > 1:
            reply = self._final(finalists, self.options.timeout)
            if "error" in reply:
                self._say(f"the final failed: {reply['error']}")
                return
            values = reply["values"]
        result.finals = {index: {"value": value} for index, value in zip(finalists, values)}
        result.before = values[0]
        order = sorted(range(len(finalists)), key=lambda place: values[place])
        place = order[0] if values[0] >= values[order[0]] * (1 + self.run.least_gain / 100) else 0
        result.best, result.value = finalists[place], values[place]
        if self.base:
            self._say(f"the present choice, {self.plan.trials[0].title}, is {result.results[0]['status']}")
        self._keep([self._row(result.best)])

    def _final(self, finalists: list[int], timeout: float) -> dict[str, Any]:
        try:
            return self.run.ask(self.worker, "final", self.result, [self.plan.trials[index] for index in finalists],
                                timeout=timeout, count=2 * self.options.rounds)
        except Lost as error:
            if self.run.is_stopped:
                raise
            return {"error": str(error)}

    # ---- modelled: one finalist after the other, until the time for the shape is spent

    def _decide_modelled(self) -> None:
        """Chooses among candidates that the model can tell from the operator's own choice, and not from the best, the
        first in the operator's order. There is no row where none is such, or where the own choice has no figure.
        """
        result, default = self.result, self.plan.default
        notes = [f"judged at {_fields(self.plan.judged)}"] if self.plan.judged else []
        late = sum(found.get("detail") == _LATE for found in result.results)
        notes += [f"{late} candidates skipped: {_LATE}"] if late else []
        if result.results[default]["status"] == "ok":
            self._finals()
        own = result.finals.get(default, {})
        if "value" not in own:
            why = own.get("error") or result.results[default].get("detail") or result.results[default]["status"]
            name = self.plan.trials[default].title
            self._say("; ".join([*notes, f"the operator's own choice, {name}, has no modelled time: {why}"]))
            return
        values = {index: found["value"] for index, found in result.finals.items()
                  if "value" in found and found["launches"] <= own["launches"]}
        gain = 1 + self.run.least_gain / 100
        best = min(values.values())
        better = [index for index in sorted(values) if values[index] <= best * gain
                  and values[index] * gain <= own["value"]]
        result.best = better[0] if better else default
        result.value = values[result.best]
        result.before = result.finals.get(self.base, own).get("value", own["value"])
        if result.best == default:
            notes.append(f"no row: nothing is {self.run.least_gain:.1f} % better than the operator's own choice")
        self._say("; ".join(notes))
        self._keep([self._row(result.best)] if result.best != default else [])

    def _finals(self) -> None:
        """Models the operator's own choice, the present one and the best three; one that fails makes room for the next.
        """
        result, ranked = self.result, self._ranked()
        wanted = list(dict.fromkeys((self.plan.default, self.base)))
        modelled = 0
        for index in (*wanted, *ranked):
            if index in result.finals:
                modelled += "value" in result.finals[index]
                continue
            if modelled == FINALISTS or (result.finals and self._seconds_left() <= 0):
                break
            reply = self._final([index], max(self._seconds_left(), _LEAST_SECONDS))
            result.finals[index] = {"error": reply["error"]} if "error" in reply else {
                "value": reply["values"][0], **reply["found"][0]}
            modelled += index not in wanted and "value" in result.finals[index]

    # ---- rows

    def _row(self, index: int) -> Row:
        trial, found = self.plan.trials[index], self.result.results[index]
        return Row(self.run.row_key(self.result.key), trial.backend, trial.kernel, dict(trial.params),
                   self.result.value, found["err"], trial.toolchain, trial.revision, self.device["origin"], "")

    def _keep(self, rows: list[Row]) -> None:
        self.result.row = rows[0] if rows and self.run.may_write() else None
        self.run.write(self.result.key, rows)


def _plain(trial: Trial) -> list[Any]:
    return [trial.backend, trial.kernel, dict(trial.params), trial.revision, trial.toolchain]


def _fields(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
