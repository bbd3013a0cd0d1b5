# SPDX-License-Identifier: MIT
"""Nodes of graphs, their parameters and clones; libraries of kernels; launches of older programs."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest
from hip_calls import KERNELS, KernelNode, address, call, made, number
from hip_program import code_object, library
from hip_runtime import HipError


@pytest.fixture
def stub() -> int:
    program = library(KERNELS)
    program.stub_of_twice.restype = c_void_p
    return program.stub_of_twice()


def kernel_node(stub: int, pointer: c_void_p, n: int, groups: int) -> KernelNode:
    values = [c_void_p(pointer.value), c_int(n)]
    pointers = (c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    node = KernelNode((64, 1, 1), None, stub, (groups, 1, 1), ctypes.addressof(pointers), 0)
    node.kept = values, pointers
    return node


class TestGraphs:
    def test_nodes_are_changed_disabled_and_updated(self, stub):
        pointer, back = made("hipMalloc", c_size_t(512)), np.zeros(128, np.int32)
        graph, fill, kernel = made("hipGraphCreate", 0), c_void_p(), c_void_p()

        class Fill(ctypes.Structure):
            _fields_ = [("to", c_void_p), ("element", c_uint32), ("height", c_size_t), ("pitch", c_size_t),
                        ("value", c_uint32), ("width", c_size_t)]

        call("hipGraphAddMemsetNode", byref(fill), graph, None, c_size_t(0),
             byref(Fill(pointer.value, 4, 1, 512, 3, 128)))
        call("hipGraphAddKernelNode", byref(kernel), graph, byref(fill), c_size_t(1),
             byref(kernel_node(stub, pointer, 128, 2)))
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))

        def result() -> list[int]:
            call("hipGraphLaunch", executable, None)
            call("hipMemcpy", address(back), pointer, c_size_t(512), 2)
            return sorted(set(back.tolist()))

        assert result() == [6]
        read = KernelNode()
        call("hipGraphKernelNodeGetParams", kernel, byref(read))
        assert (read.stub, list(read.grid), list(read.block)) == (stub, [2, 1, 1], [64, 1, 1])
        assert ctypes.cast(ctypes.cast(read.params, ctypes.POINTER(c_void_p))[1], ctypes.POINTER(c_int))[0] == 128
        call("hipGraphExecKernelNodeSetParams", executable, kernel, byref(kernel_node(stub, pointer, 64, 1)))
        assert result() == [3, 6]
        call("hipGraphNodeSetEnabled", executable, kernel, 0)
        assert result() == [3]

    def test_enabled(self, stub):
        pointer, back = made("hipMalloc", c_size_t(256)), np.ones(64, np.int32)
        graph, kernel = made("hipGraphCreate", 0), c_void_p()
        call("hipGraphAddKernelNode", byref(kernel), graph, None, c_size_t(0),
             byref(kernel_node(stub, pointer, 64, 1)))
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        call("hipMemcpy", pointer, address(back), c_size_t(256), 1)
        for enabled, expected in ((0, 1), (1, 2), (1, 4)):
            call("hipGraphNodeSetEnabled", executable, kernel, enabled)
            found = c_uint32()
            call("hipGraphNodeGetEnabled", executable, kernel, byref(found))
            call("hipGraphLaunch", executable, None)
            call("hipMemcpy", address(back), pointer, c_size_t(256), 2)
            assert (found.value, set(back.tolist())) == (enabled, {expected})

    def test_shape_of_a_graph_and_of_its_clone(self, stub):
        pointer, graph = made("hipMalloc", c_size_t(256)), made("hipGraphCreate", 0)
        first, second, third = c_void_p(), c_void_p(), c_void_p()
        call("hipGraphAddEmptyNode", byref(first), graph, None, c_size_t(0))
        call("hipGraphAddKernelNode", byref(second), graph, byref(first), c_size_t(1),
             byref(kernel_node(stub, pointer, 64, 1)))
        call("hipGraphAddEmptyNode", byref(third), graph, (c_void_p * 2)(first.value, second.value), c_size_t(2))

        def edges(of: c_void_p) -> int:
            count = c_size_t()
            call("hipGraphGetEdges", of, None, None, byref(count))
            return count.value

        clone = made("hipGraphClone", graph)
        own = made("hipGraphNodeFindInClone", second, clone)
        assert own.value != second.value and edges(graph) == edges(clone) == 3
        call("hipGraphDestroyNode", second)
        assert (edges(graph), edges(clone)) == (1, 3)
        executable = made("hipGraphInstantiate", clone, None, None, c_size_t(0))
        failed, why = c_void_p(), c_int()
        with pytest.raises(HipError, match="910: the graph has another shape"):
            call("hipGraphExecUpdate", executable, graph, byref(failed), byref(why))
        assert why.value == 2
        call("hipGraphExecUpdate", executable, clone, byref(failed), byref(why))
        assert why.value == 0

    def test_memory_of_a_graph(self, stub):
        class Allocation(ctypes.Structure):
            _fields_ = [("pool", c_int * 22), ("accesses", c_void_p), ("count", c_size_t), ("bytes", c_size_t),
                        ("pointer", c_void_p)]

        wanted, graph, node = Allocation(bytes=256), made("hipGraphCreate", 0), c_void_p()
        used = c_uint64()
        call("hipDeviceGetGraphMemAttribute", 0, 0, byref(used))
        before = used.value
        call("hipGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(wanted))
        call("hipDeviceGetGraphMemAttribute", 0, 0, byref(used))
        assert wanted.pointer and used.value == before + 256
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        call("hipGraphLaunch", executable, None)
        call("hipMemset", c_void_p(wanted.pointer), 1, c_size_t(256))
        call("hipGraphDestroy", graph)
        call("hipGraphExecDestroy", executable)
        call("hipDeviceGetGraphMemAttribute", 0, 0, byref(used))
        assert used.value == before


class TestLibraries:
    def test_kernels_of_a_library(self):
        image = code_object(KERNELS)
        library = made("hipLibraryLoadData", ctypes.c_char_p(image), None, None, 0, None, None, 0)
        assert number("hipLibraryGetKernelCount", c_uint32, library) == 2
        kernel = made("hipLibraryGetKernel", library, b"twice")
        assert made("hipKernelGetLibrary", kernel).value == library.value
        name = ctypes.c_char_p()
        call("hipKernelGetName", byref(name), kernel)
        assert name.value == b"twice"
        offset, size = c_size_t(), c_size_t()
        call("hipKernelGetParamInfo", kernel, c_size_t(1), byref(offset), byref(size))
        assert (offset.value, size.value) == (8, 4)
        call("hipLibraryUnload", library)
        with pytest.raises(HipError, match="400: this is not a live library"):
            call("hipLibraryUnload", library)

    def test_launches_of_old_programs(self, stub):
        pointer, data = made("hipMalloc", c_size_t(256)), np.arange(64, dtype=np.int32)
        call("hipMemcpy", pointer, address(data), c_size_t(256), 1)

        class Dim3(ctypes.Structure):
            _fields_ = [(axis, c_uint32) for axis in "xyz"]

        call("hipConfigureCall", Dim3(1, 1, 1), Dim3(64, 1, 1), c_size_t(0), None)
        call("hipSetupArgument", byref(pointer), c_size_t(8), c_size_t(0))
        call("hipSetupArgument", byref(c_int(32)), c_size_t(4), c_size_t(8))
        call("hipLaunchByPtr", c_void_p(stub))
        back = np.zeros_like(data)
        call("hipMemcpy", address(back), pointer, c_size_t(256), 2)
        np.testing.assert_array_equal(back, np.where(data < 32, 2 * data, data))


class Fill(ctypes.Structure):
    _fields_ = [("to", c_void_p), ("element", c_uint32), ("height", c_size_t), ("pitch", c_size_t),
                ("value", c_uint32), ("width", c_size_t)]


class TestNodes:
    @pytest.fixture
    def pointer(self):
        taken = made("hipMalloc", c_size_t(64))
        call("hipMemset", taken, 0, c_size_t(64))
        yield taken
        call("hipFree", taken)

    @staticmethod
    def run(graph: c_void_p) -> c_void_p:
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        call("hipGraphLaunch", executable, None)
        return executable

    @staticmethod
    def node(name: str, graph: c_void_p, *arguments: object) -> c_void_p:
        return made(name, graph, None, c_size_t(0), *arguments)

    def test_copies_host_functions_and_children(self, pointer):
        data, other, seen = np.arange(16, dtype=np.uint8), np.arange(16, 32, dtype=np.uint8), []
        child, graph = made("hipGraphCreate", 0), made("hipGraphCreate", 0)
        copy = self.node("hipGraphAddMemcpyNode1D", child, pointer, address(data), c_size_t(16), 1)
        first = self.node("hipGraphAddChildGraphNode", graph, child)
        own = made_by_result("hipGraphChildGraphNodeGetGraph", first)
        with pytest.raises(HipError, match="the graph is a node's"):
            call("hipGraphDestroy", own)
        function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: seen.append(ctypes.string_at(pointer.value, 2)))

        class Host(ctypes.Structure):
            _fields_ = [("fn", c_void_p), ("data", c_void_p)]

        host = made("hipGraphAddHostNode", graph, byref(first), c_size_t(1),
                    byref(Host(ctypes.cast(function, c_void_p).value, None)))
        self.run(graph)
        assert seen == [b"\0\1"] and ctypes.string_at(pointer.value, 16) == data.tobytes()
        call("hipGraphMemcpyNodeSetParams1D", copy, pointer, address(other), c_size_t(16), 1)
        self.run(graph)
        assert seen[-1] == b"\0\1", "a child is copied when it is added"
        executable = self.run(child)
        assert ctypes.string_at(pointer.value, 16) == other.tobytes()
        call("hipGraphExecMemcpyNodeSetParams1D", executable, copy, c_void_p(pointer.value + 16), address(data),
             c_size_t(4), 1)
        call("hipGraphLaunch", executable, None)
        assert ctypes.string_at(pointer.value + 16, 5) == b"\0\1\2\3\0"
        with pytest.raises(HipError, match="of another kind"):
            call("hipGraphMemsetNodeSetParams", host, byref(Fill(pointer.value, 1, 1, 1, 1, 1)))

    def test_fills_are_read_and_changed(self, pointer):
        graph, found = made("hipGraphCreate", 0), Fill()
        node = self.node("hipGraphAddMemsetNode", graph, byref(Fill(pointer.value, 2, 2, 8, 0x102, 3)))
        executable = self.run(graph)
        assert ctypes.string_at(pointer.value, 16) == (b"\2\1" * 3 + b"\0\0") * 2
        call("hipGraphMemsetNodeGetParams", node, byref(found))
        assert (found.to, found.element, found.height, found.pitch, found.value, found.width) == (
            pointer.value, 2, 2, 8, 0x102, 3)
        call("hipGraphExecMemsetNodeSetParams", executable, node, byref(Fill(pointer.value, 1, 1, 1, 7, 2)))
        call("hipGraphLaunch", executable, None)
        assert ctypes.string_at(pointer.value, 4) == b"\7\7\2\1"
        call("hipGraphMemsetNodeSetParams", node, byref(Fill(pointer.value, 1, 1, 1, 8, 1)))
        self.run(graph)
        assert ctypes.string_at(pointer.value, 2) == b"\x08\7"

    def test_events(self):
        graph, event, other = made("hipGraphCreate", 0), made("hipEventCreate"), made("hipEventCreate")
        record = self.node("hipGraphAddEventRecordNode", graph, event)
        self.node("hipGraphAddEventWaitNode", graph, event)
        assert made_by_result("hipGraphEventRecordNodeGetEvent", record).value == event.value
        self.run(graph)
        milliseconds = ctypes.c_float()
        call("hipEventElapsedTime", byref(milliseconds), event, event)
        with pytest.raises(HipError, match="an event was not recorded"):
            call("hipEventElapsedTime", byref(milliseconds), event, other)
        call("hipGraphEventRecordNodeSetEvent", record, other)
        self.run(graph)
        call("hipEventElapsedTime", byref(milliseconds), event, other)
        assert milliseconds.value > 0

    def test_user_objects_go_with_the_last_graph(self):
        gone, graph = [], made("hipGraphCreate", 0)
        destroy = ctypes.CFUNCTYPE(None, c_void_p)(gone.append)
        thing = made("hipUserObjectCreate", c_void_p(9), destroy, 1, 1)
        call("hipGraphRetainUserObject", graph, thing, 1, 1)
        clone = made("hipGraphClone", graph)
        call("hipGraphDestroy", graph)
        assert gone == []
        call("hipGraphDestroy", clone)
        assert gone == [9]

    def test_a_picture(self, tmp_path):
        graph = made("hipGraphCreate", 0)
        first = self.node("hipGraphAddEmptyNode", graph)
        second = made("hipGraphAddEmptyNode", graph, byref(first), c_size_t(1))
        call("hipGraphDebugDotPrint", graph, str(tmp_path / "graph.dot").encode(), 0)
        assert "n0 -> n1;" in (tmp_path / "graph.dot").read_text()
        count, found = c_size_t(4), (c_void_p * 4)()
        call("hipGraphNodeGetDependencies", second, found, byref(count))
        assert (count.value, found[0]) == (1, first.value)
        call("hipGraphNodeGetDependentNodes", first, found, byref(count))
        assert (count.value, found[0]) == (1, second.value)
        call("hipGraphRemoveDependencies", graph, byref(first), byref(second), c_size_t(1))
        call("hipGraphNodeGetDependentNodes", first, None, byref(count))
        assert count.value == 0


def made_by_result(name: str, handle: c_void_p) -> c_void_p:
    """What a call writes through its second argument."""
    out = c_void_p()
    call(name, handle, byref(out))
    return out
