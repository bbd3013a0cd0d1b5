# SPDX-License-Identifier: MIT
"""Arrays by every call that copies them, variables of kernels, the driver's nodes, attributes of kernels and nodes, and
the calls that only answer."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest
from hip_calls import KERNELS, Channels, Copy3D, Extent, KernelNode, Pitched, address, call, made, number
from hip_program import code_object, library
from hip_runtime import HipError, runtime

_TO_DEVICE, _TO_HOST = 1, 2

PROGRAM = """
__device__ int table[4];
extern "C" __global__ void copy_table(int* out) { if (thread_index() < 4) out[thread_index()] = table[thread_index()]; }
extern "C" void* stub_of_copy() { return (void*)&copy_table; }
extern "C" void* symbol_of_table() { return (void*)&table; }
"""


class Config(ctypes.Structure):
    _fields_ = [("grid", c_uint32 * 3), ("block", c_uint32 * 3), ("lds", c_size_t), ("stream", c_void_p),
                ("attributes", c_void_p), ("count", c_uint32)]


class Dim3(ctypes.Structure):
    _fields_ = [(axis, c_uint32) for axis in "xyz"]


class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                ("channels", c_uint32), ("flags", c_uint32)]


@pytest.fixture
def array():
    """6 rows of 9 uint16 in an array, and the same on the host."""
    data = np.random.default_rng().integers(0, 1 << 16, (6, 9), dtype=np.uint16)
    handle = made("hipMallocArray", byref(Channels(16, 0, 0, 0, 1)), c_size_t(9), c_size_t(6), 0)
    call("hipMemcpyHtoA", handle, c_size_t(0), address(data), c_size_t(data.nbytes))
    yield handle, data
    call("hipFreeArray", handle)


@pytest.fixture
def memory():
    taken = made("hipMalloc", c_size_t(1024))
    call("hipMemset", taken, 0, c_size_t(1024))
    yield taken
    call("hipFree", taken)


def numbers(pointer: c_void_p, count: int, dtype: type = np.uint16) -> np.ndarray:
    return np.frombuffer(ctypes.string_at(pointer.value, count * np.dtype(dtype).itemsize), dtype)


class TestArrays:
    def test_runs_of_elements(self, array, memory):
        handle, data = array
        flat, back = data.ravel(), np.zeros(20, np.uint16)
        call("hipMemcpyAtoD", memory, handle, c_size_t(2 * 5), c_size_t(2 * 20))
        np.testing.assert_array_equal(numbers(memory, 20), flat[5:25])
        call("hipMemcpyAtoHAsync", address(back), handle, c_size_t(2 * 30), c_size_t(40), None)
        np.testing.assert_array_equal(back, flat[30:50])
        call("hipMemcpyFromArray", address(back), handle, c_size_t(2), c_size_t(2), c_size_t(40), _TO_HOST)
        np.testing.assert_array_equal(back, flat[19:39])
        call("hipMemcpyFromArray_spt", address(back), handle, c_size_t(0), c_size_t(1), c_size_t(40), _TO_HOST)
        np.testing.assert_array_equal(back, flat[9:29])
        call("hipMemcpyDtoA", handle, c_size_t(0), memory, c_size_t(16))
        call("hipMemcpyHtoAAsync", handle, c_size_t(16), address(flat), c_size_t(8), None)
        call("hipMemcpyToArray", handle, c_size_t(0), c_size_t(2), address(flat), c_size_t(4), _TO_DEVICE)
        call("hipMemcpyAtoA", handle, c_size_t(2 * 40), handle, c_size_t(2 * 5), c_size_t(2 * 10))
        expected = flat.copy()
        expected[:8] = flat[5:13]
        expected[8:12] = flat[:4]
        expected[18:20] = flat[:2]
        expected[40:50] = expected[5:15].copy()
        after = np.zeros_like(flat)
        call("hipMemcpyAtoH", address(after), handle, c_size_t(0), c_size_t(flat.nbytes))
        np.testing.assert_array_equal(after, expected)

    def test_windows(self, array):
        handle, data = array
        window = np.zeros((3, 4), np.uint16)
        other = made("hipMallocArray", byref(Channels(16, 0, 0, 0, 1)), c_size_t(9), c_size_t(6), 0)
        for name, stream in (("hipMemcpy2DFromArray_spt", ()), ("hipMemcpy2DFromArrayAsync", (None,)),
                             ("hipMemcpy2DFromArrayAsync_spt", (None,))):
            window[:] = 0
            call(name, address(window), c_size_t(8), handle, c_size_t(4), c_size_t(1), c_size_t(8), c_size_t(3),
                 _TO_HOST, *stream)
            call("hipDeviceSynchronize")
            np.testing.assert_array_equal(window, data[1:4, 2:6])
        for name, stream in (("hipMemcpy2DToArray_spt", ()), ("hipMemcpy2DToArrayAsync", (None,)),
                             ("hipMemcpy2DToArrayAsync_spt", (None,))):
            window += 1
            call(name, other, c_size_t(2), c_size_t(2), address(window), c_size_t(8), c_size_t(8), c_size_t(3),
                 _TO_DEVICE, *stream)
            call("hipDeviceSynchronize")
            back = np.zeros((3, 4), np.uint16)
            call("hipMemcpy2DFromArray", address(back), c_size_t(8), other, c_size_t(2), c_size_t(2), c_size_t(8),
                 c_size_t(3), _TO_HOST)
            np.testing.assert_array_equal(back, window)
        call("hipMemcpy2DArrayToArray", other, c_size_t(0), c_size_t(0), handle, c_size_t(10), c_size_t(4), c_size_t(6),
             c_size_t(2), 3)
        call("hipMemcpy2DFromArray", address(window), c_size_t(8), other, c_size_t(0), c_size_t(0), c_size_t(6),
             c_size_t(2), _TO_HOST)
        np.testing.assert_array_equal(window[:2, :3], data[4:6, 5:8])
        call("hipFreeArray", other)

    def test_descriptors(self):
        volume = made("hipArray3DCreate", byref(Descriptor(5, 4, 3, 0x20, 2, 0)))
        found, channels = Descriptor(), Channels()
        call("hipArray3DGetDescriptor", byref(found), volume)
        assert (found.width, found.height, found.depth, found.format, found.channels) == (5, 4, 3, 0x20, 2)
        call("hipGetChannelDesc", byref(channels), volume)
        assert (channels.x, channels.y, channels.z, channels.kind) == (32, 32, 0, 2)
        data = np.random.default_rng().standard_normal((3, 4, 5, 2)).astype(np.float32)
        back = np.zeros_like(data)
        call("hipMemcpy3D", byref(Copy3D(source=Pitched(data.ctypes.data, 40, 5, 4), to_array=volume,
                                         extent=Extent(5, 4, 3), kind=1)))
        call("hipMemcpy3D", byref(Copy3D(from_array=volume, target=Pitched(back.ctypes.data, 40, 5, 4),
                                         extent=Extent(5, 4, 3), kind=2)))
        np.testing.assert_array_equal(back, data)
        call("hipArrayDestroy", volume)
        with pytest.raises(HipError, match="1, 2 or 4 channels"):
            made("hipArray3DCreate", byref(Descriptor(5, 4, 3, 0x20, 3, 0)))
        with pytest.raises(HipError, match="911: the channels of an array"):
            made("hipMallocArray", byref(Channels(7, 0, 0, 0, 0)), c_size_t(4), c_size_t(1), 0)


class TestVariables:
    @pytest.fixture
    def program(self):
        program = library(PROGRAM)
        program.stub_of_copy.restype = program.symbol_of_table.restype = c_void_p
        return program

    def table(self, program, memory) -> list[int]:
        """As a kernel sees it."""
        params = (c_void_p * 1)(ctypes.addressof(memory))
        config = Config((1, 1, 1), (64, 1, 1))
        call("hipLaunchKernelExC", byref(config), c_void_p(program.stub_of_copy()), params)
        return numbers(memory, 4, np.int32).tolist()

    def test_copies_to_and_from(self, program, memory):
        symbol, values = c_void_p(program.symbol_of_table()), np.array([3, 1, 4, 1], np.int32)
        call("hipMemcpyToSymbol_spt", symbol, address(values), c_size_t(16), c_size_t(0), _TO_DEVICE)
        assert self.table(program, memory) == [3, 1, 4, 1]
        call("hipMemcpyToSymbolAsync_spt", symbol, address(values), c_size_t(4), c_size_t(12), _TO_DEVICE, None)
        back = np.zeros(2, np.int32)
        for name, stream in (("hipMemcpyFromSymbol_spt", ()), ("hipMemcpyFromSymbolAsync_spt", (None,))):
            back[:] = 0
            call(name, address(back), symbol, c_size_t(8), c_size_t(8), _TO_HOST, *stream)
            call("hipDeviceSynchronize")
            assert back.tolist() == [4, 3]
        with pytest.raises(HipError, match="exceeds variable"):
            call("hipMemcpyToSymbol_spt", symbol, address(values), c_size_t(16), c_size_t(4), _TO_DEVICE)

    def test_nodes(self, program, memory):
        symbol, values = c_void_p(program.symbol_of_table()), np.arange(8, dtype=np.int32)
        graph = made("hipGraphCreate", 0)
        into = made("hipGraphAddMemcpyNodeToSymbol", graph, None, c_size_t(0), symbol, address(values), c_size_t(16),
                    c_size_t(0), _TO_DEVICE)
        made("hipGraphAddMemcpyNodeFromSymbol", graph, byref(into), c_size_t(1), memory, symbol, c_size_t(8),
             c_size_t(8), 3)
        executable = c_void_p()

        class Params(ctypes.Structure):
            _fields_ = [("failed", c_void_p), ("flags", c_uint64), ("result", c_int), ("stream", c_void_p)]

        call("hipGraphInstantiateWithParams", byref(executable), graph, byref(Params(flags=8)))
        flags = c_uint64()
        call("hipGraphExecGetFlags", executable, byref(flags))
        assert flags.value == 8
        call("hipGraphLaunch", executable, None)
        assert numbers(memory, 2, np.int32).tolist() == [2, 3]
        call("hipGraphExecMemcpyNodeSetParamsToSymbol", executable, into, symbol, c_void_p(values.ctypes.data + 16),
             c_size_t(16), c_size_t(0), _TO_DEVICE)
        call("hipGraphLaunch", executable, None)
        assert numbers(memory, 2, np.int32).tolist() == [6, 7]

    def test_the_threads_own_launches(self, program, memory):
        values, params = np.array([9, 8, 7, 6], np.int32), (c_void_p * 1)(ctypes.addressof(memory))
        call("hipMemcpyToSymbol", c_void_p(program.symbol_of_table()), address(values), c_size_t(16), c_size_t(0), 1)
        for name, lds in (("hipLaunchKernel_spt", c_size_t(0)), ("hipLaunchCooperativeKernel_spt", c_uint32(0))):
            call("hipMemset", memory, 0, c_size_t(16))
            call(name, c_void_p(program.stub_of_copy()), Dim3(1, 1, 1), Dim3(64, 1, 1), params, lds, None)
            call("hipStreamSynchronize_spt", None)
            assert numbers(memory, 4, np.int32).tolist() == [9, 8, 7, 6]


class TestNodes:
    def test_any_node_by_one_call(self, memory):
        class AnyNode(ctypes.Structure):
            _fields_ = [("kind", c_int), ("reserved", c_int * 3), ("bytes", ctypes.c_char * 232), ("last", c_uint64)]

        class Fill(ctypes.Structure):
            _fields_ = [("to", c_void_p), ("element", c_uint32), ("height", c_size_t), ("pitch", c_size_t),
                        ("value", c_uint32), ("width", c_size_t)]

        def fill(value: int) -> AnyNode:
            raw = bytes(Fill(memory.value, 1, 1, 1, value, 4))
            any_node = AnyNode(2)
            ctypes.memmove(ctypes.addressof(any_node) + 16, raw, len(raw))
            return any_node

        graph = made("hipGraphCreate", 0)
        node = made("hipGraphAddNode", graph, None, c_size_t(0), byref(fill(5)))
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        call("hipGraphLaunch", executable, None)
        assert ctypes.string_at(memory.value, 5) == b"\5\5\5\5\0"
        call("hipGraphExecNodeSetParams", executable, node, byref(fill(6)))
        call("hipGraphLaunch", executable, None)
        assert ctypes.string_at(memory.value, 4) == b"\6\6\6\6"
        with pytest.raises(HipError, match="801: nodes of type 8 are not simulated"):
            made("hipGraphAddNode", graph, None, c_size_t(0), byref(AnyNode(8)))

    def test_attributes_of_kernels(self, memory):
        program = library(KERNELS)
        program.stub_of_twice.restype = c_void_p
        values = [c_void_p(memory.value), c_int(4)]
        params = (c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        node_params = KernelNode((64, 1, 1), None, program.stub_of_twice(), (1, 1, 1), ctypes.addressof(params), 0)
        graph = made("hipGraphCreate", 0)
        first, second = (made("hipGraphAddKernelNode", graph, None, c_size_t(0), byref(node_params)) for _ in range(2))
        value, found = (c_int * 16)(3), (c_int * 16)(9)
        call("hipGraphKernelNodeSetAttribute", first, 8, value)
        call("hipGraphKernelNodeGetAttribute", second, 8, found)
        assert found[0] == 0
        call("hipGraphKernelNodeCopyAttributes", first, second)
        call("hipGraphKernelNodeGetAttribute", second, 8, found)
        assert found[0] == 3
        with pytest.raises(HipError, match="no such attribute"):
            call("hipGraphKernelNodeSetAttribute", first, 77, value)

    def test_copies_are_read_and_changed(self, memory):
        data, graph, found = np.arange(32, dtype=np.uint8), made("hipGraphCreate", 0), Copy3D()
        box = Copy3D(source=Pitched(data.ctypes.data, 8, 8, 4), target=Pitched(memory.value, 16, 8, 4),
                     extent=Extent(3, 2, 1), kind=1)
        node = made("hipGraphAddMemcpyNode", graph, None, c_size_t(0), byref(box))
        call("hipGraphMemcpyNodeGetParams", node, byref(found))
        assert bytes(found) == bytes(box)
        box.extent.width = 5
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        call("hipGraphLaunch", executable, None)
        assert ctypes.string_at(memory.value, 20) == bytes([0, 1, 2, *[0] * 13, 8, 9, 10, 0])
        call("hipGraphExecMemcpyNodeSetParams", executable, node, byref(box))
        call("hipGraphLaunch", executable, None)
        assert ctypes.string_at(memory.value, 21) == bytes([0, 1, 2, 3, 4, *[0] * 11, 8, 9, 10, 11, 12])


class TestAnswers:
    def test_of_a_device(self):
        major, minor = c_int(), c_int()
        call("hipDeviceComputeCapability", byref(major), byref(minor), 0)
        assert (major.value, minor.value) == (9, 4)
        assert number("hipDeviceGet", c_int, 0) == 0 and number("hipDeviceTotalMem", c_size_t, 0) == 192 << 30
        for name in ("hipCtxGetCacheConfig", "hipDeviceGetCacheConfig"):
            assert number(name, c_uint32) == 0
        for name in ("hipCtxGetSharedMemConfig", "hipDeviceGetSharedMemConfig"):
            assert number(name, c_uint32) == 1
        call("hipSetDeviceFlags", 4)
        assert number("hipGetDeviceFlags", c_uint32) & 7 == 4 == number("hipCtxGetFlags", c_uint32) & 7
        call("hipSetDeviceFlags", 0)
        with pytest.raises(HipError, match="these device flags do not exist"):
            call("hipSetDeviceFlags", 1 << 20)
        call("hipSetValidDevices", (c_int * 1)(0), 1)
        with pytest.raises(HipError, match="101: device 7 of 1"):
            call("hipSetValidDevices", (c_int * 1)(7), 1)
        for name in ("hipDeviceReset", "hipCtxSynchronize", "hipProfilerStart", "hipProfilerStop"):
            call(name)
        call("hipDeviceSetCacheConfig", 1)
        version = c_uint32()
        call("hipCtxGetApiVersion", made("hipCtxGetCurrent"), byref(version))
        assert version.value == number("hipRuntimeGetVersion", c_int) == number("hipDriverGetVersion", c_int)

    def test_of_kernels(self, tmp_path):
        (tmp_path / "kernels.co").write_bytes(code_object(KERNELS))
        whole = made("hipLibraryLoadFromFile", str(tmp_path / "kernels.co").encode(), None, None, 0, None, None, 0)
        kernels, names = (c_void_p * 3)(), set()
        call("hipLibraryEnumerateKernels", kernels, 3, whole)
        for kernel in kernels[:2]:
            name, value = c_char_p(), c_int()
            call("hipKernelGetName", byref(name), c_void_p(kernel))
            call("hipKernelGetAttribute", byref(value), 1, c_void_p(kernel), 0)
            assert made("hipKernelGetFunction", c_void_p(kernel)).value == kernel and value.value == 0
            names.add(name.value)
        assert names == {b"twice", b"more"} and kernels[2] is None
        call("hipLibraryUnload", whole)

    def test_of_mapped_memory(self):
        class Properties(ctypes.Structure):
            _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int), ("device", c_int),
                        ("metadata", c_void_p), ("flags", c_uint64)]

        size, found, flags = c_size_t(2 << 20), Properties(), c_uint64(9)
        space = made("hipMemAddressReserve", size, c_size_t(0), None, c_uint64(0))
        piece = made("hipMemCreate", size, byref(Properties(1, 1, 1, 0)), c_uint64(0))
        call("hipMemMap", space, size, c_size_t(0), piece, c_uint64(0))
        call("hipMemRelease", piece)
        again = made("hipMemRetainAllocationHandle", c_void_p(space.value + 5))
        assert again.value == piece.value
        call("hipMemGetAllocationPropertiesFromHandle", byref(found), again)
        assert (found.type, found.handles, found.device) == (1, 1, 0)
        call("hipMemGetAccess", byref(flags), (c_int * 2)(1, 0), space)
        assert flags.value == 0
        call("hipMemRelease", again)
        call("hipMemUnmap", space, size)
        with pytest.raises(HipError, match="not a live handle"):
            call("hipMemGetAllocationPropertiesFromHandle", byref(found), again)
        call("hipMemAddressFree", space, size)


@pytest.fixture
def stack():
    """Sets how large it is, until the test ends."""
    yield lambda size: call("hipDeviceSetLimit", 0, c_size_t(size))
    call("hipDeviceSetLimit", 0, c_size_t(1024))


def test_a_kernel_that_calls_itself_has_the_stack_that_is_set(stack):
    """Its compiler cannot tell how much it takes; hipLimitStackSize says what every work-item has."""
    source = """
__device__ __attribute__((noinline)) int sum_to(int n) {
  volatile int kept[8];
  kept[n & 7] = n;
  return n ? sum_to(n - 1) + kept[n & 7] : 0;
}
extern "C" __global__ void sums(int* out, int n) { out[thread_index()] = sum_to(n); }
"""
    sums = np.zeros(64, np.int32)
    with runtime().module(code_object(source)) as module, runtime().memory() as memory:
        out = memory.upload(sums)

        def sums_to(number: int) -> set[int]:
            runtime().launch(module.function("sums"), 1, 64, 0, [out, number])
            memory.download(out, sums)
            return set(sums.tolist())

        assert sums_to(5) == {15}
        with pytest.raises(HipError, match="scratch beyond the lane's 1024 bytes, as hipDeviceSetLimit"):
            sums_to(500)
        stack(131056)
        assert sums_to(500) == {125250}
