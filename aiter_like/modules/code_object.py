# SPDX-License-Identifier: MIT
"""Reads about the kernels of an AMD code object: names, arguments, workgroup size. Needs no GPU and no simulator.

LLVM's "Code Object V3 and Above Metadata": msgpack maps in ELF notes. Read by asm.py and `aiter-like sim run`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_BUNDLE, _COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
_SEGMENT_BYTES = 56  # size of a program header
_PT_NOTE, _NT_AMDGPU_METADATA = 4, 32
_SHT_PROGBITS, _SHT_SYMBOLS, _SHT_DYNAMIC_SYMBOLS, _SHF_EXECUTABLE = 1, 2, 11, 4  # ELF gives these numbers.
_STT_FUNCTION, _SYMBOL_BYTES = 2, 24
_MOST_KERNARG_BYTES = 1 << 16  # the same as in csrc/sim/load/loader.cpp
_MACHINES = {0x2c: "gfx900", 0x2f: "gfx906", 0x30: "gfx908", 0x3f: "gfx90a", 0x41: "gfx1100", 0x4c: "gfx942",
             0x4f: "gfx950"}  # EF_AMDGPU_MACH of LLVM's AMDGPU usage document
_COERCED = ".coerce"  # clang's addition to the name of a pointer whose address space it has changed
_DEEPEST = 16  # levels of lists and maps; LLVM writes four
_U32 = 2**32 - 1


@dataclass(frozen=True)
class Argument:
    """An explicit argument of a kernel.

    Attributes:
        name: as in the source, "" where the compiler left none.
        offset, size: bytes in the argument segment.
        kind: value_kind of the metadata: "global_buffer", "by_value", …
    """

    name: str
    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Kernel:
    """A kernel of a code object.

    Attributes:
        arguments: the explicit ones, in order; the runtime fills the hidden ones.
        kernarg_bytes: size of the argument segment, hidden arguments included.
        max_work_items: per workgroup.
    """

    name: str
    arguments: tuple[Argument, ...]
    kernarg_bytes: int
    max_work_items: int


def kernels(data: bytes, arch: str = "gfx942") -> dict[str, Kernel]:
    """The kernels of a code object, or of the entry for `arch` in an uncompressed offload bundle.

    Raises:
        ValueError: it is neither, is damaged, is for another architecture, or has no metadata; the message says which.
    """
    elf = unbundled(data, arch)
    found = [_kernel(entry) for metadata in _metadata(elf)
             for entry in _field(metadata, "amdhsa.kernels", list, "the metadata")]
    (flags,) = _unpack("<I", elf, 0x30, "the ELF header")
    machine = _MACHINES.get(flags & 0xff, f"machine {flags & 0xff:#x}")
    if arch in _MACHINES.values() and machine != arch:
        raise ValueError(f"the code object is for {machine}, not for {arch}")
    return {kernel.name: kernel for kernel in found}


def function_range(elf: bytes, name: str) -> tuple[int, int]:
    """The range of a function's instructions in a bare code object, in bytes from the beginning of the code.

    Raises:
        ValueError: the file is damaged, or has no such function.
    """
    (sections,) = _unpack("<Q", elf, 0x28, "the ELF header")
    entry_size, count = _unpack("<HH", elf, 0x3a, "the ELF header")
    headers = [_unpack("<IIQQQQIIQQ", elf, sections + index * entry_size, "a section header") for index in range(count)]
    code = min((header[3] for header in headers if header[1] == _SHT_PROGBITS and header[2] & _SHF_EXECUTABLE),
               default=0)
    for kind, offset, size, link in ((header[1], header[4], header[5], header[6]) for header in headers):
        if kind not in (_SHT_SYMBOLS, _SHT_DYNAMIC_SYMBOLS) or link >= count:
            continue
        names = _slice(elf, headers[link][4], headers[link][5], "the names of symbols")
        for at in range(offset, offset + size - _SYMBOL_BYTES + 1, _SYMBOL_BYTES):
            place, info, _, _, value, length = _unpack("<IBBHQQ", elf, at, "a symbol")
            if info & 15 == _STT_FUNCTION and names[place:names.find(b"\0", place)] == name.encode():
                return value - code, value - code + length
    raise ValueError(f"the code object has no function {name}")


def unbundled(data: bytes, arch: str) -> bytes:
    """The entry for `arch` of an uncompressed offload bundle; any other data as it is.

    Raises:
        ValueError: a compressed bundle, a damaged one, or one without code for `arch`.
    """
    if data.startswith(_COMPRESSED):
        raise ValueError("a compressed offload bundle: take the code object out with clang-offload-bundler --unbundle")
    if not data.startswith(_BUNDLE):
        return data
    (count,), at, targets = _unpack("<Q", data, 24, "the bundle's header"), 32, []
    for _ in range(min(count, len(data))):  # an entry takes some bytes: beyond that the count is damaged
        offset, size, length = _unpack("<3Q", data, at, "the bundle's table")
        target = _decoded(_slice(data, at + 24, length, "a target of the bundle"))
        if size and target.split("--")[-1].split(":")[0].endswith(arch):
            return _slice(data, offset, size, f"the bundle's code for {arch}")
        targets.append(target)
        at += 24 + length
    raise ValueError(f"an offload bundle without code for {arch}; it has: {', '.join(targets[:16]) or 'nothing'}")


def _metadata(elf: bytes) -> list[dict]:
    """The maps of all metadata notes: the new offload driver links code objects, and leaves each its own."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an AMD code object: no 64-bit little-endian ELF file")
    (table,) = _unpack("<Q", elf, 0x20, "the ELF header")
    entry_size, count = _unpack("<HH", elf, 0x36, "the ELF header")
    if count and entry_size != _SEGMENT_BYTES:
        raise _damage(f"its program headers have {entry_size} bytes instead of {_SEGMENT_BYTES}")
    found, total = [], 0
    for index in range(count):
        kind, _, offset, _, _, size = _unpack("<IIQQQQ", elf, table + index * _SEGMENT_BYTES, "a program header")
        if kind != _PT_NOTE:
            continue
        total += size
        if total > len(elf):  # a table of equal headers would have the same notes read as often as it is long
            raise _damage("it has more notes than bytes")
        found += [_Msgpack(note).read() for note in _notes(_slice(elf, offset, size, "the notes"))]
    if not found:
        raise ValueError("a code object without kernel metadata (code object version 3 or later has it)")
    return found


