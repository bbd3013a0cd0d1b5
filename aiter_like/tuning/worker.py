# SPDX-License-Identifier: MIT
"""The process in which candidates run: python -m aiter_like.tuning.worker HARNESS INDEX READ WRITE.

Takes requests, one line of JSON each, from file descriptor READ and answers on WRITE. What a candidate does to this
process (crash, hang, device fault) costs that candidate only: pool.py starts another worker.
"""

from __future__ import annotations

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

from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.tuning import candidates, judge
from aiter_like.tuning.candidates import Trial
from aiter_like.tuning.harness import Harness

if TYPE_CHECKING:
    from aiter_like.dispatch import Op

_FAILURES = Exception  # of a candidate's own code or its compiler's; anything else ends the process, which says so
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class Service:
    """Answers requests; keeps the case of the last key, since its candidates come in turn."""

    def __init__(self, harness: Harness):
        self.harness = harness
        self._made: tuple[Any, judge.Case, list[tuple]] | None = None

    def hello(self) -> dict[str, Any]:
        """Who answers."""
        target, clock = self.harness.target, self.harness.clock
        return {"arch": target.arch, "cu_num": target.cu_num, "platform": target.platform, "name": self.harness.name,
                "unit": clock.unit, "is_time": clock.is_time}

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
                return candidates.plan(op, self.harness.target, args).plain()
            made, sets = self._case(op, request["key"])
        except _FAILURES as error:
            return {"error": _text(error), "is_broken": not self.harness.is_healthy()}
        if request["do"] == "try":
            return self._attempt(op, made, sets, trials, request["count"])
        return self._duel(op, made, sets, trials, request["count"])

    def _attempt(self, op: Op, made: judge.Case, sets: list[tuple], trials: list[Trial], count: int) -> dict[str, Any]:
        """Judges the last trial, then times it against the first, if there are two."""
        try:
            functions = [self._bound(op, made, trial) for trial in trials]
            guarded = self.harness.guarded(op, functions[-1])
            error, fault = judge.check(made, guarded)
            if fault is None:
                times = self._times(functions, sets, count)
                error, fault = judge.check(made, guarded)  # again: a race may need a busy device to show
        except (BuildError, UnsupportedError) as refusal:
            return {"status": "refused", "detail": _text(refusal)}
        except _FAILURES as failure:
            return {"status": "failed", "detail": _text(failure), "is_broken": not self.harness.is_healthy()}
        if fault is not None:
            return {"status": "wrong", "detail": fault, "err": error}
        counted = self.harness.clock.counted
        return {"status": "ok", "err": error, **_summary(times), **({"counted": counted[-1]} if counted else {})}

    def _duel(self, op: Op, made: judge.Case, sets: list[tuple], trials: list[Trial], count: int) -> dict[str, Any]:
        """Times all trials, judged before, against each other."""
        try:
            times = self._times([self._bound(op, made, trial) for trial in trials], sets, count)
        except _FAILURES as failure:
            return {"error": _text(failure), "is_broken": not self.harness.is_healthy()}
        return {"values": [statistics.median(rounds) for rounds in times], **_summary(times)}

    def _bound(self, op: Op, made: judge.Case, trial: Trial) -> Callable:
        candidate = trial.candidate(op)
        return candidate.backend.bind(self.harness.target, made.args, candidate)

    def _times(self, functions: list[Callable], sets: list[tuple], count: int) -> list[list[float]]:
        import torch

        contenders = [[functools.partial(function, *args) for args in sets] for function in functions]
        with torch.no_grad():
            return self.harness.clock.rounds(contenders, count)

    def _case(self, op: Op, key: Mapping[str, Any]) -> tuple[judge.Case, list[tuple]]:
        wanted = (op.name, dict(key))
        if self._made is None or self._made[0] != wanted:
            self._made = None  # frees the memory of the last one first
            made = judge.case(op, key, self.harness.device)
            count = self.harness.clock.sets(op.tuning.needs(made.args)[0])
            sets = [op.tuning.case(key, self.harness.device, seed) for seed in range(count)]
            self.harness.wait()
            self._made = (wanted, made, sets)
        return self._made[1:]


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
    """What a worker process does for the other end."""

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
