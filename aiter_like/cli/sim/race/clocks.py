# SPDX-License-Identifier: MIT
"""Times the two sides of a row: by the cycle model, all workgroups replayed, or by the events of a real device."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aiter_like.cli.sim.race import outcome, sides, tensors
from aiter_like.cli.sim.race.outcome import Outcome
from aiter_like.cli.sim.race.rows import Row
from aiter_like.errors import SimulatorError, UnsupportedError
from aiter_like.sim import modelling

_ROUNDS = 15  # samples of a measured time


class Clock(Protocol):
    """Times calls, and says on what.

    Attributes:
        launcher: makes the launches of the other side.
        is_modelled: times are modelled.
    """

    launcher: sides.Launcher
    is_modelled: bool

    def place(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors where this clock's calls want them."""

    def error(self, row: Row) -> float:
        """The relative error of a time."""

    def times(self, row: Row, calls: list[Callable[[], Any]], is_whole: bool) -> tuple[list[float], float | None]:
        """Each call's time in us, and the clock of them all in MHz, None where the device has its own; with `is_whole`
        every workgroup runs, so that the results are right."""


class ModelClock:
    """The cycle model; with budget 0 all that a launch executes is replayed."""

    launcher, is_modelled = staticmethod(sides.simulated), True

    def __init__(self, mhz: float | None = None, budget: int = 0):
        self._mhz, self._budget = mhz, budget

    def place(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """See Clock."""
        return dict(made)

    def error(self, row: Row) -> float:
        """The class's."""
        return modelling.class_error(row.family.error)

    def times(self, row: Row, calls: list[Callable[[], Any]], is_whole: bool) -> tuple[list[float], float]:
        """See Clock. The clock is the one that power leaves to the first call, ours, unless one is given."""
        ours, mhz, samples = [], self._mhz, not is_whole and not row.family.ours.get("runs_whole")
        if mhz is None:
            ours = self._launches(calls[0], modelling.PEAK_MHZ, samples)
            mhz = modelling.sustained_mhz(row.family.operands, *modelling.busy_shares(ours))
        if not ours or mhz != modelling.PEAK_MHZ:
            ours = self._launches(calls[0], mhz, samples)
        each = [ours, *(self._launches(call, mhz, not is_whole) for call in calls[1:])]
        return [sum(one["modelled_us"] for one in launches) for launches in each], mhz

    def _launches(self, call: Callable[[], Any], mhz: float, sample: bool) -> list[dict]:
        import torch

        from aiter_like import sim

        found: list[dict] = []
        with torch.no_grad(), sim.enabled(checks=False), modelling.modelled(
                found, sample, mhz, 0, self._budget):
            call()
        if not found:
            raise ValueError("the call launched nothing on the simulated MI300X")
        return found


class DeviceClock:
    """Events on an MI300X: both sides in turn, warm, each with overwritten caches; medians."""

    is_modelled = False

    def __init__(self, target: Any):
        import torch

        from aiter_like.tuning.clock import GpuClock

        self._place = torch.device("cuda", target.index)
        self._clock = GpuClock(target)
        self.launcher: sides.Launcher = sides.Hardware(target)

    def place(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """See Clock."""
        return tensors.on_device(made, self._place)

    def error(self, row: Row) -> float:
        """The difference that the tuner takes for none."""
        return self._clock.least_gain / 100

    def times(self, row: Row, calls: list[Callable[[], Any]], is_whole: bool) -> tuple[list[float], None]:
        """See Clock."""
        from aiter_like.tuning.clock import Contender

        rounds = self._clock.rounds([Contender((call,)) for call in calls], _ROUNDS)
        return [statistics.median(each) for each in rounds], None


def here(mhz: float | None = None, budget: int = 0) -> Clock:
    """The device's clock where torch has an MI300X, else the model's."""
    import torch

    from aiter_like import device

    if torch.cuda.is_available():
        target = device.target_of(torch.device("cuda", torch.cuda.current_device()))
        if target.arch == "gfx942" and not target.simulated:
            if mhz or budget:
                raise ValueError("--clock and --budget are for the cycle model; a real MI300X has its own clock")
            return DeviceClock(target)
    device.use_simulator(True)
    return ModelClock(mhz, budget)


def aiters_folder() -> Path | None:
    """hsa/gfx942 of the installed package aiter; None where there is none: this package's stand-in has no objects."""
    for name in ("aiter_meta", "aiter"):
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            for base in (Path(place), Path(place).parent):
                if (base / "hsa" / "gfx942" / "fmha_v3_fwd").is_dir():
                    return base / "hsa" / "gfx942"
    return None


# ---- a row


def run(row: Row, folder: Path | None, clock: Clock) -> Outcome:
    """Races a row; ours alone where `folder` is None. What goes wrong in it is told in the outcome."""
    try:
        return _run(row, folder, clock)
    except (SimulatorError, UnsupportedError, ValueError, TypeError, RuntimeError) as error:
        return Outcome(row, why=f"failed: {str(error).strip()}", failed=True)


def _run(row: Row, folder: Path | None, clock: Clock) -> Outcome:
    made = clock.place(tensors.of(row.family, row.sizes, not row.check))
    by = sides.explained(row, row.sizes, made)
    ours, why = sides.ours(row, row.sizes, made), ""
    try:
        other = None if folder is None else sides.peer(row, row.sizes, made, folder, clock.launcher)
    except sides.NotThere as missing:
        other, why = None, f"not there: {missing}"
    results: dict[str, Any] = {}
    calls = [lambda: results.update(ours()), *([other] if other else [])]
    is_compared_here = not row.check and clock.is_modelled  # the run that is timed leaves the results
    difference, wrong = None, ""
    if other and not is_compared_here:
        difference, wrong = _compared(row, row.check or row.sizes, folder, clock)
    if not wrong:
        times, mhz = clock.times(row, calls, not row.check)
        if other and is_compared_here:
            difference, wrong = outcome.difference(row, results, made)
    if wrong:
        return Outcome(row, ours_by=by, why=wrong, failed=True, difference=difference)
    return Outcome(row, *[*times, None][:2], by, mhz, clock.error(row), why, difference=difference)


def _compared(row: Row, sizes: Mapping[str, Any], folder: Path, clock: Clock) -> tuple[float, str]:
    """Makes both calls at sizes that are soon done, without a clock: (difference, what is wrong)."""
    import torch

    made = clock.place(tensors.of(row.family, sizes, True))
    with torch.no_grad():
        results = sides.ours(row, sizes, made)()
        sides.peer(row, sizes, made, folder, clock.launcher)()
    return outcome.difference(row, results, made)