def _notes(segment: bytes) -> Iterator[bytes]:
    """The contents of the AMDGPU metadata notes of a segment."""
    at = 0
    while at + 12 <= len(segment):
        name_size, size, kind = _unpack("<3I", segment, at, "a note")
        start = at + 12 + -(-name_size // 4) * 4
        content = _slice(segment, start, size, "a note")
        if kind == _NT_AMDGPU_METADATA and segment[at + 12:at + 18] == b"AMDGPU":
            yield content
        at = start + -(-size // 4) * 4


def _kernel(entry: Any) -> Kernel:
    name = _field(entry, ".name", str, "a kernel")
    if not name.isprintable() or not name:
        raise _damage(f"a kernel is named {name[:80]!a}")
    place = f"kernel {name}"
    kernarg_bytes = _field(entry, ".kernarg_segment_size", int, place, _MOST_KERNARG_BYTES)
    arguments = [_argument(argument, kernarg_bytes, place) for argument in _field(entry, ".args", list, place, None, [])
                 if not _field(argument, ".value_kind", str, f"an argument of {place}").startswith("hidden_")]
    return Kernel(name, tuple(arguments), kernarg_bytes, _field(entry, ".max_flat_workgroup_size", int, place, _U32))


def _argument(entry: dict, kernarg_bytes: int, place: str) -> Argument:
    offset, size = (_field(entry, key, int, f"an argument of {place}", kernarg_bytes) for key in (".offset", ".size"))
    if offset + size > kernarg_bytes:
        raise _damage(f"an argument of {place} lies outside its argument segment of {kernarg_bytes} bytes")
    name = _field(entry, ".name", str, f"an argument of {place}", default="").removesuffix(_COERCED)
    return Argument(name, offset, size, entry[".value_kind"])


def _field(entry: Any, key: str, kind: type, place: str, most: int | None = None, default: Any = None) -> Any:
    """A key's value of type `kind`; an integer is a count up to `most`. Without a default the key has to be there."""
    if not isinstance(entry, dict):
        raise _damage(f"{place} is no map")
    value = entry.get(key, default)
    if value is None:
        raise _damage(f"{place} has no {key}")
    if type(value) is not kind or (most is not None and not 0 <= value <= most):
        what = {int: f"count up to {most}", str: "text", list: "list"}[kind]
        raise _damage(f"{key} of {place} is no {what}")
    return value


# ---- bytes, every read of which is checked against their end


def _damage(text: str) -> ValueError:
    return ValueError(f"damaged code object: {text}")


def _slice(data: bytes, at: int, size: int, what: str) -> bytes:
    if at + size > len(data):
        raise _damage(f"{what} would end at byte {at + size} of {len(data)}")
    return data[at:at + size]


def _unpack(layout: str, data: bytes, at: int, what: str) -> tuple:
    return struct.unpack(layout, _slice(data, at, struct.calcsize(layout), what))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _damage(f"a name is no UTF-8: {data[:80]!r}") from None


class _Msgpack:
    """Reader of the msgpack subset that LLVM writes: nil, bool, integers, floats, strings, arrays, maps."""

    _NUMBERS = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h",
                0xd2: ">i", 0xd3: ">q"}
    _LENGTHS = {0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xdc: ">H", 0xdd: ">I", 0xde: ">H", 0xdf: ">I"}
    _CONSTANTS = {0xc0: None, 0xc2: False, 0xc3: True}

    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def read(self, depth: int = 0) -> Any:
        """The next value."""
        if depth > _DEEPEST:
            raise _damage("its metadata is nested too deeply")
        code = self._number(">B")
        if code < 0x80 or code >= 0xe0:
            return code if code < 0x80 else code - 0x100
        if code in self._CONSTANTS:
            return self._CONSTANTS[code]
        if code in self._NUMBERS:
            return self._number(self._NUMBERS[code])
        if code >= 0xc0 and code not in self._LENGTHS:
            raise _damage(f"its metadata has a value of unknown type {code:#x}")
        if code >= 0xc0:
            length, is_text, is_list = self._number(self._LENGTHS[code]), code < 0xdc, code < 0xde
        else:
            length, is_text, is_list = code & (0x1f if code >= 0xa0 else 0xf), code >= 0xa0, code >= 0x90
        if is_text:
            return _decoded(self._take(length))
        if length > len(self._data) - self._at:  # an element takes at least one byte
            raise _damage(f"its metadata has {length} elements in {len(self._data) - self._at} bytes")
        if is_list:
            return [self.read(depth + 1) for _ in range(length)]
        return dict(self._pair(depth + 1) for _ in range(length))

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self.read(depth)
        if not isinstance(key, str):
            raise _damage("a key of its metadata is no text")
        return key, self.read(depth)

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take(self, size: int) -> bytes:
        taken = _slice(self._data, self._at, size, "its metadata")
        self._at += size
        return taken
