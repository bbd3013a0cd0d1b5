# SPDX-License-Identifier: MIT
"""HIP's calls that are forms of others: for the thread's own stream, for the driver's structures, many at a time; and
what may be said of memory and asked about it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest
from hip_calls import KERNELS, Copy3D, Extent, Pitched, address, call, made, number
from hip_program import code_object, library
from hip_runtime import HipError, runtime

_DEFAULT = 4  # hipMemcpyDefault


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Side2D(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("kind", c_int), ("host", c_void_p), ("device", c_void_p),
                ("array", c_void_p), ("pitch", c_size_t)]


class Driver2D(ctypes.Structure):
    _fields_ = [("source", Side2D), ("target", Side2D), ("width", c_size_t), ("height", c_size_t)]


class Side3D(ctypes.Structure):
    _fields_ = [("x", c_size_t), ("y", c_size_t), ("z", c_size_t), ("lod", c_size_t), ("kind", c_int),
                ("host", c_void_p), ("device", c_void_p), ("array", c_void_p), ("pitch", c_size_t),
                ("height", c_size_t)]


class Driver3D(ctypes.Structure):
    _fields_ = [("source", Side3D), ("target", Side3D), ("width", c_size_t), ("height", c_size_t),
                ("depth", c_size_t)]


@pytest.fixture
def pointer():
    taken = made("hipMalloc", c_size_t(4096))
    call("hipMemset", taken, 0, c_size_t(4096))
    yield taken
    call("hipFree", taken)


def content(pointer: c_void_p, count: int = 4096) -> bytes:
    return ctypes.string_at(pointer.value, count)


class TestOwnStream:
    def test_copies_and_fills(self, pointer):
        data = np.random.default_rng().integers(1, 255, (8, 16), dtype=np.uint8)
        call("hipMemset_spt", pointer, 1, c_size_t(64))
        call("hipMemset2D_spt", c_void_p(pointer.value + 64), c_size_t(32), 2, c_size_t(16), c_size_t(2))
        call("hipMemset2DAsync_spt", c_void_p(pointer.value + 128), c_size_t(32), 3, c_size_t(16), c_size_t(2), None)
        volume = Pitched(pointer.value + 192, 16, 16, 2)
        call("hipMemset3D_spt", volume, 4, Extent(8, 2, 2))
        call("hipMemset3DAsync_spt", volume, 5, Extent(4, 1, 2), None)
        call("hipStreamSynchronize_spt", None)
        half = bytes(16)
        rows = [bytes([5] * 4 + [4] * 4 + [0] * 8), bytes([4] * 8 + [0] * 8)] * 2
        assert content(pointer, 256) == b"".join([bytes([1] * 64), bytes([2] * 16), half, bytes([2] * 16), half,
                                                  bytes([3] * 16), half, bytes([3] * 16), half, *rows])
        target = c_void_p(pointer.value + 1024)
        call("hipMemcpy2D_spt", target, c_size_t(32), address(data), c_size_t(16), c_size_t(16), c_size_t(8), _DEFAULT)
        window = np.zeros((4, 8), np.uint8)
        call("hipMemcpy2DAsync_spt", address(window), c_size_t(8), c_void_p(target.value + 36), c_size_t(32),
             c_size_t(8), c_size_t(4), _DEFAULT, None)
        call("hipStreamSynchronize_spt", None)
        np.testing.assert_array_equal(window, data[1:5, 4:12])
        for name, stream in (("hipMemcpy3D_spt", ()), ("hipMemcpy3DAsync_spt", (None,))):
            window[:] = 0
            box = Copy3D(source=Pitched(target.value, 32, 16, 8), target=Pitched(window.ctypes.data, 8, 8, 4),
                         extent=Extent(8, 4, 1), kind=_DEFAULT)
            call(name, byref(box), *stream)
            call("hipStreamSynchronize_spt", None)
            np.testing.assert_array_equal(window, data[:4, :8])

    def test_capture_and_questions(self, pointer):
        stream, graph, event = made("hipStreamCreateWithFlags", 1), c_void_p(), made("hipEventCreate")
        call("hipStreamBeginCapture_spt", stream, 0)
        status, flags, priority, serial = c_int(), c_uint32(), c_int(), c_uint64()
        call("hipStreamIsCapturing_spt", stream, byref(status))
        call("hipStreamGetCaptureInfo_spt", stream, byref(status), byref(serial))
        assert status.value == 1 and serial.value > 0
        call("hipMemsetAsync_spt", pointer, 9, c_size_t(8), stream)
        call("hipStreamEndCapture_spt", stream, byref(graph))
        assert content(pointer, 8) == bytes(8)
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        call("hipGraphLaunch_spt", executable, None)
        call("hipEventRecord_spt", event, None)
        call("hipStreamWaitEvent_spt", None, event, 0)
        call("hipStreamQuery_spt", None)
        call("hipStreamGetFlags_spt", stream, byref(flags))
        call("hipStreamGetPriority_spt", stream, byref(priority))
        assert (content(pointer, 8), flags.value, priority.value) == (bytes([9] * 8), 1, 0)
        seen = []
        callback = ctypes.CFUNCTYPE(None, c_void_p)(seen.append)
        call("hipLaunchHostFunc_spt", None, callback, c_void_p(5))
        assert seen == [5]
        found = c_void_p()
        call("hipGetProcAddress_spt", b"hipMemcpy", byref(found), 0, c_uint64(0), None)
        assert found.value == ctypes.cast(runtime()._library.hipMemcpy_spt, c_void_p).value


class TestDriverForms:
    def test_boxes(self, pointer):
        data = np.random.default_rng().integers(1, 255, (3, 4, 8), dtype=np.uint8)
        whole = Side3D(kind=1, host=data.ctypes.data, pitch=8, height=4)
        place = Side3D(kind=2, device=pointer.value, pitch=16, height=5)
        call("hipDrvMemcpy3D", byref(Driver3D(whole, place, 8, 4, 3)))
        back = np.zeros((2, 2, 5), np.uint8)
        call("hipDrvMemcpy3DAsync", byref(Driver3D(Side3D(3, 1, 1, kind=2, device=pointer.value, pitch=16, height=5),
                                                   Side3D(kind=1, host=back.ctypes.data, pitch=5, height=2), 5, 2, 2)),
             None)
        np.testing.assert_array_equal(back, data[1:3, 1:3, 3:8])
        for name in ("hipMemcpyParam2D", "hipDrvMemcpy2DUnaligned"):
            flat = np.zeros((2, 3), np.uint8)
            call(name, byref(Driver2D(Side2D(2, 1, 2, device=pointer.value, pitch=16),
                                      Side2D(kind=1, host=flat.ctypes.data, pitch=3), 3, 2)))
            np.testing.assert_array_equal(flat, data[0, 1:3, 2:5])
        with pytest.raises(HipError, match="memory type 5 is none of hipMemoryType"):
            call("hipMemcpyParam2D", byref(Driver2D(Side2D(kind=5), Side2D(kind=1, host=1), 1, 1)))

    @pytest.mark.parametrize("name, kind, value", [("D8", ctypes.c_uint8, 0x21), ("D16", c_uint16, 0x4321),
                                                   ("D32", c_uint32, 0x87654321)])
    def test_fills_of_rows(self, pointer, name, kind, value):
        size = ctypes.sizeof(kind)
        call(f"hipMemsetD2{name}", pointer, c_size_t(64), kind(value), c_size_t(5), c_size_t(3))
        call(f"hipMemsetD2{name}Async", c_void_p(pointer.value + 256), c_size_t(64), kind(value), c_size_t(2),
             c_size_t(2), None)
        line = value.to_bytes(size, "little")
        assert content(pointer, 192) == (line * 5).ljust(64, b"\0") * 3
        assert content(c_void_p(pointer.value + 256), 128) == (line * 2).ljust(64, b"\0") * 2

    def test_copies_at_once(self, pointer):
        data = np.arange(64, dtype=np.uint8)
        to = (c_void_p * 2)(pointer.value + 8, pointer.value + 32)
        sources, sizes = (c_void_p * 2)(data.ctypes.data, data.ctypes.data + 10), (c_size_t * 2)(4, 5)
        call("hipMemcpyBatchAsync", to, sources, sizes, c_size_t(2), None, None, c_size_t(0), None, None)
        assert content(pointer, 40) == bytes(8) + bytes(range(4)) + bytes(20) + bytes(range(10, 15)) + bytes(3)


class TestAboutMemory:
    def test_advice_is_remembered(self):
        memory = made("hipMallocManaged", c_size_t(4096), 1)

        def ask(which: int) -> int:
            found = c_int()
            call("hipMemRangeGetAttribute", byref(found), c_size_t(4), which, memory, c_size_t(4096))
            return found.value

        assert [ask(which) for which in (1, 2, 3, 4, 100)] == [0, -2, -2, -2, 0]
        call("hipMemAdvise", memory, c_size_t(4096), 1, 0)
        call("hipMemAdvise_v2", memory, c_size_t(4096), 3, Location(2, 0))
        call("hipMemAdvise", memory, c_size_t(4096), 5, 0)
        call("hipMemPrefetchAsync", memory, c_size_t(4096), 0, None)
        assert [ask(which) for which in (1, 2, 3, 4)] == [1, -1, 0, 0]
        call("hipMemPrefetchAsync_v2", memory, c_size_t(4096), Location(2, 0), 0, None)
        assert ask(4) == -1
        with pytest.raises(HipError, match="not in one known allocation"):
            call("hipMemAdvise", memory, c_size_t(8192), 1, 0)
        with pytest.raises(HipError, match="none of hipMemoryAdvise"):
            call("hipMemAdvise", memory, c_size_t(4096), 50, 0)
        call("hipFree", memory)

    def test_many_attributes_of_a_pointer(self, pointer):
        which, kind, base, size = (c_int * 3)(2, 11, 12), c_uint32(), c_uint64(), c_uint64()
        data = (c_void_p * 3)(*(ctypes.addressof(one) for one in (kind, base, size)))
        call("hipDrvPointerGetAttributes", 3, which, data, c_void_p(pointer.value + 100))
        assert (kind.value, base.value, size.value) == (2, pointer.value, 4096)
        call("hipDrvPointerGetAttributes", 3, which, data, address(np.zeros(4)))
        assert (kind.value, base.value, size.value) == (0, 0, 0)
        found = c_size_t()
        call("hipMemPtrGetInfo", c_void_p(pointer.value + 5), byref(found))
        assert found.value == 4096

    def test_pools_by_location(self):
        place = Location(1, 0)
        pool = made("hipMemGetDefaultMemPool", byref(place), 1)
        assert pool.value == made("hipDeviceGetDefaultMemPool", 0).value
        assert pool.value == made("hipMemGetMemPool", byref(place), 1).value
        with pytest.raises(HipError, match="801: only devices have memory pools here"):
            made("hipMemGetMemPool", byref(Location(2, 0)), 1)


class TestMore:
    def test_operations_on_memory_at_once(self, pointer):
        class Operation(ctypes.Structure):
            _fields_ = [("operation", c_int), ("address", c_void_p), ("value", c_uint64), ("flags", c_uint32),
                        ("alias", c_void_p), ("rest", c_uint64)]

        operations = (Operation * 4)(Operation(2, pointer.value, 5), Operation(5, pointer.value + 8, 1 << 35),
                                     Operation(1, pointer.value, 5, 1), Operation(6))
        call("hipStreamBatchMemOp", None, 4, operations, 0)
        assert np.frombuffer(content(pointer, 16), np.uint64).tolist() == [5, 1 << 35]
        with pytest.raises(HipError, match="none of hipStreamMemOp"):
            call("hipStreamBatchMemOp", None, 1, (Operation * 1)(Operation(9)), 0)

    def test_masks_of_compute_units(self):
        stream, words = made("hipExtStreamCreateWithCUMask", 2, (c_uint32 * 2)(0xf0, 1)), (c_uint32 * 3)()
        call("hipExtStreamGetCUMask", stream, 3, words)
        assert list(words) == [0xf0, 1, 0]
        every = (c_uint32 * 10)()
        call("hipExtStreamGetCUMask", None, 10, every)
        assert sum(word.bit_count() for word in every) == 304

    def test_events_of_other_processes_need_their_flags(self):
        handle, event = (ctypes.c_char * 64)(), made("hipEventCreate")
        with pytest.raises(HipError, match="hipEventInterprocess and hipEventDisableTiming"):
            call("hipIpcGetEventHandle", handle, event)
        call("hipIpcGetEventHandle", handle, made("hipEventCreateWithFlags", 6))

    def test_several_launches_in_one_call(self, pointer):
        program = library(KERNELS)
        program.stub_of_twice.restype = c_void_p

        class Launch(ctypes.Structure):
            _fields_ = [("stub", c_void_p), ("grid", c_uint32 * 3), ("block", c_uint32 * 3), ("params", c_void_p),
                        ("lds", c_size_t), ("stream", c_void_p)]

        values = [c_void_p(pointer.value), c_int(64)]
        params = (c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        one = Launch(program.stub_of_twice(), (1, 1, 1), (64, 1, 1), ctypes.addressof(params), 0, None)
        call("hipMemsetD32", pointer, 3, c_size_t(64))
        for name in ("hipExtLaunchMultiKernelMultiDevice", "hipLaunchCooperativeKernelMultiDevice"):
            call(name, (Launch * 2)(one, one), 2, 0)
        assert np.frombuffer(content(pointer, 256), np.int32).tolist() == [48] * 64
        left = number("hipOccupancyAvailableDynamicSMemPerBlock", c_size_t, c_void_p(one.stub), 4, 64)
        assert left == 16384
        with pytest.raises(HipError, match="does not hold so many workgroups"):
            number("hipOccupancyAvailableDynamicSMemPerBlock", c_size_t, c_void_p(one.stub), 64, 1024)
        name = runtime()._library.hipKernelNameRefByPtr
        name.restype, name.argtypes = ctypes.c_char_p, (c_void_p, c_void_p)
        assert name(one.stub, None) == b"twice"

    def test_functions_of_a_module(self):
        image = code_object(KERNELS)
        module = made("hipModuleLoadFatBinary", ctypes.c_char_p(image))
        assert number("hipModuleGetFunctionCount", c_uint32, module) == 2
        call("hipModuleUnload", module)
