# SPDX-License-Identifier: MIT
"""A case: something that was or can be measured on an MI300X, and a kernel that shows it.

Sources: SC25 = hibagus/SC25_AMD_CDNA3_Artifact, raw logs (RRZE-HPC/gpu-benches on an MI300X); mt4g = caps-tum/mt4g;
pyhip = tingqli/pyhip (an MI308X, which has the same CU); fleet = cklxx/fleet-mi300x; MrRoy09 =
MrRoy09/AMD-CDNA3-CacheBenchmarking; rocprof = a public table of rocprof-compute's "Atomic Latency" on an MI300X. A case
without a published figure has no source: the model says what it would be, and a device can tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiter_like.sim.validation.flags import round_trip
from aiter_like.sim.validation.kernels import Kernel

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TIB_PER_S = 1024**4 / 1e12  # in TB/s


@dataclass(frozen=True)
class Slope:
    """Cycles of a body, without its loop: how the time grows with the loop's runs and with the body's repetitions.

    Attributes:
        published: cycles; None: nobody has published it.
        per: what one body counts as (instructions, and waves that share a unit).
        minus: a body whose cycles are no part of the figure.
        groups: workgroups.
        parameters: the numbers of csrc/sim/timing/parameters.h that the figure depends on most.
    """

    name: str
    source: str
    published: float | None
    kernel: Kernel
    per: float = 1
    loops: tuple[int, int] = (8, 40)
    unit: str = "clk"
    minus: Kernel | None = None
    groups: int = 1
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chase:
    """Cycles of a load that depends on the one before, over a footprint.

    Attributes:
        warm: the footprint is walked through once before it counts.
        modifier: of the load: " sc1", " nt".
        apart: bytes between the places that are visited.
        minus: a footprint whose latency is no part of the figure.
    """

    name: str
    source: str
    published: float | None
    footprint: int
    warm: bool = True
    scalar: bool = False
    unit: str = "clk"
    modifier: str = ""
    apart: int = 128
    minus: int = 0
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rate:
    """Bytes per time of a grid that fills the chip; or other things than bytes, as the unit says.

    Attributes:
        published: TB/s.
        groups: workgroups, `loops` runs of the loop, `number` the kernel's argument.
        bytes_per_loop: that one workgroup counts for, in one run of the unrolled loop.
        repeats: the rate is that of what more loops add, so that the first fill of a cache does not count.
        relative: the figure is this kernel's time divided by that of `kernel`.
    """

    name: str
    source: str
    published: float | None
    kernel: Kernel
    groups: int
    loops: int
    bytes_per_loop: int
    number: int = 0
    repeats: bool = False
    unit: str = "TB/s"
    relative: Kernel | None = None
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stall:
    """How many instructions of a straight line issue before the first one that waits for `reason`.

    The model tells the reason; on a device how long the issue of ever more of them takes shows it.

    Attributes:
        lines: assembly of each instruction; `prepare`: before them.
    """

    name: str
    source: str
    published: float | None
    lines: tuple[str, ...]
    prepare: str
    reason: str
    unit: str = "instructions"
    parameters: tuple[str, ...] = ()

    @property
    def kernel(self) -> Kernel:
        """All of them."""
        return Kernel("\n".join(self.lines), self.prepare, unroll=1, registers=80)

    @property
    def loads(self) -> int:
        """How many there are."""
        return len(self.lines)


@dataclass(frozen=True)
class Flag:
    """Microseconds of a round in which workgroup 0 raises a flag for another one and waits for its answer.

    On a device these are among the costs of `aiter_like/cli/sim/hardware/costs.py`.

    Attributes:
        other: the other workgroup; workgroup i is on XCD i mod 8.
        is_loaded: all other workgroups read from memory meanwhile.
    """

    name: str
    source: str
    published: float | None
    other: int
    is_loaded: bool = False
    unit: str = "us"
    parameters: tuple[str, ...] = ("write_back_clk",)

    @property
    def kernel(self) -> Kernel:
        """Both workgroups' code."""
        return round_trip(self.is_loaded, passes=60)


Case = Slope | Chase | Rate | Stall | Flag
