# SPDX-License-Identifier: MIT
"""A wave of a launch that has stopped: where it is, its registers, its variables. Read by stops, commands and tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiter_like.errors import DebuggerError, did_you_mean
from aiter_like.sim.debugging import conditions, data_types
from aiter_like.sim.debugging.data_types import DataType
from aiter_like.sim.debugging.machine import LANES
from aiter_like.sim.debugging.places import Evaluation, Piece
from aiter_like.sim.debugging.program import Frame

if TYPE_CHECKING:
    from aiter_like.sim.debugging.dwarf import Variable
    from aiter_like.sim.debugging.machine import Machine
    from aiter_like.sim.debugging.program import Program


@dataclass(frozen=True)
class Value:
    """A variable's or register's value.

    Attributes:
        name: whose.
        type: what its bytes mean.
        lanes: bytes of each lane; None: that lane's is not to be had.
        active: EXEC, a bit per lane.
        is_uniform: all lanes share it.
        origin: where it comes from, when that needs saying.
        is_untyped: nobody has said what its bytes mean; `type` is the plainest.
    """

    name: str
    type: DataType
    lanes: tuple[bytes | None, ...]
    active: int
    is_uniform: bool
    origin: str = ""
    is_untyped: bool = False

    def __getitem__(self, lane: int) -> int | float | bytes | None:
        """A lane's number; bytes where it is none."""
        data = self.lanes[lane]
        if data is None:
            return None
        if self.type.kind == "pointer":
            return int.from_bytes(data, "little")
        return data_types.number(data, self.type.scalar) if self.type.kind == "number" else data

    @property
    def numbers(self) -> list[int | float | bytes | None]:
        """The number of each lane."""
        return [self[lane] for lane in range(LANES)]

    def lines(self) -> list[str]:
        """The value as text: one line when all lanes share it, else a few for all lanes. An untyped one is also shown
        as what it may be."""
        other = data_types.guessed(self.lanes) if self.is_untyped else None
        if self.is_uniform:
            data = self.lanes[0]
            shown = "not there" if data is None else data_types.text(data, self.type)
            also = f"  ({data_types.text(data, other)} as {other.name})" if other and data else ""
            return [f"{self.name} = {shown}{also}{self.origin}"]
        return [line for kind in (self.type, other) if kind
                for line in (f"{self.name} ({'as ' * (kind is other)}{kind.name}):",
                             *(f"  {row}" for row in data_types.lane_rows(self.lanes, self.active, kind)))]


