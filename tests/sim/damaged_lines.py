# SPDX-License-Identifier: MIT
"""Reads a code object's lines, and those of copies with damaged tables, by the library alone. test_lines.py runs it."""

import ctypes
import itertools
import json
import struct
import sys
from pathlib import Path


def sections(elf: bytes) -> dict[str, tuple[int, int, int, int]]:
    """Name → position of the section header, address, offset, size."""
    table, size, count, names = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HHH", elf, 58)
    headers = [(table + k * size, *struct.unpack_from("<IIQQQQ", elf, table + k * size)) for k in range(count)]
    strings = headers[names][5]
    return {elf[strings + name:elf.index(b"\0", strings + name)].decode(): (at, address, offset, length)
            for at, name, _, _, address, offset, length in headers}


def damaged(elf: bytes) -> list[bytes]:
    """Copies with bits flipped in each section of line tables, sections cut short, and headers that lie."""
    copies, found = [], sections(elf)
    for name in (".debug_line", ".debug_line_str", ".debug_str", ".debug_info", ".debug_abbrev", ".debug_addr",
                 ".debug_rnglists"):
        at, _, offset, size = found[name]
        header = range(offset, offset + min(size, 100))       # densely: most fields are here
        for place in itertools.chain(header, range(offset, offset + size, max(1, size // 20))):
            copy = bytearray(elf)
            copy[place] ^= 1 << place % 8
            copies.append(bytes(copy))
        for new_offset, new_size in [(offset, size * k // 12) for k in range(12)] + [
                (offset, 2**63), (2**64 - 8, 16), (len(elf) - 4, size), (offset + 1, size)]:
            copy = bytearray(elf)
            struct.pack_into("<QQ", copy, at + 24, new_offset, new_size)
            copies.append(bytes(copy))
    for name in (".debug_line", ".debug_info", ".debug_abbrev", ".debug_rnglists"):
        at, _, offset, size = found[name]
        for value in (0, 1, 4, 0x7f, 0x80, 0xff):             # endless numbers and lists, empty and huge operations
            copies += [elf[:offset + start] + bytes([value]) * (size - start) + elf[offset + size:]
                       for start in (0, 4, 20, 60, size // 2) if start < size]
    return copies


def lines(library: ctypes.CDLL, elf: bytes) -> list | None:
    address = library.aiter_like_sim_lines(elf, ctypes.c_uint64(len(elf)))
    try:
        return json.loads(ctypes.string_at(address).decode(errors="replace")) if address else None
    finally:
        library.aiter_like_sim_free(ctypes.c_void_p(address))


def main(path: str, code: str) -> None:
    """Prints how many lines the code object has, how many copies have others, and how many copies there are."""
    library, elf = ctypes.CDLL(path), Path(code).read_bytes()
    library.aiter_like_sim_lines.restype = ctypes.c_void_p
    whole = lines(library, elf)
    results = [lines(library, copy) for copy in damaged(elf)]
    assert None not in results, "a damaged table refuses its code object"
    print(len(whole), sum(result != whole for result in results), len(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
