# SPDX-License-Identifier: MIT
"""Kernels of a code object with what they get, from the options that `aiter-like sim run`, `sim profile` and
`sim compare` share."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiter_like import sim
from aiter_like.cli.sim import spec as sim_spec
from aiter_like.cli.sim.spec import Buffer
from aiter_like.cli.sim.steps import Step
from aiter_like.modules import code_object


def add_options(parser: argparse.ArgumentParser, see: str = "aiter-like sim run --help") -> None:
    """Adds what a launch needs beside its file; `see` says where the format of SPEC.json is described."""
    parser.add_argument("--kernel", help="name of the kernel, as it is or as C++ has it (default: the only one)")
    parser.add_argument("--grid", type=_sizes, metavar="X,Y,Z", help="workgroups")
    parser.add_argument("--block", type=_sizes, metavar="X,Y,Z", help="work-items per workgroup")
    parser.add_argument("--shared", type=_bytes, default=0, metavar="BYTES", help="dynamic LDS (default: %(default)s)")
    parser.add_argument("--args", type=Path, metavar="SPEC.json", help=f"buffers, arguments, launches: {see}")


@dataclass(frozen=True)
class KernelLaunch:
    """A launch that can be made.

    Attributes:
        image: the code object.
        kernel: one of its kernels.
        step: its arguments.
        spec: the description that it is of, with the buffers.
        grid, block: workgroups, and work-items of each.
        shared_bytes: dynamic LDS.
    """

    image: bytes
    kernel: code_object.Kernel
    step: Step
    spec: sim_spec.Spec
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int

    def run(self, buffers: Mapping[str, Buffer]) -> None:
        """Launches it with these contents of the buffers."""
        used = self.step.used(self.kernel, buffers)
        tensors = tuple(buffer and buffer.data for buffer in used)
        writable = [index for index, buffer in enumerate(used) if buffer and buffer.is_writable]
        kernargs = self.step.kernargs(self.kernel, buffers)
        sim.checked_call(self.kernel.name, lambda *_: sim.launch(self.image, self.kernel.name, self.grid, self.block,
                                                                 self.shared_bytes, kernargs), tensors, writable)


def read(file: Path, args: argparse.Namespace) -> tuple[KernelLaunch, ...]:
    """The launches that the options describe, in their order, on the same buffers."""
    code = sim_spec.read_code(file)
    if args.args is None:
        raise ValueError(f"--args must name the description of what the kernel gets; aiter-like sim run --init {file} "
                         "writes one")
    only = next(iter(code.kernels)) if len(code.kernels) == 1 else ""
    if args.kernel is not None:
        only = code.kernel(args.kernel).name  # before buffers are filled
    spec = sim_spec.read_spec(args.args)
    return tuple(_launch(code, step, spec, only, args) for step in spec.steps)


def _launch(code: sim_spec.Code, step: Step, spec: sim_spec.Spec, only: str, args: argparse.Namespace) -> KernelLaunch:
    name = step.kernel or only
    if not name:
        raise ValueError(f"{step.place}: --kernel must be given, or kernel in the description; {code.file} has: "
                         f"{', '.join(code.kernels) or 'none'}")
    kernel = code.kernel(name)
    sizes = {"grid": step.grid or args.grid, "block": step.block or args.block}
    for option, size in sizes.items():
        if size is None:
            raise ValueError(f"{step.place}: --{option} must be given, or {option} in launches of the description")
    step.kernargs(kernel, spec.buffers)
    shared = args.shared if step.shared_bytes is None else step.shared_bytes
    return KernelLaunch(code.image, kernel, step, spec, sizes["grid"], sizes["block"], shared)


def _sizes(text: str) -> tuple[int, int, int]:
    """"4" → (4, 1, 1), "4,2" → (4, 2, 1)."""
    sizes = [int(part) for part in text.split(",")]  # argparse turns the ValueError into its message
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1 or max(sizes) >= 2**32:
        raise argparse.ArgumentTypeError(f"one to three sizes, from 1 to 2**32 - 1, separated by commas, got {text!r}")
    return (*sizes, 1, 1)[:3]


def _bytes(text: str) -> int:
    size = int(text)
    if not 0 <= size < 2**32:
        raise argparse.ArgumentTypeError(f"a count of bytes below 2**32, got {text!r}")
    return size
