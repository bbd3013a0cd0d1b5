# SPDX-License-Identifier: MIT
"""Runs the cases on the cycle model and sets the figures beside the published ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aiter_like import sim
from aiter_like.sim import modelling
from aiter_like.sim.validation.cases import Case, Chase, Rate, Slope
from aiter_like.sim.validation.kernels import Kernel, arguments, code_object, name_of

_LINE = 128
_CHASE = Kernel("global_load_dword v2, v2, s[4:5]\ns_waitcnt vmcnt(0)", "v_mov_b32 v2, s9")
_SCALAR_CHASE = Kernel("s_load_dword s12, s[4:5], s12\ns_waitcnt lgkmcnt(0)", "s_mov_b32 s12, s9")
_MOST_STEPS = 4096  # A chase that never comes back to a line takes so many.


@dataclass(frozen=True)
class Outcome:
    """A case and what the model says."""

    case: Case
    modelled: float

    @property
    def error(self) -> float:
        """Relative: 0.05 = 5 % above the published figure."""
        return self.modelled / self.case.published - 1


def outcomes(cases: Sequence[Case], clock_mhz: float = modelling.PEAK_MHZ) -> Iterator[Outcome]:
    """Every case, in order, when it is done.

    Raises:
        BuildError: there is no compiler for gfx942, or a kernel does not assemble.
    """
    kernels: list[tuple[Kernel, int]] = []
    for case in cases:
        own = (_SCALAR_CHASE if case.scalar else _CHASE) if isinstance(case, Chase) else case.kernel
        kernels += [(own, own.unroll), (own, 2 * own.unroll)]
    bench = _Bench(code_object(kernels), clock_mhz)
    for index, case in enumerate(cases):
        figure = {Slope: bench.slope, Chase: bench.chase, Rate: bench.rate}[type(case)]
        yield Outcome(case, figure(case, 2 * index))


class _Bench:
    def __init__(self, code: bytes, clock_mhz: float):
        self._code, self._clock_mhz = code, clock_mhz

    def _clk(self, kernel: int, waves: int, groups: int, loops: int, first: int = 0, second: int = 0, number: int = 0,
             model: str = "whole") -> float:
        with sim.enabled(checks=False, model=model, clock_mhz=self._clock_mhz) as session:
            sim.launch(self._code, name_of(kernel), (groups, 1, 1), (64 * waves, 1, 1), 0,
                       arguments(first, second, loops, number))
            (launch,) = session.modelled
        return launch["modelled_clk"]

    def slope(self, case: Slope, kernel: int) -> float:
        def growth(which: int) -> float:
            few, many = (self._clk(which, case.kernel.waves, 1, loops) for loops in case.loops)
            return (many - few) / (case.loops[1] - case.loops[0])

        return (growth(kernel + 1) - growth(kernel)) / case.kernel.unroll / case.per

    def chase(self, case: Chase, kernel: int) -> float:
        import torch

        lines = case.footprint // _LINE
        steps = lines if case.warm else min(lines, _MOST_STEPS)
        order = random.Random(0).sample(range(lines), steps)
        chain = torch.empty(case.footprint // 4, dtype=torch.int32)  # only the pages of the chain become real
        chain[torch.tensor(order) * (_LINE // 4)] = torch.tensor([*order[1:], order[0]], dtype=torch.int32) * _LINE
        unroll, start = _CHASE.unroll, order[0] * _LINE
        few, many = (steps // unroll, 2 * steps // unroll) if case.warm else (steps // unroll // 2, steps // unroll)
        clk = [self._clk(kernel, 1, 1, loops, chain.data_ptr(), 0, start) for loops in (few, many)]
        clk2 = [self._clk(kernel + 1, 1, 1, loops // 2, chain.data_ptr(), 0, start) for loops in (few, many)]
        # The same loads, with half as many runs of the loop: what the loop costs goes out.
        loop = ((clk[1] - clk[0]) - (clk2[1] - clk2[0])) / ((many - few) / 2)
        return ((clk[1] - clk[0]) / (many - few) - loop) / unroll

    def rate(self, case: Rate, kernel: int) -> float:
        import torch

        size = case.groups * case.loops * case.bytes_per_loop * 2 + (1 << 24)
        first, second = (torch.empty(min(size, 4 << 30), dtype=torch.uint8) for _ in range(2))
        places = first.data_ptr() + -first.data_ptr() % 4096, second.data_ptr() + -second.data_ptr() % 4096

        def clk(loops: int) -> float:
            return self._clk(kernel, case.kernel.waves, case.groups, loops, *places, case.number, model="sample")

        moved = case.groups * case.loops * case.bytes_per_loop
        spent = clk(2 * case.loops) - clk(case.loops) if case.repeats else clk(case.loops)
        return moved / spent * self._clock_mhz / 1e6
