# SPDX-License-Identifier: MIT
"""Cases and questions on a device: a `Machine` that measures, and one that only runs what a real device would."""

import statistics
from typing import Any

from torch import Tensor

from aiter_like.cli.sim.hardware.device import Device, clock_mhz, spans
from aiter_like.sim.validation.case import Case, Rate, Stall
from aiter_like.sim.validation.figure import Launch, figure, issue_kernel, kernels_of
from aiter_like.sim.validation.question import LANES, UNTOUCHED, Question

_WARM, _SAMPLES = 2, 7
_LONG_US, _FEW = 2e5, 3  # a launch of this length is sampled so often
_WARM_CLK = 20_000_000  # cycles before a case: the clock rises when there is work
_PROBE_CLK = 400_000


def run_case(device: Device, case: Case) -> dict[str, Any]:
    """The record of a case: the figure, every sample that it is made of, the clock."""
    if device.target.simulated:
        figure(case, _Rehearsing(device, case))
        return {"status": "simulated", "raw": []}
    device.spin(_WARM_CLK)
    machine = _Measuring(device, case)
    found = figure(case, machine)
    clocks = [clock_mhz(clk, ticks) for launch in machine.raw
              for clk, ticks in zip(launch.get("memtime_clk", ()), launch.get("realtime_ticks", ()))]
    return {"status": "measured", "figure": found, "raw": machine.raw,
            "clock_mhz": statistics.median(clocks) if clocks else device.spin(_PROBE_CLK)}


def run_question(device: Device, question: Question) -> dict[str, Any]:
    """The record of a question: the answer, and the rows that it was decided by."""
    (function,) = device.load([(question.kernel, 1)])
    first = device.tensor(question.inputs, 4096)
    second = device.tensor([], question.rows * LANES, UNTOUCHED)
    device.launch(function, question.groups, question.kernel.waves, 1, first, second)
    device.wait()
    rows = [[word & 0xFFFFFFFF for word in row] for row in second.view(question.rows, LANES).tolist()]
    answer = question.decide(rows)
    return {"status": "simulated" if device.target.simulated else "measured", "answer": answer,
            "agrees": answer == question.simulated, "rows": rows}


class _Measuring:
    """A `Machine` that times launches of one case's kernels: `raw` has each sample."""

    larger = 8

    def __init__(self, device: Device, case: Case):
        self._device, self._case = device, case
        self._timed = not isinstance(case, (Rate, Stall))
        self._functions = device.load(kernels_of(case), self._timed)
        self._is_cold = False
        self.raw: list[dict[str, Any]] = []

    def clk(self, launch: Launch) -> float:
        return statistics.median(self._sampled(launch)["memtime_clk"])

    def seconds(self, launch: Launch) -> float:
        return statistics.median(self._sampled(launch)["event_us"]) * 1e-6

    def issued(self, launch: Launch, reason: str) -> float:
        """Counts loads that issue without waiting, by timing ever more of them: the next waits where the growth is half
        as large again as at first."""
        assert isinstance(self._case, Stall)
        counts = range(2, self._case.loads + 1, 2)
        functions = self._device.load([(issue_kernel(self._case, count), 1) for count in counts])
        out, medians = self._device.tensor([], 2), []
        for count, function in zip(counts, functions, strict=True):
            samples = []
            for _ in range(_WARM + _SAMPLES):
                self._device.flush()
                self._device.launch(function, 1, launch.waves, 1, launch.first, out)
                self._device.wait()
                samples.append(int(out[0]))
            medians.append(statistics.median(samples[_WARM:]))
            self.raw.append({"loads": count, "memtime_clk": samples[_WARM:]})
        growth = [after - before for before, after in zip(medians, medians[1:])]
        usual = statistics.median(growth[:5])
        return next((counts[place] for place, more in enumerate(growth) if more > 1.5 * usual), counts[-1])

    def memory(self, size: int) -> Tensor:
        return self._device.memory(size)

    def cold(self) -> None:
        self._is_cold = True

    def _sampled(self, launch: Launch) -> dict[str, Any]:
        device = self._device
        times = device.times(launch.groups * launch.waves) if self._timed else None

        def run() -> None:
            device.launch(self._functions[launch.kernel], launch.groups, launch.waves, launch.loops, launch.first,
                          launch.second, number=launch.number, times=times)

        record: dict[str, Any] = {"kernel": launch.kernel, "groups": launch.groups, "waves": launch.waves,
                                  "loops": launch.loops, "event_us": []}
        if times is not None:
            record |= {"memtime_clk": [], "realtime_ticks": []}
        left, kept = _WARM + _SAMPLES, _WARM
        while left:
            if self._is_cold:
                device.flush()
            spent = device.sample(run)
            left -= 1
            if kept:
                kept -= 1
                if spent > _LONG_US:  # nothing is gained by more of them
                    left, kept = _FEW, 0
                continue
            record["event_us"].append(spent)
            if times is not None:
                clk, ticks = spans(times)
                record["memtime_clk"].append(clk)
                record["realtime_ticks"].append(ticks)
        self._is_cold = False
        self.raw.append(record)
        return record


class _Rehearsing:
    """A `Machine` without time: each launch runs, with few loops and workgroups; what it returns only grows."""

    larger = 1

    def __init__(self, device: Device, case: Case):
        self._device, self._case = device, case
        self._functions = device.load(kernels_of(case), timed=not isinstance(case, (Rate, Stall)))
        self._count = 0.0

    def clk(self, launch: Launch) -> float:
        groups, loops = min(launch.groups, 8), min(launch.loops, 2)
        self._device.launch(self._functions[launch.kernel], groups, launch.waves, loops, launch.first, launch.second,
                            number=launch.number, times=self._device.times(groups * launch.waves))
        self._count += 1
        return self._count

    def seconds(self, launch: Launch) -> float:
        return self.clk(launch)

    def issued(self, launch: Launch, reason: str) -> float:
        assert isinstance(self._case, Stall)
        out = self._device.tensor([], 2)
        for function in self._device.load([(issue_kernel(self._case, count), 1) for count in (2, self._case.loads)]):
            self._device.launch(function, 1, launch.waves, 1, launch.first, out)
        return 0.0

    def memory(self, size: int) -> Tensor:
        return self._device.memory(size)

    def cold(self) -> None:
        """Nothing keeps anything."""
