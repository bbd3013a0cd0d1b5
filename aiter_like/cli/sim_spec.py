# SPDX-License-Identifier: MIT
"""SPEC.json of `aiter-like sim run`: what the kernel gets, argument by argument. Every mistake is named by its place.

    {"buffers": {"out":    {"dtype": "bf16", "shape": [4, 4096], "fill": "zeros", "output": true},
                 "input":  {"dtype": "bf16", "shape": [4, 4096], "fill": "random", "seed": 1},
                 "weight": {"file": "weight.npy"}},
     "arguments": [{"buffer": "out"}, {"buffer": "input"}, {"buffer": "weight"}, {"buffer": null},
                   {"type": "u32", "value": 8192}, {"type": "fp32", "value": 1e-6}]}
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import enums
from aiter_like.build import code_object
from aiter_like.cli import described

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ARCH = "gfx942"
_INTEGERS = {"i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}
_FLOATS = {"fp16": "e", "fp32": "f", "fp64": "d"}
_SCALARS = {"bool": "?", **_INTEGERS, **_FLOATS}  # struct formats
_MOST_BYTES = 64 << 20  # of SPEC.json
_PAGE_BYTES = 4096
_MOST_SIZES = 32  # dimensions that every NumPy can write

DESCRIPTION = f"""SPEC.json has two keys:
  buffers    name → {{"dtype", "shape", "fill"}} or {{"file": "x.npy"}}, a path beside SPEC.json.
             dtype: {', '.join(enums.DTYPES.values())}
             fill: "zeros", "random" (normal, integers over their range; "seed": 0) or a number
             "output": true: the kernel may write it, and it becomes DIR/<name>.npy (bf16 as uint16, fp8 as uint8)
             "scratch": true: the kernel may write it
  arguments  the kernel's explicit arguments in order; hidden ones are filled in:
             {{"buffer": name or null, "offset": bytes}}, {{"type", "value"}}, or for a struct {{"hex": "00ff…"}} and,
             where it holds addresses, "pointers": {{"8": name}}, the place in bytes of each
             type: {', '.join(_SCALARS)}"""


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
class Spec:
    """A description that has been read.

    Attributes:
        place: what messages call it.
        buffers: by name, filled.
        arguments: as the description has them, in the kernel's order.
    """

    place: str
    buffers: dict[str, Buffer]
    arguments: list[dict[str, Any]]

    def used(self, buffers: Mapping[str, Buffer]) -> list[Buffer | None]:
        """By argument, its buffer; then those of structs: reports count in this order."""
        inside = [name for given in self.arguments for name in given.get("pointers", {}).values()]
        return [buffers.get(name) for name in [*(given.get("buffer") for given in self.arguments), *inside]]

    def kernargs(self, kernel: code_object.Kernel, buffers: Mapping[str, Buffer]) -> bytes:
        """The argument segment of `kernel` up to the hidden arguments, with the addresses of `buffers`.

        Raises:
            ValueError: the arguments are not those that the kernel takes.
        """
        if len(self.arguments) != len(kernel.arguments):
            wanted = ", ".join(f"{argument.name or '?'} ({argument.size} bytes, {argument.kind})"
                               for argument in kernel.arguments)
            raise ValueError(f"{self.place}: {kernel.name} takes {len(kernel.arguments)} arguments, got "
                             f"{len(self.arguments)}; it takes: {wanted or 'none'}")
        segment = bytearray(max((wanted.offset + wanted.size for wanted in kernel.arguments), default=0))
        for index, (wanted, given) in enumerate(zip(kernel.arguments, self.arguments, strict=True)):
            place = f"{self.place}: arguments[{index}]"
            packed = _argument(given, buffers, place)
            is_pointer = "buffer" in given
            if len(packed) != wanted.size or (wanted.kind == "global_buffer") > is_pointer:
                raise ValueError(f"{place}: {kernel.name} takes {wanted.name or 'an argument'} of {wanted.size} bytes "
                                 f"({wanted.kind}) here, got {len(packed)} bytes{' (a buffer)' if is_pointer else ''}")
            segment[wanted.offset:wanted.offset + wanted.size] = packed
        return bytes(segment)


def read_spec(path: Path) -> Spec:
    """The description in a file, its buffers filled.

    Raises:
        ValueError: it is damaged, says what is not possible, or needs more memory than there is.
    """
    return spec_of(described.read_json(path, _MOST_BYTES), path, f"{path}")


def spec_of(spec: Any, beside: Path, place: str) -> Spec:
    """A description that is an object of JSON already, its buffers filled.

    Args:
        beside: the file beside which the files of its buffers are.
        place: what messages call it.

    Raises:
        ValueError: as `read_spec`.
    """
    described.require_keys(spec, {"buffers", "arguments"}, place, needed=("arguments",))
    buffers = spec.get("buffers", {})
    if not isinstance(buffers, dict) or not isinstance(spec["arguments"], list):
        raise ValueError(f"{place}: buffers must be an object and arguments a list")
    for index, argument in enumerate(spec["arguments"]):
        described.require_keys(argument, {"buffer", "offset", "type", "value", "hex", "pointers"},
                               f"{place}: arguments[{index}]")
    filled = {name: _buffer(name, entry, beside.parent, f"{place}: buffers.{described.shown(name)}")
              for name, entry in buffers.items()}
    return Spec(place, filled, spec["arguments"])


def kernel_of(file: Path, image: bytes, name: str) -> code_object.Kernel:
    """A kernel of a code object that was read from `file`.

    Raises:
        ValueError: it is no code object for gfx942, or has no such kernel.
    """
    try:
        kernels = code_object.kernels(image, ARCH)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if name not in kernels:
        raise ValueError(f"{file} has no kernel {name}; it has: {', '.join(kernels) or 'none'}")
    return kernels[name]


# ---- buffers


def _buffer(name: str, entry: Any, folder: Path, place: str) -> Buffer:
    described.require_keys(entry, {"dtype", "shape", "fill", "seed", "file", "output", "scratch"}, place)
    flags = [entry.get(key, False) for key in ("output", "scratch")]
    if not all(isinstance(flag, bool) for flag in flags):
        raise ValueError(f"{place}: output and scratch must be true or false")
    if flags[0] and (not name or "/" in name or not name.isprintable()):
        raise ValueError(f"{place}: an output's name becomes a file's, and {described.GOT.repr(name)} cannot")
    if "file" in entry:
        if extra := entry.keys() & {"dtype", "shape", "fill", "seed"}:
            raise ValueError(f"{place}: a file brings its own {', '.join(sorted(extra))}")
        if not isinstance(entry["file"], str):
            raise ValueError(f"{place}.file must be a path, got {described.GOT.repr(entry['file'])}")
        data = _load(folder / entry["file"], place)
    else:
        data = _filled(entry, place)
    if data.numel() == 0:
        raise ValueError(f"{place}: a buffer must have at least one element")
    return Buffer(data, flags[0], any(flags))


def _filled(entry: Mapping[str, Any], place: str) -> Tensor:
    import torch

    from aiter_like import dtypes

    kind = described.one_of(entry.get("dtype"), dtypes.DTYPES, f"{place}.dtype")
    shape, fill = entry.get("shape"), entry.get("fill")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{place}.shape must be a list of sizes, got {described.GOT.repr(shape)}")
    if len(shape) > _MOST_SIZES:
        raise ValueError(f"{place}.shape must have at most {_MOST_SIZES} sizes, got {len(shape)}")
    seed = described.integer(entry.get("seed", 0), 0, 2**63 - 1, f"{place}.seed")
    if fill not in ("zeros", "random"):
        fill = _number(fill, kind, place)
    _require_memory(math.prod(shape), kind.itemsize, place)
    try:
        data = _zeros(shape, kind)
        if fill == "random":
            return data.copy_(_random(shape, kind, torch.Generator().manual_seed(seed)))
        return data if fill == "zeros" else data.fill_(fill)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"{place}: cannot be filled: {str(error).splitlines()[0]}") from error


def _zeros(shape: Sequence[int], kind: torch.dtype) -> Tensor:
    """A buffer that begins on a page, as hipMalloc's do: torch's own begin anywhere, and cross more cache lines."""
    import torch

    size = math.prod(shape) * kind.itemsize
    memory = torch.zeros(size + _PAGE_BYTES, dtype=torch.uint8)
    begin = -memory.data_ptr() % _PAGE_BYTES
    return memory[begin:begin + size].view(kind).reshape(shape)


def _random(shape: list[int], kind: torch.dtype, generator: torch.Generator) -> Tensor:
    import torch

    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind)
    low, high = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int64).to(kind)


def _number(fill: Any, kind: torch.dtype, place: str) -> int | float:
    """`fill` as a number that a buffer of this dtype can hold."""
    import torch

    if not isinstance(fill, (int, float)) or (isinstance(fill, bool) and kind is not torch.bool):
        raise ValueError(f'{place}.fill must be "zeros", "random" or a number, got {described.GOT.repr(fill)}')
    name = enums.DTYPES[str(kind).removeprefix("torch.")]
    if not kind.is_floating_point:
        low, high = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
        if not low <= fill <= high or fill != int(fill):
            raise ValueError(f"{place}.fill must be an integer from {low} to {high} ({name}), got "
                             f"{described.GOT.repr(fill)}")
        return int(fill)
    try:
        value = float(fill)
        fits = math.isfinite(torch.tensor(value, dtype=torch.float64).to(kind).item()) == math.isfinite(value)
    except OverflowError:
        fits = False
    if not fits:
        raise ValueError(f"{place}.fill: {described.GOT.repr(fill)} is beyond {name}")
    return value


def _require_memory(count: int, item_bytes: int, place: str) -> None:
    """Refuses a buffer that would leave this machine without memory: Linux would end the process without a word."""
    needed = count * max(item_bytes, 8)  # random numbers have 8 bytes before they get their dtype
    available = _available_bytes()
    if needed > available // 2:
        raise ValueError(f"{place}: {described.GOT.repr(count)} elements of {item_bytes} bytes are too many for "
                         f"{available >> 20} MiB of free memory")


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _load(path: Path, place: str) -> Tensor:
    """The array of a .npy file."""
    import tokenize

    import numpy
    import torch

    # What numpy.load raises for damaged headers, which are Python literals, and torch for dtypes that it lacks.
    damage = (EOFError, MemoryError, OverflowError, RecursionError, SyntaxError, TypeError, ValueError,
              tokenize.TokenError)
    file = f"{place}.file: {path.parent}/{described.shown(path.name)}"
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("no regular file")
        if status.st_size > _available_bytes() // 4:  # the file's array and its copy
            raise ValueError(f"{status.st_size} bytes are too many for the free memory")
        data = torch.from_numpy(numpy.load(path, allow_pickle=False))
        return _zeros(data.shape, data.dtype).copy_(data)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or error}") from error
    except damage as error:
        raise ValueError(f"{file}: {(str(error) or type(error).__name__).splitlines()[0]}") from error


# ---- arguments


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
