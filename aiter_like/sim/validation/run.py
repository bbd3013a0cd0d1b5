# SPDX-License-Identifier: MIT
"""Runs the cases on the cycle model and sets the figures beside the published ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiter_like import sim
from aiter_like.sim import modelling
from aiter_like.sim.validation.case import Case
from aiter_like.sim.validation.figure import Launch, figure, kernels_of
from aiter_like.sim.validation.kernels import arguments, code_object, name_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """A case and what the model says."""

    case: Case
    modelled: float

    @property
    def error(self) -> float | None:
        """Relative: 0.05 = 5 % above the published figure; None where there is none."""
        return None if self.case.published is None else self.modelled / self.case.published - 1


def outcomes(cases: Sequence[Case], clock_mhz: float = modelling.PEAK_MHZ) -> Iterator[Outcome]:
    """Every case, in order, when it is done.

    Raises:
        BuildError: there is no compiler for gfx942, or a kernel does not assemble.
    """
    kernels = [kernels_of(case) for case in cases]
    code = code_object([kernel for own in kernels for kernel in own])
    first = 0
    for case, own in zip(cases, kernels, strict=True):
        yield Outcome(case, figure(case, _Model(code, first, clock_mhz)))
        first += len(own)


class _Model:
    """The cycle model as a `Machine`; `first`: the case's first kernel in the code object."""

    larger = 1

    def __init__(self, code: bytes, first: int, clock_mhz: float):
        self._code, self._first, self._clock_mhz = code, first, clock_mhz

    def clk(self, launch: Launch) -> float:
        return self._modelled(launch)["modelled_clk"]

    def seconds(self, launch: Launch) -> float:
        return self.clk(launch) / (self._clock_mhz * 1e6)

    def first_us(self, launch: Launch) -> float:
        return self._modelled(launch)["first_workgroup_clk"] / self._clock_mhz

    def issued(self, launch: Launch, reason: str) -> float:
        found = self._modelled(launch)["instructions"]
        loads = [one for one in found if one["text"].startswith(("global_load", "buffer_load"))]
        return next((place for place, one in enumerate(loads) if reason in one["stall_clk"]), len(loads))

    def memory(self, size: int) -> Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8)

    def cold(self) -> None:
        """A launch begins with empty caches."""

    def _modelled(self, launch: Launch) -> dict:
        with sim.enabled(checks=False, model="sample" if launch.sampled else "whole",
                         clock_mhz=self._clock_mhz) as session:
            sim.launch(self._code, name_of(self._first + launch.kernel), (launch.groups, 1, 1),
                       (64 * launch.waves, 1, 1), 0,
                       arguments(launch.first, launch.second, launch.loops, launch.number, launch.third))
            (modelled,) = session.modelled
        return modelled
