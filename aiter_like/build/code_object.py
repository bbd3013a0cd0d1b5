# SPDX-License-Identifier: MIT
"""What an AMD code object says about its kernels: names, arguments, workgroup size. Needs no GPU and no simulator.

LLVM's "Code Object V3 and Above Metadata": a msgpack map in an ELF note. Read by asm.py and `aiter-like sim run`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

_BUNDLE, _COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
_PT_NOTE, _NT_AMDGPU_METADATA = 4, 32


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
        ValueError: it is neither, is damaged, or has no metadata.
    """
    try:
        metadata = _metadata(unbundled(data, arch))
        found = [_kernel(entry) for entry in metadata["amdhsa.kernels"]]
    except (struct.error, IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"damaged code object: {type(error).__name__}: {error}") from error
    return {kernel.name: kernel for kernel in found}


def unbundled(data: bytes, arch: str) -> bytes:
    """The entry for `arch` of an uncompressed offload bundle; any other data as it is.

    Raises:
        ValueError: a compressed bundle, or one without code for `arch`.
    """
    if data.startswith(_COMPRESSED):
        raise ValueError("a compressed offload bundle: take the code object out with clang-offload-bundler --unbundle")
    if not data.startswith(_BUNDLE):
        return data
    (count,), at, targets = struct.unpack_from("<Q", data, 24), 32, []
    for _ in range(count):
        offset, size, length = struct.unpack_from("<3Q", data, at)
        target = data[at + 24:at + 24 + length].decode()
        if size and target.split("--")[-1].split(":")[0].endswith(arch):
            return data[offset:offset + size]
        targets.append(target)
        at += 24 + length
    raise ValueError(f"an offload bundle without code for {arch}; it has: {', '.join(targets) or 'nothing'}")


def _metadata(elf: bytes) -> dict:
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an AMD code object: no 64-bit little-endian ELF file")
    (table,), (entry_size, count) = struct.unpack_from("<Q", elf, 0x20), struct.unpack_from("<HH", elf, 0x36)
    for index in range(count):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", elf, table + index * entry_size)
        end = offset + size
        while kind == _PT_NOTE and offset < end:
            name_size, desc_size, note = struct.unpack_from("<3I", elf, offset)
            start = offset + 12 + -(-name_size // 4) * 4
            if note == _NT_AMDGPU_METADATA and elf[offset + 12:offset + 18] == b"AMDGPU":
                return _Msgpack(elf[start:start + desc_size]).value()
            offset = start + -(-desc_size // 4) * 4
    raise ValueError("a code object without kernel metadata (code object version 3 or later has it)")


def _kernel(entry: dict) -> Kernel:
    arguments = [Argument(argument.get(".name", ""), argument[".offset"], argument[".size"], argument[".value_kind"])
                 for argument in entry.get(".args", ()) if not argument[".value_kind"].startswith("hidden_")]
    return Kernel(entry[".name"], tuple(arguments), entry[".kernarg_segment_size"],
                  entry.get(".max_flat_workgroup_size", 1024))


class _Msgpack:
    """Reader of the msgpack subset that LLVM writes: nil, bool, integers, floats, strings, arrays, maps."""

    _NUMBERS = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h",
                0xd2: ">i", 0xd3: ">q"}
    _LENGTHS = {0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xdc: ">H", 0xdd: ">I", 0xde: ">H", 0xdf: ">I"}

    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def value(self) -> Any:
        code = self._number(">B")
        if code < 0x80:
            return code
        if code >= 0xe0:
            return code - 0x100
        if code < 0x90:
            return self._map(code & 0xf)
        if code < 0xa0:
            return self._array(code & 0xf)
        if code < 0xc0:
            return self._text(code & 0x1f)
        if code in (0xc0, 0xc2, 0xc3):
            return {0xc0: None, 0xc2: False, 0xc3: True}[code]
        if code in self._NUMBERS:
            return self._number(self._NUMBERS[code])
        length = self._number(self._LENGTHS[code])  # KeyError: damaged
        return self._text(length) if code < 0xdc else self._array(length) if code < 0xde else self._map(length)

    def _number(self, layout: str) -> Any:
        (number,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return number

    def _text(self, length: int) -> str:
        self._at += length
        return self._data[self._at - length:self._at].decode()

    def _array(self, length: int) -> list:
        return [self.value() for _ in range(length)]

    def _map(self, length: int) -> dict:
        return {self.value(): self.value() for _ in range(length)}
