# SPDX-License-Identifier: MIT
"""From a case to its figure: the kernels that it needs, their launches, and what these say together.

Whoever launches is a `Machine`: the cycle model (run.py), or a device (aiter_like/cli/silicon).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aiter_like.sim.validation.case import GIB, KIB, MIB, Case, Chase, Flag, Rate, Slope, Stall
from aiter_like.sim.validation.flags import ROUNDS
from aiter_like.sim.validation.kernels import Kernel

if TYPE_CHECKING:
    from torch import Tensor

_LINE = 128
_MOST_STEPS = 4096  # a chase that never comes back to a line ends after so many


@dataclass(frozen=True)
class Launch:
    """One launch of a case's kernel.

    Attributes:
        kernel: its place in `kernels_of` the case.
        first, second, third: addresses; `number`: the kernel's argument.
        sampled: only a sample of the workgroups need be modelled.
    """

    kernel: int
    waves: int
    groups: int
    loops: int
    first: int = 0
    second: int = 0
    number: int = 0
    third: int = 0
    sampled: bool = False


class Machine(Protocol):
    """Launches a case's kernels: a model, or a device.

    Attributes:
        larger: how many times as much data a rate moves, and as many loops a slope runs, so that a launch's own cost
            vanishes.
    """

    larger: int

    def clk(self, launch: Launch) -> float:
        """Cycles of the loop of the workgroup's slowest wave, or of the launch where they differ by a constant."""

    def seconds(self, launch: Launch) -> float:
        """Seconds of the whole launch."""

    def first_us(self, launch: Launch) -> float:
        """Microseconds of the first workgroup."""

    def issued(self, launch: Launch, reason: str) -> float:
        """The instructions that issue before the first one that waits for `reason`."""

    def memory(self, size: int) -> Tensor:
        """So many bytes, undefined."""

    def cold(self) -> None:
        """Caches forget what was in them, where that takes more than a new launch."""


def kernels_of(case: Case) -> list[tuple[Kernel, int]]:
    """The kernels of a case, each with how often its loop's body is repeated."""
    if isinstance(case, (Stall, Flag)):
        return [(case.kernel, 1)]
    if isinstance(case, Rate):
        return [(one, one.unroll) for one in (case.kernel, case.relative) if one]
    if isinstance(case, Chase):
        return _twice(_chase(case))
    return [*_twice(case.kernel), *(_twice(case.minus) if case.minus else [])]


def figure(case: Case, machine: Machine) -> float:
    """The figure of a case, in its unit."""
    if isinstance(case, Stall):
        buffer = machine.memory(16 * MIB)
        return machine.issued(Launch(0, case.kernel.waves, 1, 1, buffer.data_ptr()), case.reason)
    return {Slope: _slope, Chase: _chased, Rate: _rate, Flag: _flagged}[type(case)](case, machine)


def issue_kernel(case: Stall, count: int) -> Kernel:
    """Stores, in the second buffer, the cycles in which the first `count` instructions issue."""
    body = "\n".join(["s_waitcnt vmcnt(0) lgkmcnt(0)", "s_memtime s[60:61]", "s_waitcnt lgkmcnt(0)",
                      *case.lines[:count], "s_memtime s[62:63]", "s_waitcnt vmcnt(0) lgkmcnt(0)",
                      "s_sub_u32 s60, s62, s60", "v_mov_b32 v2, 0", "v_mov_b32 v3, s60", "s_mov_b64 exec, 1",
                      "global_store_dword v2, v3, s[6:7]"])
    return Kernel(body, case.prepare, unroll=1, registers=80)


def _twice(kernel: Kernel) -> list[tuple[Kernel, int]]:
    return [(kernel, kernel.unroll), (kernel, 2 * kernel.unroll)]


def _chase(case: Chase) -> Kernel:
    if case.scalar:
        return Kernel("s_load_dword s12, s[4:5], s12\ns_waitcnt lgkmcnt(0)", "s_mov_b32 s12, s9")
    return Kernel(f"global_load_dword v2, v2, s[4:5]{case.modifier}\ns_waitcnt vmcnt(0)", "v_mov_b32 v2, s9")


