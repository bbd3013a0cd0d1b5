# SPDX-License-Identifier: MIT
"""Conditions of breakpoints: `i == 70 and sum[3] > 1.5 and $v2:i32 < 0`, comparisons that hold in one lane.

Those of registers are compared at each instruction by csrc/sim/debug/condition.cpp; those of variables in memory, here.
"""

import ctypes
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from aiter_like.errors import DebuggerError
from aiter_like.sim.debugging.data_types import TERM_TYPES
from aiter_like.sim.debugging.machine import SCALARS, agpr_row

_COMPARISONS = {"==": (0, operator.eq), "!=": (1, operator.ne), "<": (2, operator.lt), "<=": (3, operator.le),
                ">": (4, operator.gt), ">=": (5, operator.ge)}
_TERM = re.compile(r"\s*(?P<name>\$?[A-Za-z_][\w.]*)\s*(?:\[\s*(?P<lane>\d+)\s*\])?\s*(?::\s*(?P<type>[a-z]+\d+))?"
                   r"\s*(?P<compare>==|!=|<=|>=|<|>)\s*"
                   r"(?P<number>-?(?:0[xX][\da-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?))\s*$")
_SOURCES = {"vector": 0, "scalar": 1, "workgroup": 2, "wave": 3, "lane": 4}


class Term(ctypes.Structure):
    """`Term` of csrc/sim/debug/debugger.h."""

    _fields_ = [("source", ctypes.c_uint32), ("first", ctypes.c_uint32), ("type", ctypes.c_uint32),
                ("compare", ctypes.c_uint32), ("lane", ctypes.c_int32), ("number", ctypes.c_double),
                ("integer", ctypes.c_int64)]


@dataclass(frozen=True)
class Comparison:
    """`name[lane]:type compare number`.

    Attributes:
        name: of a variable, or of a register with a $ before it.
        lane: the lane whose value counts; None: each lane's own.
        type: a name of TERM_TYPES, "" = the variable's, or what the number suggests.
        compare: a key of the comparisons.
        number: what it is compared with.
    """

    name: str
    lane: int | None
    type: str
    compare: str
    number: int | float

    @property
    def is_register(self) -> bool:
        """Whether it names a register."""
        return self.name.startswith("$")

    def holds(self, value: int | float) -> bool:
        """The comparison of a value."""
        return _COMPARISONS[self.compare][1](value, self.number)

    def term(self, source: str, first: int, type_name: str) -> Term:
        """The comparison of a register of this type, for the library."""
        term = Term(_SOURCES[source], first, TERM_TYPES[type_name], _COMPARISONS[self.compare][0],
                    -1 if self.lane is None else self.lane, float(self.number))
        if type_name[0] not in "fb":
            if self.number != int(self.number):
                raise DebuggerError(f"{self.name} is a whole number ({type_name}), and {self.number} is none; as a "
                                    f"float: {self.name}:f32")
            term.integer = ctypes.c_int64(int(self.number)).value
        return term

    @property
    def default_type(self) -> str:
        """The type of a register when none is given."""
        if self.type:
            return self.type
        return "f32" if isinstance(self.number, float) else "i32" if self.number < 0 else "u32"


def parse(text: str) -> tuple[Comparison, ...]:
    """The comparisons of a condition, all of which must hold in one lane."""
    found = []
    for part in re.split(r"\band\b|&&", text):
        match = _TERM.match(part)
        if not match:
            raise DebuggerError(f"{part.strip()!r} is no comparison: NAME, $REGISTER, NAME[LANE] or $REGISTER:TYPE, "
                                "then == != < <= > or >=, then a number; several with `and` between them")
        kind, number = match["type"] or "", match["number"]
        if kind and kind not in TERM_TYPES:
            raise DebuggerError(f"{kind!r} is no type; there are: {', '.join(TERM_TYPES)}")
        if match["lane"] and int(match["lane"]) > 63:
            raise DebuggerError(f"a wave has lanes 0 to 63, got {match['lane']}")
        is_float = "." in number or ("e" in number.lower() and "x" not in number.lower())
        found.append(Comparison(match["name"], int(match["lane"]) if match["lane"] else None, kind, match["compare"],
                                float(number) if is_float else int(number, 0)))
    return tuple(found)


def register(launch: dict, name: str) -> tuple[str, int, int]:
    """A register by its name after the $ → ("vector", row, dwords), ("scalar", place, dwords) or what a wave is.

    v3, a7, s4, v[2:3], s[2:5], vcc, exec, scc, m0, and wave, lane, workgroup.x, .y, .z.
    """
    if name in SCALARS:
        return ("scalar", *SCALARS[name])
    if name in ("wave", "lane"):
        return name, 0, 1
    if match := re.fullmatch(r"workgroup\.([xyz])", name):
        return "workgroup", "xyz".index(match[1]), 1
    match = re.fullmatch(r"([vas])(?:(\d+)|\[(\d+):(\d+)\])", name)
    if not match:
        raise DebuggerError(f"no register ${name}: there are $v0, $a0, $s0, $v[2:3], ${', $'.join(SCALARS)}, $wave, "
                            "$lane, $workgroup.x")
    first, last = (int(match[2]), int(match[2])) if match[2] else (int(match[3]), int(match[4]))
    count = {"v": launch["vgprs"], "a": launch["agprs"], "s": min(launch["sgprs"], 102)}[match[1]]
    if match[1] == "a" and launch["one_file"]:
        count = launch["vgprs"] - launch["accum_offset"]
    if not first <= last < count:
        raise DebuggerError(f"${name}: the kernel {launch['kernel']} has {count} {match[1]} registers")
    place = agpr_row(launch, first) if match[1] == "a" else first
    return "scalar" if match[1] == "s" else "vector", place, last - first + 1


def array_of(terms: Sequence[Term]) -> ctypes.Array:
    """For the library."""
    return (Term * len(terms))(*terms)
