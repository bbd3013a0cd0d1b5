# SPDX-License-Identifier: MIT
"""The simulated MI300X as a clock, beside clock.GpuClock. Everything here is modelled.

A round is an estimate from counts and occupancy (screening.py); a final is what the cycle model says. Both run the
operator's own random inputs at the full shape, never dry ones, but of large launches only a sample of the workgroups.
What a sample leaves in memory is wrong, so it must not decide what is executed. It cannot where a call is one launch
without atomics: then all that is read is input. Of several launches it must not in a call as the judge makes them:
there the same workgroups execute the same instructions, equally often, whether the others run or not and whatever new
memory holds. A call for which neither is known runs whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aiter_like import sim
from aiter_like.dispatch.table import modelled_origin
from aiter_like.errors import SimulatorError
from aiter_like.sim import counting, modelling
from aiter_like.sim.validation import mca
from aiter_like.tuning import judge, screening
from aiter_like.tuning.clock import Contender

_SAMPLE = 16  # workgroups of a launch, for an estimate
_FEW = 4  # … if the call is judged: it has more launches
_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


class SimClock:
    """Modelled time of gfx942, and estimates for what is not worth a model."""

    trial_unit, is_measured, shape_seconds = "estimated clk", False, 60.0

    def __init__(self) -> None:
        self.origin = modelled_origin(modelling.version(), modelling.PEAK_MHZ)
        model = f"cycle model version {modelling.version()}, at {modelling.PEAK_MHZ:.0f} MHz"
        self.unit = f"modelled us ({model})"
        self.least_gain = {kind: 100 * error for kind, error in modelling.class_errors().items()}
        self.found: list[dict[str, Any]] = []
        lines = ("llvm-mca tells what straight lines of instructions take" if mca.tool() else
                 "llvm-mca is not installed, so straight lines of instructions take what their classes take")
        errors = ", ".join(f"{kind} {error:.1f} %" for kind, error in self.least_gain.items())
        self.about = (
            f"Every time here is modelled and none is measured: {model} (csrc/sim/MODEL.md).",
            f"Trials are screened by an estimate in clk from counts and occupancy; {lines}. The cycle model runs "
            "on the best three and on the operator's present choice.",
            "A row is written only for a choice that beats the operator's own by more than the model's mean error on "
            f"published whole kernels of its class ({errors}; csrc/sim/timing/KERNELS.md). Of candidates that are "
            "closer than that to the best, the first in the operator's order is chosen. What makes more launches than "
            "the operator's own choice cannot win: the time of a launch is not modelled.",
            "Inputs are random, as the operator's tuning case makes them. Of a launch's workgroups a sample runs where "
            "what the others would write cannot decide what is executed, else all run "
            "(aiter_like/tuning/sim_clock.py has the rule).")

    def sets(self, size: int) -> int:
        """One: what a model says is always the same."""
        return 1

    def rounds(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """Estimates; see Clock."""
        return self._each(contenders, _estimated)

    def finals(self, contenders: Sequence[Contender], count: int) -> list[list[float]]:
        """Modelled us; see Clock."""
        return self._each(contenders, _modelled)

    def _each(self, contenders: Sequence[Contender],
              figure: Callable[[Contender, Sequence[Mapping]], tuple[float, dict]]) -> list[list[float]]:
        values, self.found = [], []
        for contender in contenders:
            operations: set[str] = set()
            launches = _counted(contender.calls[0], _SAMPLE, operations=operations)
            if not launches:
                value, found = math.inf, {"reason": "launches nothing on gfx942, so there is nothing to model"}
            elif operations:
                value, found = math.inf, {"reason": "also runs operations of torch, which are not modelled: "
                                                    f"{', '.join(sorted(operations))}"}
            else:
                value, found = figure(contender, launches)
            values.append([value])
            self.found.append(found)
        return values


def kernels(call: Callable[[], Any]) -> list[list[Any]]:
    """Identifies the launches of a call: the machine code's hash, the kernel, and all sizes but the grid's. Little of
    the call runs.
    """
    return [[*_kernel(launch)] for launch in _counted(call, 1)]


def _kernel(launch: Mapping[str, Any]) -> tuple:
    return launch["code"], launch["kernel"], *launch["block"], launch["lds_bytes"]


def _counted(call: Callable[[], Any], sample: int, leaves_out: bool = True, operations: set[str] | None = None,
             is_poisoned: bool = False) -> list[dict]:
    """The counts of a call's launches."""
    launches: list[dict] = []
    with (torch.no_grad(), sim.enabled(checks=False), counting.counted(launches, sample, leaves_out),
          _Torch(operations if operations is not None else set(), is_poisoned)):
        call()
    return launches


