# SPDX-License-Identifier: MIT
"""The setting `defer`: what a HIP program sees that synchronises, and one that forgets to."""

import contextlib
import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hip_program import code_object
from hip_runtime import HipError, Runtime, runtime

from aiter_like import sim

SOURCE = """
extern "C" __global__ void add(int* x, int value) { x[thread_index()] += value; }
extern "C" __global__ void copy(const int* from, int* to) { to[thread_index()] = from[thread_index()]; }
extern "C" __global__ void forever(int* x) { while (true) __builtin_amdgcn_s_sleep(1); }
"""
SEEDS = range(6)
NON_BLOCKING = 1


class Program:
    """Streams, pinned buffers of 64 integers, and the kernels above."""

    def __init__(self, hip: Runtime, module):
        self.hip, self.module = hip, module

    def create(self, call: str, *arguments: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.hip.call(call, ctypes.byref(handle), *arguments)
        return handle

    def stream(self, flags: int = NON_BLOCKING) -> ctypes.c_void_p:
        return self.create("hipStreamCreateWithFlags", flags)

    def pinned(self, value: int = 0) -> np.ndarray:
        address = self.create("hipHostMalloc", ctypes.c_size_t(256), 0)
        array = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int32)), (64,))
        array[:] = value
        return array

    def launch(self, kernel: str, stream: ctypes.c_void_p | None, *arguments: np.ndarray | int) -> None:
        values = [ctypes.c_uint64(argument if isinstance(argument, int) else argument.ctypes.data)
                  for argument in arguments]
        params = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.hip.call("hipModuleLaunchKernel", self.module.function(kernel), 1, 1, 1, 64, 1, 1, 0, stream, params,
                      None)

    def event(self, stream: ctypes.c_void_p | None) -> ctypes.c_void_p:
        event = self.create("hipEventCreate")
        self.hip.call("hipEventRecord", event, stream)
        return event


@contextlib.contextmanager
def deferred(seed: int, **settings) -> Iterator[Program]:
    with runtime().module(code_object(SOURCE)) as module:
        with sim.enabled(checks=False, defer=True, fuzz=seed, on_report="collect", **settings):
            yield Program(runtime(), module)


@pytest.mark.parametrize("synchronise", ["hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize",
                                         "hipStreamQuery", "hipEventQuery", "hipStreamDestroy", "hipMemcpy", "hipFree"])
@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_there_after_a_synchronisation_point(seed, synchronise):
    with deferred(seed) as program:
        x, stream = program.pinned(1), program.stream(0)
        program.launch("add", stream, x, 2)
        program.launch("add", stream, x, 3)
        event = program.event(stream)
        assert (x == 1).all(), "nobody has waited"
        if synchronise in ("hipStreamQuery", "hipEventQuery"):
            handle = stream if synchronise == "hipStreamQuery" else event
            polls = [getattr(sim.load(), synchronise)(handle) for _ in range(4)]
            assert polls[0] == 600 and polls[-1] == 0, "hipErrorNotReady first; asking often enough brings the result"
        elif synchronise == "hipMemcpy":                   # on the default stream, which waits for the others
            out = np.zeros(64, np.int32)
            program.hip.call("hipMemcpy", ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(x.ctypes.data),
                             ctypes.c_size_t(256), 4)
            assert (out == 6).all()
        elif synchronise == "hipFree":
            program.hip.call("hipFree", program.create("hipMalloc", ctypes.c_size_t(64)))
        else:
            arguments = {"hipDeviceSynchronize": (), "hipEventSynchronize": (event,)}.get(synchronise, (stream,))
            program.hip.call(synchronise, *arguments)
        assert (x == 6).all()


def _copied(seed: int, waits: bool, flags: int = NON_BLOCKING) -> int:
    """One stream writes 7, another copies: what the copy holds."""
    with deferred(seed) as program:
        x, y = program.pinned(0), program.pinned(-1)
        producer, consumer = program.stream(flags), program.stream(flags)
        program.launch("add", producer, x, 7)
        if waits:
            program.hip.call("hipStreamWaitEvent", consumer, program.event(producer), 0)
        program.launch("copy", consumer, x, y)
        program.hip.call("hipStreamSynchronize", consumer)
        return int(y[0])


def test_an_event_orders_two_streams_and_its_absence_shows():
    assert {_copied(seed, waits=True) for seed in SEEDS} == {7}
    assert _copied(0, waits=False) == 0, "seed 0 does only what is waited for"
    assert {_copied(seed, waits=False) for seed in range(1, 20)} == {0, 7}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_stream_waits_for_blocking_streams_and_they_for_it(seed):
    with deferred(seed) as program:
        x, y, z = program.pinned(0), program.pinned(-1), program.pinned(-1)
        first, second = program.stream(0), program.stream(0)
        program.launch("add", first, x, 7)
        program.launch("copy", None, x, y)
        program.launch("copy", second, y, z)
        program.hip.call("hipStreamSynchronize", second)
        assert (z == 7).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_and_an_asynchronous_free_are_deferred_too(seed):
    with deferred(seed) as program:
        x, stream, hip = program.pinned(0), program.stream(), program.hip
        block = program.create("hipMallocAsync", ctypes.c_size_t(256), stream)
        hip.call("hipStreamBeginCapture", stream, 0)
        program.launch("add", stream, x, 5)
        graph = ctypes.c_void_p()
        hip.call("hipStreamEndCapture", stream, ctypes.byref(graph))
        executable = program.create("hipGraphInstantiate", graph, None, None, ctypes.c_size_t(0))
        hip.call("hipMemsetAsync", block, 0, ctypes.c_size_t(256), stream)
        program.launch("add", stream, block.value, 3)
        program.launch("copy", stream, block.value, x)
        hip.call("hipFreeAsync", block, stream)
        hip.call("hipGraphLaunch", executable, stream)
        hip.call("hipGraphExecDestroy", executable)
        assert (x == 0).all()
        hip.call("hipStreamSynchronize", stream)
        assert (x == 8).all()


def test_a_failed_kernel_is_told_at_the_synchronisation_point():
    with deferred(0, instruction_limit=1000) as program:
        x, stream = program.pinned(0), program.stream()
        program.launch("forever", stream, x)
        with pytest.raises(HipError, match="hipStreamSynchronize: error 719: .*kernel forever.*endless loop"):
            program.hip.call("hipStreamSynchronize", stream)
        program.hip.call("hipStreamSynchronize", stream)
        with pytest.raises(HipError, match="hipModuleLaunchKernel.*has more than 1024 work-items"):
            program.hip.call("hipModuleLaunchKernel", program.module.function("forever"), 1, 1, 1, 1024, 2, 1, 0,
                             stream, (ctypes.c_void_p * 1)(x.ctypes.data), None)
        sim.take_reports()


def test_leaving_the_setting_executes_what_is_left():
    with deferred(0) as program:
        x = program.pinned(0)
        program.launch("add", None, x, 4)
        assert (x == 0).all()
    assert (x == 4).all()
