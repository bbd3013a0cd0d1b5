# SPDX-License-Identifier: MIT
"""The process in which a device is asked: python -m aiter_like.cli.sim.hardware.worker HARNESS INDEX READ WRITE.

What a kernel does to this process (a fault, a hang) costs its item only: tuning/pool.py starts another one.
"""

import sys
import time
from collections.abc import Mapping
from typing import Any

from aiter_like.cli.sim.hardware import facts
from aiter_like.cli.sim.hardware.costs import costs
from aiter_like.cli.sim.hardware.device import Device
from aiter_like.cli.sim.hardware.items import CASE, COST, FACTS, QUESTION, Item
from aiter_like.cli.sim.hardware.measure import run_case, run_question
from aiter_like.errors import AiterLikeError
from aiter_like.sim.validation.questions import questions
from aiter_like.sim.validation.unpublished import all_cases
from aiter_like.tuning import worker
from aiter_like.tuning.harness import Harness

_FAILURES = (AiterLikeError, RuntimeError, ValueError, ArithmeticError)  # anything else ends the process, which says so


class Service:
    """Answers requests: each with an item's record."""

    def __init__(self, harness: Harness):
        self._harness = harness
        self._device = Device(harness.target)

    def hello(self) -> dict[str, Any]:
        """Names the device that answers."""
        return {"name": self._harness.name}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The record of an item; of one that fails, the error."""
        start = time.perf_counter()
        try:
            record = self._record(Item(request["kind"], request["name"]))
            self._harness.wait()
        except _FAILURES as error:
            text = str(error).strip() or type(error).__name__
            record = {"status": "failed", "error": text, "is_broken": not self._harness.is_healthy()}
        return {**request, "seconds": round(time.perf_counter() - start, 3), **record}

    def _record(self, item: Item) -> dict[str, Any]:
        status = "simulated" if self._harness.target.simulated else "measured"
        if item.kind == FACTS:
            return {"status": status, **facts.of(self._harness, self._device)}
        if item.kind == QUESTION:
            return run_question(self._device, next(one for one in questions() if one.name == item.name))
        if item.kind == CASE:
            return run_case(self._device, next(one for one in all_cases() if one.name == item.name))
        if item.kind == COST:
            return {"status": status, **costs()[item.name](self._device)}
        from aiter_like.cli import verify

        results = list(verify.report(self._harness.target, [item.name]))
        return {"status": "failed" if any(one["status"] == "failed" for one in results) else status, "results": results}


if __name__ == "__main__":
    worker.serve(sys.argv[1:], Service)
