# SPDX-License-Identifier: MIT
"""`aiter-like sim`: `run` launches a kernel of any gfx942 code object on the simulated MI300X; `check`: sim_check.py.

SPEC.json says what the kernel gets, argument by argument; every mistake in it is named by its place:

    {"buffers": {"out":    {"dtype": "bf16", "shape": [4, 4096], "fill": "zeros", "output": true},
                 "input":  {"dtype": "bf16", "shape": [4, 4096], "fill": "random", "seed": 1},
                 "weight": {"file": "weight.npy"}},
     "arguments": [{"buffer": "out"}, {"buffer": "input"}, {"buffer": "weight"}, {"buffer": null},
                   {"type": "u32", "value": 8192}, {"type": "fp32", "value": 1e-6}]}
"""

from __future__ import annotations

import argparse
import contextlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes, sim
from aiter_like.build import code_object
from aiter_like.cli import sim_check
from aiter_like.sim import reports as sim_reports

_ARCH = "gfx942"
_SCALARS = {"bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
            "fp16": "e", "fp32": "f", "fp64": "d"}  # struct formats
# NumPy has no such types: their bits, for .npy files.
_BITS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fnuz: torch.uint8, torch.float8_e4m3fn: torch.uint8}

_EPILOG = f"""SPEC.json has two keys:
  buffers    name → {{"dtype", "shape", "fill"}} or {{"file": "x.npy"}}, a path beside SPEC.json.
             dtype: {', '.join(dtypes.DTYPES)}
             fill: "zeros", "random" (normal, integers over their range; "seed": 0) or a number
             "output": true: the kernel may write it, and it becomes DIR/<name>.npy (bf16 as uint16, fp8 as uint8)
             "scratch": true: the kernel may write it
  arguments  the kernel's explicit arguments in order; hidden ones are filled in:
             {{"buffer": name or null, "offset": bytes}}, {{"type", "value"}}, or {{"hex": "00ff…"}} for a struct
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


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `sim`; each of its parsers sets `run`: of the parsed arguments, returns the exit status."""
    actions = subparsers.add_parser("sim", help="the simulated MI300X").add_subparsers(dest="action", required=True)
    run = actions.add_parser("run", help="launch a kernel of a code object", epilog=_EPILOG,
                             formatter_class=argparse.RawDescriptionHelpFormatter,
                             description=f"Launches a kernel of a {_ARCH} code object, from any compiler, on the "
                                         "simulated MI300X.")
    run.add_argument("file", type=Path, metavar="FILE.co", help="ELF code object or uncompressed offload bundle")
    run.add_argument("--kernel", required=True, help="name of the kernel")
    run.add_argument("--grid", type=_sizes, required=True, metavar="X,Y,Z", help="workgroups")
    run.add_argument("--block", type=_sizes, required=True, metavar="X,Y,Z", help="work-items per workgroup")
    run.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic LDS (default: %(default)s)")
    run.add_argument("--args", type=Path, required=True, metavar="SPEC.json", help="buffers and arguments, see below")
    run.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where outputs go (default: here)")
    run.add_argument("--check", action="store_true", help="with all checkers; exit status 1 if one reports something")
    run.set_defaults(run=_run)
    sim_check.add_check(actions)


