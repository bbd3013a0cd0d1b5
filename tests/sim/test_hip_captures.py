# SPDX-License-Identifier: MIT
"""Captured graphs as programs change them: parameters of captured nodes, updates, captures into an older graph."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest
from hip_calls import KERNELS, Copy3D, KernelNode, address, call, made
from hip_program import code_object
from hip_runtime import HipError

KERNEL, COPY, FILL, HOST = 0, 1, 2, 3


class Fill(ctypes.Structure):
    _fields_ = [("to", c_void_p), ("element", c_uint32), ("height", c_size_t), ("pitch", c_size_t),
                ("value", c_uint32), ("width", c_size_t)]


class Program:
    """64 numbers that a stream sets to a value, doubles, and copies to the host."""

    def __init__(self):
        self.module = made("hipModuleLoadData", code_object(KERNELS))
        self.twice = made("hipModuleGetFunction", self.module, b"twice")
        self.pointer, self.stream = made("hipMalloc", c_size_t(256)), made("hipStreamCreate")
        self.out = np.zeros(64, np.int32)

    def kernel(self, n: int) -> KernelNode:
        values = [c_void_p(self.pointer.value), c_int(n)]
        pointers = (c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        node = KernelNode((64, 1, 1), None, self.twice.value, (1, 1, 1), ctypes.addressof(pointers), 0)
        node.kept = values, pointers
        return node

    def submit(self, value: int, n: int, by_buffer: bool = False) -> None:
        call("hipMemsetD32Async", self.pointer, value, c_size_t(64), self.stream)
        buffer, size = (c_uint64 * 2)(self.pointer.value, n), c_size_t(16)
        extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        node = self.kernel(n)  # Its arguments live as long as it does.
        params = None if by_buffer else c_void_p(node.params)
        call("hipModuleLaunchKernel", self.twice, 1, 1, 1, 64, 1, 1, 0, self.stream, params,
             extra if by_buffer else None)
        call("hipMemcpyAsync", address(self.out), self.pointer, c_size_t(256), 2, self.stream)

    def capture(self, value: int, n: int, by_buffer: bool = False) -> c_void_p:
        call("hipStreamBeginCapture", self.stream, 0)
        self.submit(value, n, by_buffer)
        graph = c_void_p()
        call("hipStreamEndCapture", self.stream, byref(graph))
        return graph

    def run(self, executable: c_void_p) -> list[int]:
        call("hipGraphLaunch", executable, self.stream)
        call("hipStreamSynchronize", self.stream)
        return sorted(set(self.out.tolist()))


@pytest.fixture
def program():
    return Program()


def nodes_of(graph: c_void_p) -> dict[int, c_void_p]:
    """Kind → the node of that kind."""
    count, nodes, kind = c_size_t(8), (c_void_p * 8)(), c_int()
    call("hipGraphGetNodes", graph, nodes, byref(count))
    found = {}
    for node in nodes[:count.value]:
        call("hipGraphNodeGetType", c_void_p(node), byref(kind))
        found[kind.value] = c_void_p(node)
    return found


@pytest.mark.parametrize("by_buffer", (False, True), ids=("parameters", "buffer"))
def test_captured_nodes_tell_what_they_do(program, by_buffer):
    graph = program.capture(3, 64, by_buffer)
    nodes, fill, copy, kernel = nodes_of(graph), Fill(), Copy3D(), KernelNode()
    call("hipGraphMemsetNodeGetParams", nodes[FILL], byref(fill))
    assert (fill.to, fill.element, fill.height, fill.value, fill.width) == (program.pointer.value, 4, 1, 3, 64)
    call("hipGraphMemcpyNodeGetParams", nodes[COPY], byref(copy))
    assert (copy.source.pointer, copy.target.pointer) == (program.pointer.value, program.out.ctypes.data)
    assert (copy.extent.width, copy.extent.height, copy.extent.depth) == (256, 1, 1)
    call("hipGraphKernelNodeGetParams", nodes[KERNEL], byref(kernel))
    assert (kernel.stub, list(kernel.grid), list(kernel.block)) == (program.twice.value, [1, 1, 1], [64, 1, 1])
    assert bool(kernel.params) != by_buffer and bool(kernel.extra) == by_buffer
    executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
    assert program.run(executable) == [6]
    fill.value = 5
    call("hipGraphExecMemsetNodeSetParams", executable, nodes[FILL], byref(fill))
    call("hipGraphExecKernelNodeSetParams", executable, nodes[KERNEL], byref(kernel))
    assert program.run(executable) == [10]
    call("hipGraphExecKernelNodeSetParams", executable, nodes[KERNEL], byref(program.kernel(32)))
    assert program.run(executable) == [5, 10]


def test_update_by_another_capture(program):
    first, second = program.capture(3, 64), program.capture(4, 32)
    executable = made("hipGraphInstantiate", first, None, None, c_size_t(0))
    failed, result = c_void_p(), c_int(-1)
    call("hipGraphExecUpdate", executable, second, byref(failed), byref(result))
    assert result.value == 0 and program.run(executable) == [4, 8]
    nodes = nodes_of(second)
    call("hipGraphRemoveDependencies", second, byref(nodes[KERNEL]), byref(nodes[COPY]), c_size_t(1))
    call("hipGraphAddDependencies", second, byref(nodes[FILL]), byref(nodes[COPY]), c_size_t(1))
    with pytest.raises(HipError, match="910: the graph has another shape"):
        call("hipGraphExecUpdate", executable, second, byref(failed), byref(result))
    assert result.value == 2 and failed.value == nodes[COPY].value


def test_a_child_may_be_destroyed_and_changed_afterwards(program):
    child, graph, node, own = program.capture(3, 64), made("hipGraphCreate", 0), c_void_p(), c_void_p()
    call("hipGraphAddChildGraphNode", byref(node), graph, None, c_size_t(0), child)
    call("hipGraphDestroy", child)
    call("hipGraphChildGraphNodeGetGraph", node, byref(own))
    clone = made("hipGraphClone", graph)
    call("hipGraphKernelNodeSetParams", nodes_of(own)[KERNEL], byref(program.kernel(32)))
    results = [program.run(made("hipGraphInstantiate", one, None, None, c_size_t(0))) for one in (graph, clone)]
    assert results == [[3, 6], [6]]


def test_nodes_by_call_beside_a_capture(program):
    """A capture tells the graph and what comes next after what; a program may add nodes itself in between."""
    graph = made("hipGraphCreate", 0)
    call("hipStreamBeginCaptureToGraph", program.stream, graph, None, None, c_size_t(0), 0)
    call("hipMemsetD32Async", program.pointer, 3, c_size_t(64), program.stream)
    status, serial, own = c_int(), c_uint64(), c_void_p()
    after, count, node = ctypes.POINTER(c_void_p)(), c_size_t(), c_void_p()
    call("hipStreamGetCaptureInfo_v2", program.stream, byref(status), byref(serial), byref(own), byref(after),
         byref(count))
    assert (status.value, own.value, count.value, after[0]) == (1, graph.value, 1, nodes_of(graph)[FILL].value)
    call("hipGraphAddKernelNode", byref(node), own, after, count, byref(program.kernel(16)))
    call("hipStreamUpdateCaptureDependencies", program.stream, byref(node), c_size_t(1), 1)
    call("hipMemcpyAsync", address(program.out), program.pointer, c_size_t(256), 2, program.stream)
    foreign = c_void_p()
    call("hipGraphAddEmptyNode", byref(foreign), made("hipGraphCreate", 0), None, c_size_t(0))
    with pytest.raises(HipError, match="another graph's"):
        call("hipStreamUpdateCaptureDependencies", program.stream, byref(foreign), c_size_t(1), 0)
    ended = c_void_p()
    call("hipStreamEndCapture", program.stream, byref(ended))
    assert ended.value == graph.value
    assert program.run(made("hipGraphInstantiate", graph, None, None, c_size_t(0))) == [3, 6]
    with pytest.raises(HipError, match="not capturing"):
        call("hipStreamUpdateCaptureDependencies", program.stream, None, c_size_t(0), 0)


def kinds_of_edges(graph: c_void_p) -> list[tuple[int, int]]:
    """(kind before, kind after) of each dependency."""
    count, kind = c_size_t(16), c_int()
    ends = (c_void_p * 16)(), (c_void_p * 16)()
    call("hipGraphGetEdges", graph, *ends, byref(count))
    found = []
    for pair in zip(*(end[:count.value] for end in ends), strict=True):
        kinds = []
        for node in pair:
            call("hipGraphNodeGetType", c_void_p(node), byref(kind))
            kinds.append(kind.value)
        found.append(tuple(kinds))
    return sorted(found)


def test_a_captured_graph_depends_as_its_streams_do(program):
    side, forked, joined = made("hipStreamCreate"), made("hipEventCreate"), made("hipEventCreate")
    call("hipStreamBeginCapture", program.stream, 0)
    call("hipEventRecord", forked, program.stream)
    call("hipStreamWaitEvent", side, forked, 0)
    call("hipMemsetD32Async", program.pointer, 3, c_size_t(64), side)
    call("hipEventRecord", joined, side)
    node = program.kernel(64)
    call("hipModuleLaunchKernel", program.twice, 1, 1, 1, 64, 1, 1, 0, program.stream, c_void_p(node.params), None)
    call("hipStreamWaitEvent", program.stream, joined, 0)
    call("hipMemcpyAsync", address(program.out), program.pointer, c_size_t(256), 2, program.stream)
    graph = c_void_p()
    call("hipStreamEndCapture", program.stream, byref(graph))
    assert kinds_of_edges(graph) == [(KERNEL, COPY), (FILL, COPY)]
    for event in (forked, joined):
        call("hipEventDestroy", event)


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
    graph, node = made("hipGraphCreate", 0), c_void_p()
    call("hipGraphAddMemFreeNode", byref(node), graph, None, c_size_t(0), program.pointer)
    first = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
    with pytest.raises(HipError, match="801: a graph that allocates or frees"):
        made("hipGraphInstantiate", graph, None, None, c_size_t(0))
    call("hipGraphExecDestroy", first)
    call("hipGraphExecDestroy", made("hipGraphInstantiate", graph, None, None, c_size_t(0)))


def test_what_nodes_refuse(program):
    graph, node = made("hipGraphCreate", 0), c_void_p()
    small = made("hipMalloc", c_size_t(4))
    with pytest.raises(HipError, match="1: the copy's source"):
        call("hipGraphAddMemcpyNode1D", byref(node), graph, None, c_size_t(0), program.pointer, small, c_size_t(256), 4)
    with pytest.raises(HipError, match="13: no variable"):
        call("hipGraphAddMemcpyNodeToSymbol", byref(node), graph, None, c_size_t(0), None, small, c_size_t(4),
             c_size_t(0), 4)
    nothing = KernelNode((64, 1, 1), None, program.twice.value, (1, 1, 1), None, 0)
    with pytest.raises(HipError, match="1: kernel twice takes arguments"):
        call("hipGraphAddKernelNode", byref(node), graph, None, c_size_t(0), byref(nothing))
    with pytest.raises(HipError, match="1: only the high marks"):
        call("hipDeviceSetGraphMemAttribute", 0, 1, byref(c_uint64(1)))
    child, other = program.capture(3, 64), made("hipGraphCreate", 0)
    call("hipGraphAddChildGraphNode", byref(node), graph, None, c_size_t(0), child)
    executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
    with pytest.raises(HipError, match="1: the child graph has other nodes"):
        call("hipGraphExecChildGraphNodeSetParams", executable, node, other)


def test_references_to_objects():
    gone = []
    destroy = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: gone.append(data))
    graph, thing = made("hipGraphCreate", 0), c_void_p()
    call("hipUserObjectCreate", byref(thing), c_void_p(7), destroy, 1, 1)
    call("hipGraphRetainUserObject", graph, thing, 2 ** 31 - 1, 0)
    call("hipUserObjectRelease", thing, 1)
    call("hipGraphReleaseUserObject", graph, thing, 2 ** 31 - 2)
    assert gone == []
    executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
    call("hipGraphReleaseUserObject", graph, thing, 5)             # more than it holds
    assert gone == []
    call("hipGraphExecDestroy", executable)
    assert gone == [7]
    call("hipUserObjectRelease", thing, 1)                         # it is gone already
    call("hipGraphReleaseUserObject", graph, thing, 1)
    assert gone == [7]
