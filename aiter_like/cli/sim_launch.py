# SPDX-License-Identifier: MIT
"""A kernel of a code object with what it gets, from the options that `aiter-like sim run` and `sim profile` share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiter_like import sim
from aiter_like.build import code_object
from aiter_like.cli import described, sim_spec
from aiter_like.cli.sim_spec import Buffer

_MOST_IMAGE_BYTES = 1 << 30


def add_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds what a launch needs beside its file."""
    parser.add_argument("--kernel", required=required, help="name of the kernel")
    parser.add_argument("--grid", type=_sizes, required=required, metavar="X,Y,Z", help="workgroups")
    parser.add_argument("--block", type=_sizes, required=required, metavar="X,Y,Z", help="work-items per workgroup")
    parser.add_argument("--shared", type=_bytes, default=0, metavar="BYTES", help="dynamic LDS (default: %(default)s)")
    parser.add_argument("--args", type=Path, required=required, metavar="SPEC.json",
                        help="buffers and arguments" + (", see below" if required else ": aiter-like sim run --help"))


@dataclass(frozen=True)
class KernelLaunch:
    """A launch that can be made.

    Attributes:
        image: the code object.
        kernel: one of its kernels.
        spec: what it gets.
        grid, block: workgroups, and work-items of each.
        shared_bytes: dynamic LDS.
    """

    image: bytes
    kernel: code_object.Kernel
    spec: sim_spec.Spec
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int

    def run(self, buffers: Mapping[str, Buffer]) -> None:
        """Launches it with these contents of the buffers.

        Raises:
            SimulatorError: a checker reported something, or the launch failed.
        """
        used = self.spec.used(buffers)
        tensors = tuple(buffer and buffer.data for buffer in used)
        writable = [index for index, buffer in enumerate(used) if buffer and buffer.is_writable]
        kernargs = self.spec.kernargs(self.kernel, buffers)
        sim.checked_call(self.kernel.name, lambda *_: sim.launch(self.image, self.kernel.name, self.grid, self.block,
                                                                 self.shared_bytes, kernargs), tensors, writable)


def read(file: Path, args: argparse.Namespace) -> KernelLaunch:
    """The launch that the options describe.

    Raises:
        ValueError: the file, its kernel or the description is not what they have to be.
    """
    image = described.read_file(file, _MOST_IMAGE_BYTES)
    kernel = sim_spec.kernel_of(file, image, args.kernel)
    spec = sim_spec.read_spec(args.args)
    spec.kernargs(kernel, spec.buffers)
    return KernelLaunch(image, kernel, spec, args.grid, args.block, args.shared)


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
