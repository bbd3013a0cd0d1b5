# SPDX-License-Identifier: MIT
"""The launches of a SPEC.json (sim/spec.py): which kernel, how many workgroups, and its arguments as bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiter_like.cli.sim import described
from aiter_like.errors import did_you_mean
from aiter_like.modules import code_object

if TYPE_CHECKING:
    from torch import Tensor

_INTEGERS = {"i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}
_FLOATS = {"fp16": "e", "fp32": "f", "fp64": "d"}
_SCALARS = {"bool": "?", **_INTEGERS, **_FLOATS}  # struct formats
SCALARS = tuple(_SCALARS)
"""Types of arguments by value."""


@dataclass(frozen=True)
class Buffer:
    """A buffer of the kernel.

    Attributes:
        data: its contents, on the CPU.
        is_output: it is written to a file at the end.
        is_writable: the kernel may write it.
    """

    data: Tensor
    is_output: bool
    is_writable: bool


@dataclass(frozen=True)
class Step:
    """One launch of a description.

    Attributes:
        place: what messages call it.
        arguments: as the description has them: a list in the kernel's order, or by name.
        kernel: its name; "" = the command line has it, like each of the next that is None.
        grid, block: workgroups, and work-items of each.
        shared_bytes: dynamic LDS.
    """

    place: str
    arguments: list[dict[str, Any]] | dict[str, dict[str, Any]]
    kernel: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    shared_bytes: int | None = None

    def used(self, kernel: code_object.Kernel, buffers: Mapping[str, Buffer]) -> list[Buffer | None]:
        """The buffer of each argument, then those in structs: reports count in this order."""
        given = self._in_order(kernel)
        inside = [name for one in given for name in one.get("pointers", {}).values()]
        return [buffers.get(name) for name in [*(one.get("buffer") for one in given), *inside]]

    def kernargs(self, kernel: code_object.Kernel, buffers: Mapping[str, Buffer]) -> bytes:
        """The argument segment of `kernel` up to the hidden arguments, with the addresses of `buffers`."""
        arguments = self._in_order(kernel)
        segment = bytearray(max((wanted.offset + wanted.size for wanted in kernel.arguments), default=0))
        for index, (wanted, given) in enumerate(zip(kernel.arguments, arguments, strict=True)):
            place = self._place_of(index, wanted)
            packed = _argument(given, buffers, place)
            is_pointer = "buffer" in given
            if len(packed) != wanted.size or (wanted.kind == "global_buffer") > is_pointer:
                raise ValueError(f"{place}: {kernel.name} takes {wanted.name or 'an argument'} of {wanted.size} bytes "
                                 f"({wanted.kind}) here, got {len(packed)} bytes{' (a buffer)' if is_pointer else ''}")
            segment[wanted.offset:wanted.offset + wanted.size] = packed
        return bytes(segment)

    def _place_of(self, index: int, wanted: code_object.Argument) -> str:
        return f"{self.place}: arguments" + (f"[{index}]" if isinstance(self.arguments, list) else f".{wanted.name}")

    def _in_order(self, kernel: code_object.Kernel) -> list[dict[str, Any]]:
        """The arguments as the kernel takes them."""
        names = [argument.name for argument in kernel.arguments]
        if isinstance(self.arguments, list):
            if len(self.arguments) != len(names):
                raise ValueError(f"{self.place}: {kernel.name} takes {len(names)} arguments, got "
                                 f"{len(self.arguments)}; it takes: {_wanted(kernel)}")
            return self.arguments
        if not all(names) or len(set(names)) < len(names):
            raise ValueError(f"{self.place}: the code object does not name the arguments of {kernel.name}, so that "
                             "they must be a list (aiter-like sim compile keeps names); it takes: "
                             f"{_wanted(kernel)}")
        for name in self.arguments:
            if name not in names:
                raise ValueError(f"{self.place}: {kernel.name} has no argument {described.shown(name)}"
                                 f"{did_you_mean(name, names)}; it takes: {_wanted(kernel)}")
        if missing := [name for name in names if name not in self.arguments]:
            raise ValueError(f"{self.place}: arguments.{missing[0]} is missing; {kernel.name} takes: {_wanted(kernel)}")
        return [self.arguments[name] for name in names]


def steps_of(spec: Mapping[str, Any], place: str) -> tuple[Step, ...]:
    """The launches of a description that has `arguments`, for one, or `launches`."""
    if "arguments" in spec:
        return (Step(place, _given(spec["arguments"], place)),)
    launches = spec["launches"]
    if not isinstance(launches, list) or not launches:
        raise ValueError(f"{place}: launches must be a list of at least one, got {described.GOT.repr(launches)}")
    return tuple(_step(entry, f"{place}: launches[{index}]") for index, entry in enumerate(launches))


def _step(entry: Any, place: str) -> Step:
    described.require_keys(entry, {"kernel", "grid", "block", "shared", "arguments"}, place, needed=("arguments",))
    kernel = entry.get("kernel", "")
    if not isinstance(kernel, str):
        raise ValueError(f"{place}.kernel must be a name, got {described.GOT.repr(kernel)}")
    shared = entry.get("shared")
    if shared is not None:
        described.integer(shared, 0, 2**32 - 1, f"{place}.shared")
    grid, block = (sizes(entry[key], f"{place}.{key}") if key in entry else None for key in ("grid", "block"))
    return Step(place, _given(entry["arguments"], place), kernel, grid, block, shared)


def sizes(value: Any, place: str) -> tuple[int, int, int]:
    """One to three sizes of a grid or of a block, as three."""
    found = [value] if type(value) is int else value
    if not isinstance(found, list) or not 1 <= len(found) <= 3:
        raise ValueError(f"{place} must be one to three sizes, got {described.GOT.repr(value)}")
    for size in found:
        described.integer(size, 1, 2**32 - 1, place)
    return (*found, 1, 1)[:3]


def _given(arguments: Any, place: str) -> list | dict:
    if not isinstance(arguments, (list, dict)):
        raise ValueError(f"{place}: arguments must be a list, or an object by their names, got "
                         f"{described.GOT.repr(arguments)}")
    named = isinstance(arguments, dict)
    for index, argument in arguments.items() if named else enumerate(arguments):
        described.require_keys(argument, {"buffer", "offset", "type", "value", "hex", "pointers"},
                               f"{place}: arguments" + (f".{described.shown(index)}" if named else f"[{index}]"))
    return arguments


def _wanted(kernel: code_object.Kernel) -> str:
    return ", ".join(f"{argument.name or '?'} ({argument.size} bytes, {argument.kind})"
                     for argument in kernel.arguments) or "none"


def _argument(given: Mapping[str, Any], buffers: Mapping[str, Buffer], place: str) -> bytes:
    """One argument as the bytes of the segment."""
    names = set(given)
    if names in ({"buffer"}, {"buffer", "offset"}):
        return _address(given["buffer"], given.get("offset", 0), buffers, place)
    if names in ({"hex"}, {"hex", "pointers"}):
        try:
            data = bytearray.fromhex(given["hex"])
        except (ValueError, TypeError):
            got = described.GOT.repr(given["hex"])
            raise ValueError(f"{place}.hex must be hexadecimal digits, got {got}") from None
        return _struct(data, given.get("pointers", {}), buffers, place)
    if names != {"type", "value"}:
        raise ValueError(f'{place} must be {{"buffer"}}, {{"buffer", "offset"}}, {{"type", "value"}} or {{"hex"}}, got '
                         f"{described.GOT.repr(given)}")
    return _scalar(given["type"], given["value"], place)


def _address(name: Any, offset: Any, buffers: Mapping[str, Buffer], place: str) -> bytes:
    if name is None:
        return bytes(8)
    if not isinstance(name, str) or name not in buffers:
        known = ", ".join(map(described.shown, list(buffers)[:16]))
        raise ValueError(f"{place}: no buffer {described.GOT.repr(name)}; there are: {known or 'none'}")
    data = buffers[name].data
    offset = described.integer(offset, 0, data.nbytes - 1, f"{place}.offset")
    return struct.pack("<Q", data.data_ptr() + offset)


def _struct(data: bytearray, pointers: Any, buffers: Mapping[str, Buffer], place: str) -> bytes:
    if not isinstance(pointers, dict):
        raise ValueError(f"{place}.pointers must be an object, got {described.GOT.repr(pointers)}")
    for at, name in pointers.items():
        if not at.isdecimal() or int(at) + 8 > len(data):
            raise ValueError(f"{place}.pointers: {described.shown(at)} is no place of 8 bytes in {len(data)}")
        data[int(at):int(at) + 8] = _address(name, 0, buffers, f"{place}.pointers.{at}")
    return bytes(data)


def _scalar(kind: Any, value: Any, place: str) -> bytes:
    layout = described.one_of(kind, _SCALARS, f"{place}.type")
    fits = {"bool": type(value) is bool, **dict.fromkeys(_INTEGERS, type(value) is int),
            **dict.fromkeys(_FLOATS, type(value) in (int, float))}[kind]
    try:
        if not fits:
            raise ValueError(f"it is of type {type(value).__name__}")
        return struct.pack(f"<{layout}", value)
    except (struct.error, OverflowError, ValueError) as error:
        raise ValueError(f"{place}: {described.GOT.repr(value)} is no {kind}: {error}") from error