def _run(args: argparse.Namespace) -> int:
    image = _read(args.file)
    kernels = code_object.kernels(image, _ARCH)
    if args.kernel not in kernels:
        raise ValueError(f"{args.file} has no kernel {args.kernel}; it has: {', '.join(kernels) or 'none'}")
    kernel = kernels[args.kernel]
    buffers, arguments = _spec(args.args)
    kernargs = _kernargs(kernel, arguments, buffers, args.args)
    used = [buffers.get(argument.get("buffer")) for argument in arguments]  # by argument: reports count these
    tensors = tuple(buffer and buffer.data for buffer in used)
    writable = [index for index, buffer in enumerate(used) if buffer and buffer.is_writable]

    def launch(*_: Tensor) -> None:
        sim.launch(image, kernel.name, args.grid, args.block, args.shared, kernargs)

    sim.load()
    sim.reset_counters()
    sim.take_reports()  # like the counts: of this run alone, whatever ran before in this process
    with sim.enabled(checks=True, on_report="collect") if args.check else contextlib.nullcontext() as session:
        sim.checked_call(kernel.name, launch, tensors, writable)
    reports = session.reports if session else []
    for report in reports:
        print(sim_reports.text_of(report))
    for counts in sim.counters().values():
        print(f"{kernel.name}: {counts['workgroups']} workgroups, {counts['waves']} waves, "
              f"{counts['wave_instructions']} wave instructions")
    for name, buffer in buffers.items():
        if buffer.is_output:
            _save(args.output / f"{name}.npy", buffer.data)
    return 1 if reports else 0


# ---- SPEC.json


def _spec(path: Path) -> tuple[dict[str, Buffer], list[dict[str, Any]]]:
    """The buffers by name, filled, and the list of arguments."""
    try:
        spec = json.loads(_read(path))
    except ValueError as error:
        raise ValueError(f"{path}: no JSON: {error}") from error
    _keys(spec, {"buffers", "arguments"}, f"{path}", needed=("arguments",))
    buffers = spec.get("buffers", {})
    if not isinstance(buffers, dict) or not isinstance(spec["arguments"], list):
        raise ValueError(f"{path}: buffers must be an object and arguments a list")
    filled = {name: _buffer(entry, path.parent, f"{path}: buffers.{name}") for name, entry in buffers.items()}
    for index, argument in enumerate(spec["arguments"]):
        _keys(argument, {"buffer", "offset", "type", "value", "hex"}, f"{path}: arguments[{index}]")
    return filled, spec["arguments"]


def _buffer(entry: Any, folder: Path, place: str) -> Buffer:
    _keys(entry, {"dtype", "shape", "fill", "seed", "file", "output", "scratch"}, place)
    flags = [entry.get(name, False) for name in ("output", "scratch")]
    if not all(isinstance(flag, bool) for flag in flags):
        raise ValueError(f"{place}: output and scratch must be true or false")
    if "file" in entry:
        if extra := entry.keys() & {"dtype", "shape", "fill", "seed"}:
            raise ValueError(f"{place}: a file brings its own {', '.join(sorted(extra))}")
        data = _load(folder / str(entry["file"]), place)
    else:
        data = _filled(entry, place)
    if data.numel() == 0:
        raise ValueError(f"{place}: a buffer must have at least one element")
    return Buffer(data, flags[0], any(flags))


def _filled(entry: Mapping[str, Any], place: str) -> Tensor:
    dtype, shape, fill, seed = (entry.get(name) for name in ("dtype", "shape", "fill", "seed"))
    if dtype not in dtypes.DTYPES:
        raise ValueError(f"{place}.dtype must be one of {', '.join(dtypes.DTYPES)}, got {dtype!r}")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{place}.shape must be a list of sizes, got {shape!r}")
    kind = dtypes.DTYPES[dtype]
    generator = torch.Generator().manual_seed(_integer(seed or 0, 0, 2**63 - 1, f"{place}.seed"))
    if fill == "zeros":
        return torch.zeros(shape, dtype=kind)
    if fill == "random" and kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind)
    if fill == "random":
        low, high = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int64).to(kind)
    if isinstance(fill, (int, float)):
        return torch.full(shape, fill, dtype=torch.float64).to(kind)
    raise ValueError(f'{place}.fill must be "zeros", "random" or a number, got {fill!r}')


