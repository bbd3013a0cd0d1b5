# SPDX-License-Identifier: MIT
"""SPEC.json of `aiter-like sim run`: what the kernel gets, argument by argument. Every mistake is named by its place.

    {"buffers": {"out":    {"dtype": "bf16", "shape": [4, 4096], "fill": "zeros", "output": true},
                 "input":  {"dtype": "bf16", "shape": [4, 4096], "fill": "random", "seed": 1},
                 "weight": {"file": "weight.npy"}},
     "arguments": [{"buffer": "out"}, {"buffer": "input"}, {"buffer": "weight"}, {"buffer": null},
                   {"type": "u32", "value": 8192}, {"type": "fp32", "value": 1e-6}]}
"""

from __future__ import annotations

import importlib
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aiter_like import enums
from aiter_like.cli.sim import described
from aiter_like.cli.sim.steps import SCALARS, Buffer, Step, steps_of
from aiter_like.errors import did_you_mean
from aiter_like.modules import code_object
from aiter_like.sim.names import demangled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ARCH = "gfx942"
_MOST_BYTES, _MOST_IMAGE_BYTES = 64 << 20, 1 << 30  # the largest SPEC.json, the largest code object
_PAGE_BYTES = 4096
_MOST_SIZES = 32  # dimensions that every NumPy can write

DESCRIPTION = f"""SPEC.json has two keys (--init writes one for a code object, to be changed):
  buffers    name → {{"dtype", "shape", "fill"}} or {{"file": "x.npy"}}, a path beside SPEC.json.
             dtype: {', '.join(enums.DTYPES.values())}
             fill: "zeros", "random" (normal, integers over their range; "seed": 0) or a number
             "output": true: the kernel may write it, and it becomes DIR/<name>.npy (bf16 as uint16, fp8 as uint8)
             "scratch": true: the kernel may write it
  arguments  the kernel's explicit arguments in order, or by name; hidden ones are filled in:
             {{"buffer": name or null, "offset": bytes}}, {{"type", "value"}}, or for a struct {{"hex": "00ff…"}} and,
             where it holds addresses, "pointers": {{"8": name}}, the place in bytes of each
             type: {', '.join(SCALARS)}
Several kernels one after the other, on the same buffers: "launches" instead of "arguments", a list of
             {{"kernel": name, "grid": [x, y, z], "block": [x, y, z], "shared": bytes, "arguments": as above}}; what one
             leaves out is the command line's. A kernel's name may be that of its C++ function."""


@dataclass(frozen=True)
class Spec:
    """A description that has been read.

    Attributes:
        place: what messages call it.
        buffers: by name, filled.
        steps: the launches, one after the other, on these buffers.
    """

    place: str
    buffers: dict[str, Buffer]
    steps: tuple[Step, ...]


def read_spec(path: Path) -> Spec:
    """The description in a file, its buffers filled."""
    return spec_of(described.read_json(path, _MOST_BYTES), path, f"{path}")


def spec_of(spec: Any, beside: Path, place: str) -> Spec:
    """A description that is an object of JSON already, its buffers filled.

    Args:
        beside: the file beside which the files of its buffers are.
        place: what messages call it.
    """
    described.require_keys(spec, {"buffers", "arguments", "launches"}, place)
    if "arguments" not in spec and "launches" not in spec:
        raise ValueError(f"{place}: arguments is missing, or launches, a list of several")
    if "arguments" in spec and "launches" in spec:
        raise ValueError(f"{place} must have arguments, for one launch, or launches, not both")
    buffers = spec.get("buffers", {})
    if not isinstance(buffers, dict):
        raise ValueError(f"{place}: buffers must be an object, got {described.GOT.repr(buffers)}")
    steps = steps_of(spec, place)
    filled = {name: _buffer(name, entry, beside.parent, f"{place}: buffers.{described.shown(name)}")
              for name, entry in buffers.items()}
    return Spec(place, filled, steps)


def function_name(readable: str) -> str:
    """"scale" of "scale(float*, int)" and of "scale<4>(float*)", without template arguments and parameters."""
    depth = 0
    for at, letter in enumerate(readable):
        if letter == "(" and depth == 0 and not readable.startswith("(anonymous namespace)", at):
            return readable[:at].split("<")[0]
        depth += (letter == "<") - (letter == ">")
    return readable


@dataclass(frozen=True)
class Code:
    """A code object that has been read, and its kernels by name."""

    file: Path
    image: bytes
    kernels: dict[str, code_object.Kernel]

    def kernel(self, name: str) -> code_object.Kernel:
        """The kernel of that name, as it is or as C++ has it."""
        if name in self.kernels:
            return self.kernels[name]
        readable = {mangled: demangled(mangled) for mangled in self.kernels}
        found = [mangled for mangled, text in readable.items() if name in (text, function_name(text))]
        if len(found) == 1:
            return self.kernels[found[0]]
        if found:
            raise ValueError(f"{self.file} has {len(found)} kernels {name}: "
                             f"{', '.join(readable[one] for one in found)}")
        like = did_you_mean(name, [function_name(text) for text in readable.values()])
        raise ValueError(f"{self.file} has no kernel {name}; it has: {', '.join(self.kernels) or 'none'}{like}")


def read_code(file: Path) -> Code:
    """The code object in a file."""
    described.require_kind(file, "code object")
    image = described.read_file(file, _MOST_IMAGE_BYTES)
    try:
        return Code(file, image, code_object.kernels(image, ARCH))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


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


def numpy_for(place: str) -> ModuleType:
    """NumPy, which reads and writes .npy files."""
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise ValueError(f"{place}: .npy files need NumPy, which is not installed (pip install numpy)") from error


def _load(path: Path, place: str) -> Tensor:
    """The array of a .npy file."""
    import tokenize

    import torch

    numpy = numpy_for(f"{place}.file")
    # Errors of numpy.load for damaged headers, which are Python literals, and of torch for dtypes that it lacks.
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
