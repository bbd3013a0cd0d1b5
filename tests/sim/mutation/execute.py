# SPDX-License-Identifier: MIT
"""Runs mutants in child processes and says how each was noticed. A child that dies or hangs is replaced."""

import ctypes
import mmap
import multiprocessing
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection

from hip_runtime import HipError, Module, runtime

from aiter_like import sim
from mutation.kernels import Kernel, Launch

INSTRUCTION_LIMIT = 200_000  # per wave; the longest launch here executes a tenth of it
SECONDS = 60                 # of processor time for one task; then the child is killed
_GUARD = 1 << 16             # bytes between buffers
_ALL_CHECKS = sum(sim.CHECKS.values())


@dataclass(frozen=True)
class Outcome:
    """One launch: checks that reported, why it failed ("" = it ran to its end), what it wrote."""

    checks: frozenset[str]
    fault: str
    output: bytes


@dataclass(frozen=True)
class Verdict:
    """How a mutant was noticed: `by` is "checker", "fault", "output", or "" for not at all; seed 0: program order."""

    by: str
    detail: str = ""
    launch: str = ""
    seed: int = 0


class Machine:
    """Runs launches of one kernel on the simulator of this process; buffers stay where they are between runs."""

    def __init__(self, kernel: Kernel):
        self._hip, self._library, self._kernel = runtime(), sim.load(), kernel
        self._memory = [_Memory(launch) for launch in kernel.launches]
        self._expected: dict[int, bytes] = {}

    def run(self, module: Module, index: int, seed: int, is_checked: bool = True) -> Outcome:
        """One launch of this kernel in a loaded code object."""
        launch, memory = self._kernel.launches[index], self._memory[index]
        self._library.aiter_like_sim_configure(_ALL_CHECKS if is_checked else 0, 1, seed, 0, INSTRUCTION_LIMIT)
        memory.reset()
        fault = ""
        merged = memory.register(self._library)
        try:
            self._launch(module.function(self._kernel.symbol), launch, memory.arguments)
        except HipError as error:
            fault = str(error)
        finally:
            self._library.aiter_like_sim_unregister(merged, memory.bases)
        checks = frozenset(report["check"] for report in sim.take_reports()) - {"launch"}  # that one tells of the fault
        return Outcome(checks, fault, memory.output())

    def expected(self, index: int) -> bytes:
        """What the kernel itself writes."""
        if index not in self._expected:
            with self._hip.module(self._kernel.elf) as module:
                outcome = self.run(module, index, 0)
            if outcome.checks or outcome.fault:
                raise AssertionError(f"{self._kernel.name} {self._kernel.launches[index].name}: {outcome}"[:500])
            self._expected[index] = outcome.output
        return self._expected[index]

    def verdict(self, elf: bytes, seeds: Iterable[int], is_checked: bool = True) -> Verdict:
        """The first thing that gives the code object away, over all launches for each seed."""
        try:
            with self._hip.module(elf) as module:
                return self._verdict(module, seeds, is_checked)
        except HipError as error:
            return Verdict("fault", str(error))  # it does not load

    def _verdict(self, module: Module, seeds: Iterable[int], is_checked: bool) -> Verdict:
        for seed in seeds:
            for index, launch in enumerate(self._kernel.launches):
                expected, outcome = self.expected(index), self.run(module, index, seed, is_checked)
                if outcome.checks:
                    return Verdict("checker", "+".join(sorted(outcome.checks)), launch.name, seed)
                if outcome.fault:
                    return Verdict("fault", outcome.fault, launch.name, seed)
                if outcome.output != expected:
                    return Verdict("output", "", launch.name, seed)
        return Verdict("")

    def _launch(self, function: ctypes.c_void_p, launch: Launch, arguments: bytes) -> None:
        buffer, size = ctypes.create_string_buffer(arguments, len(arguments)), ctypes.c_size_t(len(arguments))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        self._hip.call("hipModuleLaunchKernel", function, *launch.grid, launch.block, 1, 1, launch.shared, None, None,
                       extra)
        self._hip.call("hipDeviceSynchronize")


