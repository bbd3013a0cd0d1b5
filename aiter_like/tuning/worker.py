# SPDX-License-Identifier: MIT
"""The process in which candidates run: python -m aiter_like.tuning.worker HARNESS INDEX READ WRITE.

Takes requests, one line of JSON each, from file descriptor READ and answers on WRITE. What a candidate does to this
process (crash, hang, device fault) costs that candidate only: pool.py starts another worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from aiter_like.dispatch.table import MEASURED
from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.tuning import candidates, judge
from aiter_like.tuning.candidates import Trial
from aiter_like.tuning.cases import Cases, judged_keys
from aiter_like.tuning.clock import Contender
from aiter_like.tuning.harness import Harness

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

_FAILURES = Exception  # raised by a candidate's own code or its compiler; anything else ends the process, which says so
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class Service:
    """Answers requests; keeps the case of the last key, since its candidates come in turn."""

    def __init__(self, harness: Harness):
        self.harness = harness
        self._made: Cases | None = None

    def hello(self) -> dict[str, Any]:
        """Who answers."""
        target, clock = self.harness.target, self.harness.clock
        return {"arch": target.arch, "cu_num": target.cu_num, "platform": target.platform, "name": self.harness.name,
                "origin": clock.origin or f"{MEASURED}{self.harness.name}",
                "memory_bytes": self.harness.memory_bytes(),
                **{name: getattr(clock, name) for name in ("unit", "trial_unit", "is_measured", "least_gain",
                                                           "shape_seconds", "about")}}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One reply; {"error": …} where the shape itself is the problem."""
        if request["do"] == "ceilings":
            measure = self.harness.ceilings
            return {"ceilings": measure(self.harness.target) if measure else None}
        op = _operator(request["op"])
        trials = [Trial(**trial) for trial in request.get("trials", ())]
        try:
            if request["do"] == "plan":
                args = op.tuning.case(request["key"], self.harness.device, 0)
                found = candidates.plan(op, self.harness.target, args)
                found.judged = {name: value for name, value in judged_keys(op, request["key"], self.harness)[0].items()
                                if value != request["key"][name]}
                return found.plain()
            if request["do"] == "warm":
                return self._warm(op, request["key"], trials)
            cases = self._cases(op, request["key"])
        except _FAILURES as error:
            return {"error": _text(error), "is_broken": not self.harness.is_healthy()}
        if request["do"] == "try":
            return self._attempt(cases, trials, request["count"])
        return self._duel(cases, trials, request["count"])

    def _warm(self, op: Op, key: Mapping[str, Any], trials: list[Trial]) -> dict[str, Any]:
        """Calls each trial once; how many could be called."""
        import torch

        args, called = op.tuning.case(key, self.harness.device, 0), 0
        for trial in trials:
            with contextlib.suppress(_FAILURES), torch.no_grad():
                self._bound(op, args, trial)(*args)
                called += 1
        return {"called": called, "is_broken": not self.harness.is_healthy()}

    def _attempt(self, cases: Cases, trials: list[Trial], count: int) -> dict[str, Any]:
        """Judges the last trial, then times it against the first, if there are two."""
        clock, op = self.harness.clock, cases.op
        try:
            error, fault = self._judged(op, next(iter(cases)), trials[-1])
            if fault is None:
                made = self._covering(cases, trials[-1])
                if made is not next(iter(cases)):
                    error, fault = self._judged(op, made, trials[-1])
            if fault is None:
                times = self._timed(clock.rounds, cases, trials, count)
                if clock.is_measured:
                    error, fault = self._judged(op, made, trials[-1])  # again: a race may need a busy device to show
        except (BuildError, UnsupportedError) as refusal:
            return {"status": "refused", "detail": _text(refusal)}
        except _FAILURES as failure:
            return {"status": "failed", "detail": _text(failure), "is_broken": not self.harness.is_healthy()}
        if fault is not None:
            return {"status": "wrong", "detail": fault, "err": error}
        found = clock.found[-1] if clock.found else {}
        if "reason" in found:
            return {"status": "refused", "detail": found["reason"]}
        return {"status": "ok", "err": error, **_summary(times), **({"found": found} if found else {})}

    def _duel(self, cases: Cases, trials: list[Trial], count: int) -> dict[str, Any]:
        """Times all trials, judged before, against each other."""
        clock = self.harness.clock
        try:
            times = self._timed(clock.finals, cases, trials, count)
        except _FAILURES as failure:
            return {"error": _text(failure), "is_broken": not self.harness.is_healthy()}
        if reason := next((found["reason"] for found in clock.found if "reason" in found), None):
            return {"error": reason}
        return {"values": [statistics.median(rounds) for rounds in times], "found": list(clock.found),
                **_summary(times)}

    def _bound(self, op: Op, args: tuple, trial: Trial) -> Callable:
        candidate = trial.candidate(op)
        return candidate.backend.bind(self.harness.target, args, candidate)

    def _judged(self, op: Op, made: judge.Case, trial: Trial) -> tuple[float, str | None]:
        return judge.check(made, self.harness.guarded(op, self._bound(op, made.args, trial)))

    def _covering(self, cases: Cases, trial: Trial) -> judge.Case:
        """The case that is judged which runs all kernels of the call that is timed.

        Raises:
            UnsupportedError: there is none.
        """
        op = cases.op

        def kernels(args: tuple) -> list[Any]:
            function = self.harness.placed(op, self._bound(op, args, trial))
            return self.harness.kernels(functools.partial(function, *args))

        made = cases.covering(kernels)
        if made is None:
            raise UnsupportedError("not judged: no call that is small enough to be judged runs all of its kernels")
        return made

    def _timed(self, clock: Callable[..., list[list[float]]], cases: Cases, trials: list[Trial], count: int
               ) -> list[list[float]]:
        import torch

        contenders = [self._contender(cases, trial) for trial in trials]
        with torch.no_grad():
            return clock(contenders, count)

    def _contender(self, cases: Cases, trial: Trial) -> Contender:
        op, made = cases.op, self._covering(cases, trial)
        function, judged = (self.harness.placed(op, self._bound(op, args, trial))
                            for args in (cases.sets[0], made.args))

        def judged_call() -> None:
            args = list(made.fresh())
            for index in set(op.write_indices) - set(op.result_indices):  # memory for the kernels
                args[index] = None if args[index] is None else judge.poisoned(args[index])
            judged(*args)

        return Contender([functools.partial(function, *args) for args in cases.sets], judged_call,
                         op.tuning.needs(cases.sets[0])[0])

    def _cases(self, op: Op, key: Mapping[str, Any]) -> Cases:
        if self._made is None or (self._made.op, self._made.key) != (op, dict(key)):
            self._made = None  # frees the memory of the last one first
            self._made = Cases(op, key, self.harness)
        return self._made


