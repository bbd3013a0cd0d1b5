# SPDX-License-Identifier: MIT
"""Captured graphs: what they depend on, updates by another capture, and what a capture forbids."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import numpy as np
import pytest
from hip_calls import KERNELS, address, call, made
from hip_program import code_object
from hip_runtime import HipError

KERNEL, COPY, FILL = 0, 1, 2


class Program:
    """64 numbers that a stream sets to a value, doubles, and copies to the host."""

    def __init__(self):
        self.module = made("hipModuleLoadData", code_object(KERNELS))
        self.twice = made("hipModuleGetFunction", self.module, b"twice")
        self.pointer, self.stream = made("hipMalloc", c_size_t(256)), made("hipStreamCreate")
        self.out = np.zeros(64, np.int32)

    def twice_of(self, n: int, stream: c_void_p, by_buffer: bool = False) -> None:
        values = [c_void_p(self.pointer.value), c_int(n)]
        params = (c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        buffer, size = (c_uint64 * 2)(self.pointer.value, n), c_size_t(16)
        extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        arguments = (None, extra) if by_buffer else (params, None)
        call("hipModuleLaunchKernel", self.twice, 1, 1, 1, 64, 1, 1, 0, stream, *arguments)

    def submit(self, value: int, n: int, by_buffer: bool = False) -> None:
        call("hipMemsetD32Async", self.pointer, value, c_size_t(64), self.stream)
        self.twice_of(n, self.stream, by_buffer)
        call("hipMemcpyAsync", address(self.out), self.pointer, c_size_t(256), 2, self.stream)

    def capture(self, value: int, n: int, by_buffer: bool = False) -> c_void_p:
        call("hipStreamBeginCapture", self.stream, 0)
        self.submit(value, n, by_buffer)
        graph = c_void_p()
        call("hipStreamEndCapture", self.stream, byref(graph))
        return graph

    def forked(self) -> c_void_p:
        """The fill on another stream, which the copy waits for."""
        side, graph = made("hipStreamCreate"), c_void_p()
        forked, joined = made("hipEventCreate"), made("hipEventCreate")
        call("hipStreamBeginCapture", self.stream, 0)
        call("hipEventRecord", forked, self.stream)
        call("hipStreamWaitEvent", side, forked, 0)
        call("hipMemsetD32Async", self.pointer, 3, c_size_t(64), side)
        call("hipEventRecord", joined, side)
        self.twice_of(64, self.stream)
        call("hipStreamWaitEvent", self.stream, joined, 0)
        call("hipMemcpyAsync", address(self.out), self.pointer, c_size_t(256), 2, self.stream)
        call("hipStreamEndCapture", self.stream, byref(graph))
        return graph

    def run(self, executable: c_void_p) -> list[int]:
        call("hipGraphLaunch", executable, self.stream)
        call("hipStreamSynchronize", self.stream)
        return sorted(set(self.out.tolist()))


@pytest.fixture
def program():
    return Program()


def nodes_of(graph: c_void_p) -> list[int]:
    """The kinds of its nodes."""
    count, nodes, kind = c_size_t(8), (c_void_p * 8)(), c_int()
    call("hipGraphGetNodes", graph, nodes, byref(count))
    found = []
    for node in nodes[:count.value]:
        call("hipGraphNodeGetType", c_void_p(node), byref(kind))
        found.append(kind.value)
    return found


def executable_of(graph: c_void_p) -> c_void_p:
    return made("hipGraphInstantiate", graph, None, None, c_size_t(0))


@pytest.mark.parametrize("by_buffer", (False, True), ids=("parameters", "buffer"))
def test_a_captured_call_keeps_its_arguments(program, by_buffer):
    graph = program.capture(3, 64, by_buffer)
    assert nodes_of(graph) == [FILL, KERNEL, COPY] and program.run(executable_of(graph)) == [6]


def refusal(executable: c_void_p, graph: c_void_p) -> tuple[int, int]:
    """hipGraphExecUpdateResult, and the kind of the node that differs (-1: none)."""
    failed, result, kind = c_void_p(), c_int(-1), c_int(-1)
    with pytest.raises(HipError, match="910: the graph has another shape"):
        call("hipGraphExecUpdate", executable, graph, byref(failed), byref(result))
    if failed:
        call("hipGraphNodeGetType", failed, byref(kind))
    return result.value, kind.value


def test_update_by_another_capture(program):
    executable, second = executable_of(program.capture(3, 64)), program.capture(4, 32)
    result = c_int(-1)
    call("hipGraphExecUpdate", executable, second, None, byref(result))
    assert result.value == 0 and program.run(executable) == [4, 8]
    call("hipStreamBeginCapture", program.stream, 0)
    for _ in range(3):
        program.twice_of(64, program.stream)
    graph = c_void_p()
    call("hipStreamEndCapture", program.stream, byref(graph))
    assert refusal(executable, graph) == (3, KERNEL)
    assert refusal(executable_of(program.forked()), second) == (2, KERNEL)
    call("hipStreamBeginCapture", program.stream, 0)
    call("hipStreamEndCapture", program.stream, byref(graph))
    assert refusal(executable, graph) == (2, -1) and program.run(executable) == [4, 8]


def test_what_a_capture_tells_of_itself(program):
    call("hipStreamBeginCapture", program.stream, 0)
    call("hipMemsetD32Async", program.pointer, 3, c_size_t(64), program.stream)
    status, serial, own = c_int(), c_uint64(), c_void_p()
    after, count = ctypes.POINTER(c_void_p)(), c_size_t()
    call("hipStreamGetCaptureInfo_v2", program.stream, byref(status), byref(serial), byref(own), byref(after),
         byref(count))
    kind, graph = c_int(), c_void_p()
    call("hipGraphNodeGetType", c_void_p(after[0]), byref(kind))
    assert (status.value, count.value, kind.value) == (1, 1, FILL) and serial.value > 0
    call("hipStreamEndCapture", program.stream, byref(graph))
    assert graph.value == own.value


def test_a_captured_graph_depends_as_its_streams_do(program):
    graph, same = program.forked(), program.forked()
    assert nodes_of(graph) == [FILL, KERNEL, COPY]
    executable, result = executable_of(graph), c_int(-1)
    call("hipGraphExecUpdate", executable, same, None, byref(result))
    assert result.value == 0 and refusal(executable_of(program.capture(3, 64)), graph) == (2, KERNEL)


def test_the_default_stream_during_a_capture(program):
    call("hipStreamBeginCapture", program.stream, 0)
    status = c_int()
    for ask in ("hipStreamIsCapturing", "hipStreamGetCaptureInfo"):
        with pytest.raises(HipError, match="906: the default stream was asked"):
            call(ask, None, byref(status), *([byref(c_uint64())] if ask != "hipStreamIsCapturing" else []))
    with pytest.raises(HipError, match="906: a fill that waits"):
        call("hipMemset", program.pointer, 0, c_size_t(4))
    graph = c_void_p()
    with pytest.raises(HipError, match="901"):
        call("hipStreamEndCapture", program.stream, byref(graph))


def test_a_stream_may_be_destroyed_while_it_captures(program):
    call("hipStreamBeginCapture", program.stream, 0)
    call("hipMemsetD32Async", program.pointer, 3, c_size_t(64), program.stream)
    call("hipStreamDestroy", program.stream)
    call("hipFree", made("hipMalloc", c_size_t(16)))               # no capture forbids it
    with pytest.raises(HipError, match="709"):
        call("hipStreamEndCapture", program.stream, byref(c_void_p()))


def test_a_graph_with_memory_has_one_executable(program):
    graph = c_void_p()
    call("hipStreamBeginCapture", program.stream, 0)
    call("hipFreeAsync", program.pointer, program.stream)
    call("hipStreamEndCapture", program.stream, byref(graph))
    first = executable_of(graph)
    with pytest.raises(HipError, match="801: a graph that allocates or frees"):
        executable_of(graph)
    call("hipGraphExecDestroy", first)
    call("hipGraphExecDestroy", executable_of(graph))