class _Memory:
    """The buffers of a launch in one mapping, with room around each for what a mutant writes beside it."""

    def __init__(self, launch: Launch):
        self._buffers, self._offsets, end = launch.buffers, [], _GUARD
        for buffer in launch.buffers:
            self._offsets.append(end)
            end += -(-len(buffer.data) // _GUARD) * _GUARD + _GUARD
        self._map = mmap.mmap(-1, end)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._addresses = [base + offset for offset in self._offsets]
        self.bases = (ctypes.c_uint64 * len(self._addresses))()
        arguments = bytearray(launch.arguments)
        for offset, index, byte in launch.pointers:
            struct.pack_into("<Q", arguments, offset, self._addresses[index] + byte)
        self.arguments = bytes(arguments)

    def reset(self) -> None:
        """As before the launch."""
        for offset, buffer in zip(self._offsets, self._buffers):
            self._map[offset:offset + len(buffer.data)] = buffer.data

    def output(self) -> bytes:
        """All that the kernel may write."""
        return b"".join(self._map[offset:offset + len(buffer.data)]
                        for offset, buffer in zip(self._offsets, self._buffers) if buffer.is_output)

    def register(self, library: ctypes.CDLL) -> int:
        """Makes the buffers known to the checkers, each with its exact size."""
        count = len(self._buffers)
        self.bases[:] = self._addresses
        sizes = (ctypes.c_uint64 * count)(*[len(buffer.data) for buffer in self._buffers])
        names = (ctypes.c_char_p * count)(*[buffer.name.encode() for buffer in self._buffers])
        writable = (ctypes.c_uint8 * count)(*[buffer.is_output for buffer in self._buffers])
        return library.aiter_like_sim_register(count, self.bases, sizes, names, writable)


@dataclass(frozen=True)
class Task:
    """A code object of the kernel with this number, and the seeds to run it with."""

    kernel: int
    elf: bytes
    seeds: Sequence[int]
    is_checked: bool = True


def verdicts(kernels: Sequence[Kernel], tasks: Sequence[Task], processes: int = 0,
             done: Callable[[], None] = lambda: None) -> list[Verdict]:
    """A verdict per task. Children are forked, so that they share the simulator and start within milliseconds."""
    sim.load()
    found: list[Verdict | None] = [None] * len(tasks)
    queue = iter(enumerate(tasks))
    busy = [child for _ in range(processes or os.cpu_count() or 1) if (child := _Child(kernels)).give(queue)]
    while busy:
        connection.wait([child.pipe for child in busy], timeout=1)
        for child in list(busy):
            verdict = child.take()
            if verdict is None:
                continue
            found[child.number] = verdict
            done()
            if not child.alive:
                busy.remove(child)
                child = _Child(kernels)
                busy.append(child)
            if not child.give(queue):
                busy.remove(child)
                child.stop()
    return found


class _Child:
    """A forked process that runs tasks one after the other."""

    def __init__(self, kernels: Sequence[Kernel]):
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, kernels), daemon=True)
        self.process.start()
        theirs.close()
        self.alive, self.number, self.started = True, -1, 0.0

    def give(self, queue: Iterator[tuple[int, Task]]) -> bool:
        """Sends the next task; False: there is none."""
        self.number, task = next(queue, (-1, None))
        if task is not None:
            self.pipe.send(task)
            self.started = self._seconds()
        return task is not None

    def take(self) -> Verdict | None:
        """The verdict on the task at hand, None while there is none."""
        try:
            if self.pipe.poll():
                return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.alive = False
            self.process.join()
            return Verdict("fault", f"the process died (exit code {self.process.exitcode})")
        if self._seconds() - self.started < SECONDS:
            return None
        self.process.kill()
        self.process.join()
        self.alive = False
        return Verdict("fault", f"no end within {SECONDS} s")

    def _seconds(self) -> float:
        """Processor time of the process so far, which other work on the machine leaves alone; 0 where it has ended."""
        try:
            return time.clock_gettime(~self.process.pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
        except OSError:
            return 0.0

    def stop(self) -> None:
        """Ends the process, which waits for a task."""
        self.pipe.send(None)  # closing says nothing: children that were forked later hold this end too
        self.process.join()


def _serve(pipe: connection.Connection, kernels: Sequence[Kernel]) -> None:
    machines: dict[int, Machine] = {}
    while (task := _received(pipe)) is not None:
        if task.kernel not in machines:
            machines[task.kernel] = Machine(kernels[task.kernel])
        pipe.send(machines[task.kernel].verdict(task.elf, task.seeds, task.is_checked))


def _received(pipe: connection.Connection) -> Task | None:
    """The next task; None at the end, or when the parent is gone, which the pipe does not tell."""
    parent = multiprocessing.parent_process()
    while not pipe.poll(1):
        if not parent.is_alive():
            return None
    return pipe.recv()
