# SPDX-License-Identifier: MIT
"""The kernels and launches of the operators' own cases, as the simulator and Triton's launcher are given them."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from unittest import mock

import torch
from trace_library import recorded_launches

from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError
from aiter_like.jit.asm import AsmFunction
from aiter_like.jit.compile_ops import JitFunction
from aiter_like.modules import build
from mutation.kernels import Buffer, Kernel, Launch, captured, contents, device_code, triton_kernels

COMPILED = ("hip", "ck", "asm")
ONE_AFTER_ANOTHER = ("moe_permute",)
"""Operators whose later launches go by numbers of earlier ones: a launch alone, as mutants run, reads none of them, and
then races or faults without any mutant."""
SERVED = [(op.name, backend.name) for op in OPS.values() for backend in op.backends
          if backend.name not in ("torch", "vendor") and op.name not in ONE_AFTER_ANOTHER]
"""Every operator with each of its backends that has kernels of the project, but for ONE_AFTER_ANOTHER."""


def kernels(name: str, backend: str) -> list[Kernel]:
    """Of an operator and backend; a kernel has the launches of all cases that run it."""
    make = _compiled if backend in COMPILED else _of_triton
    found: dict[tuple[bytes, str], Kernel] = {}
    for case, args in OPS[name].cases(torch.device("cpu")).items():
        for kernel in make(name, backend, args):
            before = found.get((kernel.elf, kernel.symbol))
            launches = tuple(replace(launch, name=case) for launch in kernel.launches)
            found[kernel.elf, kernel.symbol] = replace(
                kernel, name=f"{name} {backend} #{len(found)}" if before is None else before.name,
                launches=(*(before.launches if before else ()), *launches))
    return list(found.values())


def _of_triton(name: str, backend: str, args: tuple) -> list[Kernel]:
    from aiter_like.sim import triton as simulated

    op = OPS[name]
    results = [args[index] for index in op.write_indices]
    kept = {_address(tensor) for tensor in _tensors(args)} - {_address(tensor) for tensor in _tensors(results)}
    with simulated.active(), captured() as calls:
        try:
            op(args, backend=backend)
        except UnsupportedError:
            return []
        finally:
            op.reset()
    return triton_kernels(calls, lambda tensor: _address(tensor) not in kept)  # scratch memory too


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _compiled(name: str, backend: str, args: tuple) -> Iterator[Kernel]:
    op, specs = OPS[name], []

    def noting(bind):
        def bound(self, target, args, **params):
            specs.append(self.spec(target, args, **params))
            return bind(self, target, args, **params)
        return bound

    buffers = _Buffers(op, args)
    op.reset()
    with (mock.patch.object(JitFunction, "bind", noting(JitFunction.bind)),
          mock.patch.object(AsmFunction, "bind", noting(AsmFunction.bind)),
          sim.enabled(checks=False), recorded_launches() as lines):
        try:
            op(args, backend=backend)
        except UnsupportedError:
            return
        finally:
            op.reset()
    images = [device_code(build.load_or_build(spec)) for spec in specs]
    for line in lines:
        symbol, x, y, z, block, lds_bytes, digits, *memory = line.split(" ")
        elf = next(image for image in images if symbol in sim.inspect(image))
        static = -(-sim.inspect(elf)[symbol]["lds_bytes"] // 512) * 512
        arguments = bytes.fromhex(digits)
        all_buffers = buffers.with_scratch(zip(map(int, memory[::2]), map(bytes.fromhex, memory[1::2])))
        yield Kernel("", elf, symbol, (Launch("", (int(x), int(y), int(z)), int(block), int(lds_bytes) - static,
                                              arguments, all_buffers.buffers, all_buffers.pointers(arguments)),))


class _Buffers:
    """The memory of a call's tensors, as it is before the call; views of one memory are one buffer."""

    def __init__(self, op: object, args: tuple):
        written = {id(tensor) for index in op.write_indices for tensor in _tensors((args[index],))}
        self._starts: dict[int, tuple[int, int]] = {}  # address -> bytes, number
        made: list[Buffer] = []
        for arg in _tensors(args):
            memory = arg.untyped_storage()
            start, data = memory.data_ptr(), contents(memory)
            is_output = any(id(other) in written and other.untyped_storage().data_ptr() == start
                            for other in _tensors(args))
            if data and start not in self._starts:
                self._starts[start] = (len(data), len(made))
                made.append(Buffer(f"tensor {len(made)}", data, is_output))
        self.buffers = tuple(made)

    def with_scratch(self, memory: Iterable[tuple[int, bytes]]) -> _Buffers:
        """With the memory (address, contents) of one launch that is no tensor's, but the operator's own."""
        more = copy.copy(self)
        more._starts = dict(self._starts)
        for address, data in memory:
            if not any(start <= address < start + size for start, (size, _) in more._starts.items()):
                more._starts[address] = (len(data), len(more.buffers))
                more.buffers = (*more.buffers, Buffer(f"scratch {len(more.buffers)}", data, True))
        return more

    def pointers(self, arguments: bytes) -> tuple[tuple[int, int, int], ...]:
        """Where `arguments` have addresses within the buffers."""
        found = []
        for offset in range(0, len(arguments) - 7, 8):
            (word,) = struct.unpack_from("<Q", arguments, offset)
            found += [(offset, number, word - start) for start, (size, number) in self._starts.items()
                      if start <= word < start + size]
        return tuple(found)


def _tensors(args: Iterable) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (tuple, list)):
            yield from _tensors(tuple(arg))