def _summary(times: list[list[float]]) -> dict[str, Any]:
    """Medians of the last and the first contender, and of the ratios of their rounds (below 1: the last is faster)."""
    first, last = times[0], times[-1]
    ratios = [mine / other for mine, other in zip(last, first)]
    return {"value": statistics.median(last), "base": statistics.median(first), "ratio": statistics.median(ratios),
            "spread": max(ratios) - min(ratios), "rounds": len(last)}


def _operator(name: str) -> Op:
    import aiter_like  # noqa: F401  (declares the operators)
    from aiter_like.dispatch import OPS

    return OPS[name]


def _text(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " | ".join(lines[:3])[:500]


class Answering(Protocol):
    """The requests that a worker process answers."""

    def hello(self) -> dict[str, Any]:
        """Who answers."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One reply; with "is_broken" the process ends after it."""


def serve(argv: list[str], service: Callable[[Harness], Answering]) -> None:
    """Serves until the other end closes. `argv`: HARNESS INDEX READ WRITE."""
    harness, index, read, write = argv
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # a hanging candidate must not outlive a killed tuner
    module, _, factory = harness.partition(":")
    answering = service(getattr(importlib.import_module(module), factory)(int(index)))
    with os.fdopen(int(read)) as requests, os.fdopen(int(write), "w") as replies:
        def reply(value: Mapping[str, Any]) -> None:
            replies.write(json.dumps(value) + "\n")
            replies.flush()

        reply(answering.hello())
        for line in requests:
            answer = answering.answer(json.loads(line))
            reply(answer)
            if answer.get("is_broken"):
                os._exit(0)  # the device is lost to this process, and so is an orderly end


if __name__ == "__main__":
    serve(sys.argv[1:], Service)
