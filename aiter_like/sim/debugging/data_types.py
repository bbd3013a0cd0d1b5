# SPDX-License-Identifier: MIT
"""Types of variables as debug information has them, and values of them as text."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_MOST_SHOWN = 16  # elements of an array
_MOST_RUNS = 8  # Lanes of one value are told as runs, up to so many.
_COLUMNS = 118
_FLOATS = {2: "e", 4: "f", 8: "d"}
TERM_TYPES = {"u32": 0, "i32": 1, "f32": 2, "u64": 3, "i64": 4, "f64": 5, "u16": 6, "i16": 7, "f16": 8, "bf16": 9,
              "u8": 10, "i8": 11}
"""Types of registers and of numbers in conditions; the values are those of csrc/sim/debug/debugger.h."""


@dataclass(frozen=True)
class DataType:
    """A type.

    Attributes:
        name: as in the source.
        size: bytes.
        kind: "number", "pointer", "struct", "array" or "unknown".
        scalar: of a number, a name of TERM_TYPES; of a bool "u8".
        members: of a struct: (name, offset, type).
        element, counts: of an array: its elements' type, and how many there are in each dimension.
    """

    name: str
    size: int
    kind: str = "number"
    scalar: str = ""
    members: tuple[tuple[str, int, DataType], ...] = ()
    element: DataType | None = None
    counts: tuple[int, ...] = field(default=())


def scalar_type(name: str) -> DataType:
    """A name of TERM_TYPES as a type."""
    return DataType(name, int(name[-2:].lstrip("fiu") or 8) // 8, scalar=name)


def number(data: bytes, kind: str) -> int | float:
    """The number in these bytes, of a name of TERM_TYPES."""
    if kind == "bf16":
        return struct.unpack("<f", b"\0\0" + data[:2])[0]
    if kind[0] == "f":
        return struct.unpack("<" + _FLOATS[len(data)], data)[0]
    return int.from_bytes(data, "little", signed=kind[0] == "i")


def text(data: bytes, kind: DataType) -> str:
    """A value as text: numbers as they are, pointers in hexadecimal, structs with their members."""
    if kind.kind == "number":
        value = number(data, kind.scalar)
        return f"{value:.9g}" if isinstance(value, float) else str(value)
    if kind.kind == "pointer":
        return f"{int.from_bytes(data, 'little'):#x}"
    if kind.kind == "struct":
        members = (f"{name} = {text(data[at:at + one.size], one)}" for name, at, one in kind.members)
        return "{" + ", ".join(members) + "}"
    if kind.kind == "array" and kind.element and kind.element.size:
        size = kind.element.size
        shown = [text(data[at:at + size], kind.element) for at in range(0, len(data), size)][:_MOST_SHOWN]
        return "{" + ", ".join([*shown, *(["…"] if len(data) > _MOST_SHOWN * size else [])]) + "}"
    return "0x" + data[::-1].hex()


def lane_texts(lanes: Sequence[bytes | None], active: int, kind: DataType,
               show: Callable[[bytes, DataType], str] = text) -> list[str]:
    """Values of lanes as lines: "0-3: 1", of lanes side by side that have the same; those that are inactive in
    brackets."""
    lines: list[str] = []
    start = 0
    for lane in range(1, len(lanes) + 1):
        is_end = lane == len(lanes)
        if not is_end and lanes[lane] == lanes[start] and (active >> lane & 1) == (active >> start & 1):
            continue
        data = lanes[start]
        value = "not there" if data is None else show(data, kind)
        where = f"{start}" if lane - start == 1 else f"{start}-{lane - 1}"
        lines.append(f"lane {where}: {value}" if active >> start & 1 else f"lane {where}: ({value})")
        start = lane
    return lines


def lane_rows(lanes: Sequence[bytes | None], active: int, kind: DataType) -> list[str]:
    """Values of lanes as few lines: `lane_texts` where few lanes differ, else rows of 4, 8 or 16 lanes."""
    runs = lane_texts(lanes, active, kind)
    if len(runs) <= _MOST_RUNS or kind.kind not in ("number", "pointer"):
        return runs
    shown = ["not there" if data is None else text(data, kind) for data in lanes]
    shown = [value if active >> lane & 1 else f"({value})" for lane, value in enumerate(shown)]
    width = max(map(len, shown))
    per_row = next((count for count in (16, 8) if 8 + count * (width + 1) <= _COLUMNS), 4)
    return [f"lane {lane:2}: " + " ".join(value.rjust(width) for value in shown[lane:lane + per_row])
            for lane in range(0, len(shown), per_row)]


def guessed(lanes: Sequence[bytes | None]) -> DataType | None:
    """Guesses what four bytes of an unknown type may be besides u32: f32 where all that are not 0 are numbers of common
    size, i32 where some are small negative ones, None where neither fits."""
    bits = {data for data in lanes if data is not None} - {b"\0\0\0\0"}
    if not bits or any(len(data) != 4 for data in bits):
        return None
    if all(1e-9 < abs(number(data, "f32")) < 1e9 for data in bits):
        return scalar_type("f32")
    return scalar_type("i32") if any(-2**20 < number(data, "i32") < 0 for data in bits) else None
