# SPDX-License-Identifier: MIT
"""Whole kernels whose times on an MI300X are public, and the cycle model beside them. The model's parameters come from
none of them.

whole_kernels.csv has a row for each: `group`, `case` (the shape), `variant` (whose kernel), `operands` (its
products', as `modelling.SUSTAINED` has them), `us` (empty where only a ratio is public) and `source`. A figure that its
source gives in TFLOP/s is there as the time that follows from it.
"""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiter_like.sim import modelling

ADDED = ("F6", "F7")
"""Groups that were found after it was settled which ones decide; they do not count."""

FEWEST_GROUPS = 3
"""With fewer groups that have a row that ran, the model does not count as validated."""

MOST_ERROR = 0.15
"""The aim for the mean; of what is off by more, the page says why as far as it is known."""


@dataclass(frozen=True)
class Published:
    """A row of whole_kernels.csv; `us` is None where only a ratio is public."""

    group: str
    case: str
    variant: str
    operands: str
    us: float | None
    source: str

    @property
    def name(self) -> str:
        """The name that a manifest gives it."""
        return f"{self.group.split()[0]} {self.case} {self.variant}"


@dataclass(frozen=True)
class Modelled:
    """A row and what the model says of it.

    Attributes:
        us: at `clock_mhz`, the clock that power leaves it (modelling.sustained_mhz); None: it did not run.
        peak_us: at `modelling.PEAK_MHZ`.
        why_not: why it did not run.
        note: what its kernel was made from, as the manifest says.
        failed: its kernel was there and did not run.
    """

    row: Published
    us: float | None = None
    peak_us: float | None = None
    clock_mhz: float = 0.0
    why_not: str = ""
    note: str = ""
    failed: bool = False

    @property
    def error(self) -> float:
        """Relative, at its clock: 0.05 = 5 % above the published time."""
        return self.us / self.row.us - 1

    @property
    def peak_error(self) -> float:
        """Relative, at `modelling.PEAK_MHZ`."""
        return self.peak_us / self.row.us - 1


@dataclass(frozen=True)
class Group:
    """The rows of a group that ran: mean absolute errors, and how many pairs of variants come in the right order."""

    name: str
    ran: int
    rows: int
    error: float
    peak_error: float
    ratio_error: float | None
    ordered: int
    pairs: int


def published() -> list[Published]:
    """All rows, in the order of the table."""
    with Path(__file__).with_name("whole_kernels.csv").open(newline="", encoding="utf-8") as file:
        return [Published(**{**line, "us": float(line["us"]) if line["us"] else None}) for line in csv.DictReader(file)]


def ratio_errors(found: Iterable[Modelled]) -> dict[Published, float]:
    """Row → error without a clock: of its share of the geometric mean over the rows of its group and operands that ran.

    A row that is alone there has none.
    """
    errors = {}
    ran = sorted((one for one in found if one.us is not None), key=_peers)
    for _, peers in itertools.groupby(ran, key=_peers):
        several = list(peers)
        if len(several) > 1:
            mean = statistics.geometric_mean([one.us / one.row.us for one in several])
            errors |= {one.row: one.us / one.row.us / mean - 1 for one in several}
    return errors


def _peers(one: Modelled) -> tuple[str, str]:
    return one.row.group, one.row.operands


def groups(found: Sequence[Modelled]) -> list[Group]:
    """Those of which a row ran, in the order of the table."""
    ratios = ratio_errors(found)
    sums = []
    for name in dict.fromkeys(one.row.group for one in found):
        rows = [one for one in found if one.row.group == name]
        ran = [one for one in rows if one.us is not None]
        if ran:
            own = [abs(ratios[one.row]) for one in ran if one.row in ratios]
            sums.append(Group(name, len(ran), len(rows), _mean([abs(one.error) for one in ran]),
                              _mean([abs(one.peak_error) for one in ran]), _mean(own) if own else None, *_order(ran)))
    return sums


def _order(ran: Sequence[Modelled]) -> tuple[int, int]:
    """Pairs of variants of a case that come in the published order, and all whose published times differ."""
    pairs = [(a, b) for a, b in itertools.combinations(ran, 2) if a.row.case == b.row.case and a.row.us != b.row.us]
    return sum((a.us < b.us) == (a.row.us < b.row.us) for a, b in pairs), len(pairs)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def class_errors(found: Sequence[Modelled]) -> dict[str, float]:
    """Class of modelling.CLASSES → mean absolute error of its rows that ran."""
    errors = {}
    for kind, names in modelling.CLASSES.items():
        if own := [abs(one.error) for one in found if one.us is not None and one.row.group.startswith(names)]:
            errors[kind] = round(_mean(own), 4)
    return errors


def verdict(sums: Sequence[Group]) -> str:
    """The mean over the groups that count, or that the model is not validated; then that with the added groups."""
    counted = [one for one in sums if not one.name.startswith(ADDED)]
    if len(counted) < FEWEST_GROUPS:
        return f"not validated: {len(counted)} groups have a row that ran, {FEWEST_GROUPS} are needed"
    added = f"; with what was added since, {_over(sums)}" if len(sums) > len(counted) else ""
    return f"mean absolute error {_over(counted)}{added}"


def _over(sums: Sequence[Group]) -> str:
    ratios = [one.ratio_error for one in sums if one.ratio_error is not None]
    without = f", without a clock {_mean(ratios):.1%}" if ratios else ""
    return (f"over {len(sums)} groups: {_mean([one.error for one in sums]):.1%} at the clocks that power "
            f"leaves them, {_mean([one.peak_error for one in sums]):.1%} at {modelling.PEAK_MHZ:.0f} MHz{without}")
