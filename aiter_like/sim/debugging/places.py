# SPDX-License-Identifier: MIT
"""Finds where a variable is, for each lane of a wave, by the operations of its debug information.

LLVM describes what it keeps in registers as it described the variable's slot in private memory, with the register as
the slot's address: such a location means the register itself. Only a slot relative to the function's frame is memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiter_like.errors import DebuggerError
from aiter_like.sim.debugging.dwarf import Variable
from aiter_like.sim.debugging.machine import LANES, agpr_row

_PRIVATE, _LOCAL = 1, 2  # address classes of AMD's DWARF
_BINARY: dict[str, Callable[[int, int], int]] = {
    "DW_OP_plus": lambda a, b: a + b, "DW_OP_minus": lambda a, b: a - b, "DW_OP_mul": lambda a, b: a * b,
    "DW_OP_and": lambda a, b: a & b, "DW_OP_or": lambda a, b: a | b, "DW_OP_xor": lambda a, b: a ^ b,
    "DW_OP_shl": lambda a, b: a << b, "DW_OP_shr": lambda a, b: (a & 2**64 - 1) >> b,
    "DW_OP_shra": lambda a, b: a >> b}
_UNARY: dict[str, Callable[[int], int]] = {"DW_OP_neg": lambda a: -a, "DW_OP_not": lambda a: ~a}
_CONSTANTS = ("DW_OP_constu", "DW_OP_consts", *(f"DW_OP_const{size}{sign}" for size in "1248" for sign in "us"))


@dataclass(frozen=True)
class Piece:
    """A part of a place.

    Attributes:
        kind: "vector", "scalar", "scratch", "lds", "memory", "value" or "lost".
        at: the row or place of a register, an offset, an address or a value; of each lane, where it is a list.
        size: bytes.
    """

    kind: str
    at: int | list[int]
    size: int


@dataclass
class _Entry:
    """An entry of the evaluation's stack: `register` while it is that register's content and nothing else."""

    values: list[int] | int
    register: tuple[str, int] | None = None
    in_frame: bool = False


def register_of(launch: dict, number: int) -> tuple[str, int]:
    """DWARF's number of a register → ("vector", row) or ("scalar", place)."""
    for first, last, kind, base in ((32, 95, "scalar", 0), (1088, 1129, "scalar", 64), (1536, 1791, "vector", 0),
                                    (2560, 2815, "vector", 0), (17, 17, "scalar", 126), (512, 512, "scalar", 106)):
        if first <= number <= last:
            return kind, number - first + base
    for first in (2048, 3072):
        if first <= number < first + 256:
            return "vector", agpr_row(launch, number - first)
    raise DebuggerError(f"the debug information names register {number}, which is not known")


class Evaluation:
    """Evaluates locations with what registers hold.

    `read(kind, at)` gives a register's dword, of each lane for "vector"; None: registers must not be asked for, so that
    only places that are the same at every stop are found.
    """

    def __init__(self, launch: dict, read: Callable[[str, int], list[int] | int] | None):
        self._launch, self._read = launch, read

    def pieces(self, variable: Variable, address: int) -> list[Piece]:
        """The variable's place, in the order of its bytes."""
        if variable.constant is not None:
            return [Piece("value", variable.constant, variable.type.size)]
        operations = variable.operations(address)
        if operations is None:
            raise DebuggerError(f"{variable.name} is not to be had here: the compiler has not kept it")
        found: list[Piece] = []
        stack: list[_Entry] = []
        place: tuple[str, int | list[int]] | None = None
        size = variable.type.size or 4
        for index, operation in enumerate(operations):
            name, args = operation.op_name, operation.args
            if name == "DW_OP_piece":
                found += self._piece(place or ("lost", 0) if not stack else self._location(stack.pop(), place), args[0])
                stack, place = [], None
            elif name.startswith("DW_OP_reg"):
                number = args[0] if name == "DW_OP_regx" else int(name[len("DW_OP_reg"):])
                place = register_of(self._launch, number)
            elif name == "DW_OP_xderef":
                place = self._dereferenced(stack)
            elif name == "DW_OP_stack_value":
                place = place or ("value", stack[-1].values if stack else 0)
                stack = []
            else:
                self._operate(name, args, stack, variable)
            if index == len(operations) - 1 and (place or stack) and name != "DW_OP_piece":
                found += self._piece(self._location(stack[-1], place) if stack and not place else place, size)
        return found

    def _location(self, entry: _Entry, place: tuple | None) -> tuple[str, int | list[int]]:
        return place or ("memory", entry.values)

    def _piece(self, place: tuple[str, int | list[int]] | None, size: int) -> list[Piece]:
        if place is None:
            return [Piece("lost", 0, size)]
        kind, at = place
        if kind not in ("vector", "scalar") or size <= 4:
            return [Piece(kind, at, size)]
        return [Piece(kind, at + n, min(4, size - 4 * n)) for n in range((size + 3) // 4)]

    def _dereferenced(self, stack: list[_Entry]) -> tuple[str, int | list[int]]:
        address, space = stack.pop(), stack.pop()
        if space.values == _LOCAL:
            return "lds", address.values
        if space.values == _PRIVATE and address.in_frame:
            return "scratch", address.values
        return address.register or ("value", address.values)

    def _operate(self, name: str, args: Sequence[int], stack: list[_Entry], variable: Variable) -> None:
        if name.startswith("DW_OP_lit"):
            stack.append(_Entry(int(name[len("DW_OP_lit"):])))
        elif name in _CONSTANTS or name == "DW_OP_addr":
            base = self._launch["image"] if name == "DW_OP_addr" else 0
            stack.append(_Entry(args[0] + base))
        elif name.startswith("DW_OP_breg"):
            number, offset = args if name == "DW_OP_bregx" else (int(name[len("DW_OP_breg"):]), args[0])
            stack.append(self._content(register_of(self._launch, number), offset))
        elif name == "DW_OP_fbreg":
            number = variable.frame_base[0].args[0] if variable.frame_base and variable.frame_base[0].args else None
            if number is None:
                raise DebuggerError(f"{variable.name}: the debug information does not say where the frame is")
            entry = self._content(register_of(self._launch, number), args[0])
            stack.append(_Entry(entry.values, None, True))
        elif name == "DW_OP_swap" and len(stack) > 1:
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif name == "DW_OP_dup" and stack:
            stack.append(stack[-1])
        elif name == "DW_OP_plus_uconst" and stack:
            entry = stack.pop()
            stack.append(_Entry(_each(lambda a: a + args[0], entry.values), None, entry.in_frame))
        elif name in _UNARY and stack:
            stack.append(_Entry(_each(_UNARY[name], stack.pop().values)))
        elif name in _BINARY and len(stack) > 1:
            b, a = stack.pop(), stack.pop()
            stack.append(_Entry(_each(_BINARY[name], a.values, b.values), None, a.in_frame or b.in_frame))
        else:
            raise DebuggerError(f"{variable.name}: its location has {name}, which is not understood")

    def _content(self, register: tuple[str, int], offset: int) -> _Entry:
        if self._read is None:
            return _Entry(0, register if offset == 0 else ("lost", 0))
        values = self._read(*register)
        return _Entry(_each(lambda a: a + offset, values), register if offset == 0 else None)


def _each(operation: Callable[..., int], *values: list[int] | int) -> list[int] | int:
    """The operation on numbers, or on each lane's where one of them is a list."""
    if not any(isinstance(value, list) for value in values):
        return operation(*values)
    return [operation(*(value[lane] if isinstance(value, list) else value for value in values))
            for lane in range(LANES)]