def _kernargs(kernel: code_object.Kernel, arguments: Sequence[Mapping[str, Any]], buffers: Mapping[str, Buffer],
              path: Path) -> bytes:
    """The argument segment up to the hidden arguments."""
    if len(arguments) != len(kernel.arguments):
        wanted = ", ".join(f"{argument.name or '?'} ({argument.size} bytes, {argument.kind})"
                           for argument in kernel.arguments)
        raise ValueError(f"{path}: {kernel.name} takes {len(kernel.arguments)} arguments, got {len(arguments)}; "
                         f"it takes: {wanted or 'none'}")
    segment = bytearray(max((wanted.offset + wanted.size for wanted in kernel.arguments), default=0))
    for index, (wanted, given) in enumerate(zip(kernel.arguments, arguments)):
        place = f"{path}: arguments[{index}]"
        packed = _argument(given, buffers, place)
        is_pointer = "buffer" in given
        if len(packed) != wanted.size or (wanted.kind == "global_buffer") > is_pointer:
            raise ValueError(f"{place}: {kernel.name} takes {wanted.name or 'an argument'} of {wanted.size} bytes "
                             f"({wanted.kind}) here, got {len(packed)} bytes{' (a buffer)' if is_pointer else ''}")
        segment[wanted.offset:wanted.offset + wanted.size] = packed
    return bytes(segment)


def _argument(given: Mapping[str, Any], buffers: Mapping[str, Buffer], place: str) -> bytes:
    """One argument as the bytes of the segment."""
    names = set(given)
    if names in ({"buffer"}, {"buffer", "offset"}):
        name = given["buffer"]
        if name is None:
            return bytes(8)
        if name not in buffers:
            raise ValueError(f"{place}: no buffer {name!r}; there are: {', '.join(buffers) or 'none'}")
        data = buffers[name].data
        offset = _integer(given.get("offset", 0), 0, data.nbytes - 1, f"{place}.offset")
        return struct.pack("<Q", data.data_ptr() + offset)
    if names == {"hex"}:
        try:
            return bytes.fromhex(given["hex"])
        except (ValueError, TypeError):
            raise ValueError(f"{place}.hex must be hexadecimal digits, got {given['hex']!r}") from None
    if names != {"type", "value"}:
        raise ValueError(f'{place} must be {{"buffer"}}, {{"buffer", "offset"}}, {{"type", "value"}} or {{"hex"}}, got '
                         f"{json.dumps(given)}")
    if given["type"] not in _SCALARS:
        raise ValueError(f"{place}.type must be one of {', '.join(_SCALARS)}, got {given['type']!r}")
    try:
        return struct.pack(f"<{_SCALARS[given['type']]}", given["value"])
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{place}: {given['value']!r} is no {given['type']}: {error}") from error


def _keys(value: Any, known: set[str], place: str, needed: Sequence[str] = ()) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{place} must be an object, got {json.dumps(value)}")
    if unknown := value.keys() - known:
        raise ValueError(f"{place} has no key {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
    for name in needed:
        if name not in value:
            raise ValueError(f"{place}: {name} is missing")


def _integer(value: Any, low: int, high: int, place: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{place} must be an integer from {low} to {high}, got {value!r}")
    return value


# ---- files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def _load(path: Path, place: str) -> Tensor:
    import numpy

    try:
        return torch.from_numpy(numpy.load(path, allow_pickle=False)).clone(memory_format=torch.contiguous_format)
    except (OSError, ValueError, TypeError) as error:  # TypeError: a dtype that torch does not have
        raise ValueError(f"{place}.file: {path}: {error}") from error


def _save(path: Path, data: Tensor) -> None:
    import numpy

    path.parent.mkdir(parents=True, exist_ok=True)
    numpy.save(path, (data.view(_BITS[data.dtype]) if data.dtype in _BITS else data).numpy())
    print(f"{path}: {dtypes.name(data.dtype) if data.dtype in dtypes.NAMES else data.dtype} {list(data.shape)}")


def _sizes(text: str) -> tuple[int, int, int]:
    """"4" → (4, 1, 1), "4,2" → (4, 2, 1)."""
    sizes = [int(part) for part in text.split(",")]  # argparse turns the ValueError into its message
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"one to three sizes, at least 1, separated by commas, got {text!r}")
    return (*sizes, 1, 1)[:3]
