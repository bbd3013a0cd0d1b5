# SPDX-License-Identifier: MIT
"""Breakpoints and watches: what the user asked for, and where in a launch's code that is."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiter_like.errors import DebuggerError
from aiter_like.sim.debugging.conditions import Comparison
from aiter_like.sim.debugging.program import Program

MOST_WRITES = 4096
"""How many accesses a watch remembers, the last ones."""
SPACES = {"global": 0, "lds": 1, "scratch": 2, "vector": 3, "scalar": 4}
ANY_GROUP, ANY_WAVE = 2**64 - 1, 2**32 - 1


@dataclass
class Breakpoint:
    """A place to stop at.

    Attributes:
        number: by which it is named.
        place: as it was given: "file:line", "line", "*pc", or the name of a kernel or function.
        workgroup: its place in the grid, or x, y, z; None: any.
        wave, lane: None: any. A lane stops when it is active.
        condition: comparisons that must hold in a lane; its text.
        temporary: it goes after its first stop.
        ignore: how many times it does not stop.
        hits: how many times it was met, its condition holding.
        places: instructions in the running launch.
        placed: it had a place in some launch.
        problem: why it has none in the last one.
    """

    number: int
    place: str
    workgroup: int | Sequence[int] | None = None
    wave: int | None = None
    lane: int | None = None
    condition: tuple[Comparison, ...] = ()
    when: str = ""
    temporary: bool = False
    ignore: int = 0
    hits: int = 0
    places: list[int] = field(default_factory=list)
    placed: bool = False
    problem: str = ""

    def describe(self) -> str:
        """The breakpoint as a line of text."""
        parts = [self.place]
        for name, value in (("workgroup", self.workgroup), ("wave", self.wave), ("lane", self.lane)):
            parts += [f"{name} {value}"] if value is not None else []
        parts += [f"when {self.when}"] if self.when else []
        parts += ["temporary"] if self.temporary else []
        parts.append(f"{self.hits} hit{'s' * (self.hits != 1)}")
        parts += [] if self.placed else ["not placed" + (f": {self.problem}" if self.problem else " yet")]
        return f"breakpoint {self.number}: " + ", ".join(parts)


@dataclass(frozen=True)
class WatchedAccess:
    """An access to a watched place.

    Attributes:
        clock: instructions of all waves that the launch had executed, its own with them.
        workgroup, wave: who.
        pc, text, source: the instruction; its pc from the kernel's entry on.
        lanes: those that touched the place, a bit each.
        is_write: it wrote, or it read and wrote.
        address: of the first lane.
        before, after: the place's bytes.
        kernel: whose launch it was.
    """

    clock: int
    workgroup: int
    wave: int
    pc: int
    text: str
    source: tuple[str, int]
    lanes: int
    is_write: bool
    address: int
    before: bytes
    after: bytes
    kernel: str


@dataclass
class Watch:
    """A place whose accesses are told.

    Attributes:
        number: by which it is named.
        what: the place as text.
        space: a key of SPACES.
        begin, size: an address or offset with bytes; of a register its row or place, and 4.
        reads, writes: the accesses that count.
        workgroup, wave, lanes: None, or all bits: any.
        stops: False: it only remembers.
        history: the last MOST_WRITES accesses, the oldest first.
    """

    number: int
    what: str
    space: str
    begin: int
    size: int
    reads: bool = False
    writes: bool = True
    workgroup: int | None = None
    wave: int | None = None
    lanes: int = 2**64 - 1
    stops: bool = True
    history: list[WatchedAccess] = field(default_factory=list)

    def describe(self) -> str:
        """The watch as a line of text."""
        kinds = "accesses" if self.reads and self.writes else "reads" if self.reads else "writes"
        return (f"watch {self.number}: {self.what}, {kinds}, {len(self.history)} so far"
                + ("" if self.stops else ", does not stop"))


def group_number(workgroup: int | Sequence[int], grid: Sequence[int]) -> int:
    """A workgroup's place in the grid."""
    x, y, z = (workgroup, 0, 0) if isinstance(workgroup, int) else (*workgroup, 0, 0)[:3]
    total = grid[0] * grid[1] * grid[2]
    if isinstance(workgroup, int) and 0 <= workgroup < total:
        return workgroup
    if not isinstance(workgroup, int) and all(0 <= at < size for at, size in zip((x, y, z), grid, strict=True)):
        return x + grid[0] * (y + grid[1] * z)
    raise DebuggerError(f"workgroup {workgroup}: the grid is {' x '.join(map(str, grid))}")


def find_place(program: Program, place: str, entry: int, file: str) -> list[int]:
    """The instructions that a place names.

    Args:
        entry: the address of the kernel's first instruction, from which `*pc` counts.
        file: the one that a bare line is in.
    """
    if match := re.fullmatch(r"\*\s*(0x[\da-fA-F]+|\d+)", place):
        return [program.index_of(entry + int(match[1], 0))]
    name, colon, line = place.rpartition(":")
    if not line.isdecimal():
        return program.function(place)
    if not program.files:
        raise DebuggerError("the code object has no source lines: compile it with -g or -gline-tables-only, or name an "
                            "instruction, *0x40")
    known = (program.file_named(name) if name else file) if colon else file
    if not known:
        raise DebuggerError(f"no code of a file {name or '?'}; there is code of {', '.join(program.files)}")
    return program.line(known, int(line))
