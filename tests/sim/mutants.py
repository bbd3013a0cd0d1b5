# SPDX-License-Identifier: MIT
"""Instructions of a compiled code object, and copies of it with one of them replaced."""

import struct

from aiter_like.sim.library import disassemble


def instructions(elf: bytes) -> list[tuple[int, str]]:
    """Offset in .text and disassembly of each instruction."""
    return [(pc, text) for pc, text, _ in disassemble(elf)]


def replaced(elf: bytes, pc: int, code: bytes) -> bytes:
    """The code object with other bytes at `pc` of .text."""
    at = text_section(elf) + pc
    return elf[:at] + code + elf[at + len(code):]


def text_section(elf: bytes) -> int:
    """Where .text begins in the file: the PROGBITS section with executable code."""
    table, size, count = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HH", elf, 58)
    for index in range(count):
        _, kind, flags, _, offset = struct.unpack_from("<IIQQQ", elf, table + index * size)
        if kind == 1 and flags & 4:
            return offset
    raise AssertionError("no code in the code object")