def _estimated(contender: Contender, launches: Sequence[Mapping[str, Any]]) -> tuple[float, dict[str, Any]]:
    estimates = [screening.estimate(launch, contender.useful_bytes) for launch in launches]
    longest = max(estimates, key=lambda one: one.clk)
    waves = min(launch["occupancy"]["waves_per_simd"] for launch in launches)
    found = {"launches": len(launches), "bytes": 0, "lane_operations": 0, "matrix": 0,
             "same": [[*_kernel(launch), *launch["grid"]] for launch in launches],
             "text": f"{len(launches)} launch{'es' * (len(launches) > 1)}, {waves} waves per SIMD; estimate: "
                     f"{longest.bound}"}
    for launch in launches:
        scale = math.prod(launch["grid"]) / launch["workgroups"]
        by_class = launch["totals"]["by_class"]
        found["bytes"] += round(launch["totals"]["global_bytes"] * scale)
        found["lane_operations"] += round(64 * (by_class.get("valu", 0) + by_class.get("trans", 0)) * scale)
        found["matrix"] += round(by_class.get("mfma", 0) * scale)
    return sum(one.clk for one in estimates), found


def _modelled(contender: Contender, counts: Sequence[Mapping[str, Any]]) -> tuple[float, dict[str, Any]]:
    is_sampled = _may_be_sampled(contender, counts)
    with torch.no_grad(), sim.enabled(checks=False, model="sample" if is_sampled else "whole") as session:
        contender.calls[0]()
    parts = [_part(launch) for launch in session.modelled]
    how = "a sample of the workgroups ran" if is_sampled else "all workgroups ran"
    return (sum(launch["modelled_us"] for launch in session.modelled),
            {"launches": len(parts), "text": f"modelled: {'; '.join(parts)}; {how}"})


def _part(launch: Mapping[str, Any]) -> str:
    unit, share = max(launch["busy"].items(), key=lambda item: item[1])
    return (f"{launch['modelled_clk']:.0f} clk from {launch['recorded']} of an XCD's {launch['workgroups_of_xcd']} "
            f"workgroups, {unit} {share:.0%} busy")


def _may_be_sampled(contender: Contender, counts: Sequence[Mapping[str, Any]]) -> bool:
    """The rule at the head of this file."""
    if any(launch["totals"]["atomic_lanes"] for launch in counts):
        return False
    if len(counts) == 1:
        return True
    if contender.judged is None:
        return False
    try:
        left_out = _counted(contender.judged, _FEW, is_poisoned=True)
        whole = _counted(contender.judged, _FEW, leaves_out=False)
    except SimulatorError:  # a workgroup that was left out would have written an address, or what ends a wave
        return False
    is_known = all(math.prod(launch["grid"]) > _FEW for launch in whole[:-1])
    is_covered = {_kernel(launch) for launch in counts} <= {_kernel(launch) for launch in whole}
    return is_known and is_covered and [*map(_executed, left_out)] == [*map(_executed, whole)]


def _executed(launch: Mapping[str, Any]) -> tuple:
    return _kernel(launch), [(one["pc"], one["executed"]) for one in launch["instructions"]]


class _Torch(TorchDispatchMode):
    """Notes torch's own operations in a call, but views and allocations: on a GPU they would be kernels, too."""

    def __init__(self, operations: set[str], is_poisoned: bool):
        """`is_poisoned`: new memory is full of NaN."""
        super().__init__()
        self.operations, self.is_poisoned = operations, is_poisoned

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _ALLOCATIONS:
            if self.is_poisoned:
                result.copy_(judge.poisoned(result))
        elif not func.is_view:
            self.operations.add(name)
        return result