def _slope(case: Slope, machine: Machine) -> float:
    buffers = [machine.memory(5 * MIB) for _ in range(2)]  # cases use 4, and the burst that begins at their end
    places = [buffer.data_ptr() + -buffer.data_ptr() % 4096 for buffer in buffers]

    def growth(kernel: int) -> float:
        loops = [count * machine.larger for count in case.loops]
        few, many = (machine.clk(Launch(kernel, case.kernel.waves, case.groups, count, *places)) for count in loops)
        return (many - few) / (loops[1] - loops[0])

    both = growth(1) - growth(0)
    rest = growth(3) - growth(2) if case.minus else 0.0
    return (both / case.kernel.unroll - (rest / case.minus.unroll if case.minus else 0.0)) / case.per


def _chased(case: Chase, machine: Machine) -> float:
    whole = _latency(case, case.footprint, machine)
    return whole - (_latency(case, case.minus, machine) if case.minus else 0.0)


def _latency(case: Chase, footprint: int, machine: Machine) -> float:
    import torch

    places = footprint // case.apart
    steps = places if case.warm else min(places, _MOST_STEPS)
    order = random.Random(0).sample(range(places), steps)
    chain = machine.memory(footprint).view(torch.int32)  # only the pages of the chain become real
    values = torch.tensor([*order[1:], order[0]], dtype=torch.int64) * case.apart
    at = torch.tensor(order, dtype=torch.int64) * (case.apart // 4)
    chain[at.to(chain.device)] = values.to(torch.int32).to(chain.device)
    unroll, start, first = _chase(case).unroll, order[0] * case.apart, chain.data_ptr()
    few, many = (steps // unroll, 2 * steps // unroll) if case.warm else (steps // unroll // 2, steps // unroll)

    def clk(kernel: int, loops: int) -> float:
        if not case.warm:
            machine.cold()
        return machine.clk(Launch(kernel, 1, 1, loops, first, 0, start))

    short, long = clk(0, few), clk(0, many)
    # The same loads, with half as many runs of the loop: what the loop costs goes out.
    half_short, half_long = clk(1, few // 2), clk(1, many // 2)
    loop = ((long - short) - (half_long - half_short)) / ((many - few) / 2)
    return ((long - short) / (many - few) - loop) / unroll


def _rate(case: Rate, machine: Machine) -> float:
    groups, loops = case.groups, case.loops
    if not case.repeats and loops == 1:
        groups *= machine.larger
    else:
        loops *= machine.larger
    size = min(groups * loops * case.bytes_per_loop * 2, 4 * GIB) + (1 << 24)
    buffers = [machine.memory(size) for _ in range(2)]
    places = [buffer.data_ptr() + -buffer.data_ptr() % 4096 for buffer in buffers]

    def seconds(kernel: int, count: int) -> float:
        return machine.seconds(Launch(kernel, case.kernel.waves, groups, count, *places, case.number, sampled=True))

    def spent(kernel: int) -> float:
        return seconds(kernel, 2 * loops) - seconds(kernel, loops) if case.repeats else seconds(kernel, loops)

    if case.relative:
        return spent(1) / spent(0)
    return groups * loops * case.bytes_per_loop / spent(0) / 1e12


def _flagged(case: Flag, machine: Machine) -> float:
    flags, out = machine.memory(16 * KIB), machine.memory(4 * ROUNDS)
    stream = machine.memory(GIB + 16 * MIB if case.is_loaded else 4 * KIB)
    few, many = 4, 12

    def spent(rounds: int) -> float:
        flags.zero_()
        return machine.first_us(Launch(0, case.kernel.waves, 304 if case.is_loaded else case.other + 1, rounds,
                                       flags.data_ptr(), out.data_ptr(), case.other, stream.data_ptr()))

    return (spent(many) - spent(few)) / (many - few)
