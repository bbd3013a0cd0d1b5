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
