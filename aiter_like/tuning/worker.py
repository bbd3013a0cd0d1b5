# SPDX-License-Identifier: MIT
"""The process in which candidates run: python -m aiter_like.tuning.worker HARNESS INDEX READ WRITE.

Takes requests, one line of JSON each, from file descriptor READ and answers on WRITE. What a candidate does to this
process (crash, hang, device fault) costs that candidate only: pool.py starts another worker.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
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
from aiter_like.tuning.clock import Contender
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
                "origin": clock.origin or f"{MEASURED}{self.harness.name}",
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
                found.judged = {name: value for name, value in self._judged_key(op, request["key"]).items()
                                if value != request["key"][name]}
                return found.plain()
            made, sets = self._case(op, request["key"])
        except _FAILURES as error:
            return {"error": _text(error), "is_broken": not self.harness.is_healthy()}
        if request["do"] == "try":
            return self._attempt(op, made, sets, trials, request["count"])
        return self._duel(op, made, sets, trials, request["count"])

    def _attempt(self, op: Op, made: judge.Case, sets: list[tuple], trials: list[Trial], count: int) -> dict[str, Any]:
        """Judges the last trial, then times it against the first, if there are two."""
        clock = self.harness.clock
        try:
            guarded = self.harness.guarded(op, self._bound(op, made.args, trials[-1]))
            error, fault = judge.check(made, guarded)
            if fault is None:
                contenders = self._contenders(op, made, sets, trials)
                if reason := self._other_kernels(contenders[-1]):
                    return {"status": "refused", "detail": reason}
                times = _timed(clock.rounds, contenders, count)
                if clock.is_measured:
                    error, fault = judge.check(made, guarded)  # again: a race may need a busy device to show
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

    def _duel(self, op: Op, made: judge.Case, sets: list[tuple], trials: list[Trial], count: int) -> dict[str, Any]:
        """Times all trials, judged before, against each other."""
        clock = self.harness.clock
        try:
            times = _timed(clock.finals, self._contenders(op, made, sets, trials), count)
        except _FAILURES as failure:
            return {"error": _text(failure), "is_broken": not self.harness.is_healthy()}
        if reason := next((found["reason"] for found in clock.found if "reason" in found), None):
            return {"error": reason}
        return {"values": [statistics.median(rounds) for rounds in times], "found": list(clock.found),
                **_summary(times)}

    def _bound(self, op: Op, args: tuple, trial: Trial) -> Callable:
        candidate = trial.candidate(op)
        return candidate.backend.bind(self.harness.target, args, candidate)

    def _contenders(self, op: Op, made: judge.Case, sets: list[tuple], trials: list[Trial]) -> list[Contender]:
        def fresh() -> list[Any]:
            args = list(made.fresh())
            for index in set(op.write_indices) - set(op.result_indices):  # memory for the kernels
                args[index] = None if args[index] is None else judge.poisoned(args[index])
            return args

        contenders = []
        for trial in trials:
            function, judged = (self.harness.placed(op, self._bound(op, args, trial)) for args in (sets[0], made.args))
            contenders.append(Contender([functools.partial(function, *args) for args in sets],
                                        lambda judged=judged: judged(*fresh()), op.tuning.needs(sets[0])[0]))
        return contenders

    def _other_kernels(self, contender: Contender) -> str | None:
        """Why the judgement on a smaller call does not speak of this one, or None."""
        if self.harness.kernels is None:
            return None
        judged = self.harness.kernels(contender.judged)
        others = [kernel for kernel in self.harness.kernels(contender.calls[0]) if kernel not in judged]
        return f"not judged: {others[0][1]} does not run in the call that is judged" if others else None

    def _judged_key(self, op: Op, key: Mapping[str, Any]) -> Mapping[str, Any]:
        """The key of the call that is judged in place of one with `key`."""
        chosen, most = key, self.harness.most_judged
        for chosen in itertools.chain([key], candidates.smaller(op, key) if most is not None else ()):
            if most is None:
                break
            needs = op.tuning.needs(op.tuning.case(chosen, self.harness.device, 0))
            if all(need <= limit for need, limit in zip(needs, most, strict=True)):
                break
        return chosen

    def _case(self, op: Op, key: Mapping[str, Any]) -> tuple[judge.Case, list[tuple]]:
        wanted = (op.name, dict(key))
        if self._made is None or self._made[0] != wanted:
            self._made = None  # frees the memory of the last one first
            made = judge.case(op, self._judged_key(op, key), self.harness.device)
            count = self.harness.clock.sets(op.tuning.needs(made.args)[0])
            sets = [op.tuning.case(key, self.harness.device, seed) for seed in range(count)]
            self.harness.wait()
            self._made = (wanted, made, sets)
        return self._made[1:]


def _timed(clock: Callable[..., list[list[float]]], contenders: list[Contender], count: int) -> list[list[float]]:
    import torch

    with torch.no_grad():
        return clock(contenders, count)


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