class WaveView:
    """A wave.

    Attributes:
        group, wave: its workgroup's place in the grid, and its number there.
        workgroup: the workgroup's x, y, z.
        state: "running", "at a barrier" or "ended".
        index: the instruction that it executes next.
        exec: its active lanes.
        executed: instructions so far.
        calls: the instructions that called the functions that it is in, the outermost first.
    """

    def __init__(self, machine: Machine, program: Program, launch: dict, group: int, wave: int):
        """
        Raises:
            DebuggerError: there is no such wave.
        """
        self.machine, self.program, self.launch, self.group, self.wave = machine, program, launch, group, wave
        groups = {one["number"]: one for one in machine.groups()}
        if group not in groups:
            raise DebuggerError(f"workgroup {group} does not run; running: {', '.join(map(str, groups)) or 'none'}")
        waves = groups[group]["waves"]
        if not 0 <= wave < len(waves):
            raise DebuggerError(f"workgroup {group} has waves 0 to {len(waves) - 1}, got {wave}")
        found = waves[wave]
        self.workgroup = tuple(groups[group]["id"])
        self.state, self.index, self.exec = found["state"], found["next"], found["exec"]
        self.executed, self.calls = found["executed"], found["calls"]

    @property
    def pc(self) -> int:
        """The next instruction's address, from the kernel's entry on, as in reports."""
        return self.program.instructions[self.index].pc - self.launch["entry"]

    @property
    def text(self) -> str:
        """The next instruction."""
        return self.program.instructions[self.index].text

    @property
    def source(self) -> tuple[str, int]:
        """(file, line) of the next instruction, ("", 0): not known."""
        return self.program.instructions[self.index].source

    @property
    def line(self) -> int:
        """The next instruction's line; 0: not known."""
        return self.source[1]

    def frames(self) -> list[Frame]:
        """The functions that it is in, inlined ones too, the innermost first."""
        return self.program.frames(self.index, self.calls)

    def register(self, name: str, kind: str = "") -> Value:
        """A register: "v3", "a0", "s4", "v[2:3]", "exec", "vcc", "scc", "m0".

        Args:
            kind: a name of TERM_TYPES; "" = unsigned, of all the registers that are named.
        """
        source, first, count = conditions.register(self.launch, name)
        if kind and kind not in data_types.TERM_TYPES:
            raise DebuggerError(f"{kind!r} is no type; there are: {', '.join(data_types.TERM_TYPES)}")
        own = {"wave": self.wave, "workgroup": self.workgroup[min(first, 2)] if source == "workgroup" else 0}
        if source in own or source == "lane":
            lanes = [struct.pack("<I", own.get(source, lane)) for lane in range(LANES)]
        elif source == "scalar":
            lanes = [struct.pack(f"<{count}I", *self.machine.scalars(self.group, self.wave, first, count))] * LANES
        else:
            rows = self.machine.vectors(self.group, self.wave, first, count)
            lanes = [struct.pack(f"<{count}I", *values) for values in zip(*rows, strict=True)]
        shown = data_types.scalar_type(kind or "u32") if count == 1 or kind else DataType(
            f"u{32 * count}", 4 * count, "number" if count == 2 else "unknown", "u64")
        lanes = [data[:shown.size].ljust(shown.size, b"\0") for data in lanes]
        is_untyped = count == 1 and not kind and source in ("vector", "scalar")
        return Value(f"${name}", shown, tuple(lanes), self.exec, source not in ("vector", "lane"), "", is_untyped)

    def set_register(self, name: str, value: int | float, lane: int | None = None) -> None:
        """Writes a register of one dword, or all 64 bits of one with a name.

        Args:
            value: a float is stored as f32.
            lane: of a vector register; None: all lanes.
        """
        source, first, count = conditions.register(self.launch, name)
        bits = struct.unpack("<I", struct.pack("<f", value))[0] if isinstance(value, float) else value
        if source == "scalar":
            return self.machine.set_scalars(self.group, self.wave, first, [bits >> 32 * n for n in range(count)])
        if source != "vector" or count != 1:
            raise DebuggerError(f"${name} cannot be written: single registers can")
        row = self.machine.vectors(self.group, self.wave, first)[0]
        row = [bits if lane in (None, at) else old for at, old in enumerate(row)]
        return self.machine.set_vector(self.group, self.wave, first, row)

    def variables(self) -> list[Variable]:
        """Those in scope at the next instruction, the innermost first; none without debug information."""
        debug = self.program.debug
        return debug.variables(self.program.address(self.index)) if debug else []

    def variable(self, name: str) -> Value:
        """A variable by its name in the source."""
        if self.program.debug is None:
            raise DebuggerError(f"{name}: {self.program.no_debug}")
        address = self.program.address(self.index)
        known = self.variables()
        found = [one for one in reversed(known) if one.name == name]
        found.sort(key=lambda one: (one.operations(address) is None, one.constant is None))
        if not found:
            if name in self.program.variables:
                return self._global(name)
            raise DebuggerError(f"no variable {name} here{did_you_mean(name, [one.name for one in known])}; there are: "
                                f"{', '.join(dict.fromkeys(one.name for one in known)) or 'none'}")
        variable = found[0]
        if variable.operations(address) is None and variable.constant is None:
            return self._argument(variable)
        pieces = Evaluation(self.launch, self._read).pieces(variable, address)
        rows = {piece.at: self._read("vector", piece.at) for piece in pieces if piece.kind == "vector"}
        lanes = tuple(self._bytes(pieces, rows, lane) for lane in range(LANES))
        uniform = all(piece.kind in ("scalar", "value", "memory", "lds") and not isinstance(piece.at, list)
                      for piece in pieces)
        return Value(name, variable.type, lanes, self.exec, uniform)

    def _read(self, kind: str, at: int) -> list[int] | int:
        if kind == "vector":
            return self.machine.vectors(self.group, self.wave, at)[0]
        return self.machine.scalars(self.group, self.wave, at)[0]

    def _global(self, name: str) -> Value:
        address, size = self.program.variables[name]
        kind = DataType(name, size, "number" if size in (4, 8) else "unknown", f"u{8 * size}")
        return Value(name, kind, (self.machine.memory(address, size),) * LANES, self.exec, True)

    def _argument(self, variable: Variable) -> Value:
        """A parameter that is in no register: as it stands among the kernel's arguments."""
        scope = self.program.debug.chain(self.program.address(self.index))[0]
        parameters = [one for one in scope.variables if one.is_parameter]
        args = self.launch["args"]
        fits = (variable in parameters and len(parameters) <= len(args) and self.launch["kernel"] in
                (scope.name, scope.linkage_name) and all(one.type.size == size for one, (_, size)
                                                         in zip(parameters, args, strict=False)))
        if not fits:
            raise DebuggerError(f"{variable.name} is not to be had here: the compiler has not kept it")
        return self.argument(parameters.index(variable), variable.name, variable.type)

    def argument(self, number: int, name: str = "", kind: DataType | None = None) -> Value:
        """An argument of the kernel, as it was given; the first is 0."""
        args = self.launch["args"]
        if not 0 <= number < len(args):
            raise DebuggerError(f"$arg{number}: the kernel has {len(args)} arguments, from $arg0 on")
        offset, size = args[number]
        shown = kind or DataType("", size, "pointer" if size == 8 else "number" if size < 8 else "unknown",
                                 f"i{8 * size}")
        data = self.machine.memory(self.launch["kernarg"] + offset, size)
        return Value(name or f"$arg{number}", shown, (data,) * LANES, self.exec, True,
                     "  (as the kernel was given it)")

    def _bytes(self, pieces: list[Piece], rows: dict[int, list[int]], lane: int) -> bytes | None:
        found = [struct.pack("<I", rows[piece.at][lane])[:piece.size] if piece.kind == "vector" else
                 self._piece(piece.kind, piece.at[lane] if isinstance(piece.at, list) else piece.at, piece.size, lane)
                 for piece in pieces]
        return None if None in found else b"".join(found)

    def _piece(self, kind: str, at: int, size: int, lane: int) -> bytes | None:
        if kind == "scalar":
            return struct.pack("<I", self.machine.scalars(self.group, self.wave, at)[0])[:size]
        if kind == "value":
            return (at & (1 << 8 * size) - 1).to_bytes(size, "little")
        if kind == "scratch":
            return self.machine.scratch(self.group, self.wave, lane, at, size)
        if kind == "lds":
            return self.machine.lds(self.group, at, size)
        return self.machine.memory(at, size) if kind == "memory" else None


def static_register(variables: list[Variable], name: str, address: int, launch: dict) -> tuple[str, int, str] | None:
    """A variable's register at an address: ("vector" or "scalar", row or place, name of TERM_TYPES); None: it is in
    memory, in several registers, or nowhere."""
    found = [one for one in variables if one.name == name and one.operations(address) is not None]
    if not found or found[-1].type.kind != "number":
        return None
    try:
        pieces = Evaluation(launch, None).pieces(found[-1], address)
    except DebuggerError:
        return None
    first = pieces[0]
    if any(piece.kind != first.kind or piece.at != first.at + n for n, piece in enumerate(pieces)):
        return None
    return (first.kind, first.at, found[-1].type.scalar) if first.kind in ("vector", "scalar") else None
