# SPDX-License-Identifier: MIT
"""The outcome of a row: two times, or why there is none; wins, ties, losses; families; and how results differ."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiter_like.cli.sim.race.rows import Row

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """A row's outcome.

    Attributes:
        ours_us, peer_us: times; None where that side did not run.
        ours_by: backends and kernels of our side.
        clock_mhz: of both times; None where they are measured.
        error: by how much times may be off, relative to what they are.
        why: why a side has no time.
        failed: something is wrong, not merely absent.
        difference: of the results: the largest of its relative L2 differences; None where they were not compared.
    """

    row: Row
    ours_us: float | None = None
    peer_us: float | None = None
    ours_by: str = ""
    clock_mhz: float | None = None
    error: float = 0.0
    why: str = ""
    failed: bool = False
    difference: float | None = None

    @property
    def ratio(self) -> float | None:
        """Our speed over the other's: from 1 on we win."""
        return self.peer_us / self.ours_us if self.peer_us and self.ours_us else None

    @property
    def verdict(self) -> str:
        """"win", "tie", "loss", or "" where there is no ratio."""
        if self.ratio is None:
            return ""
        if 1 / (1 + self.error) <= self.ratio <= 1 + self.error:
            return "tie"
        return "win" if self.ratio > 1 else "loss"

    @property
    def counted(self) -> float | None:
        """The ratio as the bar sees it: a tie is 1."""
        return 1.0 if self.verdict == "tie" else self.ratio


def families(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Family → its rows with a ratio, in order."""
    made: dict[str, list[Outcome]] = {}
    for one in found:
        if one.ratio is not None:
            made.setdefault(one.row.family.name, []).append(one)
    return made


def mean(found: Sequence[Outcome], is_counted: bool = False) -> float:
    """The geometric mean of ratios."""
    return statistics.geometric_mean(one.counted if is_counted else one.ratio for one in found)


def below(found: Sequence[Outcome], bar: float) -> list[str]:
    """Rows and families that miss the bar, ties as 1."""
    rows = [one.row.name for one in found if one.counted is not None and one.counted < bar]
    return rows + [f"the mean of {name}" for name, each in families(found).items() if mean(each, True) < bar]


# ---- results


def difference(row: Row, ours: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> tuple[float, str]:
    """(the largest relative L2 difference, what is wrong or "") of our results and the other side's.

    Numbers are in the same place in both; integers must be equal.
    """
    from aiter_like.testing.compare import relative_l2

    largest = 0.0
    for name, other in row.family.compare.items():
        if name not in ours and name not in tensors:
            raise ValueError(f"{row.family.place}: compare: ours has no result {name}")
        got, expected = ours[name] if name in ours else tensors[name], tensors[other]
        if got.numel() != expected.numel():
            return largest, f"{name} has {tuple(got.shape)}, the other side's {other} {tuple(expected.shape)}"
        got, expected = got.cpu().reshape(-1), expected.cpu().reshape(-1)
        if not got.is_floating_point():
            if unequal := int((got.long() != expected.long()).sum()):
                return largest, f"{unequal} of {got.numel()} elements of {name} are not those of {other}"
            continue
        if not bool(expected.isfinite().all()) or not bool(got.isfinite().all()):
            return largest, f"{name} or {other} is not finite everywhere"
        off, most = relative_l2(got, expected.double()), row.family.tolerance or _tolerance(got)
        largest = max(largest, off)
        if off > most:
            return largest, f"{name} and {other} differ: relative L2 difference {off:.2g}, limit {most:.2g}"
    return largest, ""


def _tolerance(result: Tensor) -> float:
    """Twice what one side may be off from the exact result."""
    from aiter_like.testing.compare import TOLERANCES

    return 2 * TOLERANCES[result.dtype, "rtne"].relative_l2


# ---- texts


def lines(found: Sequence[Outcome]) -> list[str]:
    """The table and the families, as text."""
    width = max((len(one.row.name) for one in found), default=3)
    table = [f"{'row':{width}} {'ours us':>10} {'peer us':>10} {'ratio':>6} {'':4} at MHz  ours by"]
    for one in found:
        clock = f"{one.clock_mhz:6.0f}" if one.clock_mhz else f"{'-':>6}"
        ratio = f"{one.ratio:6.2f} {one.verdict:4}" if one.ratio else f"{'':11}"
        why = f"  [{one.why}]" if one.why else ""
        table.append(f"{one.row.name:{width}} {_us(one.ours_us):>10} {_us(one.peer_us):>10} {ratio} {clock}  "
                     f"{one.ours_by}{why}")
    return [*table, "", *_sums(found)]


def _us(us: float | None) -> str:
    return "-" if us is None else f"{us:.2f}"


def _sums(found: Sequence[Outcome]) -> list[str]:
    each = families(found)
    rows = [f"{name}: geometric mean {mean(rows):.2f} over {len(rows)} rows, ties as 1: {mean(rows, True):.2f}"
            for name, rows in each.items()]
    errors = {one.row.family.error: one.error for one in found if one.error}
    said = ", ".join(f"{kind} {error:.0%}" for kind, error in errors.items())
    return rows + ([f"a ratio within the model's own error is a tie: {said}"] if rows and said else [])


def figures(found: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [{"row": one.row.name, "family": one.row.family.name, "peer": one.row.family.peer, "sizes": one.row.sizes,
             "ours_us": one.ours_us, "peer_us": one.peer_us, "ratio": one.ratio, "verdict": one.verdict or None,
             "error_of_model": one.error, "clock_mhz": one.clock_mhz, "is_modelled": one.clock_mhz is not None,
             "ours_by": one.ours_by, "why": one.why, "failed": one.failed,
             "compared_at": one.row.check or one.row.sizes, "difference": one.difference} for one in found]
